//! The command line as typed: nothing here opens a file, loads a model or starts a thread.

mod access;
mod commands;
mod connect;
mod hints;
mod pull;
mod shared;

pub(crate) use access::*;
pub(crate) use commands::*;
pub(crate) use connect::*;
pub(crate) use hints::parse_or_exit;
pub(crate) use pull::*;
pub(crate) use shared::*;

use clap::{Parser, Subcommand};

const EXAMPLES: &str = "\
Examples:
  lily chat \"What is the capital of Japan?\"      ask the embedded demo model
  lily chat --model-path ~/models/Qwen3.6-35B-A3B-4bit
  lily --model-path ~/models/Qwen3.6-35B-A3B-4bit --port 8000
                                                 the same as `lily serve ...`
  lily inspect --model-path ~/models/Qwen3.6-35B-A3B-4bit --context 32768

Exit codes: 0 done, 1 failed, 2 wrong usage or a chat template's own error, 130 interrupted (143 by
SIGTERM); `lily serve` gives 0 when a signal asked it to stop.";

/// Local inference for the Qwen3.5/3.6 hybrid family.
///
/// With flags but no command, `lily` serves: `lily --model-path DIR --port 8000` is `lily serve ...`;
/// with neither, it shows this help.
/// Commands that need a model use the embedded demo model where no --model-path is given.
#[derive(Debug, Parser)]
#[command(
    name = "lily",
    version,
    after_help = EXAMPLES,
    args_conflicts_with_subcommands = true,
    max_term_width = 100
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) serve: ServeArgs,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Chat(ChatArgs),
    Serve(ServeArgs),
    Generate(GenerateArgs),
    Inspect(InspectArgs),
    Plan(PlanArgs),
    Eval(EvalArgs),
    Bench(BenchArgs),
    Tokenize(TokenizeArgs),
    Render(RenderArgs),
    MakeCheckpoint(MakeCheckpointArgs),
    Pack(PackArgs),
    Pull(PullArgs),
    Models(ModelsArgs),
    Doctor(DoctorArgs),
    Connect(ConnectArgs),
    Completions(CompletionsArgs),
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Args, CommandFactory};

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        hints::parse(line.split_whitespace().map(Into::into))
    }

    #[test]
    fn the_definitions_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_flag_stands_under_the_heading_of_its_group() {
        let headings = |command: &clap::Command| -> Vec<(String, Option<String>)> {
            let own = command.get_arguments().filter(|arg| arg.get_id() != "help");
            own.map(|a| (a.get_id().to_string(), a.get_help_heading().map(str::to_owned))).collect()
        };
        let groups: Vec<_> = [
            ModelArgs::augment_args(clap::Command::new("model")),
            EngineArgs::augment_args(clap::Command::new("engine")),
            SamplingArgs::augment_args(clap::Command::new("sampling")),
            AccessArgs::augment_args(clap::Command::new("access")),
            LoadArgs::augment_args(clap::Command::new("load")),
            LogArgs::augment_args(clap::Command::new("log")),
        ]
        .iter()
        .flat_map(headings)
        .collect();
        for command in Cli::command().get_subcommands() {
            for (name, heading) in headings(command) {
                let group = groups.iter().find(|(grouped, _)| *grouped == name);
                let expected = group.and_then(|(_, heading)| heading.clone());
                assert_eq!(heading, expected, "{name} of {}", command.get_name());
            }
        }
    }

    #[test]
    fn flags_without_a_command_serve() {
        let cli = parse("lily --model-path models/x --port 8000").unwrap();
        assert!(cli.command.is_none());
        assert_eq!(cli.serve.port, 8000);
        assert_eq!(cli.serve.model.model_path.as_deref(), Some("models/x".as_ref()));
    }

    #[test]
    fn a_bare_command_line_asks_for_the_help() {
        let shown = parse("lily").unwrap_err();
        assert_eq!((shown.kind(), shown.exit_code()), (clap::error::ErrorKind::DisplayHelp, 0));
    }

    #[test]
    fn serve_flags_before_another_command_are_refused() {
        assert!(parse("lily --port 8000 chat hello").is_err());
    }

    #[test]
    fn sampling_values_outside_their_range_are_refused() {
        for bad in [
            "--temperature=-1",
            "--temperature -1",
            "--temperature=2.1",
            "--top-k -1",
            "--temperature=nan",
            "--temperature=warm",
            "--top-p=0",
            "--top-p=1.5",
            "--min-p=2",
            "--repetition-penalty=0",
            "--presence-penalty=3",
            "--logit-bias=5",
            "--logit-bias=5=inf",
            "--max-tokens=0",
        ] {
            assert!(parse(&format!("lily generate hello {bad}")).is_err(), "{bad}");
        }
    }

    #[test]
    fn token_ids_may_be_spaced_and_bracketed() {
        for list in ["1,2,3", "1, 2,3", " 1 ,2, 3 ", "[1,2,3]", " [ 1, 2, 3 ] "] {
            assert_eq!(token_ids(list).unwrap(), TokenIds(vec![1, 2, 3]), "{list:?}");
        }
        for list in ["", "[]", "[1", "1]", "1,,2", "1 2", "1,x", "-1", "4294967296", "[[1]]"] {
            let refusal = token_ids(list).unwrap_err();
            assert!(refusal.contains("token ids separated by commas"), "{list:?}: {refusal}");
        }
    }

    #[test]
    fn prompt_tokens_are_a_comma_list() {
        let Some(Command::Generate(args)) =
            parse("lily generate --prompt-tokens 1,2,3").unwrap().command
        else {
            panic!("not generate")
        };
        assert_eq!(args.prompt_tokens, Some(TokenIds(vec![1, 2, 3])));
        assert!(parse("lily generate --prompt-tokens 1,x").is_err());
        assert!(parse("lily generate hello --prompt-tokens 1").is_err());
    }
}
