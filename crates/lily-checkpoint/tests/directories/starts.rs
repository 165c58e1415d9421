//! Checkpoints judged by the starts of their files.

use lily_checkpoint::{Checkpoint, CheckpointError, FileStart, header_bytes};

use crate::support::{Model, SINGLE};

/// The files of a usual model, of weights no more than the header.
fn starts() -> (Checkpoint, Vec<FileStart>) {
    let (model, dir) = (Model::usual(), tempfile::tempdir().unwrap());
    model.write(dir.path());
    let files = std::fs::read_dir(dir.path()).unwrap().map(|entry| {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let mut start = std::fs::read(entry.path()).unwrap();
        let len = start.len() as u64;
        if name == SINGLE {
            let header = header_bytes(&name, &start[..8], len).unwrap();
            start.truncate(header as usize);
        }
        FileStart { name, start, len }
    });
    let files = files.collect();
    (Checkpoint::open(dir.path()).unwrap(), files)
}

fn weights(files: &mut [FileStart]) -> &mut FileStart {
    files.iter_mut().find(|file| file.name == SINGLE).unwrap()
}

#[test]
fn the_headers_tell_all_that_the_files_do() {
    let (opened, files) = starts();
    assert!(files.iter().any(|file| (file.start.len() as u64) < file.len));
    let judged = Checkpoint::from_starts(files).unwrap();
    assert_eq!(judged.config(), opened.config());
    assert_eq!(judged.manifest().weights(), opened.manifest().weights());
}

#[test]
fn a_start_that_is_too_short_is_an_error() {
    let (_, mut files) = starts();
    weights(&mut files).start.pop();
    let error = Checkpoint::from_starts(files).unwrap_err();
    assert!(matches!(&error, CheckpointError::Io { path, .. } if path == SINGLE), "{error}");
}

#[test]
fn a_file_of_another_length_than_its_header_says_is_refused() {
    for change in [-1_i64, 1] {
        let (_, mut files) = starts();
        let file = weights(&mut files);
        file.len = file.len.checked_add_signed(change).unwrap();
        let error = Checkpoint::from_starts(files).unwrap_err();
        assert!(error.to_string().contains(SINGLE), "{error}");
    }
}

#[test]
fn a_header_longer_than_its_file_or_the_format_allows_is_refused() {
    let first = |length: u64| header_bytes(SINGLE, &length.to_le_bytes(), 100);
    assert_eq!(first(92).unwrap(), 100);
    assert!(matches!(first(93), Err(CheckpointError::Truncated { expected: 101, found: 100, .. })));
    assert!(matches!(first(u64::MAX), Err(CheckpointError::HeaderTooLong { .. })));
    assert!(matches!(header_bytes(SINGLE, &[0; 7], 7), Err(CheckpointError::Truncated { .. })));
}
