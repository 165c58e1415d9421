//! The rules that one step has to keep, whatever the others do.

use std::collections::HashSet;

use crate::access::{Home, Operand, Signature, WeightUse};
use crate::buffer::{Buffer, BufferClass, Elem};
use crate::error::PlanError;
use crate::plan::{Phase, Plan};

/// Rows, capacity, buffers, names and ports.
pub(crate) fn plan(plan: &Plan) -> Result<(), PlanError> {
    let dimension = |dimension, expected, found| PlanError::Plan { dimension, expected, found };
    if plan.rows == 0 {
        return Err(dimension("rows", "at least 1", plan.rows));
    }
    if plan.capacity < plan.rows {
        return Err(dimension("capacity", "at least the plan's rows", plan.capacity));
    }
    for buffer in &plan.buffers {
        let bytes = buffer.len.checked_mul(buffer.elem.bytes());
        // 16 TiB each, so that offsets and sums over all buffers cannot overflow later.
        if buffer.len == 0 || bytes.is_none_or(|b| b > u64::MAX >> 20) {
            return Err(PlanError::BufferSize { buffer: buffer.name.clone(), len: buffer.len });
        }
    }
    distinct("buffers", plan.buffers.iter().map(|b| &b.name))?;
    distinct("weights", plan.weights.iter().map(|w| &w.name))?;
    distinct("steps", plan.steps.iter().map(|s| &s.name))?;
    ports(plan)
}

fn distinct<'a>(
    what: &'static str,
    names: impl Iterator<Item = &'a String>,
) -> Result<(), PlanError> {
    let mut seen = HashSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(PlanError::DuplicateName { what, name: name.clone() });
        }
    }
    Ok(())
}

fn ports(plan: &Plan) -> Result<(), PlanError> {
    let rows = plan.rows as u64;
    let check = |port,
                 id: crate::buffer::BufferId,
                 class,
                 elem,
                 expected: &str,
                 fits: &dyn Fn(u64) -> bool| {
        let found = plan.buffers.get(id.0 as usize);
        if found.is_some_and(|b| b.class == class && b.elem == elem && fits(b.len)) {
            return Ok(());
        }
        let expected = format!("{class:?} {elem:?}[{expected}]");
        let found = found.map_or("no buffer".to_owned(), describe);
        Err(PlanError::Port { port, expected, found })
    };
    let (input, output) = (BufferClass::Input, BufferClass::Output);
    check("control", plan.ports.control, input, Elem::U32, "2", &|len| len == 2)?;
    check("tokens", plan.ports.tokens, input, Elem::U32, &rows.to_string(), &|len| len == rows)?;
    match plan.phase {
        Phase::Prefill | Phase::Decode => {
            check("logits", plan.ports.logits, output, Elem::F32, "vocab", &|_| true)
        }
        Phase::Score => {
            let expected = format!("{rows} * vocab");
            let fits = |len: u64| len.is_multiple_of(rows);
            check("logits", plan.ports.logits, output, Elem::F32, &expected, &fits)
        }
    }
}

fn describe(buffer: &Buffer) -> String {
    format!("{:?} {:?}[{}] {}", buffer.class, buffer.elem, buffer.len, buffer.name)
}

/// Dimensions, operands, weights and aliasing of one step.
pub(crate) fn step(plan: &Plan, name: &str, signature: &Signature<'_>) -> Result<(), PlanError> {
    dimensions(plan, name, signature)?;
    for used in &signature.weights {
        weight(plan, name, used)?;
    }
    for operand in &signature.operands {
        place(plan, name, operand)?;
        size(plan, name, operand)?;
    }
    aliases(name, signature)
}

fn dimensions(plan: &Plan, step: &str, signature: &Signature<'_>) -> Result<(), PlanError> {
    let error = |dimension, expected: &str, found| {
        let expected = expected.to_owned();
        Err(PlanError::Dimension { step: step.to_owned(), dimension, expected, found })
    };
    for rule in &signature.rules {
        if !rule.holds {
            return error(rule.dimension, rule.expected, rule.found);
        }
    }
    for &(dimension, found) in &signature.dims {
        if found == 0 {
            return error(dimension, "at least 1", found);
        }
        if dimension == "capacity" && found != plan.capacity {
            return error(dimension, &format!("the plan's capacity {}", plan.capacity), found);
        }
    }
    if signature.rows != plan.rows && signature.rows != 1 {
        return error("rows", &format!("the plan's rows {} or 1", plan.rows), signature.rows);
    }
    Ok(())
}

fn weight(plan: &Plan, step: &str, used: &WeightUse) -> Result<(), PlanError> {
    let (step, operand) = (step.to_owned(), used.name);
    let Some(decl) = plan.weights.get(used.id.0 as usize) else {
        let (index, n_weights) = (used.id.0, plan.weights.len());
        return Err(PlanError::UnknownWeight { step, operand, index, n_weights });
    };
    let rows = used.rows.unwrap_or(decl.rows);
    let fits = (decl.n_experts, decl.rows, decl.cols) == (used.n_experts, rows, used.cols);
    if fits && decl.rows > 0 {
        return Ok(());
    }
    let shape = |experts, rows: &dyn std::fmt::Display, cols| match experts {
        1 => format!("[{rows}, {cols}]"),
        _ => format!("{experts} x [{rows}, {cols}]"),
    };
    let expected = match used.rows {
        Some(rows) => shape(used.n_experts, &rows, used.cols),
        None => shape(used.n_experts, &"at least 1", used.cols),
    };
    let found = shape(decl.n_experts, &decl.rows, decl.cols);
    Err(PlanError::WeightShape { step, operand, weight: decl.name.clone(), expected, found })
}

/// Whether the operand lies inside a buffer that may hold it.
fn place(plan: &Plan, step: &str, operand: &Operand<'_>) -> Result<(), PlanError> {
    let (step, name) = (step.to_owned(), operand.name);
    let region = operand.region;
    let Some(buffer) = plan.buffers.get(region.buffer.0 as usize) else {
        let (index, n_buffers) = (region.buffer.0, plan.buffers.len());
        return Err(PlanError::UnknownBuffer { step, operand: name, index, n_buffers });
    };
    let bytes = region.bytes.clone();
    if bytes.start >= bytes.end || bytes.end > buffer.bytes() {
        let (buffer, size) = (buffer.name.clone(), buffer.bytes());
        return Err(PlanError::OutOfBounds { step, operand: name, buffer, bytes, size });
    }
    let home = match operand.home {
        Home::Any => None,
        Home::Class(class) => (buffer.class != class).then(|| format!("a {class:?} buffer")),
        Home::Control => {
            (region.buffer != plan.ports.control).then(|| "the control block".to_owned())
        }
        Home::Tokens => (region.buffer != plan.ports.tokens).then(|| "the token input".to_owned()),
    };
    if let Some(expected) = home {
        let found = buffer.class;
        let buffer = buffer.name.clone();
        return Err(PlanError::Home { step, operand: name, buffer, expected, found });
    }
    let drives = matches!(operand.home, Home::Control | Home::Tokens);
    if operand.access.writes() && buffer.class == BufferClass::Input && !drives {
        let buffer = buffer.name.clone();
        return Err(PlanError::WriteToInput { step, operand: name, buffer });
    }
    Ok(())
}

/// Whether the operand has the type and length that the dimensions ask for.
fn size(plan: &Plan, step: &str, operand: &Operand<'_>) -> Result<(), PlanError> {
    let (step, name) = (step.to_owned(), operand.name);
    let bytes = &operand.region.bytes;
    let buffer = plan.buffer(operand.region.buffer);
    if !operand.elems.contains(&buffer.elem) {
        let (expected, found) = (operand.elems, buffer.elem);
        let buffer = buffer.name.clone();
        return Err(PlanError::ElementType { step, operand: name, buffer, expected, found });
    }
    let elem = buffer.elem.bytes();
    if !bytes.start.is_multiple_of(elem) {
        let (buffer, start) = (buffer.name.clone(), bytes.start);
        return Err(PlanError::Misaligned { step, operand: name, buffer, start, expected: elem });
    }
    let Some(expected) = operand.len.and_then(|len| len.checked_mul(elem)) else {
        return Err(PlanError::Overflow { step, operand: name });
    };
    let found = bytes.end - bytes.start;
    if found != expected {
        return Err(PlanError::Length { step, operand: name, expected, found });
    }
    Ok(())
}

/// Refuses an operation that writes over another of its own operands, unless it says it may.
fn aliases(step: &str, signature: &Signature<'_>) -> Result<(), PlanError> {
    for (i, written) in signature.operands.iter().enumerate() {
        if !written.access.writes() {
            continue;
        }
        for (j, other) in signature.operands.iter().enumerate() {
            let in_place = other.in_place && other.region == written.region;
            if i == j || in_place || !written.region.overlaps(other.region) {
                continue;
            }
            let (written, operand) = (written.name, other.name);
            return Err(PlanError::Alias { step: step.to_owned(), written, operand });
        }
    }
    Ok(())
}
