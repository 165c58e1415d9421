//! `lily connect` as a program: with a server, without one, and starting clients.
#![cfg(unix)]

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use common::server::Server;
use common::{Run, lily, lily_with_variables};
use serde_json::Value;
use tempfile::TempDir;

/// Answers the connections with these statuses and bodies, the last one again and again.
fn answering(answers: &[(&str, &str)]) -> String {
    let own = |&(status, body): &(&str, &str)| (status.to_owned(), body.to_owned());
    let answers: Vec<_> = answers.iter().map(own).collect();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for (i, connection) in listener.incoming().enumerate() {
            let mut connection = connection.unwrap();
            let mut request = [0; 4096];
            let _ = connection.read(&mut request);
            let (status, body) = &answers[i.min(answers.len() - 1)];
            let length = body.len();
            let _ = write!(
                connection,
                "HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
            );
        }
    });
    url
}

fn assert_refused(run: &Run, code: i32, expected: &[&str]) {
    let Run { stderr, .. } = run;
    assert_eq!(run.code, code, "{stderr}");
    assert_eq!(run.stdout, "");
    assert_eq!(stderr.lines().filter(|line| line.starts_with("error:")).count(), 1, "{stderr}");
    for word in expected {
        assert!(stderr.contains(word), "{word:?} is not in {stderr}");
    }
}

#[test]
fn without_a_client_they_are_listed() {
    let run = lily(["connect"]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    for client in ["opencode", "codex", "claude", "open-webui", "curl"] {
        let start = format!("  {client} ");
        assert!(run.stdout.lines().any(|line| line.starts_with(&start)), "{}", run.stdout);
    }
    let list: Value = serde_json::from_str(&lily(["connect", "--json"]).stdout).unwrap();
    assert_eq!(list[0]["client"], "opencode");
}

#[test]
fn name_and_context_are_what_the_server_says() {
    let server = Server::start(&["--context=1024", "--model-name=flower"]);
    let run =
        lily_with_variables(["connect", "opencode", "--json"], &[("LILY_URL", &server.url())]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    let shown: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(shown["server"]["model"], "flower");
    assert_eq!(shown["server"]["context_length"], 1024);
    let file: Value = serde_json::from_str(shown["files"][0]["content"].as_str().unwrap()).unwrap();
    let provider = &file["provider"]["lily"];
    assert_eq!(provider["options"]["baseURL"], format!("{}/v1", server.url()));
    assert_eq!(provider["models"]["flower"]["limit"]["context"], 1024);
    assert_eq!(provider["models"]["flower"]["limit"]["output"], 256);

    let other = lily(["connect", "opencode", "--url", &server.url(), "--model", "rose"]);
    assert_refused(&other, 1, &["serves flower, not rose"]);
}

#[test]
fn a_key_is_asked_for_checked_and_not_shown() {
    let server = Server::start(&["--api-key=sk-right"]);
    let connect = |key: &str| {
        lily_with_variables(["connect", "claude", "--url", &server.url()], &[("LILY_API_KEY", key)])
    };
    assert_refused(&connect(""), 1, &["demands a key", "LILY_API_KEY"]);
    let wrong = connect("sk-wrong");
    assert_refused(&wrong, 1, &["does not accept this key"]);
    assert!(!wrong.stderr.contains("sk-wrong"), "{}", wrong.stderr);
    let right = connect("sk-right");
    assert_eq!(right.code, 0, "{}", right.stderr);
    assert!(!(right.stdout.clone() + &right.stderr).contains("sk-right"), "{}", right.stdout);
    assert!(right.stdout.contains("ANTHROPIC_AUTH_TOKEN=\"$LILY_API_KEY\""), "{}", right.stdout);
}

#[test]
fn what_is_no_running_server_is_told_apart() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let connect = |url: &str| lily(["connect", "codex", "--url", url]);
    let nobody = connect(&format!("http://{closed}"));
    assert_refused(&nobody, 1, &["nothing answers at", "lily serve", "--offline"]);

    let page = answering(&[("200 OK", "<html>")]);
    assert_refused(&connect(&page), 1, &["is no server of lily", "not JSON"]);
    let lost = answering(&[("404 Not Found", "")]);
    assert_refused(&connect(&lost), 1, &["is no server of lily", "status 404"]);
    let dead = answering(&[("503 Service Unavailable", r#"{"status": "dead"}"#)]);
    assert_refused(&connect(&dead), 1, &["is not ready: dead"]);
    let noise = answering(&[("hello", "")]);
    assert_refused(&connect(&noise), 1, &["no answer from", "could be read", "https://"]);
    let large = answering(&[("200 OK", &" ".repeat(2 << 20))]);
    assert_refused(&connect(&large), 1, &["could be read"]);

    assert_refused(&connect("ftp://example"), 2, &["--url", "http://"]);
}

#[test]
fn a_server_that_is_loading_its_model_is_waited_for() {
    for loading in [r#"{"status": "loading"}"#, r#"{"error": {"message": "the model is loading"}}"#]
    {
        let answers = [
            ("503 Service Unavailable", loading),
            ("503 Service Unavailable", loading),
            ("200 OK", r#"{"status": "ready"}"#),
            ("200 OK", r#"{"data": [{"id": "m", "context_length": 4096}]}"#),
        ];
        let url = answering(&answers);
        let run = lily(["connect", "curl", "--url", &url]);
        assert_eq!(run.code, 0, "{}", run.stderr);
        assert_eq!(run.stderr, format!("the server at {url} is loading its model; waiting\n"));
        assert!(run.stdout.starts_with("curl with m (4096 tokens)"), "{}", run.stdout);
    }
}

#[test]
fn offline_needs_no_server() {
    let run = lily(["connect", "codex", "--offline", "--model", "m", "--context-length", "65536"]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert!(run.stdout.contains("model_context_window = 65536"), "{}", run.stdout);
    assert_refused(&lily(["connect", "codex", "--offline", "--model", "$(id)"]), 2, &["--model"]);
}

#[test]
fn wrong_usage_is_refused_by_name() {
    let refused = |line: &str, expected: &[&str]| {
        let run = lily(line.split_whitespace());
        assert_refused(&run, 2, expected);
    };
    refused("connect emacs", &["emacs"]);
    refused("connect --run", &["CLIENT"]);
    refused("connect codex --show-key --run", &["--show-key", "--run"]);
    refused("connect codex -- exec", &["--run"]);
    refused("connect codex --context-length 0", &["--context-length"]);
    refused("connect zed --offline --run", &["Zed", "lily connect zed"]);
    refused("connect openai --offline --run", &["-- PROGRAM"]);
    let command =
        "nothing for --run to start; the command to copy is: curl http://127.0.0.1:8000/v1/chat";
    refused(
        "connect curl --offline --run",
        &[command, "-H 'content-type: application/json' -d '{"],
    );
}

/// A folder of programs for `PATH`, and what they are told to leave there.
struct Programs(TempDir);

impl Programs {
    fn new() -> Self {
        Programs(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// A shell script under a client's name; `$HERE` is this folder.
    fn add(&self, name: &str, script: &str) {
        let path = self.path().join(name);
        fs::write(&path, format!("#!/bin/sh\nHERE={:?}\n{script}\n", self.path())).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn variables(&self) -> Vec<(&'static str, String)> {
        let path = format!("{}:/usr/bin:/bin", self.path().display());
        let temporary = self.path().join("temporary");
        fs::create_dir_all(&temporary).unwrap();
        vec![
            ("PATH", path),
            ("TMPDIR", temporary.display().to_string()),
            ("LILY_API_KEY", "sk-secret".into()),
        ]
    }

    fn run(&self, arguments: &[&str]) -> Run {
        let variables = self.variables();
        let variables: Vec<_> = variables.iter().map(|(name, value)| (*name, &**value)).collect();
        lily_with_variables(["connect", "--offline"].iter().chain(arguments), &variables)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path().join(name)).unwrap()
    }

    /// What is left in the folder for temporary files.
    fn left(&self) -> Vec<PathBuf> {
        let files = fs::read_dir(self.path().join("temporary")).unwrap();
        files.map(|file| file.unwrap().path()).collect()
    }
}

#[test]
fn a_client_gets_its_environment_its_files_and_its_arguments() {
    let programs = Programs::new();
    programs.add(
        "llm",
        "env > $HERE/environment\nfor a in \"$@\"; do echo \"<$a>\"; done > $HERE/arguments\n\
         cat $LLM_USER_PATH/extra-openai-models.yaml > $HERE/models\n\
         ls -ld $LLM_USER_PATH $LLM_USER_PATH/default_model.txt > $HERE/modes\n\
         echo log > $LLM_USER_PATH/logs.db\necho answer\nexit 7",
    );
    let run = programs.run(&["llm", "--model", "m", "--run", "--", "a question", "-o", "$x"]);
    assert_eq!((run.code, run.stdout.as_str()), (7, "answer\n"), "{}", run.stderr);
    assert_eq!(programs.read("arguments"), "<a question>\n<-o>\n<$x>\n");
    assert!(programs.read("models").contains("model_name: \"m\""), "{}", programs.read("models"));
    let environment = programs.read("environment");
    assert!(environment.contains("OPENAI_API_KEY=sk-secret\n"), "{environment}");
    assert!(environment.contains("LILY_API_KEY=sk-secret\n"), "{environment}");
    let modes = programs.read("modes");
    assert!(modes.contains("drwx------") && modes.contains("-rw-------"), "{modes}");
    assert_eq!(programs.left(), Vec::<PathBuf>::new(), "the folder outlived the client");
}

#[test]
fn an_agent_gets_its_settings_before_the_users_arguments_and_never_the_key_as_one() {
    let programs = Programs::new();
    let report =
        "for a in \"$@\"; do echo \"<$a>\"; done > $HERE/arguments; env > $HERE/environment";
    programs.add("codex", report);
    programs.add("opencode", report);
    programs.add("claude", &format!("{report}\ncat \"$2\" > $HERE/settings"));

    let run = programs.run(&["codex", "--model", "m", "--run", "--", "exec", "hello"]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    let arguments = programs.read("arguments");
    assert!(arguments.starts_with("<-c>\n<model=\"m\">\n"), "{arguments}");
    assert!(arguments.ends_with("<exec>\n<hello>\n"), "{arguments}");
    assert!(!arguments.contains("sk-secret"), "{arguments}");

    let run = programs.run(&["opencode", "--model", "m", "--run"]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    let environment = programs.read("environment");
    let content = environment.lines().find_map(|l| l.strip_prefix("OPENCODE_CONFIG_CONTENT="));
    let content: Value = serde_json::from_str(content.unwrap()).unwrap();
    assert_eq!(content["provider"]["lily"]["options"]["apiKey"], "{env:LILY_API_KEY}");

    let mut variables = programs.variables();
    variables.push(("ANTHROPIC_API_KEY", "of-another".into()));
    let variables: Vec<_> = variables.iter().map(|(name, value)| (*name, &**value)).collect();
    let line = ["connect", "claude", "--offline", "--run", "--", "-p", "hello"];
    let run = lily_with_variables(line, &variables);
    assert_eq!(run.code, 0, "{}", run.stderr);
    let arguments = programs.read("arguments");
    assert!(arguments.starts_with("<--settings>\n"), "{arguments}");
    assert!(arguments.ends_with("<-p>\n<hello>\n"), "{arguments}");
    assert!(!arguments.contains("sk-secret"), "{arguments}");
    let settings: Value = serde_json::from_str(&programs.read("settings")).unwrap();
    assert_eq!(settings["env"]["ANTHROPIC_AUTH_TOKEN"], "sk-secret");
    assert!(!programs.read("environment").contains("of-another"));
    assert_eq!(programs.left(), Vec::<PathBuf>::new());
}

#[test]
fn a_client_that_knows_a_folder_only_finds_its_settings_there() {
    let programs = Programs::new();
    programs.add(
        "cline",
        "cd $CLINE_SANDBOX_DATA_DIR && cat settings/providers.json > $HERE/settings\n\
         ls -l settings > $HERE/modes\necho $CLINE_SANDBOX $1 > $HERE/rest\nmkdir sessions",
    );
    let run = programs.run(&["cline", "--model", "m", "--run", "--", "hello"]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    let settings: Value = serde_json::from_str(&programs.read("settings")).unwrap();
    let provider = settings["lastUsedProvider"].as_str().unwrap();
    let settings = &settings["providers"][provider]["settings"];
    assert_eq!(settings["apiKey"], "sk-secret");
    assert_eq!(settings["baseUrl"], "http://127.0.0.1:8000/v1");
    assert_eq!(settings["contextWindow"], 32_768);
    assert_eq!(programs.read("rest"), "1 hello\n");
    assert!(programs.read("modes").contains("-rw-------"), "{}", programs.read("modes"));
    assert_eq!(programs.left(), Vec::<PathBuf>::new());
}

#[test]
fn servers_that_the_environment_names_do_not_count_more_than_this_one() {
    let programs = Programs::new();
    programs.add("open-webui", "env > $HERE/environment; echo \"$@\" > $HERE/arguments");
    let mut variables = programs.variables();
    variables.push(("OPENAI_API_BASE_URLS", "https://api.example/v1".into()));
    variables.push(("OPENAI_API_KEYS", "of-another".into()));
    let variables: Vec<_> = variables.iter().map(|(name, value)| (*name, &**value)).collect();
    let run = lily_with_variables(["connect", "open-webui", "--offline", "--run"], &variables);
    assert_eq!(run.code, 0, "{}", run.stderr);
    let environment = programs.read("environment");
    assert!(
        environment.contains("OPENAI_API_BASE_URL=http://127.0.0.1:8000/v1\n"),
        "{environment}"
    );
    assert!(!environment.contains("OPENAI_API_BASE_URLS"), "{environment}");
    assert!(!environment.contains("of-another"), "{environment}");
    // Its page is for this machine only unless the user says otherwise.
    assert_eq!(programs.read("arguments"), "serve --host 127.0.0.1\n");
}

#[test]
fn an_agent_is_not_started_where_its_own_instructions_fill_the_context() {
    let server = Server::start(&["--context=1024"]);
    let programs = Programs::new();
    programs.add("opencode", "echo started");
    let mut variables = programs.variables();
    variables.push(("LILY_URL", server.url()));
    let variables: Vec<_> = variables.iter().map(|(name, value)| (*name, &**value)).collect();
    let connect = |flags: &[&str]| {
        lily_with_variables(["connect", "opencode", "--run"].iter().chain(flags), &variables)
    };
    assert_refused(
        &connect(&[]),
        1,
        &[
            "16384 tokens",
            "this server has 1024, and its model lily-demo 4096 at most: serve a larger model",
            "add --context-length 1024 before --run",
        ],
    );
    let all_the_same = connect(&["--context-length", "1024"]);
    assert_eq!(all_the_same.stdout, "started\n", "{}", all_the_same.stderr);
    assert!(all_the_same.stderr.starts_with("warning: opencode needs"), "{}", all_the_same.stderr);
    // What the server does not have is no reason to start it without a word.
    let more = connect(&["--context-length", "65536"]);
    assert_eq!(more.stdout, "started\n", "{}", more.stderr);
    let lines: Vec<_> = more.stderr.lines().collect();
    assert!(lines[0].starts_with("warning: opencode needs"), "{}", more.stderr);
    let note = "note: --context-length 65536 is more than this server has, 1024 tokens";
    assert!(lines[1].starts_with(note), "{}", more.stderr);
    assert_eq!(lines.len(), 2, "{}", more.stderr);
}

#[test]
fn any_program_runs_with_the_variables_of_a_library() {
    let programs = Programs::new();
    programs.add("mine", "echo $OPENAI_BASE_URL $OPENAI_API_KEY $1");
    let run = programs.run(&["openai", "--run", "--", "mine", "x"]);
    assert_eq!(run.stdout, "http://127.0.0.1:8000/v1 sk-secret x\n", "{}", run.stderr);
}

#[test]
fn a_client_that_is_missing_is_said_with_how_to_install_it() {
    let run = Programs::new().run(&["codex", "--run"]);
    assert_refused(&run, 1, &["codex is not installed", "npm install -g @openai/codex"]);
    let run = Programs::new().run(&["openai", "--run", "--", "nosuchprogram"]);
    assert_refused(&run, 1, &["nosuchprogram is not installed, or not in PATH"]);
    assert!(!run.stderr.contains("pip"), "{}", run.stderr);
}

#[test]
fn signals_reach_the_client_and_its_folder_goes_with_it() {
    let programs = Programs::new();
    programs.add(
        "llm",
        "trap 'echo ended > $HERE/ended; exit 42' TERM\necho ready\nwhile :; do sleep 0.05; done",
    );
    let mut child = Command::new(env!("CARGO_BIN_EXE_lily"))
        .args(["connect", "llm", "--offline", "--run"])
        .envs(programs.variables())
        .env_remove("LILY_URL")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut ready).unwrap();
    assert_eq!(ready, "ready\n");
    assert_eq!(programs.left().len(), 1);
    let id = child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(42));
    assert_eq!(programs.read("ended"), "ended\n");
    assert_eq!(programs.left(), Vec::<PathBuf>::new());
}

#[test]
fn a_client_that_a_signal_ended_gives_the_code_of_shells() {
    let programs = Programs::new();
    programs.add("goose", "kill -KILL $$");
    assert_eq!(programs.run(&["goose", "--run"]).code, 137);
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod encrypted {
    use std::sync::Arc;

    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use rustls::{ServerConfig, ServerConnection, StreamOwned};

    use super::*;

    fn file(name: &str) -> String {
        format!("{}/tests/tls/{name}", env!("CARGO_MANIFEST_DIR"))
    }

    /// Answers each request with this body, over TLS.
    fn answering(body: &'static str) -> String {
        let certificate = CertificateDer::from_pem_file(file("server.pem")).unwrap();
        let key = PrivateKeyDer::from_pem_file(file("server.key")).unwrap();
        let config =
            ServerConfig::builder_with_provider(Arc::new(rustls_graviola::default_provider()))
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_no_client_auth()
                .with_single_cert(vec![certificate], key)
                .unwrap();
        let config = Arc::new(config);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
                let mut stream = StreamOwned::new(connection, stream);
                let _ = stream.read(&mut [0; 4096]);
                let length = body.len();
                let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n");
                let _ = write!(stream, "{head}connection: close\r\n\r\n{body}");
                stream.conn.send_close_notify();
                let _ = stream.conn.complete_io(&mut stream.sock);
            }
        });
        url
    }

    #[test]
    fn a_server_that_speaks_tls_is_trusted_by_its_certificate() {
        let url = answering(r#"{"data": [{"id": "m", "context_length": 4096}]}"#);
        let connect = |authority: &str| {
            let variables = [("SSL_CERT_FILE", authority)];
            lily_with_variables(["connect", "curl", "--url", &url], &variables)
        };
        let run = connect(&file("authority.pem"));
        assert_eq!(run.code, 0, "{}", run.stderr);
        assert!(run.stdout.contains(&format!("curl {url}/v1/chat/completions")), "{}", run.stdout);
        let trust = format!("--cacert {}", file("authority.pem"));
        assert!(run.stdout.contains(&trust), "{}", run.stdout);
        // Node has a variable of its own.
        let authority = file("authority.pem");
        let variables = [("SSL_CERT_FILE", authority.as_str()), ("NODE_EXTRA_CA_CERTS", "")];
        let shell = ["--", "sh", "-c", "echo $NODE_EXTRA_CA_CERTS"];
        let arguments = ["connect", "openai", "--url", &url, "--run"].into_iter().chain(shell);
        let run = lily_with_variables(arguments.clone(), &variables);
        assert_eq!((run.stdout.trim_end(), run.stderr.as_str()), (authority.as_str(), ""));
        // The user's own stays, with a word.
        let others = [("SSL_CERT_FILE", authority.as_str()), ("NODE_EXTRA_CA_CERTS", "own.pem")];
        let run = lily_with_variables(arguments.clone(), &others);
        assert_eq!(run.stdout, "own.pem\n", "{}", run.stderr);
        let note = "note: NODE_EXTRA_CA_CERTS stays \"own.pem\"";
        assert!(run.stderr.starts_with(note), "{}", run.stderr);
        let same = [("SSL_CERT_FILE", &*authority), ("NODE_EXTRA_CA_CERTS", &*authority)];
        assert_eq!(lily_with_variables(arguments, &same).stderr, "");
        let stranger = connect(&file("stranger.pem"));
        let words =
            ["is not trusted: ", "stranger.pem\", which SSL_CERT_FILE names, holds neither"];
        assert_refused(&stranger, 1, &words);
        assert!(!stranger.stderr.contains("invalid peer"), "{}", stranger.stderr);
        let missing = connect("no/such.pem");
        assert_refused(
            &missing,
            1,
            &["cannot read \"no/such.pem\", which SSL_CERT_FILE", "No such file"],
        );
        // A client that speaks plainly gets an alert of TLS.
        let plain = url.replace("https:", "http:");
        let run = lily(["connect", "curl", "--url", &plain]);
        assert_refused(&run, 1, &["begins with https://"]);
    }
}
