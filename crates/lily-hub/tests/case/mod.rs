//! A hub with something to fetch, and a client of it.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::fs;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use lily_hub::{Event, Fetch, Fetched, Hub, HubError, Listing, RemoteFile, Retry, Settings, Watch};

use crate::common::{COMMIT, Content, FakeHub, REPO, noise};

pub(crate) const WEIGHTS: &str = "model.safetensors";

/// A hub with one large and one small file, and a client of it with an empty cache.
pub(crate) struct Case {
    pub(crate) server: FakeHub,
    pub(crate) hub: Hub,
    pub(crate) folder: tempfile::TempDir,
}

pub(crate) fn files() -> Vec<Content> {
    vec![Content::new("config.json", noise(700, 1)), Content::new(WEIGHTS, noise(300_000, 2))]
}

pub(crate) fn settings(server: &FakeHub, folder: &tempfile::TempDir) -> Settings {
    Settings {
        endpoint: server.endpoint(),
        cache: folder.path().join("hub"),
        token: None,
        offline: false,
        timeout: Duration::from_secs(5),
        proxy: false,
    }
}

pub(crate) const QUICK: Retry = Retry {
    failures: 4,
    first: Duration::from_millis(1),
    longest: Duration::from_millis(4),
    patience: Duration::from_secs(60),
};

impl Case {
    pub(crate) fn new() -> Self {
        Case::with(files(), |_| {})
    }

    pub(crate) fn with(files: Vec<Content>, adjust: impl FnOnce(&mut Settings)) -> Self {
        let (server, folder) = (FakeHub::start(files), tempfile::tempdir().unwrap());
        let mut settings = settings(&server, &folder);
        adjust(&mut settings);
        let hub = Hub::with_retry(settings, QUICK).unwrap();
        Case { server, hub, folder }
    }

    pub(crate) fn look_up(&self) -> Result<Listing, HubError> {
        self.hub.look_up(&REPO.parse().unwrap())
    }

    pub(crate) fn fetch_with(&self, watch: &dyn Watch) -> Result<Fetched, HubError> {
        let listing = self.look_up()?;
        self.fetch_files(&listing.files, watch)
    }

    pub(crate) fn fetch_files(
        &self,
        files: &[RemoteFile],
        watch: &dyn Watch,
    ) -> Result<Fetched, HubError> {
        let (repo, commit) = (&REPO.parse().unwrap(), &COMMIT.parse().unwrap());
        self.hub.fetch(&Fetch { repo, commit, files, jobs: 2 }, watch)
    }

    pub(crate) fn fetch(&self) -> Result<Fetched, HubError> {
        self.fetch_with(&())
    }

    pub(crate) fn snapshot(&self) -> PathBuf {
        self.hub.cache().snapshot(&REPO.parse().unwrap(), &COMMIT.parse().unwrap())
    }

    pub(crate) fn blobs(&self) -> PathBuf {
        self.snapshot().join("../../blobs")
    }

    /// Every file is in the snapshot, with its own bytes, under the name of its content.
    pub(crate) fn assert_right(&self, files: &[Content]) {
        for file in files {
            let path = self.snapshot().join(&file.name);
            assert!(fs::read(&path).unwrap() == file.bytes, "{}", file.name);
            let target = fs::read_link(&path).unwrap();
            assert!(target.ends_with(file.tag()), "{target:?}");
        }
        let left = self.names();
        assert!(!left.iter().any(|name| name.ends_with(".incomplete")), "{left:?}");
    }

    pub(crate) fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.blobs()).into_iter().flatten();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// Leaves the first bytes of the weights behind, as a killed process does.
    pub(crate) fn leave(&self, bytes: &[u8]) {
        fs::create_dir_all(self.blobs().parent().unwrap().join("blobs")).unwrap();
        fs::create_dir_all(self.snapshot()).unwrap();
        fs::create_dir_all(self.blobs()).unwrap();
        fs::write(self.blobs().join(format!("{}.incomplete", files()[1].tag())), bytes).unwrap();
    }
}

/// Notes why tries failed, and how long each pause was.
#[derive(Default)]
pub(crate) struct Notes(pub(crate) Mutex<Vec<(String, Duration)>>);

impl Watch for Notes {
    fn event(&self, _: &RemoteFile, event: Event<'_>) {
        if let Event::Retry { error, pause } = event {
            self.0.lock().unwrap().push((error.to_string(), pause));
        }
    }
}

impl Notes {
    pub(crate) fn reasons(&self) -> Vec<String> {
        self.0.lock().unwrap().iter().map(|(reason, _)| reason.clone()).collect()
    }
}
