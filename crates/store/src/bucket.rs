//! Folders in a store.

use crate::StoreError;
use crate::objects::Objects;
use crate::retry::until_here;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The object that a probe writes.
const PROBE: &str = ".kiln-probe";
/// What the mark of a folder that was set aside is called.
const ABANDONED: &str = "abandoned.json";

/// A place in a store, whose folders count if they have their mark. Names are relative to it.
pub struct Bucket {
    url: String,
    objects: Objects,
}

impl Bucket {
    /// Opens a place without any request. Credentials are those of the environment, such as `AWS_ACCESS_KEY_ID`.
    ///
    /// # Errors
    /// If the URL names no place in a store, or if this crate was built without stores.
    pub fn open(url: &str) -> Result<Self, StoreError> {
        Ok(Self { url: url.trim_end_matches('/').into(), objects: Objects::open(url)? })
    }

    pub(crate) fn inner(&self) -> &Objects {
        &self.objects
    }

    /// The URL, without a slash at its end.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Writes a small object and removes it: fails if nothing could be uploaded.
    ///
    /// # Errors
    /// If the bucket is missing, or may not be written, or does not answer.
    pub fn probe(&self) -> Result<(), StoreError> {
        self.objects.put(PROBE, b"written to see whether this place can be written\n")?;
        let _ = self.objects.remove(PROBE); // not everyone may remove
        Ok(())
    }

    /// Removes the object of a [`probe`](Self::probe): fails if no mark could be taken.
    ///
    /// # Errors
    /// If objects may not be removed, or if the store does not answer.
    pub fn probe_removal(&self) -> Result<(), StoreError> {
        self.objects.remove(PROBE)
    }

    /// Names of the folders in `under` that have their `mark`.
    ///
    /// # Errors
    /// If the store does not answer.
    pub fn whole(&self, under: &str, mark: &str) -> Result<Vec<String>, StoreError> {
        let folders = self.objects.folders(under)?;
        let found = self.objects.having(folders.iter().map(|name| format!("{under}/{name}/{mark}")).collect())?;
        let name = |mark: &String| mark.rsplit('/').nth(1).map(String::from);
        Ok(found.iter().filter_map(name).collect())
    }

    /// The bytes of a small object, if it is there.
    ///
    /// # Errors
    /// If the store does not answer.
    pub fn read(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.objects.get(name)
    }

    /// Copies files of a folder to the folder `to`, of which the first `done` are there, the last one, its mark, after all
    /// others. Adds to `done` and, in bytes, to `sent`. If the same mark is there already, copies nothing.
    ///
    /// # Errors
    /// If a file cannot be read or written. Then the folder `to` has no mark.
    pub(crate) fn upload(
        &self,
        folder: &Path,
        names: &[String],
        to: &str,
        done: &mut usize,
        sent: &AtomicU64,
    ) -> Result<(), StoreError> {
        let Some((mark, files)) = names.split_last() else { return Ok(()) };
        let (path, at) = (folder.join(mark), format!("{to}/{mark}"));
        let bytes = fs::read(&path).map_err(StoreError::read(&path))?;
        if *done == 0 {
            match self.objects.get(&at)? {
                Some(there) if there == bytes => return Ok(()),
                // From now on it would mark a mixture of two folders.
                Some(_) => self.objects.remove(&at)?,
                None => {}
            }
        }
        while let Some(name) = files.get(*done) {
            let before = sent.load(Ordering::Relaxed);
            let put = self.objects.put_file(&format!("{to}/{name}"), &folder.join(name), sent);
            put.inspect_err(|_| sent.store(before, Ordering::Relaxed))?;
            *done += 1;
        }
        self.objects.put(&at, &bytes)
    }

    /// Copies files of the folder `from` to a folder, in which they must not be yet, and adds their bytes to `got`. They
    /// are on the disk afterwards; nothing else is checked. What fails is tried again after 1, 4, 16 and 60 s, without
    /// what has arrived; `again` gets the error and the wait.
    ///
    /// # Errors
    /// If an object is missing, if the store fails too often, or if a file cannot be written.
    pub fn download<'a>(
        &self,
        from: &str,
        names: impl IntoIterator<Item = &'a str>,
        to: &Path,
        got: &AtomicU64,
        again: impl Fn(&StoreError, Duration),
    ) -> Result<(), StoreError> {
        for name in names {
            let (at, path, mut left) = (format!("{from}/{name}"), to.join(name), None);
            let may_pass = |error: &StoreError| matches!(error, StoreError::Failed { .. });
            until_here(got, may_pass, &again, || self.objects.get_file(&at, &path, &mut left, got))?;
        }
        Ok(())
    }

    /// Takes the mark of a folder, which keeps its files and no longer counts.
    ///
    /// # Errors
    /// If the store does not answer, or if objects may not be removed.
    pub(crate) fn set_aside(&self, folder: &str, mark: &str) -> Result<(), StoreError> {
        let at = format!("{folder}/{mark}");
        let Some(bytes) = self.objects.get(&at)? else { return Ok(()) };
        self.objects.put(&format!("{folder}/{ABANDONED}"), &bytes)?;
        self.objects.remove(&at)
    }
}

#[cfg(all(test, feature = "cloud"))]
mod tests;
