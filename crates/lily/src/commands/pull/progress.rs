//! What a transfer looks like: a bar on a terminal, a line now and then elsewhere.

use std::collections::HashMap;
use std::io::{self, IsTerminal};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use lily_hub::{Event, HubError, RemoteFile, RepoRef, Watch};

use crate::commands::counted;
use crate::commands::output::bytes;

/// Lines are written when so many more hundredths are there.
const STEP: u64 = 10;

pub(super) struct Progress {
    bar: Option<ProgressBar>,
    total: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Bytes that are there, by file.
    files: HashMap<String, u64>,
    done: u64,
    /// Hundredths at the last line.
    told: u64,
}

impl Progress {
    /// Of files of which `missing` bytes are to come.
    pub(super) fn new(repo: &RepoRef, files: &[RemoteFile], missing: u64) -> Self {
        let total = files.iter().filter_map(|file| file.size).fold(0, u64::saturating_add);
        eprintln!(
            "{repo}: {} of {} in {} to fetch",
            bytes(missing),
            bytes(total),
            counted(files.len() as u64, "file")
        );
        let bar = io::stderr().is_terminal().then(|| {
            let style = "{bar:32} {decimal_bytes} of {decimal_total_bytes} \
                         ({decimal_bytes_per_sec}, {eta} left)";
            let style = ProgressStyle::with_template(style).expect("the template is a constant");
            let bar = ProgressBar::new(total).with_style(style);
            // What earlier runs fetched says nothing of the speed.
            bar.set_position(total.saturating_sub(missing));
            bar.reset_eta();
            bar
        });
        let told = percent(total.saturating_sub(missing), total);
        Progress { bar, total, state: Mutex::new(State { told, ..State::default() }) }
    }

    /// Clears the line of the bar.
    pub(super) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    fn say(&self, line: String) {
        match &self.bar {
            Some(bar) => bar.suspend(|| eprintln!("{line}")),
            None => eprintln!("{line}"),
        }
    }

    fn at(&self, file: &RemoteFile, position: u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let before = state.files.insert(file.name.clone(), position).unwrap_or(0);
        state.done = state.done.saturating_sub(before).saturating_add(position);
        if let Some(bar) = &self.bar {
            return bar.set_position(state.done);
        }
        let now = percent(state.done, self.total);
        if now >= state.told + STEP {
            state.told = now - now % STEP;
            eprintln!("{now} %: {} of {}", bytes(state.done), bytes(self.total));
        }
    }
}

fn percent(part: u64, whole: u64) -> u64 {
    (u128::from(part) * 100 / u128::from(whole.max(1))) as u64
}

impl Watch for Progress {
    fn event(&self, file: &RemoteFile, event: Event<'_>) {
        match event {
            Event::At(position) => self.at(file, position),
            Event::Done => self.at(file, file.size.unwrap_or_default()),
            Event::Waiting => self.say(waiting(file)),
            Event::Retry { error, pause } => self.say(again(error, pause)),
        }
    }
}

/// Says what makes small files take long, and nothing else.
pub(super) struct Quiet;

impl Watch for Quiet {
    fn event(&self, file: &RemoteFile, event: Event<'_>) {
        match event {
            Event::Waiting => eprintln!("{}", waiting(file)),
            Event::Retry { error, pause } => eprintln!("{}", again(error, pause)),
            Event::At(_) | Event::Done => {}
        }
    }
}

fn waiting(file: &RemoteFile) -> String {
    format!("{}: another process fetches it; waiting for that", file.name)
}

/// Why something is tried again, and when.
pub(super) fn again(error: &HubError, pause: Duration) -> String {
    match pause {
        Duration::ZERO => format!("{error}; once more"),
        pause => format!("{error}; once more in {:.0} s", pause.as_secs_f64().ceil()),
    }
}
