//! Folders and files that appear whole or not at all, and where the cache of them is.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::{env, fs, process};

use crate::DataError;

/// The folder of downloads and of prepared data: `$KILN_CACHE`, else `$XDG_CACHE_HOME/kiln`, else `$HOME/.cache/kiln`, else
/// one below the system's folder for temporary files.
pub fn root() -> PathBuf {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("KILN_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|folder| folder.join("kiln")))
        .or_else(|| set("HOME").map(|folder| folder.join(".cache").join("kiln")))
        .unwrap_or_else(|| env::temp_dir().join("kiln"))
}

/// Writes a file of the cache.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<(), DataError> {
    let failed = |source| DataError::Cache { path: path.into(), source };
    fs::create_dir_all(parent(path)).map_err(failed)?;
    let temporary = beside(path);
    let written =
        fs::write(&temporary, bytes).and_then(|()| sync(&temporary)).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        _ = fs::remove_file(&temporary);
    }
    written.map_err(failed)
}

/// A folder under a temporary name, which is deleted if it is not published.
pub struct NewFolder {
    temporary: PathBuf,
    target: PathBuf,
}

impl NewFolder {
    /// Creates an empty folder beside `target`.
    pub fn create(target: &Path) -> Result<Self, DataError> {
        let temporary = beside(target);
        fs::create_dir_all(parent(target)).map_err(|error| DataError::write(target, error))?;
        fs::create_dir(&temporary).map_err(|error| DataError::write(&temporary, error))?;
        Ok(Self { temporary, target: target.into() })
    }

    /// Where to write.
    pub fn path(&self) -> &Path {
        &self.temporary
    }

    /// Waits until the disk has the folder's files and gives it its name; whether this one got it.
    ///
    /// Renaming is atomic and fails where there is a folder with files, so of several processes the first one wins.
    pub fn publish(self) -> Result<bool, DataError> {
        let failed = |error| DataError::write(&self.target, error);
        for entry in fs::read_dir(&self.temporary).map_err(failed)? {
            sync(&entry.map_err(failed)?.path()).map_err(failed)?;
        }
        sync(&self.temporary).map_err(failed)?;
        match fs::rename(&self.temporary, &self.target) {
            Ok(()) => sync(parent(&self.target)).map_err(failed).map(|()| true),
            Err(_) if self.target.is_dir() => Ok(false),
            Err(error) => Err(failed(error)),
        }
    }
}

impl Drop for NewFolder {
    fn drop(&mut self) {
        if self.temporary.exists() {
            _ = fs::remove_dir_all(&self.temporary);
        }
    }
}

/// A name beside `path` that no other process or thread takes.
fn beside(path: &Path) -> PathBuf {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let counter = COUNTER.fetch_add(1, Ordering::Relaxed);
    // Time too, for containers with a shared folder and process numbers of their own.
    let nanoseconds = std::time::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_nanos());
    parent(path).join(format!(".{name}.tmp-{}-{counter}-{nanoseconds:x}", process::id()))
}

fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn sync(path: &Path) -> std::io::Result<()> {
    // Folders can be opened and synced on Unix only.
    if cfg!(unix) || path.is_file() { fs::File::open(path)?.sync_all() } else { Ok(()) }
}
