//! Ctrl-C ends the answer that is being given, or the program when none is.

use std::process;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};
use lily_engine::CancelToken;

/// Exit code of a program that Ctrl-C ended.
pub(crate) const INTERRUPTED: u8 = 130;

/// The generation that Ctrl-C would end.
static RUNNING: Mutex<Option<CancelToken>> = Mutex::new(None);

/// Catches Ctrl-C from now on.
pub(crate) fn install() -> Result<()> {
    ctrlc::set_handler(|| match take() {
        Some(token) => token.cancel(),
        None => process::exit(i32::from(INTERRUPTED)),
    })
    .context("cannot catch Ctrl-C")
}

/// A token for the next generation. A second Ctrl-C during it ends the program.
pub(crate) fn token() -> CancelToken {
    let token = CancelToken::new();
    *RUNNING.lock().unwrap_or_else(PoisonError::into_inner) = Some(token.clone());
    token
}

/// The generation has ended.
pub(crate) fn done() {
    take();
}

fn take() -> Option<CancelToken> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner).take()
}
