//! Transfers from a server that plays the hub: whole, broken, resumed.

mod case;
mod common;

use std::fs;
use std::sync::Mutex;
use std::time::Duration;

use case::{Case, Notes, QUICK, WEIGHTS, files, settings};
use common::{Answer, COMMIT, Content, FakeHub, REPO, noise};
use lily_hub::{Cache, Event, Fetch, Fetched, Hub, HubError, RemoteFile, Watch};

#[test]
fn a_repository_is_fetched_once() {
    let case = Case::new();
    let fetched = case.fetch().unwrap();
    assert_eq!(fetched, Fetched { bytes: 300_700, files: 2 });
    case.assert_right(&files());
    assert_eq!(case.server.requests().len(), 3);
    assert!(case.server.requests().iter().all(|r| r.header("range").is_none()));
    // Again: nothing but the question what the revision stands for.
    case.server.forget_requests();
    assert_eq!(case.fetch().unwrap(), Fetched::default());
    let again = case.server.requests();
    assert!(again.len() == 1 && again[0].path.starts_with("/api/"), "{again:?}");
}

#[test]
fn blobs_that_another_revision_brought_are_not_fetched_again() {
    let case = Case::new();
    case.fetch().unwrap();
    fs::remove_dir_all(case.snapshot()).unwrap();
    case.server.forget_requests();
    case.fetch().unwrap();
    case.assert_right(&files());
    assert_eq!(case.server.requests().len(), 1);
}

#[test]
fn a_resumed_transfer_asks_for_the_missing_bytes_alone() {
    let case = Case::new();
    case.leave(&files()[1].bytes[..123_457]);
    let fetched = case.fetch().unwrap();
    case.assert_right(&files());
    assert_eq!(fetched.bytes, 700 + 300_000 - 123_457);
    let ranges: Vec<_> = case.server.requests_for(WEIGHTS).iter().map(|r| r.range()).collect();
    assert_eq!(ranges, [Some((123_457, None))]);
}

#[test]
fn what_was_whole_but_unnamed_needs_no_request() {
    let case = Case::new();
    case.leave(&files()[1].bytes);
    case.fetch().unwrap();
    case.assert_right(&files());
    assert!(case.server.requests_for(WEIGHTS).is_empty());
}

#[test]
fn leftovers_that_are_wrong_or_too_long_are_thrown_away() {
    for leftover in [noise(200_000, 9), noise(300_000, 9), noise(300_001, 9)] {
        let case = Case::new();
        case.leave(&leftover);
        case.fetch().unwrap();
        case.assert_right(&files());
    }
}

#[test]
fn a_cut_connection_goes_on_where_it_was_cut() {
    let case = Case::new();
    case.server.script(WEIGHTS, vec![|a| a.cut(100_000), |a| a.cut(0), |a| a.cut(50_000)]);
    let notes = Notes::default();
    let fetched = case.fetch_with(&notes).unwrap();
    case.assert_right(&files());
    assert_eq!(fetched.bytes, 300_700);
    let asked: Vec<_> = case.server.requests_for(WEIGHTS).iter().map(|r| r.range()).collect();
    let from = |first| Some((first, None));
    assert_eq!(asked, [None, from(100_000), from(100_000), from(150_000)]);
    assert_eq!(notes.reasons().len(), 3);
}

#[test]
fn a_server_that_ignores_ranges_is_asked_from_the_start_and_not_for_ever() {
    let whole = |answer: Answer| Answer {
        status: 200,
        body: files()[1].bytes.clone(),
        headers: vec![("etag".into(), format!("\"{}\"", files()[1].tag()))],
        ..answer
    };
    let case = Case::new();
    case.leave(&files()[1].bytes[..1000]);
    case.server.twist(move |r, _, a| if r.is_for(WEIGHTS) { whole(a) } else { a });
    assert_eq!(case.fetch().unwrap().bytes, 300_700);
    case.assert_right(&files());
    // The same, always cut at the same byte: nothing is gained.
    let case = Case::new();
    case.server.twist(move |r, _, a| if r.is_for(WEIGHTS) { whole(a).cut(90_000) } else { a });
    let error = case.fetch().unwrap_err();
    assert!(matches!(error, HubError::Network { .. } | HubError::Short { .. }), "{error}");
    assert_eq!(case.server.requests_for(WEIGHTS).len(), QUICK.failures as usize);
}

#[test]
fn answers_for_other_bytes_than_asked_are_not_believed() {
    let lies: [fn(Answer) -> Answer; 4] = [
        |a| a.with("content-range", "bytes 5-299999/300000"),
        |a| a.with("content-range", "nonsense"),
        |a| Answer { status: 416, body: Vec::new(), ..a },
        |a| a.with("content-range", "bytes 1000-299999/300001"),
    ];
    for lie in lies {
        let case = Case::new();
        case.leave(&files()[1].bytes[..1000]);
        case.server.script(WEIGHTS, vec![lie]);
        case.fetch().unwrap();
        case.assert_right(&files());
    }
}

#[test]
fn a_body_of_another_length_is_an_error_in_the_end() {
    let twists: [fn(Answer) -> Answer; 2] = [
        |a| Answer { body: [a.body, b"more".to_vec()].concat(), unmeasured: true, ..a },
        |a| Answer::new(200, "<html>please log in</html>").with("etag", &a.headers[0].1),
    ];
    for twist in twists {
        let case = Case::new();
        case.server.script(WEIGHTS, vec![twist]);
        case.fetch().unwrap();
        case.assert_right(&files());
        let case = Case::new();
        case.server.twist(move |r, _, a| if r.is_for(WEIGHTS) { twist(a) } else { a });
        let error = case.fetch().unwrap_err();
        assert!(matches!(error, HubError::Length { expected: 300_000, .. }), "{error}");
    }
}

#[test]
fn a_flipped_bit_is_found_and_mended_once() {
    let flip = |answer: Answer| {
        let mut body = answer.body;
        body[77_777] ^= 1;
        Answer { body, ..answer }
    };
    let case = Case::new();
    case.server.script(WEIGHTS, vec![flip]);
    let notes = Notes::default();
    case.fetch_with(&notes).unwrap();
    case.assert_right(&files());
    assert!(notes.reasons()[0].contains("is damaged"), "{:?}", notes.reasons());
    // Twice: an error that names both, and nothing is left that could be mistaken for the file.
    let case = Case::new();
    case.server.script(WEIGHTS, vec![flip, flip]);
    let error = case.fetch().unwrap_err();
    let HubError::Checksum { file, expected, found, .. } = &error else { panic!("{error}") };
    assert_eq!((file.as_str(), expected), (WEIGHTS, &files()[1].tag()));
    assert_ne!(expected, found);
    assert!(!case.names().iter().any(|name| name.starts_with(expected)), "{:?}", case.names());
    assert!(!case.snapshot().join(WEIGHTS).exists());
}

#[test]
fn small_files_are_checked_by_the_hash_that_git_makes() {
    let case = Case::new();
    let flip: fn(Answer) -> Answer = |answer| {
        let mut body = answer.body;
        body[3] ^= 0x80;
        Answer { body, ..answer }
    };
    case.server.script("config.json", vec![flip, flip]);
    let error = case.fetch().unwrap_err();
    assert!(matches!(&error, HubError::Checksum { kind: "git's SHA-1", .. }), "{error}");
}

#[test]
fn storms_pass() {
    let case = Case::new();
    case.server.script(
        WEIGHTS,
        vec![|_| Answer::new(500, ""), |_| Answer::new(503, "busy"), |_| {
            Answer::new(429, "").with("retry-after", 0)
        }],
    );
    let notes = Notes::default();
    case.fetch_with(&notes).unwrap();
    case.assert_right(&files());
    assert_eq!(notes.reasons().len(), 3);
    // One that does not pass ends with its status.
    let case = Case::new();
    case.server.twist(|r, _, a| if r.is_for(WEIGHTS) { Answer::new(502, "") } else { a });
    let error = case.fetch().unwrap_err();
    assert!(matches!(error, HubError::Status { status: 502, .. }), "{error}");
    assert_eq!(case.server.requests_for(WEIGHTS).len(), QUICK.failures as usize);
}

#[test]
fn the_question_for_the_revision_is_asked_again_too() {
    let case = Case::new();
    case.server.twist(|_, before, a| if before < 2 { Answer::new(503, "") } else { a });
    assert_eq!(case.look_up().unwrap().commit.as_str(), COMMIT);
}

#[test]
fn a_server_says_how_long_to_wait() {
    let case = Case::new();
    case.server.script(WEIGHTS, vec![|_| Answer::new(429, "").with("retry-after", 1)]);
    let notes = Notes::default();
    case.fetch_with(&notes).unwrap();
    assert_eq!(notes.0.lock().unwrap()[0].1, Duration::from_secs(1));
    let case = Case::new();
    case.server.script(WEIGHTS, vec![|_| Answer::new(429, "").with("retry-after", 3600)]);
    let error = case.fetch().unwrap_err();
    assert!(
        matches!(error, HubError::RateLimited { wait, .. } if wait.as_secs() == 3600),
        "{error}"
    );
}

#[test]
fn an_address_that_ran_out_is_asked_for_again() {
    let storage = FakeHub::start(files());
    let case = Case::new();
    let at = storage.endpoint();
    case.server.twist(move |request, _, answer| match request.is_for(WEIGHTS) {
        true => Answer::redirect(&format!("{at}/storage/{WEIGHTS}")),
        false => answer,
    });
    storage.twist(|_, before, answer| match before {
        0 => answer.cut(10_000),
        1 => Answer::new(403, "expired"),
        _ => answer,
    });
    case.fetch().unwrap();
    case.assert_right(&files());
    assert_eq!(case.server.requests_for(WEIGHTS).len(), 3);
}

#[test]
fn a_connection_that_says_nothing_or_next_to_nothing_is_left() {
    let case = Case::with(files(), |settings| settings.timeout = Duration::from_millis(60));
    // Byte by byte, each within the longest wait for a read, but all of them never; and silence.
    let slow: fn(Answer) -> Answer = |a| Answer { pace: Some(Duration::from_millis(15)), ..a };
    let silent: fn(Answer) -> Answer = |a| Answer { pace: Some(Duration::from_millis(500)), ..a };
    case.server.script(WEIGHTS, vec![slow, silent]);
    let notes = Notes::default();
    case.fetch_with(&notes).unwrap();
    case.assert_right(&files());
    let reasons = notes.reasons();
    assert!(reasons[0].contains("stalled"), "{reasons:?}");
    assert!(reasons[1].contains("not a byte within 0.06 s"), "{reasons:?}");
}

#[test]
fn a_hub_without_checksums_is_asked_for_tags() {
    // As a mirror that knows nothing of `blobs=true`, and has tags that are no hashes.
    let names = r#"{"siblings": [{"rfilename": "config.json"}, {"rfilename": "model.safetensors"}], "sha": ""#;
    let bare = format!("{names}{COMMIT}\"}}");
    let case = Case::new();
    case.server.twist(move |request, _, answer| match request.path.starts_with("/api/") {
        true => Answer::new(200, bare.clone()),
        false if request.header("if-range").is_some() => answer,
        false => answer.with("etag", "\"v1:weights/1\""),
    });
    let listing = case.look_up().unwrap();
    assert!(listing.files.iter().all(|file| file.size.is_none()));
    case.fetch().unwrap();
    for file in files() {
        assert!(fs::read(case.snapshot().join(&file.name)).unwrap() == file.bytes);
    }
    assert_eq!(case.server.requests_for(WEIGHTS)[0].method, "HEAD");
    // There is nothing more to ask when all of it is there.
    case.server.forget_requests();
    case.fetch().unwrap();
    assert_eq!(case.server.requests().len(), 1);
}

#[test]
fn a_file_that_changes_between_tries_is_started_over() {
    let old = noise(300_000, 7);
    let bare = format!(r#"{{"sha": "{COMMIT}", "siblings": [{{"rfilename": "{WEIGHTS}"}}]}}"#);
    for weak in ["", "W/"] {
        let (case, old, bare) = (Case::new(), old.clone(), bare.clone());
        let contents = Mutex::new(0);
        case.server.twist(move |request, _, answer| {
            if request.path.starts_with("/api/") {
                return Answer::new(200, bare.clone());
            }
            let mut contents = contents.lock().unwrap();
            *contents += usize::from(request.method == "GET");
            match *contents {
                // The old content, cut; then the new one, which answers to ranges like any other.
                0 | 1 => Answer::new(200, old.clone())
                    .with("etag", format!("{weak}\"old\""))
                    .cut(100_000),
                _ if request.header("if-range") == Some("\"old\"") => {
                    Answer::new(200, files()[1].bytes.clone())
                        .with("etag", format!("{weak}\"new\""))
                }
                _ => answer.with("etag", format!("{weak}\"new\"")),
            }
        });
        case.fetch().unwrap();
        assert!(fs::read(case.snapshot().join(WEIGHTS)).unwrap() == files()[1].bytes);
        assert_eq!(case.names().len(), 1, "what was left of the old content is gone");
    }
}

#[test]
fn two_at_once_fetch_each_file_once() {
    let case = Case::with(files(), |_| {});
    let second = Hub::with_retry(settings(&case.server, &case.folder), QUICK).unwrap();
    // The first byte of the weights is not sent before somebody waits for them.
    let (told, heard) = std::sync::mpsc::channel::<()>();
    let heard = Mutex::new(heard);
    case.server.twist(move |request, _, answer| {
        if request.is_for(WEIGHTS) {
            let _ = heard.lock().unwrap().recv_timeout(Duration::from_secs(30));
        }
        answer
    });
    struct Tell(Mutex<std::sync::mpsc::Sender<()>>);
    impl Watch for Tell {
        fn event(&self, file: &RemoteFile, event: Event<'_>) {
            if file.name == WEIGHTS && matches!(event, Event::Waiting) {
                let _ = self.0.lock().unwrap().send(());
            }
        }
    }
    let (a, b) = (Tell(Mutex::new(told.clone())), Tell(Mutex::new(told)));
    let listing = case.look_up().unwrap();
    let (repo, commit) = (&REPO.parse().unwrap(), &COMMIT.parse().unwrap());
    let fetch = Fetch { repo, commit, files: &listing.files, jobs: 2 };
    let sum = std::thread::scope(|scope| {
        let first = scope.spawn(|| case.hub.fetch(&fetch, &a).unwrap());
        let second = scope.spawn(|| second.fetch(&fetch, &b).unwrap());
        first.join().unwrap().bytes + second.join().unwrap().bytes
    });
    assert_eq!(sum, 300_700);
    case.assert_right(&files());
    assert_eq!(case.server.requests_for(WEIGHTS).len(), 1);
}

#[test]
fn the_start_of_a_file_comes_from_where_it_is() {
    let case = Case::new();
    let listing = case.look_up().unwrap();
    let weights = listing.files.iter().find(|file| file.name == WEIGHTS).unwrap();
    let (repo, commit) = (&REPO.parse().unwrap(), &COMMIT.parse().unwrap());
    let start = |bytes| case.hub.start_of(repo, commit, weights, bytes).unwrap();
    assert!(start(1000) == files()[1].bytes[..1000]);
    assert_eq!(case.server.requests_for(WEIGHTS)[0].range(), Some((0, Some(999))));
    // A server that sends all of it is not listened to for long.
    case.server.twist(|r, _, a| match r.is_for(WEIGHTS) {
        true => Answer { status: 200, headers: Vec::new(), body: files()[1].bytes.clone(), ..a },
        false => a,
    });
    assert!(start(1000) == files()[1].bytes[..1000]);
    case.server.twist(|_, _, a| a);
    case.server.forget_requests();
    case.leave(&files()[1].bytes[..2000]);
    assert!(start(2000) == files()[1].bytes[..2000]);
    assert!(case.server.requests().is_empty());
    assert!(start(u64::MAX) == files()[1].bytes);
    case.fetch().unwrap();
    case.server.forget_requests();
    assert!(start(u64::MAX) == files()[1].bytes);
    assert!(case.server.requests().is_empty());
    assert_eq!(Cache::new(case.folder.path().join("hub")).models().unwrap().len(), 1);
}

mod any_schedule {
    use super::*;
    use proptest::prelude::*;

    /// What happens to one request.
    #[derive(Clone, Debug)]
    enum Fault {
        Cut(usize),
        Status(u16),
        IgnoredRange(usize),
        Flipped(usize),
    }

    fn fault() -> impl Strategy<Value = Fault> {
        prop_oneof![
            6 => (0_usize..40_000).prop_map(Fault::Cut),
            1 => prop_oneof![Just(500), Just(503), Just(429)].prop_map(Fault::Status),
            1 => (0_usize..40_000).prop_map(Fault::IgnoredRange),
            1 => (0_usize..40_000).prop_map(Fault::Flipped),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

        /// Whatever happens on the way, and wherever a process is killed between: the bytes are right
        /// in the end. A transfer may give up, but never with wrong bytes; the next one goes on.
        #[test]
        fn ends_with_the_right_bytes(faults in prop::collection::vec(fault(), 0..12)) {
            let weights = Content::new(WEIGHTS, noise(40_000, 3));
            let case = Case::with(vec![weights.clone()], |_| {});
            let (turn, bytes) = (Mutex::new(0), weights.bytes.clone());
            let script = faults.clone();
            case.server.twist(move |request, _, answer| {
                if !request.is_for(WEIGHTS) {
                    return answer;
                }
                let mut turn = turn.lock().unwrap();
                *turn += 1;
                match script.get(*turn - 1) {
                    None => answer,
                    Some(&Fault::Cut(at)) => answer.cut(at),
                    Some(&Fault::Status(status)) => Answer::new(status, ""),
                    Some(&Fault::IgnoredRange(at)) => Answer::new(200, bytes.clone()).cut(at),
                    Some(&Fault::Flipped(at)) => {
                        let mut answer = answer;
                        if let Some(byte) = answer.body.get_mut(at) {
                            *byte ^= 4;
                        }
                        answer
                    }
                }
            });
            let mut tries = 0;
            while let Err(error) = case.fetch() {
                let known = matches!(
                    error,
                    HubError::Network { .. } | HubError::Short { .. } | HubError::Status { .. } | HubError::Checksum { .. }
                );
                prop_assert!(known, "{error}");
                prop_assert!(!case.snapshot().join(WEIGHTS).exists());
                tries += 1;
                prop_assert!(tries <= faults.len());
            }
            case.assert_right(&[weights]);
        }
    }
}
