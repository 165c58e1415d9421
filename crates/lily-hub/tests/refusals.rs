//! What a hub refuses, what is refused of a hub, and who gets the token.

mod case;
mod common;

use std::fs;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use case::{Case, QUICK, WEIGHTS, files, settings};
use common::{Answer, COMMIT, Content, FakeHub, REPO, noise};
use lily_hub::{Hub, HubError, Settings, Token};

#[test]
fn a_tag_that_contradicts_the_listing_is_refused() {
    let case = Case::new();
    let other = "0".repeat(64);
    case.server.twist(
        move |r, _, a| if r.is_for(WEIGHTS) { a.with("etag", format!("\"{other}\"")) } else { a },
    );
    let error = case.fetch().unwrap_err();
    assert!(matches!(&error, HubError::Changed { file, .. } if file == WEIGHTS), "{error}");
}

#[test]
fn refusals_say_what_is_missing() {
    let refusal = |status: u16, code: &'static str, token: bool, revision: &str| {
        let token = token.then(|| Token::new("hf_secret", "test").unwrap());
        let case = Case::with(files(), |settings| settings.token = token);
        case.server.twist(move |_, _, _| Answer::new(status, "").with("x-error-code", code));
        let error = case.hub.look_up(&format!("{REPO}@{revision}").parse().unwrap()).unwrap_err();
        assert_eq!(case.server.requests().len(), 1, "asked once: {error}");
        assert!(!error.to_string().contains("hf_secret"));
        error
    };
    let error = refusal(401, "GatedRepo", false, "main");
    assert!(
        matches!(error, HubError::Gated { .. }) && error.to_string().contains("HF_TOKEN"),
        "{error}"
    );
    let error = refusal(403, "GatedRepo", true, "main");
    assert!(matches!(error, HubError::Gated { with_token: true, .. }), "{error}");
    let error = refusal(401, "RepoNotFound", false, "main");
    assert!(
        matches!(error, HubError::RepoNotFound { .. }) && error.to_string().contains("HF_TOKEN"),
        "{error}"
    );
    assert!(matches!(refusal(404, "", true, "main"), HubError::RepoNotFound { .. }));
    assert!(matches!(refusal(401, "", true, "main"), HubError::Access { status: 401, .. }));
    assert!(matches!(refusal(403, "", false, "main"), HubError::Access { status: 403, .. }));
    assert!(matches!(
        refusal(404, "RevisionNotFound", false, "v9"),
        HubError::RevisionNotFound { .. }
    ));
    assert!(matches!(refusal(404, "", false, "v9"), HubError::RevisionNotFound { .. }));
    assert!(matches!(refusal(418, "", false, "main"), HubError::Status { status: 418, .. }));
}

#[test]
fn a_file_that_is_gone_is_named() {
    let case = Case::new();
    case.server.twist(|r, _, a| if r.is_for(WEIGHTS) { Answer::new(404, "") } else { a });
    let error = case.fetch().unwrap_err();
    assert!(matches!(&error, HubError::FileNotFound { file, .. } if file == WEIGHTS), "{error}");
    // The other transfer kept what it had.
    case.server.twist(|_, _, a| a);
    case.fetch().unwrap();
    case.assert_right(&files());
}

#[test]
fn another_commit_than_asked_for_is_refused() {
    let case = Case::new();
    case.server
        .twist(|_, _, _| Answer::new(200, format!(r#"{{"sha": "{COMMIT}", "siblings": []}}"#)));
    let other = COMMIT.replace('8', "7");
    let error = case.hub.look_up(&format!("{REPO}@{other}").parse().unwrap()).unwrap_err();
    assert!(matches!(error, HubError::Answer { .. }), "{error}");
}

#[test]
fn a_hostile_listing_writes_nothing() {
    let hostile = [
        "../../../evil.safetensors",
        "/evil.safetensors",
        "a\\..\\evil",
        "x/../../../evil",
        "nul\u{0}",
    ];
    for name in hostile {
        let case = Case::with(vec![Content::new(name, noise(10, 1))], |_| {});
        let error = case.look_up().unwrap_err();
        assert!(matches!(error, HubError::FileName { .. }), "{name:?}: {error}");
    }
    for name in ["con.safetensors", "a:b.safetensors"] {
        let case = Case::with(vec![Content::new(name, noise(10, 1))], |_| {});
        let error = case.fetch().unwrap_err();
        assert!(matches!(error, HubError::FileName { .. }), "{name:?}: {error}");
        assert_eq!(fs::read_dir(case.folder.path()).unwrap().count(), 0);
    }
}

#[test]
fn offline_nothing_is_asked() {
    let case = Case::new();
    let listing = case.look_up().unwrap();
    let offline = Settings { offline: true, ..settings(&case.server, &case.folder) };
    let offline = Case { hub: Hub::with_retry(offline, QUICK).unwrap(), ..case };
    offline.server.forget_requests();
    assert!(matches!(offline.look_up().unwrap_err(), HubError::Offline { .. }));
    let error = offline.fetch_files(&listing.files, &()).unwrap_err();
    assert!(matches!(error, HubError::Offline { .. }), "{error}");
    assert!(offline.server.requests().is_empty());
}

#[test]
fn a_hub_that_is_not_there_is_named() {
    let case = Case::new();
    // A port that was free a moment ago.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let settings =
        Settings { endpoint: format!("http://{free}"), ..settings(&case.server, &case.folder) };
    let error =
        Hub::with_retry(settings, QUICK).unwrap().look_up(&REPO.parse().unwrap()).unwrap_err();
    assert!(
        matches!(&error, HubError::Network { host, .. } if *host == free.to_string()),
        "{error}"
    );
}

#[test]
fn a_page_of_a_proxy_is_told_from_the_answer_of_a_hub() {
    let case = Case::new();
    let at = case.server.endpoint();
    let page = "\n<!DOCTYPE html><html><title>Log in</title></html>";
    for (body, found) in [(page, "a web page"), ("", "something else than JSON"), ("[]", "JSON")] {
        case.server.forget_requests();
        case.server.twist(move |request, _, _| match request.path.starts_with("/login") {
            true => Answer::new(200, body).with("content-type", "text/html"),
            false => Answer::redirect("/login?token=secret"),
        });
        let error = case.look_up().unwrap_err();
        assert!(matches!(error, HubError::NoHub { .. }), "{body}: {error}");
        let error = error.to_string();
        assert!(error.starts_with(&format!("{at}/login answered with ")), "{error}");
        assert!(error.contains(found) && !error.contains("secret"), "{error}");
        assert_eq!(case.server.requests().len(), 2, "asked once: {error}");
    }
}

#[test]
fn a_question_that_is_asked_again_is_told_and_why() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let case = Case::new();
    let notes = Arc::clone(&told);
    let note = move |error: &HubError, pause: Duration| {
        notes.lock().unwrap().push((error.to_string(), pause));
    };
    let case = Case { hub: case.hub.telling(note), ..case };
    case.server.twist(|_, before, answer| match before {
        0 => Answer::new(500, ""),
        1 => Answer::new(429, "").with("retry-after", "0"),
        _ => answer,
    });
    case.look_up().unwrap();
    let (reasons, pauses): (Vec<_>, Vec<_>) = told.lock().unwrap().drain(..).unzip();
    assert!(reasons[0].contains("status 500") && reasons[0].contains("trouble"), "{reasons:?}");
    assert!(reasons[1].contains("429") && reasons[1].contains("too many"), "{reasons:?}");
    assert_eq!(pauses, [QUICK.first, QUICK.first]);
    case.server.twist(|_, _, _| Answer::new(503, ""));
    let error = case.look_up().unwrap_err();
    assert!(error.to_string().ends_with("trouble on its side"), "{error}");
    assert_eq!(told.lock().unwrap().len(), 2, "the last one is the error itself");
}

#[test]
fn a_hub_that_hangs_is_told_in_plain_words() {
    // Takes connections and says nothing: the system completes them before anyone accepts.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent_at = format!("http://{}", silent.local_addr().unwrap());
    let case = Case::with(files(), |settings| settings.timeout = Duration::from_millis(100));
    let settings = Settings { endpoint: silent_at, ..case.hub.settings().clone() };
    let hub = Hub::with_retry(settings, QUICK).unwrap();
    let before = hub.look_up(&REPO.parse().unwrap()).unwrap_err().to_string();
    // And one that stops in the middle.
    case.server.twist(|_, _, answer| Answer { hold: Some(5), ..answer });
    let amid = case.look_up().unwrap_err().to_string();
    for error in [before, amid] {
        assert!(error.contains(": not a byte within 0.1 s (HF_HUB_DOWNLOAD_TIMEOUT)"), "{error}");
    }
}

#[test]
fn storage_elsewhere_gets_no_token_and_no_tag() {
    let storage = FakeHub::start(files());
    let token = Token::new("hf_secret", "test").unwrap();
    let case = Case::with(files(), |settings| settings.token = Some(token));
    case.leave(&files()[1].bytes[..5000]);
    let at = storage.endpoint();
    case.server.twist(move |request, _, answer| match request.is_for(WEIGHTS) {
        true => Answer::redirect(&format!("{at}/storage/{WEIGHTS}"))
            .with("x-linked-etag", format!("\"{}\"", files()[1].tag()))
            .with("x-linked-size", 300_000)
            .with("etag", "\"of the redirect\""),
        false => answer,
    });
    // The storage has tags of its own.
    storage.twist(|_, _, answer| answer.with("etag", "\"0123456789abcdef-7\""));
    case.fetch().unwrap();
    case.assert_right(&files());
    assert!(
        case.server
            .requests()
            .iter()
            .all(|r| r.header("authorization") == Some("Bearer hf_secret"))
    );
    let there = storage.requests();
    assert_eq!(there.len(), 1);
    assert_eq!(there[0].range(), Some((5000, None)));
    for header in ["authorization", "if-range", "cookie"] {
        assert_eq!(there[0].header(header), None, "{header}");
    }
}

#[test]
fn redirects_at_the_hub_itself_keep_the_token_and_circles_end() {
    let token = Token::new("hf_secret", "test").unwrap();
    let case = Case::with(files(), |settings| settings.token = Some(token));
    case.server.twist(|request, before, answer| match before {
        0 => Answer::redirect(&format!("{}&moved=1", request.path)),
        _ => answer,
    });
    case.look_up().unwrap();
    assert!(case.server.requests().iter().all(|r| r.header("authorization").is_some()));
    case.server.twist(|request, _, _| Answer::redirect(&request.path));
    let error = case.look_up().unwrap_err();
    assert!(matches!(error, HubError::Answer { .. }), "{error}");
}
