//! `lily serve`: the HTTP API over one loaded model.

use std::env;
use std::io;
use std::net::{IpAddr, Ipv4Addr};

use anyhow::{Context, Result};
use lily_server::{Backend, ServerError, ServerOptions};
use tracing_subscriber::filter::LevelFilter;

use crate::args::{ServeArgs, Switch};
use crate::device::describe;
use crate::failure::{UsageError, one_line, usage};
use crate::model::{self, Needs};

pub(crate) fn run(args: &ServeArgs) -> Result<()> {
    let options = ServerOptions {
        host: host(&args.host)?,
        port: args.port,
        api_key: args.api_key.clone(),
        model_name: args.model_name.clone().unwrap_or_else(|| model::name(&args.model)),
        ..ServerOptions::default()
    };
    let name = options.model_name.clone();
    let level = log_level(args.verbose, env::var("LILY_LOG").ok().as_deref())?;
    tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_ansi(false)
        .with_target(false)
        .with_max_level(level)
        .init();
    // A model may take a minute to load; whether there is a place to serve it is known before.
    let bound = lily_server::bind(&options).map_err(with_hint)?;
    eprintln!("loading {name}");
    let loaded = model::load(&args.model, &args.engine, Needs::Chat, |options, _| Ok(options))?;
    let device = describe(&loaded.device);
    let backend = Backend {
        engine: loaded.engine,
        tokenizer: loaded.tokenizer.context("the model has no tokenizer")?,
        template: loaded.template.context("the model has no chat template")?,
        thinking: args.think == Switch::On,
    };
    lily_server::run(bound, options, backend, |address| {
        eprintln!("serving {name} on {device} at http://{address}/v1 (Ctrl-C ends)");
    })
    .map_err(with_hint)?;
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
        _ => return error.into(),
    };
    let error = one_line(&error.into());
    anyhow::anyhow!("{error}; {hint}")
}

fn host(text: &str) -> Result<IpAddr> {
    if text == "localhost" {
        return Ok(Ipv4Addr::LOCALHOST.into());
    }
    let address = text.parse().with_context(|| format!("--host {text:?}"));
    address.map_err(|e| UsageError(e).into())
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

    #[test]
    fn the_log_holds_warnings_unless_more_is_asked_for() {
        assert_eq!(log_level(false, None).unwrap(), LevelFilter::WARN);
        assert_eq!(log_level(false, Some("")).unwrap(), LevelFilter::WARN);
        assert_eq!(log_level(false, Some("debug")).unwrap(), LevelFilter::DEBUG);
        assert_eq!(log_level(true, Some("error")).unwrap(), LevelFilter::INFO);
        assert!(log_level(false, Some("loud")).unwrap_err().is::<UsageError>());
    }
}
