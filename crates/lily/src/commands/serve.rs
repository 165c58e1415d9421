//! `lily serve`: the HTTP API over one loaded model.

use anyhow::{Result, bail};

use crate::args::ServeArgs;

pub(crate) fn run(_args: &ServeArgs) -> Result<()> {
    bail!("this build has no server yet")
}
