//! Every kind of wrong input ends with one clear line and its exit code, never with a panic.

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{Run, demo_copy, lily, lily_with_input, lily_with_variables};
use serde_json::{Value, json};
use tempfile::TempDir;

/// `code`, exactly one line that starts with `error:` and contains every word of `expected`.
fn assert_refused(case: &str, run: &Run, code: i32, expected: &[&str]) {
    let Run { stderr, .. } = run;
    assert!(!stderr.contains("panicked at"), "{case}: {stderr}");
    assert_eq!(run.code, code, "{case}: {stderr}");
    let errors: Vec<&str> = stderr.lines().filter(|l| l.starts_with("error:")).collect();
    assert_eq!(errors.len(), 1, "{case}: {stderr}");
    for word in expected {
        assert!(stderr.contains(word), "{case}: {word:?} is not in {stderr}");
    }
    if code == 1 {
        assert_eq!(stderr.trim_end().lines().last(), errors.last().copied(), "{case}: {stderr}");
    }
}

/// A line of input, the exit code and what the message must contain.
type Case<'a> = (&'a str, i32, &'a [&'a str]);

#[test]
fn wrong_usage_ends_with_code_2_and_names_the_argument() {
    let cases: &[Case<'_>] = &[
        ("chat --bogus hello", 2, &["--bogus"]),
        ("--bogus", 2, &["--bogus"]),
        ("bogus", 2, &["bogus"]),
        ("--port 99999", 2, &["--port", "99999"]),
        ("serve --port -1", 2, &["--port", "-1"]),
        ("--port 8000 chat hello", 2, &["chat"]),
        ("serve --host nowhere", 2, &["--host", "nowhere"]),
        ("generate hello --temperature=-1", 2, &["--temperature", "between 0 and 2"]),
        ("generate hello --temperature -1", 2, &["--temperature", "between 0 and 2"]),
        ("generate hello --max-tokens -1", 2, &["--max-tokens", "at least 1"]),
        ("chat hello --temperature 2.5", 2, &["--temperature", "between 0 and 2"]),
        ("generate hello --temperature warm", 2, &["--temperature", "not a number"]),
        ("generate hello --temperature nan", 2, &["--temperature"]),
        ("generate hello --top-p 1.5", 2, &["--top-p"]),
        ("generate hello --max-tokens 0", 2, &["--max-tokens", "at least 1"]),
        ("generate hello --logit-bias 5", 2, &["--logit-bias", "ID=BIAS"]),
        ("generate hello --kv-cache f8", 2, &["--kv-cache", "bf16"]),
        ("generate hello --prompt-tokens 1", 2, &["--prompt-tokens"]),
        ("generate hello --regex (", 2, &["regular expression", "unclosed group"]),
        ("generate hello --regex a --grammar b", 2, &["--regex", "--grammar"]),
        ("generate hello --grammar nowhere.lark", 1, &["nowhere.lark"]),
        ("generate hello --json-schema Cargo.toml", 2, &["--json-schema Cargo.toml is not JSON"]),
        ("generate hello --grammar Cargo.toml", 2, &["Cargo.toml: the Lark grammar", ": line "]),
        (
            "generate hello --regex [z-a]",
            2,
            &["followed: invalid regex \"[z-a]\": invalid character class"],
        ),
        ("generate hello --thinking-budget -1", 2, &["--thinking-budget", "-1"]),
        ("chat hello --regex (", 2, &["regular expression", "unclosed group"]),
        ("chat hello --json-schema nowhere.json", 1, &["nowhere.json"]),
        ("chat hello --think off --thinking-budget 9", 2, &["--thinking-budget", "--think off"]),
        ("generate --prompt-tokens 1,two", 2, &["\"two\"", "token ids separated by commas"]),
        ("generate --prompt-tokens [1,2", 2, &["token ids separated by commas"]),
        ("generate --prompt-tokens=", 2, &["token ids separated by commas"]),
        ("generate --prompt-tokens -1", 2, &["-1"]),
        ("generate", 2, &["nothing to continue"]),
        ("generate hello --fuse everything", 2, &["--fuse", "everything"]),
        ("generate hello --context 0", 2, &["--context"]),
        ("generate hello --threads 0", 2, &["--threads"]),
        ("chat hello --device cpu --threads 100000", 2, &["--threads 100000", "at most"]),
        ("doctor --device cpu --threads 100000", 2, &["--threads 100000", "at most"]),
        ("chat hello --stop=", 2, &["--stop", "must not be empty"]),
        ("generate hello --stop=", 2, &["--stop", "must not be empty"]),
        ("serve --host 0.0.0.0", 2, &["other machines could use the server", "--api-key-file"]),
        ("serve --api-key=", 2, &["an API key must be"]),
        ("serve --host 0.0.0.0 --api-key=", 2, &["an API key must be"]),
        ("serve --cors-origin nowhere", 2, &["nowhere"]),
        ("serve --api-key-file nowhere.txt", 1, &["nowhere.txt"]),
        ("plan --phase training", 2, &["--phase", "training"]),
        ("eval", 2, &["FILE", "--reference", "--conversations"]),
        ("eval book.txt --reference x", 2, &["--reference"]),
        ("bench --lengths 5,0", 2, &["--lengths"]),
        ("tokenize", 2, &["TEXT", "--file"]),
        ("render", 2, &["--request"]),
        ("make-checkpoint", 2, &["OUT"]),
        ("make-checkpoint --random --layers 0 out", 2, &["--layers"]),
        ("completions tcsh", 2, &["tcsh"]),
    ];
    for &(line, code, expected) in cases {
        assert_refused(line, &lily(line.split_whitespace()), code, expected);
    }
}

#[test]
fn a_schema_is_refused_by_the_place_that_is_wrong() {
    let dir = TempDir::new().unwrap();
    let schema = json!({"type": "object", "properties": {"a": {"type": "obj"}}});
    let file = write(dir.path(), "s2.json", &schema.to_string());
    for command in ["chat", "generate"] {
        let run = lily([command, "hello", "--json-schema", file.to_str().unwrap()]);
        let place = "s2.json: the keyword \"type\" at #/properties/a is \"obj\"; expected one of";
        assert_refused(command, &run, 2, &[place]);
    }
}

#[test]
fn a_grammar_in_place_of_its_file_is_told_apart_from_a_wrong_path() {
    let inline = lily(["generate", "hello", "--grammar", "start: \"a\""]);
    assert_refused("inline", &inline, 2, &["--grammar takes the path of a file"]);
}

#[test]
fn a_wrong_word_is_answered_with_what_was_meant() {
    let cases: &[Case<'_>] = &[
        ("chat --device gpu hello", 2, &["tip: 'auto', the default, takes a GPU"]),
        ("plan --device GPU", 2, &["tip: 'auto'"]),
        ("chat --device nvidia hello", 2, &["tip: 'cuda' is"]),
        ("chat --device mps hello", 2, &["tip: 'metal' is"]),
        ("plan --max-tokens 3", 2, &["'--max-tokens' is a flag of chat, generate"]),
        ("--max-tokens=3", 2, &["'--max-tokens' is a flag of chat, generate"]),
        ("chat --port 1 hello", 2, &["'--port' is a flag of serve"]),
        ("bench -v", 2, &["'-v' is a flag of serve"]),
        ("serve some/model", 2, &["given with '--model-path some/model'"]),
        ("serve -m some/model", 2, &["given with '--model-path'"]),
        ("chat --model some/model", 2, &["given with '--model-path'"]),
        ("inspect -m some/model", 2, &["given with '--model-path'"]),
        ("serve --model=some/model --port 0", 2, &["given with '--model-path'"]),
        ("serve --port 0 --ctx-size 4096", 2, &["given with '--context'"]),
        ("--max-model-len 4096", 2, &["given with '--context'"]),
        ("serve --served-model-name x", 2, &["given with '--model-name'"]),
        // No device is opened and nothing is run, so there is nothing for them to choose.
        ("inspect --threads 2", 2, &["'--threads' is a flag of chat"]),
        ("plan --threads 2", 2, &["'--threads' is a flag of chat"]),
        ("chat --devise cpu hello", 2, &["similar argument exists: '--device'"]),
        ("hello", 2, &["to ask the model, use 'lily chat hello'"]),
        ("chta hello", 2, &["similar subcommand exists: 'chat'"]),
        ("hello there --think off", 2, &["'lily chat hello there --think off'"]),
        // As other programs call it.
        ("run hi there", 2, &["tip: to ask the model, use 'lily chat hi there'"]),
        ("list", 2, &["tip: to list the models in the cache, use 'lily models'"]),
        ("ls --json", 2, &["use 'lily models --json'"]),
        ("PS", 2, &["use 'lily models'"]),
        ("download a/b@v1", 2, &["tip: to fetch a model, use 'lily pull a/b@v1'"]),
        ("server --port 8080", 2, &["use 'lily serve --port 8080'"]),
        ("show a/b", 2, &["use 'lily inspect --model-path a/b'"]),
        ("info --json", 2, &["use 'lily inspect --json'"]),
        ("benchmark", 2, &["use 'lily bench'"]),
        ("convert x", 2, &["tip: there is no such step: lily reads MLX 4-bit", "'lily pull'"]),
        ("quantize", 2, &["lily reads MLX 4-bit checkpoints as they are", "'lily pack'"]),
        ("rm a/b", 2, &["lily deletes nothing: 'lily models --json'"]),
        ("help run", 2, &["to ask the model, there is 'chat': see 'lily help chat'"]),
        ("help convert", 2, &["lily reads MLX 4-bit checkpoints"]),
        ("help chatt", 2, &["similar subcommand exists: 'chat'"]),
    ];
    for &(line, code, expected) in cases {
        let run = lily(line.split_whitespace());
        assert_refused(line, &run, code, expected);
        assert!(!run.stderr.contains("value exists: 'cpu'"), "{line}: {}", run.stderr);
    }
    for (question, command) in [
        ("What is the capital of Japan?", r#"lily chat "What is the capital of Japan?""#),
        ("What's $5 + $6?", r"lily chat 'What'\''s $5 + $6?'"),
    ] {
        let run = lily([question]);
        assert_refused(question, &run, 2, &[&format!("to ask the model, use '{command}'")]);
        assert!(!run.stderr.contains("similar"), "{}", run.stderr);
    }
}

#[test]
fn a_word_like_no_other_is_answered_without_a_guess() {
    for line in [
        "convert",
        "list",
        "help foo",
        "help chat foo",
        "bench --compare ollama",
        "completions tcsh",
        "connect foo",
        "chat --zzz hello",
    ] {
        let run = lily(line.split_whitespace());
        assert_refused(line, &run, 2, &[]);
        assert!(!run.stderr.contains("similar"), "{line}: {}", run.stderr);
        assert!(!run.stderr.contains("use 'lily chat"), "{line}: {}", run.stderr);
    }
    for (line, meant) in [
        ("connect claud", "'claude'"),
        ("bench --compare llamacpp", "'llama.cpp'"),
        ("chatt hi", "'chat'"),
    ] {
        let run = lily(line.split_whitespace());
        assert_refused(line, &run, 2, &["similar", meant]);
        assert!(!run.stderr.contains("to ask the model"), "{line}: {}", run.stderr);
    }
}

#[test]
fn choices_may_be_written_in_capitals() {
    let plan = ["plan", "--json", "--device", "CUDA", "--kv-cache", "BF16", "--phase", "Decode"];
    assert_eq!(common::json(plan)["device"], "cuda");
    assert_eq!(lily(["completions", "Bash"]).code, 0);
    assert_eq!(lily(["chat", "--think=OFF", "--max-tokens=2", "Hello!"]).code, 0);
}

#[test]
fn wrong_prompts_are_refused_by_number() {
    let cases: &[Case<'_>] = &[
        ("generate --prompt-tokens 4096", 2, &["4096", "vocabulary"]),
        ("generate hello --logit-bias 99999=1", 2, &["99999", "vocabulary"]),
        (
            "generate --prompt-tokens 1,2,3,4,5 --context 4",
            2,
            &["the prompt has 5 tokens; with an answer it does not fit into the context of 4\n"],
        ),
        ("generate hello --context 99999999", 2, &["--context", "99999999", "4096"]),
        ("inspect --context 99999999", 2, &["--context", "99999999", "4096"]),
        ("plan --context 99999999", 2, &["--context", "99999999", "4096"]),
        ("bench --lengths 5000", 2, &["5000 and 64 steps need 5065 tokens, the model has 4096"]),
        (
            "chat --context 8 What is the capital of Japan?",
            2,
            &["the prompt has 17 tokens; with an answer it does not fit into the context of 8\n"],
        ),
        ("plan --phase decode --rows 5", 2, &["--rows 5 is not 1"]),
        (
            "plan --phase prefill --rows 100000",
            2,
            &["--rows 100000 is more than the context of 4096"],
        ),
        ("plan --phase score --rows 9 --context 8", 2, &["--rows 9", "the context of 8"]),
        ("plan --json --position 8 --context 8", 2, &["--position 8 and 1 rows", "context of 8"]),
        ("plan --position 8", 2, &["--json"]),
        ("eval no-such-file.txt", 1, &["no-such-file.txt"]),
        ("eval --conversations no-such-file.jsonl", 1, &["no-such-file.jsonl"]),
        ("eval --reference no-such-file.safetensors", 1, &["no-such-file.safetensors"]),
        ("generate --file no-such-file.txt", 1, &["no-such-file.txt"]),
        ("tokenize --file no-such-file.txt", 1, &["no-such-file.txt"]),
        ("render --request no-such-file.json", 1, &["no-such-file.json"]),
        ("bench --lengths 16 --steps 8 --context 16", 2, &["context"]),
    ];
    for &(line, code, expected) in cases {
        assert_refused(line, &lily(line.split_whitespace()), code, expected);
    }
    assert_refused("empty path", &lily(["plan", "--model-path="]), 1, &["model \"\""]);
    assert_refused("empty text", &lily(["generate", ""]), 2, &["text is empty"]);
    assert_refused("empty prompt", &lily(["generate", "--prompt="]), 2, &["text is empty"]);
    assert_refused("empty question", &lily(["chat", ""]), 2, &["question is empty"]);
    assert_refused("empty input", &lily_with_input(["chat"], "\n"), 2, &["question is empty"]);
}

/// A damaged checkpoint and what the message must contain.
struct Damage {
    name: &'static str,
    inflict: fn(&Path),
    expected: &'static [&'static str],
}

fn edit_config(dir: &Path, edit: impl FnOnce(&mut Value)) {
    let path = dir.join("config.json");
    let mut config = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    edit(&mut config);
    fs::write(path, config.to_string()).unwrap();
}

const DAMAGES: &[Damage] = &[
    Damage {
        name: "an empty directory",
        inflict: |dir| {
            for file in fs::read_dir(dir).unwrap() {
                fs::remove_file(file.unwrap().path()).unwrap();
            }
        },
        expected: &["config.json", "missing"],
    },
    Damage {
        name: "no config.json",
        inflict: |dir| fs::remove_file(dir.join("config.json")).unwrap(),
        expected: &["config.json"],
    },
    Damage {
        name: "config.json is no JSON",
        inflict: |dir| fs::write(dir.join("config.json"), "{\"model_type\": ").unwrap(),
        expected: &["config.json", "JSON"],
    },
    Damage {
        name: "another family",
        inflict: |dir| {
            edit_config(dir, |c| {
                c["model_type"] = json!("llama");
                c.as_object_mut().unwrap().remove("text_config");
            });
        },
        expected: &["llama"],
    },
    Damage {
        name: "a negative size",
        inflict: |dir| edit_config(dir, |c| c["text_config"]["hidden_size"] = json!(-1)),
        expected: &["hidden_size", "-1"],
    },
    Damage {
        name: "a size that the tensors contradict",
        inflict: |dir| edit_config(dir, |c| c["text_config"]["hidden_size"] = json!(512)),
        expected: &["embed_tokens", "bits"],
    },
    Damage {
        name: "a quantisation that is not MLX affine",
        inflict: |dir| {
            edit_config(dir, |c| {
                c["quantization"] = json!({"mode": "mxfp4", "bits": 4, "group_size": 32});
                c["quantization_config"] = c["quantization"].clone();
            });
        },
        expected: &["mxfp4"],
    },
    Damage {
        name: "no weights",
        inflict: |dir| fs::remove_file(dir.join("model.safetensors")).unwrap(),
        expected: &["model.safetensors", "missing"],
    },
    Damage {
        name: "truncated weights",
        inflict: |dir| {
            let path = dir.join("model.safetensors");
            let bytes = fs::read(&path).unwrap();
            fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
        },
        expected: &["model.safetensors"],
    },
    Damage {
        name: "weights shorter than their header's length",
        inflict: |dir| fs::write(dir.join("model.safetensors"), [0xff; 8]).unwrap(),
        expected: &["model.safetensors"],
    },
    Damage {
        name: "a missing tensor",
        inflict: |dir| {
            // Same length, so that all offsets stay right.
            let path = dir.join("model.safetensors");
            let mut bytes = fs::read(&path).unwrap();
            let name = b"layers.0.input_layernorm.weight";
            let at = bytes.windows(name.len()).position(|w| w == name).unwrap();
            bytes[at..at + name.len()].copy_from_slice(b"layers.0.input_layernorm.weighs");
            fs::write(path, bytes).unwrap();
            fs::remove_file(dir.join("model.safetensors.index.json")).unwrap();
        },
        expected: &["layers.0.input_layernorm"],
    },
    Damage {
        name: "a tokenizer that is no JSON",
        inflict: |dir| fs::write(dir.join("tokenizer.json"), "[").unwrap(),
        expected: &["tokenizer.json"],
    },
    Damage {
        name: "no tokenizer",
        inflict: |dir| fs::remove_file(dir.join("tokenizer.json")).unwrap(),
        expected: &["tokenizer.json is missing in", "--prompt-tokens"],
    },
    Damage {
        name: "no chat template",
        inflict: |dir| {
            fs::remove_file(dir.join("chat_template.jinja")).unwrap();
            let _ = fs::remove_file(dir.join("tokenizer_config.json"));
        },
        expected: &["chat_template.jinja", "missing in", "lily generate"],
    },
    Damage {
        name: "a chat template that does not parse",
        inflict: |dir| fs::write(dir.join("chat_template.jinja"), "{% if %}").unwrap(),
        expected: &["template"],
    },
    Damage {
        name: "sampling defaults out of range",
        inflict: |dir| {
            fs::write(dir.join("generation_config.json"), r#"{"temperature": -3}"#).unwrap();
        },
        expected: &["generation_config.json", "temperature"],
    },
];

#[test]
fn damaged_checkpoints_are_refused_by_name() {
    for damage in DAMAGES {
        let copy = demo_copy();
        (damage.inflict)(copy.path());
        let dir = copy.path().to_str().unwrap();
        let run = lily(["chat", "--model-path", dir, "Hello!"]);
        assert_refused(damage.name, &run, 1, damage.expected);
    }
}

#[test]
fn a_path_that_is_no_checkpoint_is_refused_by_every_command() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let request = write(&file_dir(), "request.json", r#"{"messages": []}"#);
    for path in ["no/such/folder", "no/such.lily", file.path().to_str().unwrap()] {
        for command in [
            &["chat", "hello"][..],
            &["generate", "hello"],
            &["inspect"],
            &["plan"],
            &["bench"],
            &["tokenize", "hello"],
            &["render", "--request", request.to_str().unwrap()],
            &["serve"],
        ] {
            let run = lily(command.iter().chain(&["--model-path", path]));
            assert_refused(&format!("{command:?} {path}"), &run, 1, &[]);
            let message = format!("error: cannot open model {path}: ");
            assert!(run.stderr.contains(&message), "{command:?}: {}", run.stderr);
            assert_eq!(run.stderr.matches(path).count(), 1, "{command:?}: {}", run.stderr);
        }
    }
}

#[test]
fn a_path_that_may_be_meant_otherwise_is_refused_with_advice() {
    let copy = demo_copy();
    let place = |name: &str| copy.path().join(name).to_str().unwrap().to_owned();
    let pack = place("demo.lily");
    assert_eq!(lily(["pack", &pack]).code, 0);
    fs::copy(&pack, place("demo.bin")).unwrap();
    fs::write(place("m.gguf"), "GGUF").unwrap();
    fs::write(place("empty.lily"), "").unwrap();
    fs::write(place("cut.lily"), "LILYP").unwrap();
    let only_gguf = TempDir::new().unwrap();
    fs::write(only_gguf.path().join("model-Q4.gguf"), "GGUF").unwrap();
    let only_gguf = only_gguf.path().to_str().unwrap().to_owned();
    for (path, expected) in [
        (
            place("model.safetensors"),
            ": one safetensors file, expected the directory that holds it\n",
        ),
        (
            place("demo.bin"),
            ": a .lily file under another name, expected a name that ends in .lily\n",
        ),
        (place("config.json"), ": a file of another kind, expected a directory or a .lily file\n"),
        (place("m.gguf"), ": GGUF, which is not supported, expected a directory of safetensors"),
        (only_gguf, ": model-Q4.gguf is GGUF, which is not supported"),
        (place("empty.lily"), ": the file is empty\n"),
        (place("cut.lily"), ": truncated: the header ends at byte 24, the file has 5 bytes\n"),
        (place("none.lily"), ": no such directory or file\n"),
        (place("none"), ": no such directory or file\n"),
        (
            "mlx-community/Qwen3.6-35B-A3B-4bit".to_owned(),
            ": no such directory or file, and no such model in the cache; `lily pull \
             mlx-community/Qwen3.6-35B-A3B-4bit` fetches it\n",
        ),
    ] {
        for command in [&["chat", "hello"][..], &["inspect"], &["tokenize", "hello"]] {
            let run = lily(command.iter().chain(&["--model-path", &path]));
            let message = format!("error: cannot open model {path}{expected}");
            assert!(run.stderr.contains(&message), "{command:?}: {}", run.stderr);
            assert_eq!(run.code, 1);
        }
    }
}

#[test]
fn of_a_wrong_path_and_a_missing_text_the_path_is_told() {
    for command in [
        &["chat"][..],
        &["generate"],
        &["tokenize"],
        &["eval", "no-such-file.txt"],
        &["eval", "--reference", "no-such-file"],
        &["render", "--request", "no-such-file"],
    ] {
        let run = lily(command.iter().chain(&["--model-path", "nosuch"]));
        assert_refused(&format!("{command:?}"), &run, 1, &["cannot open model nosuch: no such"]);
    }
}

#[test]
fn a_variable_that_is_set_to_nothing_counts_as_unset_and_an_empty_flag_does_not() {
    let unset = [("LILY_MODEL_PATH", ""), ("LILY_DEVICE", "")];
    let run = lily_with_variables(["generate", "Once", "--max-tokens=1"], &unset);
    assert_eq!(run.code, 0, "{}", run.stderr);
    for flag in ["--device=", "--model-path="] {
        let run = lily_with_variables(["generate", "Once", "--max-tokens=1", flag], &unset);
        assert_ne!(run.code, 0, "{flag}");
    }
    let run = lily_with_variables(["inspect"], &[("LILY_MODEL_PATH", "nosuch")]);
    assert_refused("a variable", &run, 1, &["nosuch"]);
}

fn file_dir() -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("bad_input");
    fs::create_dir_all(&dir).unwrap();
    dir
}

fn write(dir: &Path, name: &str, text: &str) -> PathBuf {
    let path = dir.join(name);
    fs::write(&path, text).unwrap();
    path
}

#[test]
fn a_request_that_the_template_refuses_ends_with_code_2() {
    let dir = TempDir::new().unwrap();
    let cases: &[(&str, i32, &[&str])] = &[
        (r#"{"messages": []}"#, 2, &["messages"]),
        (r#"{"messages": [{"role": "wizard", "content": "x"}]}"#, 2, &["wizard"]),
        (r#"{"messages": [{"role": "system", "content": "x"}]}"#, 2, &["user"]),
        (
            r#"{"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]}"#,
            2,
            &["input_audio"],
        ),
        (r#"{"messages": "hello"}"#, 1, &["messages", "array"]),
        (r#"{"prompt": "hello"}"#, 1, &["messages", "missing"]),
        ("not json", 1, &["request"]),
    ];
    for (i, &(body, code, expected)) in cases.iter().enumerate() {
        let request = write(dir.path(), &format!("{i}.json"), body);
        let run = lily(["render", "--request", request.to_str().unwrap()]);
        assert_refused(body, &run, code, expected);
        assert_eq!(run.stdout, "", "{body}");
    }
}

#[test]
fn reference_files_that_do_not_fit_are_refused() {
    let dir = TempDir::new().unwrap();
    let file = write(dir.path(), "bad.safetensors", "no safetensors");
    let run = lily(["eval", "--reference", file.to_str().unwrap()]);
    assert_refused("not safetensors", &run, 1, &["bad.safetensors", "safetensors"]);
    let conversations = write(dir.path(), "bad.jsonl", "{}\n");
    let run = lily(["eval", "--conversations", conversations.to_str().unwrap()]);
    assert_refused("not conversations", &run, 1, &["bad.jsonl", "line 1"]);
}

#[test]
fn a_checkpoint_is_not_written_over_something() {
    let copy = demo_copy();
    let dir = copy.path().to_str().unwrap();
    let run = lily(["make-checkpoint", "--random", "--layers", "4", dir]);
    assert_refused("not empty", &run, 2, &["exists and is not an empty directory"]);
}

#[test]
fn switches_of_a_device_that_is_not_asked_for_are_refused() {
    for args in [
        ["bench", "--device=cpu", "--cuda=trace"],
        ["plan", "--device=metal", "--cuda=trace"],
        ["generate", "--prompt=Hi", "--cuda=trace"],
    ] {
        let run = lily(args);
        assert_eq!((run.code, run.stdout.as_str()), (2, ""), "{args:?}: {}", run.stderr);
        assert!(run.stderr.contains("--cuda is for --device cuda"), "{args:?}: {}", run.stderr);
    }
}

#[test]
fn a_length_that_is_no_number_is_told_in_plain_words() {
    let run = lily(["bench", "--lengths=1k"]);
    assert_eq!(run.code, 2);
    assert!(run.stderr.contains("must be a whole number, at least 1"), "{}", run.stderr);
    assert!(!run.stderr.contains("invalid digit"), "{}", run.stderr);
}
