//! One file from the hub into the cache.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::client::{About, Facts, Reply, Wanted};
use crate::digest::{Checksum, Hasher};
use crate::error::HubError;
use crate::hub::{Event, Hub, Watch, resolve_path, sleep};
use crate::listing::RemoteFile;
use crate::names::{Commit, RepoId};
use crate::retry::Failure;

const BUFFER_BYTES: usize = 256 << 10;

/// Fewer bytes than these within [`STALL_READS`] longest waits for a read: the connection is as good
/// as dead, and another one may be quicker.
const STALL_BYTES: u64 = 1024;
const STALL_READS: u32 = 3;

pub(crate) struct Transfer<'a> {
    pub(crate) hub: &'a Hub,
    pub(crate) repo: &'a RepoId,
    pub(crate) commit: &'a Commit,
    /// Size and name of the blob are known.
    pub(crate) file: &'a RemoteFile,
    pub(crate) watch: &'a dyn Watch,
    pub(crate) stop: &'a AtomicBool,
}

impl Transfer<'_> {
    /// Bytes that came from the network.
    pub(crate) fn run(&self) -> Result<u64, HubError> {
        let Transfer { hub, repo, commit, file, watch, .. } = self;
        let (Some(size), Some(blob)) = (file.size, file.blob()) else {
            let reason = format!("no size for {}", file.name);
            return Err(HubError::Answer { host: hub.client.host(), reason });
        };
        let path = hub.cache.blob(repo, &blob);
        let folder = path.parent().unwrap_or(hub.cache.root());
        fs::create_dir_all(folder).map_err(HubError::io("create", folder))?;
        let _lock = hub.cache.lock(repo, &blob, || watch.event(file, Event::Waiting))?;
        let mut bytes = 0;
        if fs::metadata(&path).map_or(true, |facts| facts.len() != size) {
            let mut partial = Partial::open(hub.cache.incomplete(repo, &blob), file, size)?;
            let outcome = self.fill(&mut partial);
            bytes = partial.received;
            if let Err(error) = outcome {
                if matches!(error, HubError::Changed { .. }) {
                    partial.remove();
                }
                return Err(error);
            }
            partial.finish(&path)?;
        }
        hub.cache.link(repo, commit, &file.name, &blob)?;
        watch.event(file, Event::Done);
        Ok(bytes)
    }

    /// Tries until all bytes are there and right.
    fn fill(&self, partial: &mut Partial<'_>) -> Result<(), HubError> {
        let retry = &self.hub.retry;
        let (mut failures, mut furthest, mut damaged) = (0, partial.len, false);
        self.watch.event(self.file, Event::At(partial.len));
        loop {
            let tried = if partial.len < partial.size { self.attempt(partial) } else { Ok(()) };
            let (error, pause) = match tried {
                Ok(()) => match partial.verify() {
                    Ok(()) => return Ok(()),
                    Err(error) => {
                        partial.restart()?;
                        if damaged {
                            partial.remove();
                            return Err(error);
                        }
                        damaged = true;
                        (error, Duration::ZERO)
                    }
                },
                Err(Failure::Lasting(error)) => return Err(error),
                Err(Failure::Passing { error, after }) => {
                    // A server that always begins at the first byte and is always cut at the same
                    // one gains nothing.
                    failures = if partial.len > furthest { 1 } else { failures + 1 };
                    furthest = furthest.max(partial.len);
                    if failures >= retry.failures {
                        return Err(error);
                    }
                    (error, self.hub.pause(failures, after)?)
                }
            };
            self.watch.event(self.file, Event::Retry { error: &error, pause });
            sleep(pause, self.stop)?;
            self.watch.event(self.file, Event::At(partial.len));
        }
    }

    /// One request for what is missing.
    fn attempt(&self, partial: &mut Partial<'_>) -> Result<(), Failure> {
        let Transfer { hub, repo, commit, file, .. } = self;
        let from = partial.len;
        let tag = file.tag.as_ref().filter(|tag| tag.strong);
        let wanted = match from {
            0 => Wanted::default(),
            _ => Wanted { range: Some((from, None)), if_tag: tag.map(|tag| tag.text.as_str()) },
        };
        let path = resolve_path(repo, commit, &file.name);
        let reply = hub.client.get(&path, About::File { repo, file: &file.name }, wanted)?;
        self.must_be_the_same(&reply.facts)?;
        let wrong_length = |found| {
            let (file, expected) = (file.name.clone(), partial.size);
            Failure::passing(HubError::Length { file, expected, found })
        };
        match (reply.status, reply.part) {
            (206, Some((_, Some(total)))) if total != partial.size => {
                return Err(wrong_length(total));
            }
            (206, Some((first, _))) if first == from => {}
            // The whole of it, whatever was asked for.
            (200, _) => {
                if let Some(found) = reply.length.filter(|&found| found != partial.size) {
                    return Err(wrong_length(found));
                }
                partial.restart()?;
            }
            (status, _) => {
                partial.restart()?;
                let reason =
                    format!("status {status} for the bytes of {} from {from} on", file.name);
                return Err(Failure::passing(HubError::Answer { host: reply.host, reason }));
            }
        }
        self.copy(reply, partial)
    }

    /// Whether the hub still means the same content.
    fn must_be_the_same(&self, facts: &Facts) -> Result<(), HubError> {
        let Some(found) = &facts.tag else { return Ok(()) };
        let same = match (&self.file.checksum, &self.file.tag) {
            // A tag of another form says nothing of the content.
            (Some(Checksum::Sha256(hex)), _) => found.len() != 64 || found == hex,
            (Some(Checksum::GitBlob(hex)), _) => found.len() != 40 || found == hex,
            (None, Some(tag)) => *found == tag.text,
            (None, None) => true,
        };
        if same {
            return Ok(());
        }
        let (file, found) = (self.file.name.clone(), found.clone());
        let checksum = self.file.checksum.as_ref().map(|checksum| checksum.hex());
        let expected = checksum.or(self.file.tag.as_ref().map(|tag| tag.text.as_str()));
        Err(HubError::Changed { file, expected: expected.unwrap_or_default().to_owned(), found })
    }

    fn copy(&self, mut reply: Reply, partial: &mut Partial<'_>) -> Result<(), Failure> {
        let mut buffer = vec![0; BUFFER_BYTES];
        let mut watchdog = Watchdog::new(self.hub.settings().timeout * STALL_READS);
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return Err(HubError::Stopped.into());
            }
            let n = match reply.body.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    let error = self.hub.client.broken(&reply.host, &error);
                    return Err(Failure::passing(error));
                }
            };
            let found = partial.len + n as u64;
            if found > partial.size {
                let (file, expected) = (self.file.name.clone(), partial.size);
                partial.restart()?;
                return Err(Failure::passing(HubError::Length { file, expected, found }));
            }
            partial.append(&buffer[..n])?;
            self.watch.event(self.file, Event::At(partial.len));
            watchdog.saw(n as u64, &reply.host)?;
        }
        if partial.len == partial.size {
            return Ok(());
        }
        let (file, expected, found) = (self.file.name.clone(), partial.size, partial.len);
        Err(Failure::passing(HubError::Short { file, expected, found }))
    }
}

/// Tells a trickle from a transfer.
struct Watchdog {
    within: Duration,
    since: Instant,
    bytes: u64,
}

impl Watchdog {
    fn new(within: Duration) -> Self {
        Watchdog { within, since: Instant::now(), bytes: 0 }
    }

    fn saw(&mut self, bytes: u64, host: &str) -> Result<(), Failure> {
        self.bytes += bytes;
        if self.since.elapsed() < self.within {
            return Ok(());
        }
        if self.bytes < STALL_BYTES {
            let (host, bytes, within) = (host.to_owned(), self.bytes, self.within);
            return Err(Failure::passing(HubError::Stalled { host, bytes, within }));
        }
        *self = Watchdog::new(self.within);
        Ok(())
    }
}

/// A blob that is not finished.
struct Partial<'a> {
    path: PathBuf,
    handle: File,
    file: &'a RemoteFile,
    hasher: Hasher,
    /// Bytes it has.
    len: u64,
    /// Bytes it should have.
    size: u64,
    /// Bytes that came from the network.
    received: u64,
}

impl<'a> Partial<'a> {
    /// Takes up what is there, which is hashed again: only its bytes tell what it is.
    fn open(path: PathBuf, file: &'a RemoteFile, size: u64) -> Result<Self, HubError> {
        let options =
            File::options().create(true).truncate(false).read(true).write(true).open(&path);
        let mut handle = options.map_err(HubError::io("open", &path))?;
        let mut hasher = Hasher::new(file.checksum.as_ref(), size);
        let mut buffer = vec![0; BUFFER_BYTES];
        let mut len = 0;
        loop {
            let n = handle.read(&mut buffer).map_err(HubError::io("read", &path))?;
            if n == 0 {
                break;
            }
            len += n as u64;
            if len > size {
                break;
            }
            hasher.update(&buffer[..n]);
        }
        let mut partial = Partial { path, handle, file, hasher, len, size, received: 0 };
        if len > size {
            partial.restart()?;
        }
        Ok(partial)
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), HubError> {
        self.handle.write_all(bytes).map_err(HubError::io("write", &self.path))?;
        self.hasher.update(bytes);
        self.len += bytes.len() as u64;
        self.received += bytes.len() as u64;
        Ok(())
    }

    fn restart(&mut self) -> Result<(), HubError> {
        let emptied = self.handle.set_len(0).and_then(|()| self.handle.seek(SeekFrom::Start(0)));
        emptied.map_err(HubError::io("empty", &self.path))?;
        self.hasher = Hasher::new(self.file.checksum.as_ref(), self.size);
        self.len = 0;
        Ok(())
    }

    /// Compares the bytes with the checksum, where there is one. Needs a restart afterwards unless
    /// they agree.
    fn verify(&mut self) -> Result<(), HubError> {
        let found = std::mem::replace(&mut self.hasher, Hasher::Nothing).finish();
        match (&self.file.checksum, found) {
            (Some(checksum), Some(found)) if checksum.hex() != found => Err(HubError::Checksum {
                file: self.file.name.clone(),
                kind: checksum.kind(),
                expected: checksum.hex().to_owned(),
                found,
            }),
            _ => Ok(()),
        }
    }

    /// Gives the bytes their name, once they are on the disk.
    fn finish(self, blob: &std::path::Path) -> Result<(), HubError> {
        self.handle.sync_all().map_err(HubError::io("write", &self.path))?;
        fs::rename(&self.path, blob).map_err(HubError::io("rename", &self.path))
    }

    /// Best effort: what stays is found out by its checksum.
    fn remove(&self) {
        let _ = fs::remove_file(&self.path);
    }
}
