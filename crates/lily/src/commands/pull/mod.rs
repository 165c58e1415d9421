//! `lily pull`: a model from a hub into the cache, judged before its weights are transferred.

mod choice;
mod progress;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use lily_checkpoint::{Checkpoint, CheckpointError, FileStart, describe, header_bytes};
use lily_engine::available_memory;
use lily_hub::{Commit, Fetch, Hub, HubError, Listing, RemoteFile, RepoRef, Settings};
use lily_model::MemoryEstimate;
use serde_json::json;

use self::progress::{Progress, Quiet, again};
use super::interrupt::Kept;
use super::output::{bytes, print, print_pretty};
use crate::args::{EngineArgs, PullArgs};
use crate::{device, hub, model};

/// Asked for at once: the headers of all but unusual files are shorter.
const USUAL_HEADER_BYTES: u64 = 256 << 10;

pub(crate) fn run(args: &PullArgs) -> Result<()> {
    let settings = Settings::from_env().map_err(hub::failed)?;
    let hub = Hub::new(settings).map_err(hub::failed)?;
    let hub = hub.telling(|error, pause| eprintln!("{}", again(error, pause)));
    let pulled = if hub.settings().offline {
        offline(&hub, &args.repo)?
    } else {
        Pull { hub: &hub, args }.run()?
    };
    if args.json {
        print_pretty(&json!({
            "repo": args.repo.repo.as_str(),
            "revision": args.repo.revision.as_str(),
            "commit": pulled.commit.as_str(),
            "path": pulled.path,
            "files": pulled.files,
            "bytes": pulled.bytes,
            "downloaded_bytes": pulled.downloaded,
        }))?;
    } else {
        // The path alone, for scripts; all else goes to standard error.
        print(&format!("{}\n", pulled.path.display()))?;
    }
    Ok(())
}

/// A model that is in the cache, all of it.
struct Pulled {
    commit: Commit,
    path: PathBuf,
    files: usize,
    bytes: u64,
    downloaded: u64,
}

/// What the cache has, if it is whole.
fn offline(hub: &Hub, wanted: &RepoRef) -> Result<Pulled> {
    let Some(found) = hub.cache().find(wanted) else {
        let (what, cache) = (wanted.to_string(), hub.cache().root().display().to_string());
        return Err(HubError::Offline { what, cache }.into());
    };
    let path = found.path;
    open(&path).with_context(|| {
        format!("{wanted} is not whole in the cache, and HF_HUB_OFFLINE is set")
    })?;
    let sizes: Vec<u64> = fs::read_dir(&path)
        .with_context(|| format!("cannot read {}", path.display()))?
        .flatten()
        .filter_map(|entry| Some(fs::metadata(entry.path()).ok()?.len()))
        .collect();
    let (files, bytes) = (sizes.len(), sizes.iter().sum());
    Ok(Pulled { commit: found.commit, path, files, bytes, downloaded: 0 })
}

/// Opens what was pulled by the rules that `--model-path` opens it by.
fn open(path: &Path) -> Result<()> {
    let checkpoint = Checkpoint::open(path).map_err(|error| model::unopened(path, error))?;
    checkpoint.warnings().iter().for_each(|warning| eprintln!("warning: {warning}"));
    Ok(())
}

struct Pull<'a> {
    hub: &'a Hub,
    args: &'a PullArgs,
}

impl Pull<'_> {
    fn run(&self) -> Result<Pulled> {
        let (hub, wanted) = (self.hub, &self.args.repo);
        let listing = hub.look_up(wanted).map_err(|error| self.unreached(error))?;
        let commit = &listing.commit;
        let path = hub.cache().snapshot(&wanted.repo, commit);
        let kept = Kept::new("what was fetched is kept: the same command goes on from there")?;
        let side = self.known(commit, choice::side_files(&listing)?)?;
        if !side.iter().any(|file| file.name == choice::CONFIG) {
            let file = choice::CONFIG.to_owned();
            return Err(self.unusable(&listing, CheckpointError::MissingFile { file }));
        }
        let mut downloaded = self.fetch(commit, &side, None)?;
        // What cannot run is refused before its headers, and they before the weights.
        describe(&path).map_err(|error| self.unusable(&listing, error))?;
        let index = side.iter().any(|file| file.name == choice::INDEX);
        let index = index.then(|| fs::read(path.join(choice::INDEX))).transpose()?;
        let weights = self.known(commit, choice::weights(&listing, index.as_deref())?)?;
        let missing: u64 = weights.iter().fold(0, |sum, file| {
            hub.cache().missing(&wanted.repo, commit, file).saturating_add(sum)
        });
        if missing > 0 {
            self.must_have_space(missing)?;
            self.judge(&listing, &side, &weights)?;
            let progress = Progress::new(&self.args.repo, &weights, missing);
            downloaded += self.fetch(commit, &weights, Some(&progress))?;
            progress.finish();
        } else {
            // Without a byte to transfer there may still be links to make.
            downloaded += self.fetch(commit, &weights, None)?;
        }
        drop(kept);
        open(&path)?;
        hub.cache().set_ref(wanted, commit)?;
        let all = || side.iter().chain(&weights);
        let total = all().filter_map(|file| file.size).sum();
        self.tell(downloaded, total);
        Ok(Pulled { commit: commit.clone(), path, files: all().count(), bytes: total, downloaded })
    }

    fn tell(&self, downloaded: u64, total: u64) {
        let wanted = &self.args.repo;
        match downloaded {
            0 => eprintln!("{wanted} is in the cache already ({})", bytes(total)),
            _ => eprintln!("pulled {wanted} ({})", bytes(total)),
        }
    }

    /// With sizes and checksums, which some hubs tell for one file at a time only.
    fn known(&self, commit: &Commit, files: Vec<RemoteFile>) -> Result<Vec<RemoteFile>> {
        let repo = &self.args.repo.repo;
        let known = |file: RemoteFile| match self.hub.cache().has(repo, commit, &file) {
            true => Ok(file),
            false => self.hub.complete(repo, commit, &file).map_err(hub::failed),
        };
        files.into_iter().map(known).collect()
    }

    fn fetch(
        &self,
        commit: &Commit,
        files: &[RemoteFile],
        progress: Option<&Progress>,
    ) -> Result<u64> {
        let fetch = Fetch { repo: &self.args.repo.repo, commit, files, jobs: self.args.jobs };
        let fetched = match progress {
            Some(progress) => self.hub.fetch(&fetch, progress),
            None => self.hub.fetch(&fetch, &Quiet),
        };
        fetched.map(|fetched| fetched.bytes).map_err(|error| {
            if let Some(progress) = progress {
                progress.finish();
            }
            hub::failed(error)
        })
    }

    fn must_have_space(&self, missing: u64) -> Result<()> {
        let cache = self.hub.cache();
        let shown = cache.root().display();
        let free =
            cache.free_space().with_context(|| format!("cannot ask for the space at {shown}"))?;
        if missing > free {
            bail!(
                "{} needs {} more at {shown}, and {} are free there; HF_HUB_CACHE names another place",
                self.args.repo,
                bytes(missing),
                bytes(free)
            );
        }
        Ok(())
    }

    /// Checks the headers of all weights by the rules that a checkpoint on the disk is opened by, and
    /// whether the model fits into memory.
    fn judge(&self, listing: &Listing, side: &[RemoteFile], weights: &[RemoteFile]) -> Result<()> {
        let commit = &listing.commit;
        let mut starts = Vec::new();
        for file in side {
            let start = self.start(commit, file, u64::MAX)?;
            starts.push(FileStart { name: file.name.clone(), len: start.len() as u64, start });
        }
        for file in weights {
            let len = file.size.unwrap_or_default();
            let first = self.start(commit, file, USUAL_HEADER_BYTES)?;
            let needed = header_bytes(&file.name, &first, len)
                .map_err(|error| self.unusable(listing, error))?;
            let start = match needed <= first.len() as u64 {
                true => first,
                false => self.start(commit, file, needed)?,
            };
            starts.push(FileStart { name: file.name.clone(), start, len });
        }
        let checkpoint =
            Checkpoint::from_starts(starts).map_err(|error| self.unusable(listing, error))?;
        self.must_fit(&checkpoint)
    }

    fn start(&self, commit: &Commit, file: &RemoteFile, bytes: u64) -> Result<Vec<u8>> {
        self.hub.start_of(&self.args.repo.repo, commit, file, bytes).map_err(hub::failed)
    }

    /// A model without room for one token is refused, one with room for few is told.
    fn must_fit(&self, checkpoint: &Checkpoint) -> Result<()> {
        let engine = EngineArgs { planning: self.args.planning.clone(), threads: Some(1) };
        let chosen = device::choose(&engine)?;
        let facts = chosen.device.facts();
        let (config, manifest) = (checkpoint.config(), checkpoint.manifest());
        let memory = model::estimate(config, manifest, &engine.planning, &facts)?;
        let limit = chosen.memory_limit.or_else(available_memory);
        match limit.map(|limit| (limit, fits(&memory, limit))) {
            Some((_, Fit::All)) | None => Ok(()),
            Some((limit, Fit::Shorter(context))) => {
                eprintln!(
                    "warning: {} free on {} are enough for a context of {context} tokens, not for {}",
                    bytes(limit),
                    facts.kind,
                    memory.context
                );
                Ok(())
            }
            Some((limit, Fit::Nothing)) => {
                let needs = format!(
                    "{} needs {} of memory on {}, and {} are free",
                    self.args.repo,
                    bytes(memory.fixed().saturating_add(memory.kv_per_token)),
                    facts.kind,
                    bytes(limit)
                );
                if self.args.force {
                    eprintln!("warning: {needs}");
                    return Ok(());
                }
                Err(anyhow!("{needs}; --force pulls it all the same"))
            }
        }
    }

    /// A hub that is out of reach matters less where the model is in the cache.
    fn unreached(&self, error: HubError) -> anyhow::Error {
        let away = matches!(
            error,
            HubError::Network { .. } | HubError::Status { .. } | HubError::NoHub { .. }
        );
        match self.hub.cache().find(&self.args.repo).filter(|_| away) {
            Some(found) => anyhow!(
                "{error}; the cache has commit {} of it, which --model-path {} uses",
                found.commit,
                self.args.repo
            ),
            None => hub::failed(error),
        }
    }

    /// Of a model that lily cannot run; what other kind it is, its files tell.
    fn unusable(&self, listing: &Listing, error: CheckpointError) -> anyhow::Error {
        let error = choice::named_after(listing, error);
        anyhow::Error::new(error).context(format!("cannot use {}", self.args.repo))
    }
}

/// How a model fits.
#[derive(Debug, PartialEq, Eq)]
enum Fit {
    /// With the context asked for.
    All,
    /// With this many tokens.
    Shorter(usize),
    Nothing,
}

fn fits(memory: &MemoryEstimate, limit: u64) -> Fit {
    if memory.total() <= limit {
        return Fit::All;
    }
    memory.max_context_for(limit).map_or(Fit::Nothing, Fit::Shorter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_fits_wholly_or_shorter_or_not() {
        let memory = MemoryEstimate {
            weights: 1000,
            kv_per_token: 10,
            state: 50,
            scratch: 50,
            context: 100,
            max_context: 400,
        };
        assert_eq!(fits(&memory, 2100), Fit::All);
        assert_eq!(fits(&memory, 2099), Fit::Shorter(99));
        assert_eq!(fits(&memory, 1110), Fit::Shorter(1));
        assert_eq!(fits(&memory, 1109), Fit::Nothing);
        assert_eq!(fits(&memory, 0), Fit::Nothing);
    }
}
