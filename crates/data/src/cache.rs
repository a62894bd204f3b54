//! Folders that appear complete or not at all, and the location of the cache.

use std::ffi::OsString;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::{env, fs, io, process};

use crate::DataError;

/// The folder of prepared data: the first of `$KILN_CACHE`, `$XDG_CACHE_HOME/kiln` and `$HOME/.cache/kiln` that is
/// defined, otherwise a private folder in the system's temporary directory.
///
/// # Errors
/// If it would be a temporary folder whose name another user has taken, or to which others may write.
pub fn root() -> Result<PathBuf, DataError> {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let own = set("KILN_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|folder| folder.join("kiln")))
        .or_else(|| set("HOME").map(|folder| folder.join(".cache").join("kiln")));
    own.map_or_else(|| private(&env::temp_dir()), Ok)
}

/// This user's private folder in a folder to which everybody may write.
fn private(shared: &Path) -> Result<PathBuf, DataError> {
    use std::os::unix::fs::{DirBuilderExt, MetadataExt};
    // SAFETY: the call takes no arguments and changes nothing.
    let user = unsafe { libc::geteuid() };
    let folder = shared.join(format!("kiln-{user}"));
    let failed = |error| DataError::write(&folder, error);
    match fs::DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(error)),
        _ => {}
    }
    let found = fs::symlink_metadata(&folder).map_err(failed)?; // a link may point anywhere
    match found.is_dir() && found.uid() == user && found.mode() & 0o077 == 0 {
        true => Ok(folder),
        false => Err(DataError::SharedCache { path: folder }),
    }
}

/// Calls `fill` with an empty folder, which then becomes `folder`, a folder of the cache; not if it is there already.
/// Only one of several processes does so, and the others wait; with `progress` they say so.
///
/// # Errors
/// That of `fill`, or if the cache cannot be written.
pub fn fill_once<E: From<DataError>>(
    folder: &Path,
    progress: bool,
    fill: impl FnOnce(&Path) -> Result<(), E>,
) -> Result<(), E> {
    if folder.is_dir() {
        return Ok(());
    }
    // None if another process has filled it in the meantime.
    if let Some(new) = NewFolder::create(folder, progress).map_err(in_cache)? {
        fill(new.path())?;
        new.publish().map_err(in_cache)?;
    }
    Ok(())
}

/// An error of writing to the cache.
pub fn in_cache(error: DataError) -> DataError {
    match error {
        DataError::Unwritable { path, source } => DataError::Cache { path, source },
        other => other,
    }
}

/// A folder under a temporary name, deleted if it is not published.
#[derive(Debug)]
pub struct NewFolder {
    temporary: PathBuf,
    target: PathBuf,
    lock: PathBuf,
    /// Holds the lock as long as the file is open.
    _locked: File,
}

impl NewFolder {
    /// Creates an empty folder next to `target`. None if `target` exists.
    ///
    /// Only one process at a time does this. Others wait here until it has published its folder, which they then find,
    /// or has failed, and then try themselves. With `progress` they print to stderr that they are waiting.
    pub fn create(target: &Path, progress: bool) -> Result<Option<Self>, DataError> {
        let failed = |error| DataError::write(target, error);
        let name = target.file_name().ok_or_else(|| failed(io::ErrorKind::InvalidInput.into()))?;
        let target = target.with_file_name(name); // drops trailing slashes
        fs::create_dir_all(parent(&target)).map_err(failed)?;
        let lock = hidden(&target, ".lock");
        let file = File::options().write(true).create(true).truncate(false).open(&lock).map_err(failed)?;
        let locked = wait_for(&file, &target, progress);
        if target.exists() {
            _ = fs::remove_file(&lock);
            return Ok(None);
        }
        let temporary = if locked { hidden(&target, ".partial") } else { unique(&target) };
        if temporary.exists() {
            fs::remove_dir_all(&temporary).map_err(failed)?; // left by a killed process
        }
        fs::create_dir(&temporary).map_err(failed)?;
        Ok(Some(Self { temporary, target, lock, _locked: file }))
    }

    /// The folder to write to.
    pub fn path(&self) -> &Path {
        &self.temporary
    }

    /// Syncs all that is in the folder and gives the folder its name. Returns whether this process was first.
    ///
    /// Renaming is atomic and fails if the target contains files, so the first process wins even without locks.
    pub fn publish(self) -> Result<bool, DataError> {
        let failed = |error| DataError::write(&self.target, error);
        sync_all(&self.temporary).map_err(failed)?;
        let first = match fs::rename(&self.temporary, &self.target) {
            Ok(()) => true,
            Err(_) if self.target.is_dir() => false,
            Err(error) => return Err(failed(error)),
        };
        sync(parent(&self.target)).map_err(failed)?;
        // Deleted only now: whoever gets a lock from here on finds the target. If the file were also deleted after a
        // failure, a waiting process would lock the deleted file while a newcomer locks a new one, and both would
        // write.
        _ = fs::remove_file(&self.lock);
        Ok(first)
    }
}

impl Drop for NewFolder {
    fn drop(&mut self) {
        if self.temporary.exists() {
            _ = fs::remove_dir_all(&self.temporary);
        }
    }
}

/// Waits until no other process holds the file's lock, then locks it for as long as the file is open. Returns false if
/// the file system has no locks.
fn wait_for(file: &File, target: &Path, progress: bool) -> bool {
    match file.try_lock() {
        Ok(()) => true,
        Err(TryLockError::WouldBlock) => {
            if progress {
                eprintln!("waiting for another process that writes {}", target.display());
            }
            file.lock().is_ok()
        }
        Err(TryLockError::Error(_)) => false,
    }
}

/// The hidden sibling of `path` named `.NAME` plus the ending.
fn hidden(path: &Path, ending: &str) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(ending);
    path.with_file_name(name)
}

/// A sibling name of `path` that no other process or thread takes.
fn unique(path: &Path) -> PathBuf {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let counter = COUNTER.fetch_add(1, Ordering::Relaxed);
    // The time tells apart containers that share a folder but number their processes separately.
    let nanoseconds = std::time::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_nanos());
    hidden(path, &format!(".tmp-{}-{counter}-{nanoseconds:x}", process::id()))
}

fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Syncs a file, or a folder and all that is in it.
fn sync_all(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        fs::read_dir(path)?.try_for_each(|entry| sync_all(&entry?.path()))?;
    }
    sync(path)
}

fn sync(path: &Path) -> io::Result<()> {
    // Only Unix can open and sync folders.
    if cfg!(unix) || path.is_file() { File::open(path)?.sync_all() } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    fn names(folder: &Path) -> Vec<OsString> {
        let mut names: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    }

    #[test]
    fn of_many_at_once_one_makes_the_folder_and_nothing_else_is_left() {
        let parent = tempfile::tempdir().unwrap();
        let killed = parent.path().join("a/.new.partial");
        fs::create_dir_all(&killed).unwrap();
        fs::write(killed.join("half"), "").unwrap();
        let (target, made) = (parent.path().join("a/new/"), AtomicUsize::new(0));
        let make = || {
            if let Some(folder) = NewFolder::create(&target, false).unwrap() {
                fs::write(folder.path().join("whole"), "").unwrap();
                assert!(folder.publish().unwrap());
                made.fetch_add(1, Ordering::Relaxed);
            }
            assert_eq!(names(&target), ["whole"]);
        };
        thread::scope(|scope| (0..8).for_each(|_| drop(scope.spawn(make))));
        assert_eq!(made.into_inner(), 1);
        assert_eq!(names(&parent.path().join("a")), ["new"]);
    }

    #[test]
    fn whoever_waits_for_one_that_fails_tries_itself() {
        let parent = tempfile::tempdir().unwrap();
        let target = parent.path().join("new");
        let fails = NewFolder::create(&target, false).unwrap().unwrap();
        thread::scope(|scope| {
            let waits = scope.spawn(|| NewFolder::create(&target, false).unwrap().unwrap().publish().unwrap());
            drop(fails);
            assert!(waits.join().unwrap());
        });
        assert_eq!(names(parent.path()), ["new"]);
    }

    #[test]
    fn a_cache_among_temporary_files_is_this_users_alone() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let shared = tempfile::tempdir().unwrap();
        let folder = private(shared.path()).unwrap();
        assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(private(shared.path()).unwrap(), folder);
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o770)).unwrap();
        let message = private(shared.path()).unwrap_err().to_string();
        assert!(message.contains("others may write into it") && message.contains("KILN_CACHE"), "{message}");
        fs::remove_dir(&folder).unwrap();
        symlink(shared.path(), &folder).unwrap();
        assert!(private(shared.path()).is_err(), "a link");
    }
}
