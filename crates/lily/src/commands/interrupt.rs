//! Ctrl-C ends the answer that is being given, or the program when none is.

use std::process;
use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result};
use lily_engine::CancelToken;
use signal_hook::consts::SIGINT;
use signal_hook::iterator::Signals;

/// Exit code of a program that Ctrl-C ended.
pub(crate) const INTERRUPTED: u8 = 130;

/// The generation that Ctrl-C would end.
static RUNNING: Mutex<Option<CancelToken>> = Mutex::new(None);

/// Catches Ctrl-C from now on.
pub(crate) fn install() -> Result<()> {
    catch(&[SIGINT], |signal| match take() {
        Some(token) => token.cancel(),
        None => process::exit(exit_code(signal)),
    })
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

/// As shells report a program that a signal ended.
fn exit_code(signal: i32) -> i32 {
    128 + signal
}

/// Obeys these signals on a thread of its own.
fn catch(signals: &[i32], obey: fn(i32)) -> Result<()> {
    let mut signals = Signals::new(signals).context("cannot catch Ctrl-C")?;
    let work = move || signals.forever().for_each(obey);
    thread::Builder::new().name("signals".into()).spawn(work).context("cannot catch Ctrl-C")?;
    Ok(())
}
