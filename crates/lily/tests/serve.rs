//! `lily serve` as a program: what it says, and when.
#![cfg(unix)]

mod common;

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;

use common::lily;
use common::server::Server;

#[test]
fn the_line_of_readiness_names_model_device_and_address() {
    let server = Server::start(&[]);
    let ready = server.ready.clone();
    assert!(ready.starts_with("serving lily-demo on cpu "), "{ready}");
    assert!(ready.contains(", 1 thread at http://127.0.0.1:"), "{ready}");
    server.ask("GET", "/v1/models", "");
    assert_eq!(server.end(), "", "requests are logged where that is asked for");
}

#[test]
fn a_server_is_ready_and_can_be_interrupted_from_the_moment_that_it_says_it_serves() {
    for ask in [true, false].repeat(10) {
        let server = Server::start(&[]);
        if ask {
            let health = server.ask("GET", "/health", "");
            assert!(health.starts_with("HTTP/1.1 200 "), "{health}");
        }
        assert_eq!(server.end(), "");
    }
}

#[test]
fn empty_variables_demand_no_key() {
    let server = Server::start_with(&[], &[("LILY_API_KEY", ""), ("LILY_API_KEY_FILE", "")]);
    assert!(server.ask("GET", "/v1/models", "").starts_with("HTTP/1.1 200 "));
}

#[test]
fn verbose_adds_one_line_for_each_request() {
    let server = Server::start(&["--verbose"]);
    let question = r#""messages": [{"role": "user", "content": "What is the capital of Japan?"}]"#;
    let body = format!(r#"{{{question}, "temperature": 0}}"#);
    let whole = server.ask("POST", "/v1/chat/completions", &body);
    assert!(whole.to_lowercase().contains("content-length: "), "the log keeps the length: {whole}");
    let body = format!(r#"{{{question}, "stream": true, "max_tokens": 2}}"#);
    assert!(server.ask("POST", "/v1/chat/completions", &body).contains("[DONE]"));
    server.ask("POST", "/v1/chat/completions", "{}");
    server.ask("GET", "/nowhere", "");
    server.ask("GET", "/health", "");
    let log = server.end();
    let lines: Vec<_> = log.lines().filter(|line| line.contains("method=")).collect();
    let expected: [&[&str]; 5] = [
        &["POST", "/v1/chat/completions", "200", "prompt_tokens=17 tokens=26", "\"stop\""],
        &["POST", "/v1/chat/completions", "200", "prompt_tokens=17 tokens=2 ", "\"length\""],
        &["POST", "/v1/chat/completions", "400"],
        &["GET", "/nowhere", "404"],
        &["GET", "/health", "200"],
    ];
    assert_eq!(lines.len(), expected.len(), "{log}");
    for words in expected {
        // A line is written when the response is gone, which the client sees a little earlier.
        let found = lines.iter().any(|line| words.iter().all(|word| line.contains(word)));
        assert!(found, "{words:?} is not in {log}");
    }
    assert!(lines.iter().all(|line| line.contains(" ms=")), "{log}");
    assert!(!log.contains("answered"), "{log}");
}

#[test]
fn a_port_that_is_taken_is_refused_before_the_model_is_loaded() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let run = lily(["serve", "--port", &address.port().to_string(), "--model-path=no/such/model"]);
    assert_eq!(run.code, 1, "{}", run.stderr);
    assert!(
        run.stderr.starts_with(&format!("error: cannot listen on {address}: ")),
        "{}",
        run.stderr
    );
    assert!(run.stderr.contains("try another --port"), "{}", run.stderr);
    assert_eq!(run.stderr.lines().count(), 1, "nothing is loaded: {}", run.stderr);
}

#[test]
fn an_address_of_another_machine_is_answered_with_a_hint() {
    // Set aside for documentation: no machine has it.
    let run = lily(["serve", "--port=0", "--host=192.0.2.1", "--allow-no-key"]);
    assert_eq!(run.code, 1, "{}", run.stderr);
    assert!(run.stderr.contains("try another --host"), "{}", run.stderr);
}

#[test]
fn the_log_has_a_line_of_json_for_each_request_and_no_prompt() {
    let server = Server::start(&["-v", "--log-format=json"]);
    let question = "What is the capital of Japan?";
    let body = format!(r#"{{"messages": [{{"role": "user", "content": "{question}"}}]}}"#);
    server.ask_with("POST", "/v1/chat/completions", "x-request-id: mine-7\r\n", &body);
    assert!(server.ready.starts_with('{'), "{}", server.ready);
    let log = server.end();
    let line = log.lines().find(|line| line.contains("/v1/chat/completions")).unwrap();
    let line: serde_json::Value = serde_json::from_str(line).unwrap();
    assert_eq!(line["status"], 200);
    assert_eq!(line["span"]["id"], "mine-7");
    for field in ["ms", "queue_ms", "ttft_ms", "prompt_tokens", "tokens"] {
        assert!(line[field].is_u64(), "{field}: {line}");
    }
    assert!(!log.contains("Japan"), "{log}");
}

#[test]
fn a_server_that_waits_for_an_answer_before_it_ends_says_so() {
    let mut server = Server::start(&["--log-format=json"]);
    let address = server.ready.split_once("http://").unwrap().1.split_once('/').unwrap().0;
    let mut connection = TcpStream::connect(address).unwrap();
    let body = r#"{"prompt": "1", "stream": true, "max_tokens": 4000, "temperature": 0,
        "logit_bias": {"19": 100}}"#;
    write!(
        connection,
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut stream = BufReader::new(connection);
    let mut line = String::new();
    while !line.contains("data: ") {
        line.clear();
        assert_ne!(stream.read_line(&mut line).unwrap(), 0);
    }
    let id = server.child.id().to_string();
    let interrupt = || Command::new("kill").args(["-INT", &id]).status().unwrap();
    assert!(interrupt().success());
    line.clear();
    server.stderr.read_line(&mut line).unwrap();
    let said: serde_json::Value = serde_json::from_str(&line).unwrap();
    let message = said["message"].as_str().unwrap();
    assert!(message.starts_with("waiting for 1 running request; "), "{message}");
    interrupt();
    assert!(server.child.wait().unwrap().success());
}

#[test]
fn what_users_send_is_logged_where_that_is_asked_for() {
    let server = Server::start(&["--log-prompts"]);
    let body = r#"{"messages": [{"role": "user", "content": "What is 2 + 3?"}]}"#;
    server.ask("POST", "/v1/chat/completions", body);
    assert!(server.end().contains("What is 2 + 3?"));
}

#[test]
fn keys_come_from_flags_the_variable_and_a_file() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "# for ann\nfrom-file\n").unwrap();
    let path = format!("--api-key-file={}", file.path().display());
    let flags = ["--api-key=one", "--api-key=two", &path];
    let server = Server::start_with(&flags, &[("LILY_API_KEY", "variable")]);
    let right = ["one", "two", "variable", "from-file"].map(|key| (key, 200));
    for (key, status) in right.into_iter().chain([("three", 401)]) {
        let header = format!("authorization: Bearer {key}\r\n");
        let answer = server.ask_with("GET", "/v1/models", &header, "");
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{key}: {answer}");
    }
    assert_eq!(server.end(), "");
}

#[test]
fn a_key_file_that_everyone_can_read_is_told_of() {
    use std::os::unix::fs::PermissionsExt;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "from-file\n").unwrap();
    std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(0o644)).unwrap();
    let path = file.path().to_str().unwrap();
    let run = lily(["serve", "--port=0", "--api-key-file", path, "--model-path=no/such/model"]);
    assert!(run.stderr.contains(&format!("can read {path}")), "{}", run.stderr);
}

#[test]
fn what_would_let_strangers_in_or_cannot_be_served_with_is_refused_before_the_model_is_loaded() {
    let empty = tempfile::NamedTempFile::new().unwrap();
    let empty = format!("--api-key-file={}", empty.path().display());
    for (flags, code, part) in [
        (&["--host=0.0.0.0"][..], 2, "--allow-no-key"),
        (&[empty.as_str()], 2, "no API key in it"),
        (&["--api-key-file=no/such/file"], 1, "no/such/file"),
        (&["--cors-origin=chat.example"], 2, "--cors-origin \"chat.example\" is no origin"),
        (&["--allow-host=a b"], 2, "--allow-host \"a b\" is no host name"),
        (&["--allow-host=mac.local:8000"], 2, "no port"),
        (&["--tls-cert=cert.pem"], 2, "--tls-key"),
        (&["--tls-cert=no/such.pem", "--tls-key=no/such.key"], 1, "cannot read no/such.pem"),
        (&["--request-timeout=0"], 2, "--request-timeout"),
        (&["--queue=-1"], 2, "--queue"),
    ] {
        let run = lily(["serve", "--port=0", "--model-path=no/such/model"].iter().chain(flags));
        assert_eq!(run.code, code, "{flags:?}: {}", run.stderr);
        assert!(run.stderr.contains(part), "{flags:?}: {}", run.stderr);
        assert!(!run.stderr.contains("loading"), "{flags:?}: {}", run.stderr);
    }
}

#[test]
fn a_context_without_room_for_any_answer_is_refused_before_the_model_is_loaded() {
    let run = lily(["serve", "--port=0", "--context=2"]);
    assert_eq!(run.code, 2, "{}", run.stderr);
    assert!(run.stderr.starts_with("error: --context 2 is too short"), "{}", run.stderr);
    let least = run.stderr.trim_end().rsplit(' ').next().unwrap();
    let server = Server::start(&["--context", least]);
    let body = r#"{"messages": [{"role": "user", "content": "Hi"}]}"#;
    let answer = server.ask("POST", "/v1/chat/completions", body);
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let one_less = least.parse::<usize>().unwrap() - 1;
    let run = lily(["serve", "--port=0", &format!("--context={one_less}")]);
    assert_eq!(run.code, 2, "{}", run.stderr);
}

#[test]
fn a_server_on_all_addresses_names_those_that_clients_can_use() {
    let server = Server::start(&["--host=0.0.0.0", "--allow-no-key"]);
    let own = server.url();
    assert!(own.starts_with("http://127.0.0.1:"), "{}", server.ready);
    let other = own.replace("127.0.0.1", "ADDRESS");
    assert!(
        server.ready.contains(&format!(" for other machines at {other}/v1 ")),
        "{}",
        server.ready
    );
    let models = server.ask("GET", "/v1/models", "");
    assert!(models.starts_with("HTTP/1.1 200 "), "{models}");
}

#[test]
fn a_key_that_no_header_can_carry_is_refused_before_the_model_is_loaded() {
    let run = lily(["serve", "--port=0", "--api-key=two words", "--model-path=no/such/model"]);
    assert_eq!(run.code, 2, "{}", run.stderr);
    assert!(run.stderr.contains("API key"), "{}", run.stderr);
}
