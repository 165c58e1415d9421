//! `lily serve`: the HTTP API over one loaded model.

use std::cell::OnceCell;
use std::env;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use lily_server::{
    ApiKeys, Backend, Cors, Limits, LoadProgress, ServerError, ServerOptions, TlsFiles,
};
use lily_text::RenderOptions;
use serde_json::{Map, json};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

use crate::args::{AccessArgs, LogArgs, LogFormat, ServeArgs, Switch};
use crate::device::describe;
use crate::failure::{one_line, usage};
use crate::model::{self, Needs};

pub(crate) fn run(args: &ServeArgs) -> Result<()> {
    let options = options(args)?;
    let format = args.log.log_format;
    let (name, scheme) =
        (options.model_name.clone(), options.tls.as_ref().map_or("http", |_| "https"));
    start_log(&args.log)?;
    // A model may take a minute to load; whether there is a place to serve it is known before.
    let bound = lily_server::bind(&options).map_err(with_hint)?;
    if !options.host.is_loopback() && options.api_keys.is_empty() {
        let place = match options.host {
            host if host.is_unspecified() => "this machine".to_owned(),
            host => host.to_string(),
        };
        let words = format!("whoever reaches {place} can use the server: no key is demanded");
        say(format, Level::Warning, &words);
    }
    require_room(args)?;
    say(format, Level::Info, &format!("loading {name}"));
    let device = OnceCell::new();
    let load = |progress: &LoadProgress| {
        let opened =
            model::open_all(&args.model, &args.engine, Needs::Chat, |options, _| Ok(options))?;
        let loaded = opened.load(&|done, total| progress.advance(done, total))?;
        let _ = device.set(describe(&loaded.device));
        Ok(Backend {
            engine: loaded.engine,
            tokenizer: loaded.tokenizer.context("the model has no tokenizer")?,
            template: loaded.template.context("the model has no chat template")?,
            thinking: args.think == Switch::On,
        })
    };
    lily_server::run(bound, options, load, |address| {
        let device = device.get().map_or("", String::as_str);
        let places = places(scheme, address);
        say(format, Level::Info, &format!("serving {name} on {device} at {places}"));
    })
}

/// Where clients find the server, and how it ends.
fn places(scheme: &str, address: SocketAddr) -> String {
    if !address.ip().is_unspecified() {
        return format!("{scheme}://{address}/v1 (Ctrl-C ends)");
    }
    // It stands for all addresses of the machine, and is none that a client could use.
    let (own, port) = (if address.is_ipv4() { "127.0.0.1" } else { "[::1]" }, address.port());
    format!(
        "{scheme}://{own}:{port}/v1 and for other machines at {scheme}://ADDRESS:{port}/v1 (ADDRESS is \
         this machine's address or name; Ctrl-C ends)"
    )
}

/// Refuses a context in which no question could be answered. A model's files are read for it only where
/// the context is short enough for doubt.
fn require_room(args: &ServeArgs) -> Result<()> {
    const DOUBTFUL: usize = 1024;
    const ANSWER: usize = 16;
    let asked = args.engine.planning.context.filter(|&context| context < DOUBTFUL);
    let Some(context) = asked else { return Ok(()) };
    let template = model::template(&args.model)?;
    let kwargs =
        Map::from_iter([("enable_thinking".to_owned(), (args.think == Switch::On).into())]);
    let prompt = template.render(&RenderOptions {
        messages: &[json!({"role": "user", "content": "Hi"})],
        tools: None,
        add_generation_prompt: true,
        kwargs: &kwargs,
    })?;
    let least = model::tokenizer(&args.model)?.encode(&prompt)?.len() + ANSWER;
    if context < least {
        return Err(usage(format!(
            "--context {context} is too short to serve with: the question \"Hi\" and {ANSWER} tokens of \
             an answer take {least}"
        )));
    }
    Ok(())
}

fn options(args: &ServeArgs) -> Result<ServerOptions> {
    let (access, load) = (&args.access, &args.load);
    let seconds = |limit: Option<usize>| limit.map(|limit| Duration::from_secs(limit as u64));
    let tls = access.tls_cert.clone().zip(access.tls_key.clone());
    if let Some((_, key)) = &tls {
        warn_if_shared(key, args.log.log_format);
    }
    Ok(ServerOptions {
        host: host(&args.host)?,
        port: args.port,
        api_keys: api_keys(access, args.log.log_format)?,
        allow_no_key: access.allow_no_key,
        allowed_hosts: access.allow_host.clone(),
        cors: Cors::parse(&access.cors_origin).map_err(|e| usage(format!("--cors-origin {e}")))?,
        tls: tls.map(|(certificate, key)| TlsFiles { certificate, key }),
        model_name: args.model_name.clone().unwrap_or_else(|| model::name(&args.model)),
        queue_limit: load.queue,
        queue_timeout: seconds(load.queue_timeout),
        request_timeout: seconds(load.request_timeout),
        limits: Limits { connections: load.max_connections, ..Limits::default() },
        log_prompts: args.log.log_prompts,
        ..ServerOptions::default()
    })
}

/// The keys of all places.
fn api_keys(args: &AccessArgs, format: LogFormat) -> Result<ApiKeys> {
    // Not by the parser, to which a flag goes before the variable: all of them count.
    let variable = std::env::var_os("LILY_API_KEY").filter(|key| !key.is_empty());
    let variable = variable.as_ref().map(|key| key.to_string_lossy());
    let keys = args.api_key.iter().map(String::as_str).chain(variable.as_deref());
    let keys = ApiKeys::new(keys)?;
    let Some(path) = &args.api_key_file else { return Ok(keys) };
    let file = || format!("--api-key-file {}", path.display());
    let text = fs::read_to_string(path).with_context(file)?;
    warn_if_shared(path, format);
    Ok(keys.join(ApiKeys::from_lines(&text).with_context(file)?))
}

/// Secrets in files that everyone on the machine can read are no secrets.
fn warn_if_shared(path: &Path, format: LogFormat) {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = fs::metadata(path).map_or(0, |file| file.permissions().mode());
        if mode & 0o004 != 0 {
            let words = format!("every user of this machine can read {}", path.display());
            say(format, Level::Warning, &words);
        }
    }
    #[cfg(not(unix))]
    let _ = (path, format);
}

/// How much a line of the program's own matters.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Info,
    Warning,
}

/// Says to standard error, in the log's format, what the user is told whatever the log holds.
fn say(format: LogFormat, level: Level, words: &str) {
    let warns = level == Level::Warning;
    match format {
        LogFormat::Text => eprintln!("{}{words}", if warns { "warning: " } else { "" }),
        LogFormat::Json => {
            let mut timestamp = String::new();
            // Only a full string could refuse it.
            let _ = SystemTime.format_time(&mut Writer::new(&mut timestamp));
            let level = if warns { "WARN" } else { "INFO" };
            eprintln!("{}", json!({"timestamp": timestamp, "level": level, "message": words}));
        }
    }
}

fn start_log(args: &LogArgs) -> Result<()> {
    let verbose = args.verbose || args.log_prompts;
    let level = log_level(verbose, env::var("LILY_LOG").ok().as_deref())?;
    let log = tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_ansi(false)
        .with_target(false)
        .with_max_level(level);
    match args.log_format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().flatten_event(true).with_span_list(false).init(),
    }
    Ok(())
}

/// Says which flag makes an address usable that is not.
fn with_hint(error: ServerError) -> anyhow::Error {
    let hint = match &error {
        ServerError::Listen { source, .. } => match source.kind() {
            io::ErrorKind::AddrInUse => "try another --port (0 picks a free one)",
            io::ErrorKind::PermissionDenied => "try a --port of 1024 or above",
            io::ErrorKind::AddrNotAvailable => "try another --host, such as 127.0.0.1 or 0.0.0.0",
            _ => return error.into(),
        },
        ServerError::Unprotected { .. } => {
            "set --api-key-file or LILY_API_KEY, or --allow-no-key if that is meant"
        }
        ServerError::InvalidHost { .. } => return usage(format!("--allow-host {error}")),
        _ => return error.into(),
    };
    let error = anyhow::Error::from(error);
    let text = one_line(&error);
    error.context(format!("{text}; {hint}"))
}

fn host(text: &str) -> Result<IpAddr> {
    if text == "localhost" {
        return Ok(Ipv4Addr::LOCALHOST.into());
    }
    text.parse().map_err(|_| {
        usage(format!(
            "--host {text:?}: expected an address, such as 127.0.0.1 or 0.0.0.0, or localhost"
        ))
    })
}

/// What `--verbose`, or else `LILY_LOG`, asks for; an empty variable counts as unset.
fn log_level(verbose: bool, variable: Option<&str>) -> Result<LevelFilter> {
    match variable.filter(|text| !text.is_empty()) {
        _ if verbose => Ok(LevelFilter::INFO),
        None => Ok(LevelFilter::WARN),
        Some(text) => text.parse().map_err(|_| {
            usage(format!("LILY_LOG is {text:?}, expected off, error, warn, info or debug"))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::UsageError;

    #[test]
    fn all_addresses_are_told_by_those_that_clients_can_use() {
        let told = |address: &str| places("https", address.parse().unwrap());
        assert_eq!(told("10.0.0.5:80"), "https://10.0.0.5:80/v1 (Ctrl-C ends)");
        for (address, own) in [("0.0.0.0:81", "127.0.0.1"), ("[::]:81", "[::1]")] {
            let start =
                format!("https://{own}:81/v1 and for other machines at https://ADDRESS:81/v1 (");
            assert!(told(address).starts_with(&start), "{}", told(address));
        }
    }

    #[test]
    fn the_log_holds_warnings_unless_more_is_asked_for() {
        assert_eq!(log_level(false, None).unwrap(), LevelFilter::WARN);
        assert_eq!(log_level(false, Some("")).unwrap(), LevelFilter::WARN);
        assert_eq!(log_level(false, Some("debug")).unwrap(), LevelFilter::DEBUG);
        assert_eq!(log_level(true, Some("error")).unwrap(), LevelFilter::INFO);
        assert!(log_level(false, Some("loud")).unwrap_err().is::<UsageError>());
    }
}
