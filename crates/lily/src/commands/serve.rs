//! `lily serve`: the HTTP API over one loaded model.

use std::net::{IpAddr, Ipv4Addr};

use anyhow::{Context, Result};
use lily_server::{Backend, ServerOptions};

use crate::args::{ServeArgs, Switch};
use crate::failure::UsageError;
use crate::model;

pub(crate) fn run(args: &ServeArgs) -> Result<()> {
    let options = ServerOptions {
        host: host(&args.host)?,
        port: args.port,
        api_key: args.api_key.clone(),
        model_name: args.model_name.clone().unwrap_or_else(|| model::name(&args.model)),
        ..ServerOptions::default()
    };
    let name = options.model_name.clone();
    let loaded =
        model::load(&args.model, model::engine_options(&args.engine)?, args.engine.threads)?;
    let backend = Backend {
        engine: loaded.engine,
        tokenizer: loaded.tokenizer.context("the model directory has no tokenizer.json")?,
        template: loaded.template.context("the model directory has no chat template")?,
        thinking: args.think == Switch::On,
    };
    lily_server::run(options, backend, |address| {
        eprintln!("serving {name} on http://{address}/v1 (Ctrl-C ends)");
    })?;
    Ok(())
}

fn host(text: &str) -> Result<IpAddr> {
    if text == "localhost" {
        return Ok(Ipv4Addr::LOCALHOST.into());
    }
    let address = text.parse().with_context(|| format!("--host {text:?}"));
    address.map_err(|e| UsageError(e).into())
}
