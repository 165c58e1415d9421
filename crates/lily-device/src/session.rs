//! The buffers that sessions of one loaded model own, and which sequences belong to it.
//!
//! Plans name the same session memory alike. So a device keeps one table for all plans that it has
//! prepared, gives every sequence all of the table's buffers, and finds a plan's buffer by its index
//! there.

use std::any::Any;

use lily_plan::buffer::{Buffer, BufferClass};
use lily_plan::plan::Plan;

use crate::{DeviceError, Sequence};

/// A session buffer that some prepared plan names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionBuffer {
    /// Name, the same in every plan.
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
    /// KV cache or state; a reset has to clear the latter only, because rows of a cache are written
    /// before they are read.
    pub class: BufferClass,
}

/// Two plans give one name to different session buffers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "session buffer of two plans: {name}: expected {expected_bytes} bytes of {expected_class:?}, \
     found {found_bytes} of {found_class:?}"
)]
pub struct SessionError {
    /// The name.
    pub name: String,
    /// Size in bytes in the plans before.
    pub expected_bytes: u64,
    /// Class in the plans before.
    pub expected_class: BufferClass,
    /// Size in bytes in the plan that was added.
    pub found_bytes: u64,
    /// Class in the plan that was added.
    pub found_class: BufferClass,
}

/// The session buffers of all prepared plans, in the order in which they were first named: the index
/// of a buffer stays when plans are added.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionTable {
    buffers: Vec<SessionBuffer>,
}

impl SessionTable {
    /// This table with a plan's session buffers added.
    ///
    /// # Errors
    /// [`SessionError`] when the plan knows a buffer of the table with another size or class.
    pub fn with(&self, plan: &Plan) -> Result<SessionTable, SessionError> {
        let mut table = self.clone();
        for buffer in plan.buffers.iter().filter(|buffer| buffer.class.is_session()) {
            let (bytes, class) = (buffer.bytes(), buffer.class);
            let Some(known) = table.named(&buffer.name).map(|index| &table.buffers[index]) else {
                table.buffers.push(SessionBuffer { name: buffer.name.clone(), bytes, class });
                continue;
            };
            if (known.bytes, known.class) != (bytes, class) {
                return Err(SessionError {
                    name: buffer.name.clone(),
                    expected_bytes: known.bytes,
                    expected_class: known.class,
                    found_bytes: bytes,
                    found_class: class,
                });
            }
        }
        Ok(table)
    }

    /// The buffers, by index.
    pub fn buffers(&self) -> &[SessionBuffer] {
        &self.buffers
    }

    /// Index of a plan's buffer; `None` where no session owns it.
    ///
    /// # Panics
    /// When the buffer is a session's and its plan was not added.
    pub fn index_of(&self, buffer: &Buffer) -> Option<usize> {
        let index = || self.named(&buffer.name).expect("the table has the plan's buffers");
        buffer.class.is_session().then(index)
    }

    fn named(&self, name: &str) -> Option<usize> {
        self.buffers.iter().position(|buffer| buffer.name == name)
    }
}

/// The sequence as a device's own type, if it is one of those `made_for` the device's plans.
///
/// # Errors
/// [`DeviceError::Lost`] at the start, in the name of `device` (its kind).
pub fn own_sequence<'s, S: Sequence + Any>(
    sequence: &'s mut dyn Sequence,
    device: &'static str,
    made_for: impl FnOnce(&S) -> bool,
) -> Result<&'s mut S, DeviceError> {
    let own = sequence.as_any_mut().downcast_mut::<S>();
    own.filter(|own| made_for(own)).ok_or_else(|| DeviceError::Lost {
        device,
        step: "start".to_owned(),
        message: "the sequence was not made for the plans of this model".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lily_plan::buffer::Elem;
    use lily_plan::plan::{Phase, PlanBuilder, Ports};

    const CACHE: BufferClass = BufferClass::KvCache;
    const STATE: BufferClass = BufferClass::State;

    fn plan(buffers: &[(&str, u64, BufferClass)]) -> Plan {
        let mut builder = PlanBuilder::new();
        let mut ids = Vec::new();
        for (name, len, class) in buffers {
            ids.push(builder.buffer(*name, Elem::F32, *len, *class).buffer);
        }
        let ports = Ports { control: ids[0], tokens: ids[0], logits: ids[0] };
        builder.finish(Phase::Decode, 1, 16, ports)
    }

    #[test]
    fn plans_share_buffers_by_name_and_their_indices_stay() {
        let first = plan(&[("k", 100, CACHE), ("x", 9, BufferClass::Scratch), ("s", 3, STATE)]);
        let second = plan(&[("s", 3, STATE), ("s2", 65, STATE), ("k", 100, CACHE)]);
        let before = SessionTable::default().with(&first).expect("one plan");
        let table = before.with(&second).expect("they agree");
        let buffer =
            |name: &str, bytes, class| SessionBuffer { name: name.to_owned(), bytes, class };
        let (k, s) = (buffer("k", 400, CACHE), buffer("s", 12, STATE));
        assert_eq!(table.buffers(), [k, s, buffer("s2", 260, STATE)]);
        let indices = |table: &SessionTable, plan: &Plan| -> Vec<Option<usize>> {
            plan.buffers.iter().map(|buffer| table.index_of(buffer)).collect()
        };
        assert_eq!(indices(&before, &first), [Some(0), None, Some(1)]);
        assert_eq!(indices(&table, &first), [Some(0), None, Some(1)]);
        assert_eq!(indices(&table, &second), [Some(1), Some(2), Some(0)]);
        assert_eq!(table.with(&first).as_ref(), Ok(&table), "nothing new");
    }

    #[test]
    fn scratch_named_like_a_session_buffer_is_not_the_sessions() {
        let table = SessionTable::default().with(&plan(&[("k", 100, CACHE)])).expect("one plan");
        let scratch = plan(&[("k", 7, BufferClass::Scratch)]);
        assert_eq!(table.with(&scratch).as_ref(), Ok(&table));
        assert_eq!(table.index_of(&scratch.buffers[0]), None);
    }

    #[test]
    fn two_plans_that_disagree_on_a_buffer_are_refused_with_both() {
        let table = SessionTable::default().with(&plan(&[("k", 100, CACHE)])).expect("one plan");
        let longer = table.with(&plan(&[("k", 200, CACHE)])).expect_err("another size");
        assert_eq!(
            longer.to_string(),
            "session buffer of two plans: k: expected 400 bytes of KvCache, found 800 of KvCache"
        );
        let other = table.with(&plan(&[("k", 100, STATE)])).expect_err("another class");
        assert_eq!((other.expected_class, other.found_class), (CACHE, STATE));
    }

    #[test]
    #[should_panic(expected = "the table has the plan's buffers")]
    fn a_session_buffer_of_an_unknown_plan_has_no_index() {
        let _ = SessionTable::default().index_of(&plan(&[("k", 100, CACHE)]).buffers[0]);
    }

    struct Mine(u32);
    struct Foreign;

    impl Sequence for Mine {
        fn reset(&mut self) {}
        fn bytes(&self) -> u64 {
            0
        }
        fn as_any_mut(&mut self) -> &mut dyn Any {
            self
        }
    }

    impl Sequence for Foreign {
        fn reset(&mut self) {}
        fn bytes(&self) -> u64 {
            0
        }
        fn as_any_mut(&mut self) -> &mut dyn Any {
            self
        }
    }

    #[test]
    fn a_sequence_of_another_device_or_of_other_plans_is_refused() {
        let mine = |sequence: &mut dyn Sequence| {
            own_sequence(sequence, "test", |own: &Mine| own.0 == 1).map(|own| own.0)
        };
        assert_eq!(mine(&mut Mine(1)).expect("my own"), 1);
        for sequence in [&mut Mine(2) as &mut dyn Sequence, &mut Foreign] {
            assert_eq!(
                mine(sequence).expect_err("not mine").to_string(),
                "the test device failed at step start: \
                 the sequence was not made for the plans of this model"
            );
        }
    }
}
