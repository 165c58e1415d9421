//! Help texts as users see them.

mod common;

use common::{lily, stdout};

#[test]
fn the_overview() {
    let help = stdout(["--help"]);
    for command in ["chat", "serve", "generate", "make-checkpoint", "--model-path", "Exit codes:"] {
        assert!(help.contains(command), "{command}: {help}");
    }
}

#[test]
fn the_help_of_each_command_has_examples() {
    for command in [
        "chat",
        "serve",
        "generate",
        "inspect",
        "plan",
        "eval",
        "bench",
        "tokenize",
        "render",
        "make-checkpoint",
        "pack",
        "pull",
        "models",
        "doctor",
        "connect",
        "completions",
    ] {
        let help = stdout([command, "--help"]);
        assert!(help.contains("Examples:\n  lily"), "{command}: {help}");
    }
}

#[test]
fn the_help_says_what_stands_in_for_a_model_and_a_device() {
    // As one line: where it is broken depends on the terminal.
    let help =
        |command| stdout([command, "--help"]).split_whitespace().collect::<Vec<_>>().join(" ");
    let doctor = help("doctor");
    assert!(doctor.contains("default: random weights"), "{doctor}");
    assert!(!doctor.contains("demo"), "{doctor}");
    for command in ["plan", "inspect"] {
        let help = help(command);
        assert!(help.contains("none is opened, and auto is the processor"), "{help}");
        assert!(help.contains("demo model"), "{help}");
    }
}

#[test]
fn the_help_says_where_the_history_is_kept() {
    assert!(stdout(["chat", "--help"]).contains("~/.local/state"));
}

#[test]
fn the_help_of_serve_names_the_routes() {
    let help = stdout(["serve", "--help"]);
    for route in ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"] {
        assert!(help.contains(route), "{route}: {help}");
    }
}

#[test]
fn help_is_a_command_too() {
    assert!(stdout(["help", "chat"]).contains("--system"));
}

#[test]
fn without_arguments_the_overview_is_shown() {
    let run = lily::<&str>([]);
    assert_eq!((run.code, run.stderr.as_str()), (0, ""));
    assert!(run.stdout.contains("Usage: lily"), "{}", run.stdout);
    // An empty word is a word.
    assert_eq!(lily([""]).code, 2);
}

#[test]
fn the_exit_codes_are_those_of_the_readme() {
    let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md"));
    let readme = readme.expect("the README");
    let line = readme.lines().find(|line| line.starts_with("Exit codes:")).expect("a line");
    let help = stdout(["--help"]);
    let help = help.split_once("Exit codes:").expect("exit codes").1;
    for code in ["0", "1", "2", "130", "143"] {
        for text in [line, help] {
            let mut numbers = text.split(|c: char| !c.is_ascii_digit());
            assert!(numbers.any(|number| number == code), "{code}: {text}");
        }
    }
}
