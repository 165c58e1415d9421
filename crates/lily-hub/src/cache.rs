//! The folder that the hub's tools share, by their layout:
//!
//! ```text
//! models--OWNER--NAME/blobs/HASH             contents, and HASH.incomplete
//! models--OWNER--NAME/snapshots/COMMIT/FILE  links to blobs
//! models--OWNER--NAME/refs/REVISION          the commit that a branch or tag stood for
//! .locks/models--OWNER--NAME/HASH.lock       held by who writes a blob
//! ```

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use crate::error::HubError;
use crate::listing::RemoteFile;
use crate::names::{Commit, RepoId, RepoRef, Revision};

/// A cache folder, which need not exist.
#[derive(Clone, Debug)]
pub struct Cache {
    root: PathBuf,
}

/// One state of a repository in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Which repository.
    pub repo: RepoId,
    /// Which state.
    pub commit: Commit,
    /// The folder with its files.
    pub path: PathBuf,
}

/// A repository of the cache.
#[derive(Clone, Debug)]
pub struct CachedModel {
    /// Which repository.
    pub repo: RepoId,
    /// Revisions that are known by name, each with the commit that it stood for.
    pub revisions: Vec<(String, Snapshot)>,
    /// Bytes of finished blobs, of all revisions.
    pub bytes: u64,
    /// Bytes of blobs that are not finished.
    pub incomplete_bytes: u64,
}

impl Cache {
    /// A cache at a folder.
    pub fn new(root: PathBuf) -> Self {
        Cache { root }
    }

    /// The folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    fn repo(&self, repo: &RepoId) -> PathBuf {
        self.root.join(repo.folder())
    }

    /// The folder of one state of a repository, whether it exists or not.
    pub fn snapshot(&self, repo: &RepoId, commit: &Commit) -> PathBuf {
        self.repo(repo).join("snapshots").join(commit.as_str())
    }

    /// What a revision stands for without asking the hub: a commit is itself, a name what it stood
    /// for when it was last fetched. `None` where that is not in the cache.
    pub fn find(&self, wanted: &RepoRef) -> Option<Snapshot> {
        let RepoRef { repo, revision } = wanted;
        let commit = match revision.commit() {
            Some(commit) => commit,
            None => self.read_ref(repo, revision)?,
        };
        let path = self.snapshot(repo, &commit);
        path.is_dir().then(|| Snapshot { repo: repo.clone(), commit, path })
    }

    fn read_ref(&self, repo: &RepoId, revision: &Revision) -> Option<Commit> {
        let path = self.repo(repo).join("refs").join(revision.as_str());
        fs::read_to_string(path).ok()?.trim().parse().ok()
    }

    /// Notes what a revision stands for. A commit needs no note.
    ///
    /// # Errors
    /// [`HubError::Io`].
    pub fn set_ref(&self, wanted: &RepoRef, commit: &Commit) -> Result<(), HubError> {
        let RepoRef { repo, revision } = wanted;
        if revision.commit().is_some() || self.read_ref(repo, revision).as_ref() == Some(commit) {
            return Ok(());
        }
        let path = self.repo(repo).join("refs").join(revision.as_str());
        let folder = path.parent().unwrap_or(&self.root);
        fs::create_dir_all(folder).map_err(HubError::io("create", folder))?;
        let written = || -> io::Result<()> {
            // As open to others as the rest of the cache.
            let mode = fs::Permissions::from_mode(0o666);
            let mut file = tempfile::Builder::new().permissions(mode).tempfile_in(folder)?;
            file.write_all(commit.as_str().as_bytes())?;
            file.persist(&path)?;
            Ok(())
        };
        written().map_err(HubError::io("write", &path))
    }

    /// The repositories of the cache, by name.
    ///
    /// # Errors
    /// [`HubError::Io`]; a folder that does not exist is an empty cache.
    pub fn models(&self) -> Result<Vec<CachedModel>, HubError> {
        let entries = match fs::read_dir(&self.root) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(HubError::io("read", &self.root)(error)),
        };
        let folders = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let mut models: Vec<_> = folders
            .filter_map(|folder| RepoId::from_folder(&folder))
            .map(|repo| self.model(repo))
            .collect();
        models.sort_by(|a, b| a.repo.cmp(&b.repo));
        Ok(models)
    }

    fn model(&self, repo: RepoId) -> CachedModel {
        let folder = self.repo(&repo);
        let mut revisions = Vec::new();
        named_refs(&folder.join("refs"), "", &mut revisions);
        revisions.sort();
        let found = |name: String| {
            let revision = name.parse().ok()?;
            let snapshot = self.find(&RepoRef { repo: repo.clone(), revision })?;
            Some((name, snapshot))
        };
        let revisions = revisions.into_iter().filter_map(found).collect();
        let (mut bytes, mut incomplete_bytes) = (0, 0);
        for entry in fs::read_dir(folder.join("blobs")).into_iter().flatten().flatten() {
            let size = entry.metadata().map_or(0, |facts| facts.len());
            let incomplete = entry.path().extension().is_some_and(|e| e == "incomplete");
            *(if incomplete { &mut incomplete_bytes } else { &mut bytes }) += size;
        }
        CachedModel { repo, revisions, bytes, incomplete_bytes }
    }

    pub(crate) fn blob(&self, repo: &RepoId, name: &str) -> PathBuf {
        self.repo(repo).join("blobs").join(name)
    }

    pub(crate) fn incomplete(&self, repo: &RepoId, name: &str) -> PathBuf {
        self.repo(repo).join("blobs").join(format!("{name}.incomplete"))
    }

    /// Whether a snapshot has a file, of the right length where that is known.
    pub fn has(&self, repo: &RepoId, commit: &Commit, file: &RemoteFile) -> bool {
        // Through the link: one that leads nowhere is none.
        let facts = fs::metadata(self.snapshot(repo, commit).join(&file.name));
        facts.is_ok_and(|f| f.is_file() && file.size.is_none_or(|size| size == f.len()))
    }

    /// Bytes of a file that are still to be fetched; 0 where its size is unknown.
    pub fn missing(&self, repo: &RepoId, commit: &Commit, file: &RemoteFile) -> u64 {
        let size = file.size.unwrap_or(0);
        let Some(blob) = file.blob() else { return size };
        let length = |path: PathBuf| fs::metadata(path).map_or(0, |facts| facts.len());
        if self.has(repo, commit, file) || length(self.blob(repo, &blob)) == size {
            return 0;
        }
        let have = length(self.incomplete(repo, &blob));
        // Too much of something is started over.
        if have > size { size } else { size - have }
    }

    /// Bytes that may be written on the file system of the cache.
    ///
    /// # Errors
    /// What the system says.
    pub fn free_space(&self) -> io::Result<u64> {
        let absolute = std::path::absolute(&self.root)?;
        // The cache itself may not exist yet.
        let existing = absolute.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
        let facts = rustix::fs::statvfs(existing)?;
        Ok(facts.f_bavail.saturating_mul(facts.f_frsize))
    }

    /// Waits until no other process writes the blob. The lock ends with what is returned, or with the
    /// process. `waiting` is called when there is somebody to wait for.
    pub(crate) fn lock(
        &self,
        repo: &RepoId,
        blob: &str,
        waiting: impl FnOnce(),
    ) -> Result<File, HubError> {
        let folder = self.root.join(".locks").join(repo.folder());
        fs::create_dir_all(&folder).map_err(HubError::io("create", &folder))?;
        let path = folder.join(format!("{blob}.lock"));
        let options = File::options().create(true).truncate(false).write(true).open(&path);
        let file = options.map_err(HubError::io("open", &path))?;
        let locked = match file.try_lock() {
            Ok(()) => Ok(()),
            Err(TryLockError::WouldBlock) => {
                waiting();
                file.lock()
            }
            Err(TryLockError::Error(error)) => Err(error),
        };
        match locked {
            // Some network file systems have no locks. Two writers would then damage a blob, which
            // its checksum finds.
            Err(error) if error.kind() != io::ErrorKind::Unsupported => {
                Err(HubError::io("lock", &path)(error))
            }
            _ => Ok(file),
        }
    }

    /// Gives a finished blob its name in a snapshot.
    pub(crate) fn link(
        &self,
        repo: &RepoId,
        commit: &Commit,
        file: &str,
        blob: &str,
    ) -> Result<(), HubError> {
        self.link_by(repo, commit, file, blob, |target, link| symlink(target, link))
    }

    fn link_by(
        &self,
        repo: &RepoId,
        commit: &Commit,
        file: &str,
        blob: &str,
        symlink: impl Fn(&Path, &Path) -> io::Result<()>,
    ) -> Result<(), HubError> {
        let path = self.snapshot(repo, commit).join(file);
        let folder = path.parent().unwrap_or(&self.root);
        fs::create_dir_all(folder).map_err(HubError::io("create", folder))?;
        let depth = 2 + file.matches('/').count();
        let target = PathBuf::from("../".repeat(depth)).join("blobs").join(blob);
        let source = self.blob(repo, blob);
        // Under another name first: whoever opens the snapshot finds the file or not, never half.
        let made = || -> io::Result<()> {
            let place = tempfile::Builder::new().prefix(".link").tempdir_in(folder)?;
            let new = place.path().join("link");
            // Where file systems know neither kind of link, the file is there twice.
            symlink(&target, &new)
                .or_else(|_| fs::hard_link(&source, &new))
                .or_else(|_| fs::copy(&source, &new).map(drop))?;
            fs::rename(&new, &path)
        };
        made().map_err(HubError::io("write", &path))
    }
}

/// Names below `refs/`; those with slashes are folders there.
fn named_refs(folder: &Path, prefix: &str, names: &mut Vec<String>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let name = format!("{prefix}{name}");
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => named_refs(&entry.path(), &format!("{name}/"), names),
            _ => names.push(name),
        }
    }
}

/// What a path is a snapshot of, where it is one by its form.
pub fn snapshot_of(path: &Path) -> Option<(RepoId, Commit)> {
    let part = |path: &Path| path.file_name()?.to_str().map(str::to_owned);
    let commit = part(path)?.parse().ok()?;
    let snapshots = path.parent()?;
    if part(snapshots)? != "snapshots" {
        return None;
    }
    Some((RepoId::from_folder(&part(snapshots.parent()?)?)?, commit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::Checksum;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    fn fixture() -> (tempfile::TempDir, Cache, RepoId, Commit) {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::new(dir.path().join("hub"));
        (dir, cache, "a/b".parse().unwrap(), COMMIT.parse().unwrap())
    }

    fn put_blob(cache: &Cache, repo: &RepoId, name: &str, bytes: &[u8]) {
        let path = cache.blob(repo, name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    #[test]
    fn a_file_of_a_snapshot_is_a_relative_link_to_its_blob() {
        let (dir, cache, repo, commit) = fixture();
        put_blob(&cache, &repo, "abc", b"content");
        for name in ["config.json", "sub/deep/x.json"] {
            cache.link(&repo, &commit, name, "abc").unwrap();
            // Twice does no harm.
            cache.link(&repo, &commit, name, "abc").unwrap();
            let path = cache.snapshot(&repo, &commit).join(name);
            assert!(fs::read_link(&path).unwrap().is_relative());
            assert_eq!(fs::read(&path).unwrap(), b"content");
        }
        // The cache can be moved.
        fs::rename(dir.path().join("hub"), dir.path().join("moved")).unwrap();
        let moved = Cache::new(dir.path().join("moved")).snapshot(&repo, &commit);
        assert_eq!(fs::read(moved.join("sub/deep/x.json")).unwrap(), b"content");
        let left: Vec<_> = fs::read_dir(moved).unwrap().flatten().map(|e| e.file_name()).collect();
        assert_eq!(left.len(), 2, "{left:?}");
    }

    #[test]
    fn where_there_are_no_symbolic_links_the_file_is_there_all_the_same() {
        let (_dir, cache, repo, commit) = fixture();
        put_blob(&cache, &repo, "abc", b"content");
        let refuse = |_: &Path, _: &Path| Err(io::ErrorKind::PermissionDenied.into());
        cache.link_by(&repo, &commit, "config.json", "abc", refuse).unwrap();
        let path = cache.snapshot(&repo, &commit).join("config.json");
        assert!(!fs::symlink_metadata(&path).unwrap().is_symlink());
        assert_eq!(fs::read(&path).unwrap(), b"content");
    }

    #[test]
    fn a_revision_is_found_when_its_snapshot_is_there() {
        let (_dir, cache, repo, commit) = fixture();
        let named: RepoRef = "a/b@refs/pr/1".parse().unwrap();
        let exact: RepoRef = format!("a/b@{COMMIT}").parse().unwrap();
        cache.set_ref(&named, &commit).unwrap();
        assert_eq!((cache.find(&named), cache.find(&exact)), (None, None));
        fs::create_dir_all(cache.snapshot(&repo, &commit)).unwrap();
        for wanted in [&named, &exact] {
            let found = cache.find(wanted).unwrap();
            assert_eq!(snapshot_of(&found.path), Some((repo.clone(), commit.clone())));
        }
        assert_eq!(cache.find(&"a/b".parse().unwrap()), None);
        fs::write(cache.repo(&repo).join("refs/refs/pr/1"), "../../../etc").unwrap();
        assert_eq!(cache.find(&named), None);
    }

    #[test]
    fn models_are_listed_with_their_revisions_and_sizes() {
        let (_dir, cache, repo, commit) = fixture();
        assert!(cache.models().unwrap().is_empty());
        put_blob(&cache, &repo, "abc", b"content");
        put_blob(&cache, &repo, "def.incomplete", b"con");
        cache.link(&repo, &commit, "config.json", "abc").unwrap();
        for revision in ["a/b", "a/b@x/y"] {
            cache.set_ref(&revision.parse().unwrap(), &commit).unwrap();
        }
        fs::create_dir_all(cache.root().join("datasets--a--b")).unwrap();
        fs::create_dir_all(cache.root().join(".locks/models--a--b")).unwrap();
        let models = cache.models().unwrap();
        let [model] = &models[..] else { panic!("{models:?}") };
        assert_eq!((model.bytes, model.incomplete_bytes), (7, 3));
        let names: Vec<_> = model.revisions.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["main", "x/y"]);
    }

    #[test]
    fn a_link_that_leads_nowhere_is_no_file() {
        let (_dir, cache, repo, commit) = fixture();
        let checksum = Some(Checksum::GitBlob(COMMIT.to_owned()));
        let file = RemoteFile { name: "x".into(), size: Some(7), checksum, tag: None };
        put_blob(&cache, &repo, COMMIT, b"content");
        cache.link(&repo, &commit, "x", COMMIT).unwrap();
        assert!(cache.has(&repo, &commit, &file));
        assert!(!cache.has(&repo, &commit, &RemoteFile { size: Some(8), ..file.clone() }));
        fs::remove_file(cache.blob(&repo, COMMIT)).unwrap();
        assert!(!cache.has(&repo, &commit, &file));
        assert_eq!(cache.missing(&repo, &commit, &file), 7);
        put_blob(&cache, &repo, &format!("{COMMIT}.incomplete"), b"con");
        assert_eq!(cache.missing(&repo, &commit, &file), 4);
        put_blob(&cache, &repo, &format!("{COMMIT}.incomplete"), b"too long for it");
        assert_eq!(cache.missing(&repo, &commit, &file), 7);
    }

    #[test]
    fn only_snapshot_folders_are_snapshots() {
        for path in ["/x/models--a--b/snapshots", "/x/a/snapshots/0123", "/", ""] {
            assert_eq!(snapshot_of(Path::new(path)), None, "{path}");
        }
        let other = format!("/x/models--a--b/other/{COMMIT}");
        assert_eq!(snapshot_of(Path::new(&other)), None);
    }

    #[test]
    fn free_space_is_known_before_the_cache_exists() {
        let (_dir, cache, ..) = fixture();
        assert!(cache.free_space().unwrap() > 0);
    }

    #[test]
    fn a_blob_is_written_by_one_at_a_time() {
        let (_dir, cache, repo, _) = fixture();
        let first = cache.lock(&repo, "abc", || panic!("nobody holds it")).unwrap();
        let other = cache.lock(&repo, "def", || panic!("another blob")).unwrap();
        let (told, heard) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| cache.lock(&repo, "abc", || told.send(()).unwrap()));
            heard.recv().unwrap();
            drop(first);
            waiter.join().unwrap().unwrap();
        });
        drop(other);
    }
}
