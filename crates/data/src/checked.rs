//! Verifies, by digest, that the token files of a prepared folder are those that were written.
//!
//! Files are hashed when they are first opened, and again after a change. The cache records which files were found
//! intact, along with metadata that any change alters. The bytes are hashed through the same open file from which they
//! are read later.

use std::fs::{self, File, Metadata};
use std::path::Path;
use std::sync::Mutex;
use std::{io, process};

use rayon::prelude::*;
use sha2::{Digest, Sha256};

use crate::progress::Progress;
use crate::source::hash_part;
use crate::tokens::{Tokens, digest};
use crate::{DataError, OpenOptions, Shard, cache};

/// Compares the files of `tokens` with the digests of their `shards`.
///
/// # Errors
/// If a file cannot be read or is not what was written.
pub fn check(tokens: &Tokens, shards: &[Shard], options: &OpenOptions) -> Result<(), DataError> {
    let files: Vec<_> = tokens.files().zip(shards).collect();
    let marks = files.iter().map(|&((path, file), shard)| mark(path, file, shard));
    let marks = marks.collect::<Result<Vec<_>, _>>()?;
    let cache = options.cache.clone().or_else(|| cache::root().ok()).map(|cache| cache.join("checked"));
    // One name covers all files: a different or changed file gives a different name.
    let mut name = Sha256::new();
    marks.iter().for_each(|mark| hash_part(&mut name, mark.as_bytes()));
    let name: String = name.finalize()[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    if cache.as_ref().is_some_and(|cache| cache.join(&name).is_file()) {
        return Ok(());
    }
    let progress = Mutex::new((Progress::new("checking", tokens.bytes(), !options.progress), 0));
    let read = |bytes| {
        let (bar, done) = &mut *progress.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        *done += bytes;
        bar.set(*done);
    };
    files.par_iter().try_for_each(|&((path, file), shard)| {
        let Some(expected) = &shard.sha256 else { return Ok(()) };
        let found = digest(file, read).map_err(|error| DataError::read(path, error))?;
        let problem = || format!("is not the file that was written: its SHA-256 is {found}, meta.json says {expected}");
        if &found == expected { Ok(()) } else { Err(DataError::Tokens { path: path.into(), problem: problem() }) }
    })?;
    // If this fails, the files are hashed again next time.
    if let Some(cache) = cache {
        _ = keep(&cache, &name);
    }
    Ok(())
}

/// A string that differs if the file is replaced or changed.
fn mark(path: &Path, file: &File, shard: &Shard) -> Result<String, DataError> {
    let found = file.metadata().map_err(|error| DataError::read(path, error))?;
    Ok(format!("{} {} {:?}", found.len(), times(&found), shard.sha256))
}

fn times(found: &Metadata) -> String {
    use std::os::unix::fs::MetadataExt;
    // The ctime cannot be set back.
    let (modified, changed) = ((found.mtime(), found.mtime_nsec()), (found.ctime(), found.ctime_nsec()));
    format!("{} {} {modified:?} {changed:?}", found.dev(), found.ino())
}

/// Writes an empty file atomically.
fn keep(folder: &Path, name: &str) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let temporary = folder.join(format!(".{name}-{}", process::id()));
    File::create(&temporary)?;
    fs::rename(temporary, folder.join(name))
}
