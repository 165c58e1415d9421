//! What is printed, for every client.

use clap::ValueEnum;
use saphyr::{LoadableYamlNode, Yaml};
use serde_json::Value as Json;

use super::clients;
use super::render;
use super::server::{Base, Key, Limits, Server};
use super::settings::{Format, Value};
use crate::args::Client;

const SECRET: &str = "sk-secret";

fn server(key: Option<&str>, model: &str) -> Server {
    Server {
        base: Base::parse("http://127.0.0.1:8000").unwrap(),
        key: key.map(|key| Key::new(key).unwrap()),
        model: model.to_owned(),
        context: 32_768,
        limits: Limits::default(),
    }
}

fn text(client: Client, server: &Server, show_key: bool) -> String {
    render::text(client, server, &clients::settings(client, server), show_key)
}

fn object(client: Client, server: &Server, show_key: bool) -> Json {
    render::object(client, server, &clients::settings(client, server), show_key)
}

#[test]
#[cfg(unix)]
fn the_settings_of_each_client() {
    let server = server(Some(SECRET), "Qwen3.6-35B-A3B-4bit");
    for &client in Client::value_variants() {
        insta::assert_snapshot!(render::name(client), text(client, &server, false));
    }
}

#[test]
#[cfg(unix)]
fn without_a_key_none_is_spoken_of() {
    let server = server(None, "m");
    for &client in Client::value_variants() {
        let text = text(client, &server, false);
        assert!(!text.contains("must hold"), "{text}");
        assert!(!text.contains("$LILY_API_KEY") && !text.contains("env:LILY"), "{text}");
    }
    assert!(text(Client::Zed, &server, false).contains("export LILY_API_KEY=unused"));
    assert!(text(Client::Aider, &server, false).contains("export OPENAI_API_KEY=unused"));
}

#[test]
fn the_key_is_shown_only_where_it_was_asked_for() {
    let server = server(Some(SECRET), "m");
    for &client in Client::value_variants() {
        let settings = clients::settings(client, &server);
        assert!(!text(client, &server, false).contains(SECRET), "{client:?}");
        assert!(!object(client, &server, false).to_string().contains(SECRET), "{client:?}");
        for file in &settings.files {
            assert!(!file.text.contains(SECRET), "{client:?} keeps the key in a file");
        }
        for argument in settings.launch.iter().flat_map(|launch| &launch.arguments) {
            assert!(!matches!(argument, Value::Key), "{client:?}");
            let shown = matches!(argument, Value::Text(text) if text.contains(SECRET));
            assert!(!shown, "{client:?} gets the key as an argument");
        }
    }
    let shown = text(Client::Claude, &server, true);
    assert!(shown.contains(&format!("LILY_API_KEY={SECRET}")), "{shown}");
    assert!(shown.contains(&format!("ANTHROPIC_AUTH_TOKEN={SECRET}")), "{shown}");
    assert_eq!(object(Client::Claude, &server, true)["environment"]["LILY_API_KEY"], SECRET);
    let hidden = object(Client::Claude, &server, false);
    assert_eq!(hidden["environment"]["LILY_API_KEY"], Json::Null);
    assert_eq!(hidden["environment"]["ANTHROPIC_AUTH_TOKEN"], "$LILY_API_KEY");
}

#[test]
fn a_shell_takes_a_key_with_any_characters_whole() {
    let server = server(Some("it's$5"), "m");
    let shown = text(Client::Goose, &server, true);
    assert!(shown.contains(r"OPENAI_API_KEY='it'\''s$5'"), "{shown}");
}

#[test]
fn a_server_elsewhere_is_named_in_the_command_that_starts_the_client() {
    let mut elsewhere = server(None, "m");
    assert!(text(Client::Codex, &elsewhere, false).contains("  lily connect codex --run\n"));
    elsewhere.base = Base::parse("http://10.0.0.5:9000/v1").unwrap();
    let line = "lily connect codex --url http://10.0.0.5:9000 --run";
    assert!(text(Client::Codex, &elsewhere, false).contains(line));
    assert_eq!(object(Client::Codex, &elsewhere, false)["run"], line);
}

/// A file as its own format's parser reads it, as JSON.
fn parsed(format: Format, text: &str) -> Json {
    match format {
        Format::Json => serde_json::from_str(text).unwrap(),
        Format::Toml => serde_json::to_value(toml::from_str::<toml::Table>(text).unwrap()).unwrap(),
        Format::Yaml => {
            let mut documents = Yaml::load_from_str(text).unwrap();
            assert_eq!(documents.len(), 1, "{text}");
            as_json(&documents.remove(0))
        }
    }
}

fn as_json(yaml: &Yaml<'_>) -> Json {
    if let Some(map) = yaml.as_mapping() {
        let pair = |(key, value): (&Yaml<'_>, &Yaml<'_>)| {
            (key.as_str().expect("a text as key").to_owned(), as_json(value))
        };
        return Json::Object(map.iter().map(pair).collect());
    }
    if let Some(list) = yaml.as_sequence() {
        return list.iter().map(as_json).collect();
    }
    if let Some(number) = yaml.as_integer() {
        return number.into();
    }
    if let Some(truth) = yaml.as_bool() {
        return truth.into();
    }
    yaml.as_str().unwrap_or_else(|| panic!("{yaml:?}")).into()
}

/// All texts and numbers in a value.
fn leaves(value: &Json, found: &mut Vec<String>) {
    match value {
        Json::Object(map) => map.iter().for_each(|(key, value)| {
            found.push(key.clone());
            leaves(value, found);
        }),
        Json::Array(list) => list.iter().for_each(|value| leaves(value, found)),
        Json::String(text) => found.push(text.clone()),
        other => found.push(other.to_string()),
    }
}

#[test]
fn every_file_is_read_by_its_own_format_whatever_the_model_is_called() {
    for model in ["m", "org/Qwen 3.6: \"4bit\" \\ #1 - 'x' !y %Z 日本 👋", "- yes", "1e3"] {
        for key in [None, Some(SECRET)] {
            let server = server(key, model);
            for &client in Client::value_variants() {
                let settings = clients::settings(client, &server);
                for file in &settings.files {
                    let mut found = Vec::new();
                    leaves(&parsed(file.format, &file.text), &mut found);
                    let named = found.iter().any(|leaf| leaf.ends_with(model));
                    assert!(named, "{client:?}: {model:?} is not in {}", file.text);
                }
            }
        }
    }
}

#[test]
fn every_client_that_can_be_told_learns_how_long_the_context_is() {
    let server = server(Some(SECRET), "m");
    for &client in Client::value_variants() {
        // Libraries and single requests have no use for it; llm and Open WebUI keep no count.
        if matches!(
            client,
            Client::Openai | Client::Anthropic | Client::Curl | Client::Llm | Client::OpenWebui
        ) {
            continue;
        }
        let shown = object(client, &server, false).to_string();
        let window = if client == Client::Aider { server.compaction() } else { server.context };
        for tokens in [window, server.answer()] {
            let told = shown.matches(&tokens.to_string()).count();
            // Once more than in what is said of the server.
            let codex_has_no_limit = client == Client::Codex && tokens == server.answer();
            let of_server = usize::from(client != Client::Aider || tokens == server.answer());
            assert!(codex_has_no_limit || told > of_server, "{client:?}, {tokens}: {shown}");
        }
    }
}

#[test]
fn the_files_of_a_run_are_well_formed_and_hold_what_is_printed() {
    let server = server(Some(SECRET), "m \"x\"");
    for &client in Client::value_variants() {
        let Some(launch) = clients::settings(client, &server).launch else { continue };
        for (name, text) in &launch.files {
            let value = match name.rsplit('.').next() {
                Some("json") => parsed(Format::Json, text),
                Some("yaml") => parsed(Format::Yaml, text),
                _ => continue,
            };
            let mut found = Vec::new();
            leaves(&value, &mut found);
            assert!(found.iter().any(|leaf| leaf.ends_with("m \"x\"")), "{client:?}: {text}");
        }
        for argument in &launch.arguments {
            let Value::Path(name) = argument else { continue };
            assert!(launch.files.iter().any(|(file, _)| file == name), "{client:?}: {name}");
        }
    }
}

#[test]
fn an_agent_is_warned_of_where_the_context_is_too_short_for_it() {
    let small = |context, most| {
        let limits = Limits { context: Some(context), most };
        Server { context, limits, ..server(None, "m") }
    };
    let claude = |server: &Server| text(Client::Claude, server, false);
    // What helps depends on what the model could have.
    let shown = claude(&small(4096, Some(4096)));
    assert!(shown.contains("needs a context of about 32768 tokens"), "{shown}");
    assert!(shown.contains("has 4096, the most that its model m can have: serve a "), "{shown}");
    assert!(!shown.contains("lily serve --context"), "{shown}");
    let shown = claude(&small(1024, Some(4096)));
    assert!(shown.contains("has 1024, and its model m 4096 at most: serve a larger"), "{shown}");
    let shown = claude(&small(4096, Some(262_144)));
    assert!(shown.contains("has 4096: start it with `lily serve --context 32768`"), "{shown}");
    let shown = claude(&small(4096, None));
    assert!(shown.contains("this server has 4096: start it with more"), "{shown}");
    // Settings of the user's own are not the server's fault.
    let told = Server { context: 1024, ..small(65_536, Some(262_144)) };
    assert!(claude(&told).contains("; --context-length says 1024"), "{}", claude(&told));
    let offline = Server { context: 1024, ..server(None, "m") };
    assert!(claude(&offline).contains("; these settings say 1024"), "{}", claude(&offline));

    assert!(!text(Client::Curl, &small(4096, None), false).contains("needs a context"));
    assert!(!claude(&server(None, "m")).contains("needs a context"));
}

#[test]
fn a_context_longer_than_the_servers_is_warned_of() {
    let limits = Limits { context: Some(4096), most: Some(4096) };
    let told = |context| Server { context, limits, ..server(None, "m") };
    let note = "--context-length 65536 is more than this server has, 4096 tokens";
    for client in [Client::Claude, Client::Curl] {
        assert!(text(client, &told(65_536), false).contains(note));
        assert!(object(client, &told(65_536), false)["notes"].to_string().contains(note));
        for context in [4096, 1024] {
            assert!(!text(client, &told(context), false).contains("is more than"));
        }
    }
    // The claim does not make an agent fit.
    assert!(text(Client::Claude, &told(65_536), false).contains("this server has 4096"));
}
