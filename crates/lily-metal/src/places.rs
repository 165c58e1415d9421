//! Where a plan's buffers lie.

use lily_device::session::SessionTable;
use lily_plan::buffer::{Buffer, BufferClass};
use lily_plan::plan::Plan;
use lily_plan::valid::{Placement, ValidPlan};

/// Where one buffer of a plan lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Bytes from the start of the scratch memory that all plans share.
    Scratch(u64),
    /// Bytes from the start of the plan's inputs and outputs.
    Port(u64),
    /// Index into the session table.
    Session(usize),
    /// Nowhere: no step touches it.
    Unused,
}

/// The places of a plan's buffers, by buffer index, and the bytes of its inputs and outputs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Places {
    pub(crate) buffers: Vec<Place>,
    pub(crate) port_bytes: u64,
}

impl Places {
    /// Places for a plan whose session buffers are in the table.
    ///
    /// # Panics
    /// When the table lacks one of them.
    pub(crate) fn of(plan: &ValidPlan, session: &SessionTable) -> Places {
        let mut port_bytes = 0;
        let place = |(buffer, placement): (&Buffer, &Option<Placement>)| {
            if let Some(index) = session.index_of(buffer) {
                return Place::Session(index);
            }
            match placement {
                Some(placement) => Place::Scratch(placement.offset),
                None if buffer.class == BufferClass::Scratch => Place::Unused,
                None => {
                    let offset = port_bytes;
                    port_bytes += buffer.bytes().next_multiple_of(crate::arena::ALIGN);
                    Place::Port(offset)
                }
            }
        };
        let buffers = plan.plan().buffers.iter().zip(plan.placements()).map(place).collect();
        Places { buffers, port_bytes }
    }

    /// Places for running one step alone, where no two buffers share memory.
    pub(crate) fn apart(plan: &Plan) -> Places {
        let mut port_bytes = 0;
        let place = |buffer: &Buffer| {
            let offset = port_bytes;
            port_bytes += buffer.bytes().next_multiple_of(crate::arena::ALIGN);
            Place::Port(offset)
        };
        let buffers = plan.buffers.iter().map(place).collect();
        Places { buffers, port_bytes }
    }
}

#[cfg(test)]
mod tests {
    use lily_plan::plan::Phase;

    use super::*;
    use crate::encoding::testing;

    #[test]
    fn plans_name_their_session_buffers_alike_and_own_their_ports() {
        let (decode, prefill) = (testing::plan(Phase::Decode, 1), testing::plan(Phase::Prefill, 8));
        let table = SessionTable::default().with(decode.plan()).unwrap();
        assert_eq!(table.with(prefill.plan()).as_ref(), Ok(&table));
        assert!(!table.buffers().is_empty());
        for plan in [&decode, &prefill] {
            let places = Places::of(plan, &table);
            let mut ports = Vec::new();
            for (buffer, place) in plan.plan().buffers.iter().zip(&places.buffers) {
                match *place {
                    Place::Session(index) => assert_eq!(table.buffers()[index].name, buffer.name),
                    Place::Port(offset) => ports.push(offset..offset + buffer.bytes()),
                    Place::Scratch(offset) => {
                        assert!(offset + buffer.bytes() <= plan.arena_bytes());
                    }
                    Place::Unused => assert_eq!(buffer.class, BufferClass::Scratch),
                }
            }
            ports.sort_by_key(|bytes| bytes.start);
            assert!(ports.windows(2).all(|pair| pair[0].end <= pair[1].start));
            assert!(ports.last().is_some_and(|last| last.end <= places.port_bytes));
        }
    }

    #[test]
    fn a_step_alone_shares_no_memory() {
        let plan = testing::plan(Phase::Prefill, 8);
        let places = Places::apart(plan.plan());
        let mut end = 0;
        for (buffer, place) in plan.plan().buffers.iter().zip(&places.buffers) {
            let Place::Port(offset) = *place else { panic!("{} is elsewhere", buffer.name) };
            assert!(offset >= end && offset % crate::arena::ALIGN == 0);
            end = offset + buffer.bytes();
        }
        assert!(end <= places.port_bytes);
    }
}
