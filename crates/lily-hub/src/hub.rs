//! The hub as its users see it.

use std::fs::File;
use std::io::Read;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::cache::Cache;
use crate::client::{About, Client, Wanted};
use crate::digest::Checksum;
use crate::error::HubError;
use crate::listing::{Listing, RemoteFile, Tag};
use crate::names::{Commit, RepoId, RepoRef, check_portable};
use crate::retry::{Failure, Retry};
use crate::settings::Settings;
use crate::transfer::Transfer;

/// What stays as it is in one part of a path.
const PART: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Failures in a row after which a question is given up: nobody wants to wait long to hear that the
/// network is down.
const QUESTION_FAILURES: u32 = 3;

/// How often a file may become another one while it is fetched.
const CHANGES: u32 = 3;

/// A hub, and the cache that its files go into.
pub struct Hub {
    pub(crate) client: Client,
    pub(crate) cache: Cache,
    pub(crate) retry: Retry,
    settings: Settings,
    asks_again: Box<Notice>,
}

/// Hears why a question failed, and how long the pause before the next try is.
type Notice = dyn Fn(&HubError, Duration) + Send + Sync;

/// What to fetch.
#[derive(Clone, Copy, Debug)]
pub struct Fetch<'a> {
    /// Which repository.
    pub repo: &'a RepoId,
    /// Which state of it.
    pub commit: &'a Commit,
    /// Which files; their sizes must be known ([`Hub::complete`]).
    pub files: &'a [RemoteFile],
    /// Transfers at the same time, at least 1.
    pub jobs: usize,
}

/// What a fetch took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fetched {
    /// Bytes that came from the network, those in vain included.
    pub bytes: u64,
    /// Files of which any did.
    pub files: usize,
}

/// Hears of the progress of transfers, from several threads.
pub trait Watch: Sync {
    /// Something happened to a file.
    fn event(&self, file: &RemoteFile, event: Event<'_>);
}

/// What happens to a file while it is fetched.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// Another process writes it: this one waits for the end of that.
    Waiting,
    /// So many bytes are there, those of earlier runs included. The number may go back.
    At(u64),
    /// A try failed; the next one follows after a pause.
    Retry {
        /// Why it failed.
        error: &'a HubError,
        /// Until the next try.
        pause: Duration,
    },
    /// It is there, and right.
    Done,
}

/// Nobody watches.
impl Watch for () {
    fn event(&self, _: &RemoteFile, _: Event<'_>) {}
}

impl Hub {
    /// A hub by its settings; no request is sent yet.
    ///
    /// # Errors
    /// [`HubError::Setting`].
    pub fn new(settings: Settings) -> Result<Self, HubError> {
        Self::with_retry(settings, Retry::default())
    }

    /// As [`Hub::new`], with other ideas of when to try again.
    ///
    /// # Errors
    /// As there.
    pub fn with_retry(settings: Settings, retry: Retry) -> Result<Self, HubError> {
        let client = Client::new(&settings)?;
        let cache = Cache::new(settings.cache.clone());
        Ok(Hub { client, cache, retry, settings, asks_again: Box::new(|_, _| {}) })
    }

    /// Has `notice` told of each question to the hub (what a revision holds, the size of a file, its
    /// first bytes) that failed and is asked again after a pause. A [`Watch`] hears of transfers.
    #[must_use]
    pub fn telling(self, notice: impl Fn(&HubError, Duration) + Send + Sync + 'static) -> Self {
        Hub { asks_again: Box::new(notice), ..self }
    }

    /// The cache folder.
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// How it was set up.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Asks what a revision stands for now, and what is in it: one request.
    ///
    /// # Errors
    /// [`HubError::RepoNotFound`], [`HubError::RevisionNotFound`], [`HubError::Gated`],
    /// [`HubError::Access`], [`HubError::Network`], [`HubError::NoHub`], [`HubError::FileName`], [`HubError::Answer`],
    /// [`HubError::Offline`].
    pub fn look_up(&self, wanted: &RepoRef) -> Result<Listing, HubError> {
        self.must_be_online(|| wanted.to_string())?;
        let RepoRef { repo, revision } = wanted;
        let revision = revision.as_str();
        let encoded = utf8_percent_encode(revision, PART);
        let path = format!("/api/models/{repo}/revision/{encoded}?blobs=true");
        let json = self.ask(|| self.client.json(&path, About::Revision { repo, revision }))?;
        let listing = Listing::parse(&json, &self.client.host())?;
        match wanted.revision.commit() {
            Some(asked) if asked != listing.commit => Err(HubError::Answer {
                host: self.client.host(),
                reason: format!("commit {} for commit {asked}", listing.commit),
            }),
            _ => Ok(listing),
        }
    }

    /// Asks for size and checksum of a file where the listing had none.
    ///
    /// # Errors
    /// As [`Hub::look_up`]; [`HubError::FileNotFound`].
    pub fn complete(
        &self,
        repo: &RepoId,
        commit: &Commit,
        file: &RemoteFile,
    ) -> Result<RemoteFile, HubError> {
        if file.size.is_some() && file.blob().is_some() {
            return Ok(file.clone());
        }
        self.must_be_online(|| file.name.clone())?;
        let path = resolve_path(repo, commit, &file.name);
        let about = About::File { repo, file: &file.name };
        let facts = self.ask(|| self.client.facts(&path, about))?;
        let missing = |what| HubError::Answer {
            host: self.client.host(),
            reason: format!("no {what} for {}", file.name),
        };
        let size = facts.size.or(file.size).ok_or_else(|| missing("size"))?;
        if let Some(expected) = file.size.filter(|&expected| expected != size) {
            return Err(HubError::Length { file: file.name.clone(), expected, found: size });
        }
        let tag = facts.tag.ok_or_else(|| missing("ETag"))?;
        let checksum = file.checksum.clone().or_else(|| Checksum::from_tag(&tag));
        let tag = Some(Tag { text: tag, strong: facts.strong }).filter(|_| checksum.is_none());
        Ok(RemoteFile { name: file.name.clone(), size: Some(size), checksum, tag })
    }

    /// The first bytes of a file, from the cache where they are there: `bytes` of them, or all where
    /// the file is shorter. Those of an unfinished file are not checked yet.
    ///
    /// # Errors
    /// As [`Hub::complete`], and [`HubError::Short`].
    pub fn start_of(
        &self,
        repo: &RepoId,
        commit: &Commit,
        file: &RemoteFile,
        bytes: u64,
    ) -> Result<Vec<u8>, HubError> {
        let bytes = bytes.min(file.size.unwrap_or(bytes));
        let snapshot = self.cache.snapshot(repo, commit).join(&file.name);
        let mut places = vec![snapshot];
        if let Some(blob) = file.blob() {
            places.extend([self.cache.blob(repo, &blob), self.cache.incomplete(repo, &blob)]);
        }
        for place in places {
            let Ok(file) = File::open(place) else { continue };
            let mut start = Vec::new();
            if file.take(bytes).read_to_end(&mut start).is_ok() && start.len() as u64 == bytes {
                return Ok(start);
            }
        }
        self.must_be_online(|| file.name.clone())?;
        self.ask(|| self.remote_start(repo, commit, file, bytes))
    }

    fn remote_start(
        &self,
        repo: &RepoId,
        commit: &Commit,
        file: &RemoteFile,
        bytes: u64,
    ) -> Result<Vec<u8>, Failure> {
        let Some(last) = bytes.checked_sub(1) else { return Ok(Vec::new()) };
        let path = resolve_path(repo, commit, &file.name);
        let wanted = Wanted { range: Some((0, Some(last))), if_tag: None };
        let reply = self.client.get(&path, About::File { repo, file: &file.name }, wanted)?;
        let mut start = Vec::new();
        let read = reply.body.take(bytes).read_to_end(&mut start);
        read.map_err(|error| Failure::passing(self.client.broken(&reply.host, &error)))?;
        let found = start.len() as u64;
        let name = || file.name.clone();
        match reply.status {
            200 | 206 if found == bytes && reply.part.is_none_or(|(first, _)| first == 0) => {
                Ok(start)
            }
            200 | 206 => {
                Err(Failure::passing(HubError::Short { file: name(), expected: bytes, found }))
            }
            status => Err(HubError::Status { host: reply.host, status, what: name() }.into()),
        }
    }

    /// Fetches files into the cache, several at a time, and links them into the snapshot. What an
    /// earlier fetch left unfinished is continued; what is there is not fetched. When one transfer
    /// fails for good the others are stopped, and all keep what they have.
    ///
    /// # Errors
    /// That of the first transfer that failed: as [`Hub::complete`], and [`HubError::Checksum`],
    /// [`HubError::Length`], [`HubError::Changed`], [`HubError::RateLimited`], [`HubError::Io`].
    pub fn fetch(&self, fetch: &Fetch<'_>, watch: &dyn Watch) -> Result<Fetched, HubError> {
        for file in fetch.files {
            check_portable(&file.name)?;
        }
        // The longest first: the last to end should not be one that started late.
        let mut files: Vec<_> = fetch.files.iter().collect();
        files.sort_by_key(|file| std::cmp::Reverse(file.size));
        let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
        let outcome = Mutex::new(Ok(Fetched::default()));
        let work = || {
            while let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                let result = self.fetch_one(fetch, file, watch, &stop);
                let mut outcome = outcome.lock().unwrap_or_else(PoisonError::into_inner);
                match (result, &mut *outcome) {
                    (Ok(bytes), Ok(sum)) => {
                        sum.bytes += bytes;
                        sum.files += usize::from(bytes > 0);
                    }
                    (Err(error), Ok(_)) => {
                        stop.store(true, Ordering::Relaxed);
                        *outcome = Err(error);
                        return;
                    }
                    // What follows from the first failure tells nothing.
                    (_, Err(_)) => return,
                }
            }
        };
        thread::scope(|scope| {
            for _ in 1..fetch.jobs.min(files.len()) {
                scope.spawn(work);
            }
            work();
        });
        outcome.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    fn fetch_one(
        &self,
        fetch: &Fetch<'_>,
        file: &RemoteFile,
        watch: &dyn Watch,
        stop: &AtomicBool,
    ) -> Result<u64, HubError> {
        let &Fetch { repo, commit, .. } = fetch;
        if self.cache.has(repo, commit, file) {
            watch.event(file, Event::Done);
            return Ok(0);
        }
        let mut file = self.complete(repo, commit, file)?;
        let mut changes = 0;
        loop {
            self.must_be_online(|| file.name.clone())?;
            let result = Transfer { hub: self, repo, commit, file: &file, watch, stop }.run();
            match result {
                // A checksum of the listing is that of the commit, which nothing can change.
                Err(HubError::Changed { .. }) if file.tag.is_some() && changes < CHANGES => {
                    changes += 1;
                    let bare = RemoteFile { size: None, checksum: None, tag: None, ..file };
                    file = self.complete(repo, commit, &bare)?;
                }
                result => return result,
            }
        }
    }

    fn must_be_online(&self, what: impl FnOnce() -> String) -> Result<(), HubError> {
        if !self.settings.offline {
            return Ok(());
        }
        Err(HubError::Offline { what: what(), cache: self.cache.root().display().to_string() })
    }

    /// Asks until there is an answer, or no hope of one.
    fn ask<T>(&self, mut question: impl FnMut() -> Result<T, Failure>) -> Result<T, HubError> {
        let most = self.retry.failures.min(QUESTION_FAILURES);
        let mut failures = 0;
        loop {
            match question() {
                Ok(answer) => return Ok(answer),
                Err(Failure::Lasting(error)) => return Err(error),
                Err(Failure::Passing { error, after }) => {
                    failures += 1;
                    if failures >= most {
                        return Err(error);
                    }
                    let pause = self.pause(failures, after)?;
                    (self.asks_again)(&error, pause);
                    thread::sleep(pause);
                }
            }
        }
    }

    /// How long to wait after failure `failures` in a row, when the server asks for `after`.
    pub(crate) fn pause(
        &self,
        failures: u32,
        after: Option<Duration>,
    ) -> Result<Duration, HubError> {
        match after {
            Some(wait) if wait > self.retry.patience => {
                Err(HubError::RateLimited { host: self.client.host(), wait })
            }
            Some(wait) => Ok(wait.max(self.retry.first)),
            None => Ok(self.retry.wait(failures)),
        }
    }
}

/// Sleeps, unless it is to stop.
pub(crate) fn sleep(pause: Duration, stop: &AtomicBool) -> Result<(), HubError> {
    let end = Instant::now() + pause;
    loop {
        if stop.load(Ordering::Relaxed) {
            return Err(HubError::Stopped);
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        thread::sleep(left.min(Duration::from_millis(100)));
    }
}

/// Where the hub has a file of a commit.
pub(crate) fn resolve_path(repo: &RepoId, commit: &Commit, file: &str) -> String {
    let parts: Vec<_> =
        file.split('/').map(|part| utf8_percent_encode(part, PART).to_string()).collect();
    format!("/{repo}/resolve/{commit}/{}", parts.join("/"))
}
