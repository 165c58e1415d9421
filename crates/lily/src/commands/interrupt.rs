//! Ctrl-C ends the answer that is being given, or the program when none is; a file that is being
//! written is removed before, one that can be continued is kept, and a program that works for this one is ended.

use std::fs;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use lily_engine::CancelToken;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Exit code of a program that Ctrl-C ended.
pub(crate) const INTERRUPTED: u8 = 130;

/// The generation that Ctrl-C would end.
static RUNNING: Mutex<Option<CancelToken>> = Mutex::new(None);

/// What is being written and must not stay behind half.
static UNFINISHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// The programs that must not go on alone.
static COMPANIONS: Mutex<Vec<Arc<Mutex<Child>>>> = Mutex::new(Vec::new());

/// What to say when the work is interrupted.
static KEPT: Mutex<Option<&'static str>> = Mutex::new(None);

/// Whether [`abandon`] is what a signal calls.
static ABANDONS: Mutex<bool> = Mutex::new(false);

/// When the last generation ended.
static ENDED: Mutex<Option<Instant>> = Mutex::new(None);

/// How long after its end a Ctrl-C is still meant for a generation: a user cannot know better.
const LATE: Duration = Duration::from_millis(500);

/// Catches Ctrl-C from now on.
pub(crate) fn install() -> Result<()> {
    catch(&[SIGINT], |signal| match take() {
        Some(token) => token.cancel(),
        // A session is at its prompt again by then, with the terminal in its hands.
        None if is_late(*ended()) => {}
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
    *ended() = Some(Instant::now());
    take();
}

fn is_late(ended: Option<Instant>) -> bool {
    ended.is_some_and(|ended| ended.elapsed() < LATE)
}

fn ended() -> MutexGuard<'static, Option<Instant>> {
    ENDED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn take() -> Option<CancelToken> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// A file or folder in the making: while this lives, Ctrl-C and SIGTERM remove it, say so, and end the
/// program.
pub(crate) struct Unfinished(PathBuf);

impl Unfinished {
    /// Of a path that need not exist yet.
    pub(crate) fn new(path: PathBuf) -> Result<Self> {
        abandon_on_signals()?;
        unfinished().push(path.clone());
        Ok(Unfinished(path))
    }
}

impl Drop for Unfinished {
    /// Waits while a signal is being obeyed, so that what fails for want of the removed file is not
    /// told as an error of its own.
    fn drop(&mut self) {
        unfinished().retain(|path| *path != self.0);
    }
}

fn unfinished() -> MutexGuard<'static, Vec<PathBuf>> {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Work that leaves what it has when it is interrupted: while this lives, Ctrl-C and SIGTERM say what
/// becomes of it, and end the program.
pub(crate) struct Kept(());

impl Kept {
    /// With what is to be said.
    pub(crate) fn new(note: &'static str) -> Result<Self> {
        abandon_on_signals()?;
        *kept() = Some(note);
        Ok(Kept(()))
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        *kept() = None;
    }
}

fn kept() -> MutexGuard<'static, Option<&'static str>> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A program that works for this one. It ends when this is dropped, and on Ctrl-C and SIGTERM, which
/// end the whole program then.
pub(crate) struct Companion(Arc<Mutex<Child>>);

impl Companion {
    /// Starts a program, with a process group of its own where there is such a thing: what it starts
    /// itself ends with it, and Ctrl-C on a terminal reaches it through this program alone.
    pub(crate) fn spawn(command: &mut Command) -> io::Result<Self> {
        abandon_on_signals().map_err(io::Error::other)?;
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(command, 0);
        // Held while it starts, so that no signal finds it started and unknown.
        let mut all = companions();
        let child = Arc::new(Mutex::new(command.spawn()?));
        all.push(Arc::clone(&child));
        Ok(Companion(child))
    }

    /// Looks at the program. Waits for ever while a signal is being obeyed, so that what that ends is
    /// not told as an error.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&mut Child) -> T) -> T {
        let _all = companions();
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Companion {
    fn drop(&mut self) {
        self.look(end);
        companions().retain(|child| !Arc::ptr_eq(child, &self.0));
    }
}

fn companions() -> MutexGuard<'static, Vec<Arc<Mutex<Child>>>> {
    COMPANIONS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends a program and what it started, if it still runs.
fn end(child: &mut Child) {
    if matches!(child.try_wait(), Ok(Some(_))) {
        return;
    }
    if cfg!(unix) {
        // The standard library signals single processes only.
        let group = format!("-{}", child.id());
        let mut kill = Command::new("kill");
        kill.args(["-KILL", "--", &group]).stdin(Stdio::null()).stdout(Stdio::null());
        let _ = kill.stderr(Stdio::null()).status();
    }
    let _ = child.kill();
    let _ = child.wait();
}

/// From now on Ctrl-C and SIGTERM end the program in order.
fn abandon_on_signals() -> Result<()> {
    let mut installed = ABANDONS.lock().unwrap_or_else(PoisonError::into_inner);
    if !*installed {
        catch(&[SIGINT, SIGTERM], abandon)?;
        *installed = true;
    }
    Ok(())
}

fn abandon(signal: i32) {
    // Held to the end of the program: see `Companion::look`, `Unfinished::drop`.
    let programs = companions();
    for child in programs.iter() {
        end(&mut child.lock().unwrap_or_else(PoisonError::into_inner));
    }
    let all = unfinished();
    if io::stderr().is_terminal() {
        // A progress bar leaves the cursor on its line.
        eprintln!();
    }
    for path in all.iter() {
        if remove(path) {
            eprintln!("interrupted: removed {}", path.display());
        }
    }
    if let Some(note) = *kept() {
        eprintln!("interrupted: {note}");
    }
    // Without what runs at an orderly exit: other threads, and drivers, are in the middle of their work.
    signal_hook::low_level::exit(exit_code(signal));
}

/// Whether there was something, and it is gone.
fn remove(path: &Path) -> bool {
    if !path.is_dir() {
        return fs::remove_file(path).is_ok();
    }
    // Other threads may still create a file there.
    (0..8).any(|_| fs::remove_dir_all(path).is_ok())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_right_behind_an_answer_was_meant_for_it() {
        assert!(!is_late(None), "there was none");
        assert!(is_late(Some(Instant::now())));
        assert!(!is_late(Instant::now().checked_sub(2 * LATE)));
    }
}
