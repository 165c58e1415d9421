//! Weights that the GPU uses where their `.lily` file is mapped.
//!
//! Every weight of such a file starts on a page of its own, so that stretches of the file become
//! buffers as they are. Nothing is copied; what is not in memory yet is read before the GPU asks for
//! it, because its page faults are slow and count as work of the command that meets them.

use std::hint::black_box;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use lily_checkpoint::pack::ALIGN;
use lily_checkpoint::{Checkpoint, Mapping};
use lily_device::Progress;

use crate::arena::{Arenas, Slot};
use crate::weights::readers;

/// Bytes that a reader touches at once.
const CHUNK: usize = 16 << 20;

/// Stretches of a mapped file, and where each weight lies in them.
#[derive(Debug)]
pub(crate) struct Mapped {
    pub(crate) mapping: Arc<Mapping>,
    /// Bytes of the file, one range per buffer: whole pages.
    pub(crate) spans: Vec<Range<usize>>,
    /// In the order of the manifest.
    pub(crate) layout: Arenas,
}

impl Mapped {
    /// The weights of a `.lily` file in buffers of at most `cap` bytes (or one weight). `None` for
    /// other checkpoints, and for a file that ends inside a page.
    pub(crate) fn of(checkpoint: &Checkpoint, cap: u64) -> Option<Mapped> {
        let places = checkpoint.manifest().weights().iter().map(|w| checkpoint.mapped(&w.name));
        let places: Vec<_> = places.collect::<Option<_>>()?;
        let (mapping, _) = places.first()?;
        let mapping = Arc::clone(mapping);
        let ranges = places.into_iter().map(|(_, range)| range);
        let (spans, slots) = spans(ranges, cap);
        if spans.iter().any(|span| span.end > mapping.bytes().len()) {
            return None;
        }
        let buffers = spans.iter().map(|span| span.len() as u64).collect();
        Some(Mapped { mapping, spans, layout: Arenas { slots, buffers } })
    }

    /// Brings all bytes into memory, on several threads.
    pub(crate) fn touch(&self, total: u64, progress: &dyn Progress) {
        let chunks: Vec<&[u8]> = self
            .spans
            .iter()
            .flat_map(|span| self.mapping.bytes()[span.clone()].chunks(CHUNK))
            .collect();
        let (next, done) = (AtomicUsize::new(0), AtomicU64::new(0));
        let work = || {
            while let Some(chunk) = chunks.get(next.fetch_add(1, Ordering::Relaxed)) {
                // One byte brings its page.
                chunk.iter().step_by(ALIGN as usize).for_each(|byte| {
                    let _ = black_box(*byte);
                });
                let read = chunk.len() as u64;
                let now = done.fetch_add(read, Ordering::Relaxed) + read;
                progress.advance(now.min(total), total);
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..readers() {
                scope.spawn(work);
            }
        });
        progress.advance(total, total);
    }
}

/// Groups ranges that follow each other, and says where each lies.
fn spans(ranges: impl Iterator<Item = Range<usize>>, cap: u64) -> (Vec<Range<usize>>, Vec<Slot>) {
    let (mut spans, mut slots): (Vec<Range<usize>>, Vec<Slot>) = (Vec::new(), Vec::new());
    for range in ranges {
        let end = range.end.next_multiple_of(ALIGN as usize);
        let extends =
            |span: &&mut Range<usize>| span.end <= range.start && (end - span.start) as u64 <= cap;
        let start = match spans.last_mut().filter(extends) {
            Some(span) => {
                span.end = end;
                span.start
            }
            None => {
                spans.push(range.start..end);
                range.start
            }
        };
        let (offset, bytes) = ((range.start - start) as u64, range.len() as u64);
        slots.push(Slot { buffer: spans.len() - 1, offset, bytes });
    }
    (spans, slots)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Mutex;

    use lily_checkpoint::pack::write_pack;

    use super::*;

    const PAGE: usize = ALIGN as usize;

    fn demo() -> Checkpoint {
        let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo/checkpoint");
        Checkpoint::open(&demo).unwrap()
    }

    #[test]
    fn every_weight_of_a_pack_is_used_where_it_lies() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("demo.lily");
        write_pack(&demo(), &file, &mut |_, _| ()).unwrap();
        let pack = Checkpoint::open(&file).unwrap();
        for cap in [1, 1 << 20, 1 << 40] {
            let mapped = Mapped::of(&pack, cap).unwrap();
            for (info, slot) in pack.manifest().weights().iter().zip(&mapped.layout.slots) {
                let (_, range) = pack.mapped(&info.name).unwrap();
                let span = &mapped.spans[slot.buffer];
                assert_eq!(span.start + slot.offset as usize, range.start, "{}", info.name);
                assert_eq!(slot.bytes as usize, range.len());
                assert!(range.end <= span.end);
            }
            for span in &mapped.spans {
                assert_eq!((span.start % PAGE, span.end % PAGE), (0, 0));
            }
            assert!(cap > 1 << 30 || mapped.spans.len() > 3);
        }
    }

    #[test]
    fn a_directory_is_not_mapped() {
        assert!(Mapped::of(&demo(), 1 << 30).is_none());
    }

    #[test]
    fn a_file_that_ends_inside_a_page_is_copied_instead() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("demo.lily");
        write_pack(&demo(), &path, &mut |_, _| ()).unwrap();
        let pack = Checkpoint::open(&path).unwrap();
        let last = pack.manifest().weights().iter().map(|w| pack.mapped(&w.name).unwrap().1.end);
        let end = last.max().unwrap();
        drop(pack);
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(end as u64).unwrap();
        let pack = Checkpoint::open(&path).unwrap();
        assert_eq!(Mapped::of(&pack, 1 << 30).is_none(), !end.is_multiple_of(PAGE));
    }

    #[test]
    fn ranges_out_of_order_get_buffers_of_their_own() {
        let ranges = [4 * PAGE..5 * PAGE, 0..10, PAGE..PAGE + 1, 2 * PAGE..4 * PAGE];
        let (spans, slots) = spans(ranges.into_iter(), 2 * ALIGN);
        assert_eq!(spans, [4 * PAGE..5 * PAGE, 0..2 * PAGE, 2 * PAGE..4 * PAGE]);
        let places: Vec<_> = slots.iter().map(|s| (s.buffer, s.offset as usize)).collect();
        assert_eq!(places, [(0, 0), (1, 0), (1, PAGE), (2, 0)]);
    }

    #[test]
    fn touching_ends_at_the_whole() {
        struct Last(Mutex<(u64, u64)>);
        impl Progress for Last {
            fn advance(&self, done: u64, total: u64) {
                assert!(done <= total);
                let mut last = self.0.lock().unwrap();
                last.0 = last.0.max(done);
                last.1 = total;
            }
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("demo.lily");
        write_pack(&demo(), &path, &mut |_, _| ()).unwrap();
        let last = Last(Mutex::default());
        Mapped::of(&Checkpoint::open(&path).unwrap(), 1 << 20).unwrap().touch(1000, &last);
        assert_eq!(*last.0.lock().unwrap(), (1000, 1000));
    }
}
