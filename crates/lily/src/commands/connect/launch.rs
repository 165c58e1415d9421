//! Starts a client with settings that live as long as it does.

use std::ffi::{OsStr, OsString};
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::process::{Command, ExitCode, ExitStatus};

use anyhow::{Context, Result};
use tempfile::TempDir;

use super::server::Server;
use super::settings::{Facts, Launch, Value};
use crate::failure::usage;

/// Names the file of certificates that Node trusts besides its own.
const NODE_CERTIFICATES: &str = "NODE_EXTRA_CA_CERTS";

/// Runs the client and returns its exit code, 128 and the signal where one ended it.
pub(super) fn run(
    facts: &Facts,
    launch: &Launch,
    server: &Server,
    arguments: &[OsString],
) -> Result<ExitCode> {
    let (program, arguments) = match (launch.program, arguments) {
        (Some(program), arguments) => (OsStr::new(program), arguments),
        (None, [program, arguments @ ..]) => (program.as_os_str(), arguments),
        (None, []) => {
            return Err(usage("--run needs a program: lily connect ... --run -- PROGRAM"));
        }
    };
    // Gone, with what the client itself left there, when this function returns.
    let folder = folder(launch)?;
    let inside = |name: &str| {
        let folder = folder.as_ref()?.path();
        Some(if name.is_empty() { folder.to_owned() } else { folder.join(name) })
    };
    let mut command = Command::new(program);
    for argument in &launch.arguments {
        match argument {
            Value::Text(text) => command.arg(text),
            Value::Path(name) => command.args(inside(name)),
            // Arguments can be read by every user of the machine.
            Value::Key => &mut command,
        };
    }
    if arguments.is_empty() {
        command.args(launch.otherwise);
    }
    command.args(arguments);
    for name in launch.removed {
        command.env_remove(name);
    }
    if let Some(key) = &server.key {
        command.env("LILY_API_KEY", key.text());
    }
    // Node reads certificates from elsewhere than everyone else.
    if let Some(file) = server.certificate() {
        match std::env::var_os(NODE_CERTIFICATES).filter(|own| !own.is_empty()) {
            None => drop(command.env(NODE_CERTIFICATES, file)),
            Some(own) if own == file => {}
            Some(own) => eprintln!(
                "note: {NODE_CERTIFICATES} stays {own:?}: unless that file holds the server's \
                 certificate too, programs that run on Node do not trust the server"
            ),
        }
    }
    for variable in &launch.variables {
        match &variable.value {
            Value::Text(text) => command.env(variable.name, text),
            Value::Key => command.env(variable.name, server.key_text()),
            Value::Path(name) => command.envs(inside(name).map(|path| (variable.name, path))),
        };
    }
    let shown = program.to_string_lossy();
    let status = wait(&mut command).map_err(|error| match error.kind() {
        // How to install a library says nothing about a program of the user's.
        ErrorKind::NotFound if launch.program.is_none() => {
            anyhow::anyhow!("{shown} is not installed, or not in PATH")
        }
        ErrorKind::NotFound => {
            anyhow::anyhow!("{shown} is not installed, or not in PATH; {}", facts.install)
        }
        _ => anyhow::Error::new(error).context(format!("cannot start {shown}")),
    })?;
    if let Some(folder) = folder {
        let path = folder.path().to_owned();
        folder.close().with_context(|| format!("cannot remove {}", path.display()))?;
    }
    Ok(ExitCode::from(code(status)))
}

/// The run's own folder with its files, readable by this user only; `None` where none is needed.
fn folder(launch: &Launch) -> Result<Option<TempDir>> {
    if launch.files.is_empty() {
        return Ok(None);
    }
    let mut builder = tempfile::Builder::new();
    builder.prefix("lily-connect-");
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o700));
    let folder = builder.tempdir().context("cannot create a temporary folder")?;
    for (name, text) in &launch.files {
        let path = folder.path().join(name);
        let parent = path.parent().unwrap_or(folder.path());
        fs::create_dir_all(parent)
            .with_context(|| format!("cannot create {}", parent.display()))?;
        write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(Some(folder))
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)?.write_all(text.as_bytes())
}

fn code(status: ExitStatus) -> u8 {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        return u8::try_from(128 + signal).unwrap_or(u8::MAX);
    }
    // Systems with wider codes lose their upper bits; a failure stays one.
    status.code().map_or(1, |code| u8::try_from(code).unwrap_or(1))
}

/// Starts the program and waits for its end. Signals that ask this one to end are passed on, and the
/// program's end is waited for, so that the folder outlives it.
#[cfg(unix)]
fn wait(command: &mut Command) -> io::Result<ExitStatus> {
    use std::io::IsTerminal;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
    use signal_hook::iterator::Signals;

    let mut signals = Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM])?;
    // A terminal sends its signals to all programs in its foreground: the client has them already.
    let on_terminal = io::stdin().is_terminal() || io::stderr().is_terminal();
    let handle = signals.handle();
    let mut child = command.spawn()?;
    let id = child.id();
    let ended = Arc::new(AtomicBool::new(false));
    let known_ended = Arc::clone(&ended);
    let passer = thread::spawn(move || {
        for signal in signals.forever() {
            let has_it = on_terminal && matches!(signal, SIGINT | SIGQUIT);
            if !has_it && !known_ended.load(Ordering::Acquire) {
                send(signal, id);
            }
        }
    });
    let status = child.wait();
    ended.store(true, Ordering::Release);
    handle.close();
    let _ = passer.join();
    status
}

/// Sends a signal to a process: the standard library knows only one.
#[cfg(unix)]
fn send(signal: i32, id: u32) {
    use std::process::Stdio;

    let mut kill = Command::new("kill");
    kill.arg(format!("-{signal}")).arg(id.to_string()).stdin(Stdio::null());
    let _ = kill.stdout(Stdio::null()).stderr(Stdio::null()).status();
}

#[cfg(not(unix))]
fn wait(command: &mut Command) -> io::Result<ExitStatus> {
    command.status()
}
