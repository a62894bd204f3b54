//! Whether the token files of a prepared folder are those that were written, by their digests.
//!
//! Files are hashed when they are opened for the first time, and again when they have changed: which ones were found
//! whole is kept in the cache, with all that changes when a file does. What is hashed is the open file that is read
//! from then on.

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
/// A file that cannot be read, or is not what was written.
pub fn check(tokens: &Tokens, shards: &[Shard], options: &OpenOptions) -> Result<(), DataError> {
    let files: Vec<_> = tokens.files().zip(shards).collect();
    let marks = files.iter().map(|&((path, file), shard)| mark(path, file, shard));
    let marks = marks.collect::<Result<Vec<_>, _>>()?;
    let cache = options.cache.clone().or_else(|| cache::root().ok()).map(|cache| cache.join("checked"));
    // One name for all files: another file, or a change of one, is another name.
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
    // Without it they are hashed again the next time.
    if let Some(cache) = cache {
        _ = keep(&cache, &name);
    }
    Ok(())
}

/// What is different when a file is another one, or was changed.
fn mark(path: &Path, file: &File, shard: &Shard) -> Result<String, DataError> {
    let found = file.metadata().map_err(|error| DataError::read(path, error))?;
    Ok(format!("{} {} {:?}", found.len(), times(&found), shard.sha256))
}

fn times(found: &Metadata) -> String {
    use std::os::unix::fs::MetadataExt;
    // The time of the last change of any kind cannot be set back.
    let (modified, changed) = ((found.mtime(), found.mtime_nsec()), (found.ctime(), found.ctime_nsec()));
    format!("{} {} {modified:?} {changed:?}", found.dev(), found.ino())
}

/// Writes an empty file, whole or not at all.
fn keep(folder: &Path, name: &str) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let temporary = folder.join(format!(".{name}-{}", process::id()));
    File::create(&temporary)?;
    fs::rename(temporary, folder.join(name))
}
