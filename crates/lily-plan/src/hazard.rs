//! Hazards: which step must wait for which, by byte ranges.
//!
//! A buffer is cut into segments at the borders of the accesses seen so far; each segment knows its
//! last writer and the readers since. So the cost of an access is the number of segments it
//! touches, not the number of earlier steps.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::buffer::BufferId;

/// Why a step must wait for an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HazardKind {
    /// Read after write: it needs the value.
    Raw,
    /// Write after read: the earlier step still needs the old value.
    War,
    /// Write after write: the later value must remain.
    Waw,
    /// The two touch different buffers that share bytes of the scratch arena.
    Reuse,
}

/// One dependency: `to` may start only when `from` has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Hazard {
    /// Earlier step.
    pub from: usize,
    /// Later step.
    pub to: usize,
    /// Reason.
    pub kind: HazardKind,
    /// The buffer that `to` touches.
    pub buffer: BufferId,
}

/// A step and the buffer it touched a segment as.
type Touch = (usize, BufferId);

#[derive(Clone, Debug)]
struct Segment {
    end: u64,
    writer: Option<Touch>,
    readers: Vec<Touch>,
}

/// The access history of one stretch of memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tracker {
    segments: BTreeMap<u64, Segment>,
}

impl Tracker {
    /// Makes segment borders at both ends of the range and fills holes inside it.
    fn cut(&mut self, bytes: &Range<u64>) {
        for at in [bytes.start, bytes.end] {
            let Some((_, segment)) = self.segments.range_mut(..at).next_back() else { continue };
            if segment.end > at {
                let mut rest = segment.clone();
                rest.end = segment.end;
                segment.end = at;
                self.segments.insert(at, rest);
            }
        }
        let mut holes = Vec::new();
        let mut at = bytes.start;
        for (&start, segment) in self.segments.range(bytes.clone()) {
            if start > at {
                holes.push(at..start);
            }
            at = segment.end;
        }
        if at < bytes.end {
            holes.push(at..bytes.end);
        }
        for hole in holes {
            let segment = Segment { end: hole.end, writer: None, readers: Vec::new() };
            self.segments.insert(hole.start, segment);
        }
    }

    /// Records a read and reports the writers it must wait for.
    pub(crate) fn read(&mut self, touch: Touch, bytes: &Range<u64>, out: &mut Vec<Hazard>) {
        self.cut(bytes);
        for (_, segment) in self.segments.range_mut(bytes.clone()) {
            if let Some(writer) = segment.writer {
                report(writer, touch, HazardKind::Raw, out);
            }
            if !segment.readers.contains(&touch) {
                segment.readers.push(touch);
            }
        }
    }

    /// Records a write and reports the writers and readers it must wait for.
    pub(crate) fn write(&mut self, touch: Touch, bytes: &Range<u64>, out: &mut Vec<Hazard>) {
        self.cut(bytes);
        for (_, segment) in self.segments.range_mut(bytes.clone()) {
            if let Some(writer) = segment.writer.replace(touch) {
                report(writer, touch, HazardKind::Waw, out);
            }
            for reader in segment.readers.drain(..) {
                report(reader, touch, HazardKind::War, out);
            }
        }
        self.merge(touch, bytes);
    }

    /// One segment for the whole range again, so that the history stays short.
    fn merge(&mut self, touch: Touch, bytes: &Range<u64>) {
        let starts: Vec<u64> = self.segments.range(bytes.clone()).map(|(&s, _)| s).collect();
        for start in starts {
            self.segments.remove(&start);
        }
        let segment = Segment { end: bytes.end, writer: Some(touch), readers: Vec::new() };
        self.segments.insert(bytes.start, segment);
    }

    /// The first part of the range that no step has written.
    pub(crate) fn unwritten(&self, bytes: &Range<u64>) -> Option<Range<u64>> {
        let mut at = bytes.start;
        if let Some((_, segment)) = self.segments.range(..=at).next_back()
            && segment.end > at
            && segment.writer.is_some()
        {
            at = segment.end;
        }
        for (&start, segment) in self.segments.range(bytes.clone()) {
            if at >= bytes.end || start > at {
                break;
            }
            if segment.writer.is_some() {
                at = at.max(segment.end);
            }
        }
        (at < bytes.end).then(|| {
            let next = self.segments.range(at..bytes.end).find(|(_, s)| s.writer.is_some());
            at..next.map_or(bytes.end, |(&start, _)| start)
        })
    }
}

fn report(from: Touch, to: Touch, kind: HazardKind, out: &mut Vec<Hazard>) {
    if from.0 == to.0 {
        return;
    }
    let kind = if from.1 == to.1 { kind } else { HazardKind::Reuse };
    out.push(Hazard { from: from.0, to: to.0, kind, buffer: to.1 });
}
