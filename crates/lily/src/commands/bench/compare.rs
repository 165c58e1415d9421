//! Taking turns with another engine.
//!
//! Whoever is not measured is idle: the peer waits for a request or is not there, and lily's threads
//! are parked.

use anyhow::{Context, Result};
use lily_engine::{Engine, Session};

use super::contract::{self, Measured, Shape, Timed};
use super::machine::{self, Machine};
use super::peers::{self, Peer};
use super::report::{Report, Row, Settings};
use super::{fits, html, peak_memory, write};
use crate::args::{BenchArgs, PeerKind};
use crate::commands::counted;
use crate::commands::output::{print, print_pretty};
use crate::device::describe;
use crate::failure::usage;
use crate::model::{self, Needs, Opened};

/// The lengths of the published table.
const LENGTHS: [usize; 10] = [256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072];

pub(super) fn run(args: &BenchArgs, kind: PeerKind) -> Result<()> {
    peers::check(args, kind)?;
    let mut opened =
        model::open_all(&args.model, &args.engine, Needs::Ids, |options, _| Ok(options))?;
    let mut notes = Vec::new();
    if kind == PeerKind::LlamaCpp && args.model.dir().is_none() {
        notes.push(
            "without --model-path lily runs its small demo model: a ratio means nothing unless the \
             other engine does too"
                .to_owned(),
        );
    }
    let shapes = shapes(args, &opened, &mut notes)?;
    let longest = shapes.iter().map(|shape| shape.context()).max().context("--lengths is empty")?;
    opened.options.context = opened.options.context.or(Some(longest));

    let peer = peers::open(args, kind, opened.config().vocab_size, &opened.device())?;
    let apart = !both_fit(&opened, longest, peer.weights())?;
    if apart {
        notes.push(
            "memory does not hold both models at once: each is loaded anew for its turn".to_owned(),
        );
    }
    notes.iter().for_each(|note| eprintln!("note: {note}"));

    let lily = Lily { opened: &opened, loaded: None };
    let mut turns = Turns { lily, peer, apart, lily_warm: None, peer_warm: None };
    let rows = shapes
        .iter()
        .map(|&shape| {
            let row = turns.take(shape, args.rounds)?;
            eprintln!("{}", progress(&row, turns.peer.facts().name));
            Ok(row)
        })
        .collect::<Result<Vec<_>>>()?;
    let facts = turns.peer.facts();
    notes.push(facts.remark.to_owned());
    let report = Report {
        model: opened.name.clone(),
        version: env!("CARGO_PKG_VERSION"),
        device: describe(&opened.device()),
        machine: Machine::this(),
        date: machine::now(),
        settings: Settings::of(args, &opened.device()),
        peer: Some(facts),
        notes,
        rows,
        peak_memory: peak_memory(),
    };
    if args.json {
        print_pretty(&report.json())?;
    } else {
        print(&report.table())?;
    }
    match &args.html {
        Some(file) => write(file, &html::page(&report)),
        None => Ok(()),
    }
}

/// What is to be measured: the lengths that were asked for, or those of the published table that the
/// model and the memory hold.
fn shapes(args: &BenchArgs, opened: &Opened, notes: &mut Vec<String>) -> Result<Vec<Shape>> {
    let shape = |length: &usize| Shape { length: *length, steps: args.steps };
    let (asked, most) = (opened.options.context, opened.config().max_position_embeddings);
    if let Some(lengths) = &args.lengths {
        let shapes: Vec<_> = lengths.iter().map(shape).collect();
        shapes.iter().try_for_each(|&shape| fits(shape, asked, most))?;
        return Ok(shapes);
    }
    let mut limit =
        (asked.unwrap_or(most), if asked.is_some() { "the context" } else { "the model" });
    if let Some(available) = opened.memory_limit() {
        let longest = LENGTHS.iter().map(|length| shape(length).context()).max().unwrap_or(1);
        let memory = opened.memory(longest.min(limit.0))?;
        let fitting = memory.max_context_for(available).unwrap_or(0);
        if fitting < limit.0 {
            limit = (fitting, "memory");
        }
    }
    let (within, beyond): (Vec<_>, Vec<_>) =
        LENGTHS.iter().map(shape).partition(|shape| shape.context() <= limit.0);
    let (held, holder) = limit;
    let steps = counted(args.steps as u64, "step");
    if within.is_empty() {
        return Err(usage(format!(
            "the shortest length, {}, and {steps} do not fit: {holder} holds {held} tokens; \
             --lengths takes others",
            LENGTHS[0]
        )));
    }
    if !beyond.is_empty() {
        let lengths: Vec<_> = beyond.iter().map(|shape| shape.length.to_string()).collect();
        let lengths = lengths.join(", ");
        notes
            .push(format!("left out: {lengths}; {holder} holds {held} tokens, {steps} among them"));
    }
    Ok(within)
}

/// Whether both models can stay loaded. A peer is taken to need what lily needs beside the weights;
/// a machine that does not tell its memory is taken to have enough.
fn both_fit(opened: &Opened, context: usize, peer_weights: u64) -> Result<bool> {
    let Some(available) = opened.memory_limit() else { return Ok(true) };
    let lily = opened.memory(opened.options.context.unwrap_or(context))?;
    let peer = peer_weights.saturating_add(lily.total().saturating_sub(lily.weights));
    Ok(lily.total().saturating_add(peer) <= available)
}

/// lily's side.
struct Lily<'o> {
    opened: &'o Opened,
    loaded: Option<(Engine, Session)>,
}

impl Lily<'_> {
    fn measure(&mut self, shape: Shape) -> Result<Timed> {
        if self.loaded.is_none() {
            let engine = self.opened.engine()?;
            let session = engine.new_session()?;
            self.loaded = Some((engine, session));
        }
        let (_, session) = self.loaded.as_mut().context("the model was just loaded")?;
        let prompt = contract::prompt(shape.length, self.opened.config().vocab_size);
        contract::run(session, &prompt, shape.steps)
    }
}

/// Both sides.
struct Turns<'o> {
    lily: Lily<'o>,
    peer: Box<dyn Peer>,
    /// Only one of them may be loaded.
    apart: bool,
    /// The shape that each side has run since it was loaded.
    lily_warm: Option<Shape>,
    peer_warm: Option<Shape>,
}

impl Turns<'_> {
    /// All rounds of one shape.
    fn take(&mut self, shape: Shape, rounds: usize) -> Result<Row> {
        let (mut lily, mut peer) = (Measured::new(shape), Measured::new(shape));
        if !self.apart {
            self.warm_lily(&mut lily)?;
            self.warm_peer(&mut peer)?;
        }
        for round in 0..rounds {
            // Who goes first changes, so that neither always follows the other's heat.
            if round % 2 == 0 {
                self.lily_turn(&mut lily)?;
                self.peer_turn(&mut peer)?;
            } else {
                self.peer_turn(&mut peer)?;
                self.lily_turn(&mut lily)?;
            }
        }
        Ok(Row { lily, peer: Some(peer) })
    }

    fn lily_turn(&mut self, measured: &mut Measured) -> Result<()> {
        self.warm_lily(measured)?;
        measured.add("", self.lily.measure(measured.shape)?)
    }

    fn peer_turn(&mut self, measured: &mut Measured) -> Result<()> {
        self.warm_peer(measured)?;
        measured.add(&self.name(), self.peer.measure(measured.shape)?)
    }

    /// Has lily's model loaded, alone where it must be, and run the shape once.
    fn warm_lily(&mut self, measured: &mut Measured) -> Result<()> {
        if self.apart {
            self.peer.release();
            self.peer_warm = None;
        }
        if self.lily_warm != Some(measured.shape) {
            measured.warm_up("", self.lily.measure(measured.shape)?)?;
            self.lily_warm = Some(measured.shape);
        }
        Ok(())
    }

    /// As [`Turns::warm_lily`].
    fn warm_peer(&mut self, measured: &mut Measured) -> Result<()> {
        if self.apart {
            self.lily.loaded = None;
            self.lily_warm = None;
        }
        self.peer.load()?;
        if self.peer.needs_warm_up() && self.peer_warm != Some(measured.shape) {
            measured.warm_up(&self.name(), self.peer.measure(measured.shape)?)?;
            self.peer_warm = Some(measured.shape);
        }
        Ok(())
    }

    /// The peer at the head of a message.
    fn name(&self) -> String {
        format!("{}: ", self.peer.facts().name)
    }
}

/// A line for whoever waits.
fn progress(row: &Row, name: &str) -> String {
    let rates = |measured: &Measured| {
        format!("prefill {:.1}, decode {:.1}", measured.prefill_rate(), measured.decode_rate())
    };
    let peer = row.peer.as_ref().map(rates).unwrap_or_default();
    format!("{} tokens: lily {}; {name} {peer} tokens/s", row.length(), rates(&row.lily))
}
