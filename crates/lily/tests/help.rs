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
fn without_arguments_the_overview_is_shown_as_an_error() {
    let run = lily::<&str>([]);
    assert_eq!(run.code, 2);
    assert!(run.stderr.contains("Usage: lily"), "{}", run.stderr);
}
