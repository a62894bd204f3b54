//! Digests of replicated parameters, passed from the threads that write a checkpoint to the one that completes it.
//!
//! They go through files `rank-N.copies` next to the ranks' own. All ranks are known to have written theirs before the
//! checkpoint is completed, and no rank waits for another's digests.

use crate::error::TrainError;
use checkpoint::{CheckpointError, Folder};
use fsdp::{CopyDigest, compare_copies};
use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

fn file(partial: &Path, rank: usize) -> PathBuf {
    partial.join(format!("rank-{rank}.copies"))
}

/// Writes a rank's digests into the folder of a checkpoint that is being written, creating it if necessary. Must be
/// called before the rank's part counts as written.
pub(crate) fn write(partial: &Path, rank: usize, digests: &[CopyDigest]) -> Result<(), CheckpointError> {
    if digests.is_empty() {
        return Ok(());
    }
    let path = file(partial, rank);
    let write = || {
        fs::create_dir_all(partial)?;
        let _ = fs::remove_file(&path); // left by an earlier attempt; a new file follows no link
        let mut file = OpenOptions::new().write(true).create_new(true).open(&path)?;
        file.write_all(&serde_json::to_vec(digests).expect("digests are plain data"))?;
        file.sync_all()
    };
    write().map_err(|source| CheckpointError::Write { path: path.clone(), source })
}

/// Compares the copies of all ranks, whose parts must be written, and deletes the digests. If the ranks differ, the
/// checkpoint is removed.
///
/// # Errors
/// If the copies differ, or a file cannot be read.
pub(crate) fn compare(folder: &Folder, step: u64, ranks: usize) -> Result<(), TrainError> {
    let partial = &folder.partial(step);
    let of_ranks = read_all(partial, ranks)?;
    if let Err(differ) = compare_copies(of_ranks.iter().map(Vec::as_slice)) {
        folder.discard(step)?;
        return Err(differ.into());
    }
    Ok(forget(partial, ranks)?)
}

/// Whether the copies of all ranks, whose parts must be written, are the same. For a checkpoint whose process ended
/// before comparing them.
///
/// # Errors
/// If a file cannot be read, because the answer is then unknown.
pub(crate) fn are_same(partial: &Path, ranks: usize) -> Result<bool, CheckpointError> {
    match read_all(partial, ranks) {
        Ok(of_ranks) if compare_copies(of_ranks.iter().map(Vec::as_slice)).is_ok() => {
            forget(partial, ranks)?;
            Ok(true)
        }
        Ok(_) | Err(CheckpointError::Broken { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

fn read_all(partial: &Path, ranks: usize) -> Result<Vec<Vec<CopyDigest>>, CheckpointError> {
    (0..ranks).map(|rank| read(&file(partial, rank))).collect()
}

fn forget(partial: &Path, ranks: usize) -> Result<(), CheckpointError> {
    for path in (0..ranks).map(|rank| file(partial, rank)) {
        match fs::remove_file(&path) {
            Err(source) if source.kind() != ErrorKind::NotFound => return Err(CheckpointError::Write { path, source }),
            _ => {}
        }
    }
    Ok(())
}

/// A rank's digests; empty if it has no copies.
fn read(path: &Path) -> Result<Vec<CopyDigest>, CheckpointError> {
    let path = path.to_path_buf();
    match fs::read(&path) {
        Ok(json) => serde_json::from_slice(&json).map_err(|error| CheckpointError::Broken {
            path,
            reason: format!("these are no digests of copies: {error}"),
        }),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(vec![]),
        Err(source) => Err(CheckpointError::Read { path, source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use checkpoint::{Index, Piece, Values, Written, write_rank};

    #[test]
    fn what_ranks_have_written_whose_copies_differ_is_not_completed_later_either() {
        for second in [7, 8] {
            let run = tempfile::tempdir().unwrap();
            let folder = Folder::of_run(run.path());
            folder.begin(&Index { step: 3, world_size: 2, ..Index::default() }, &[]).unwrap();
            for (rank, digest) in [7, second].into_iter().enumerate() {
                let of = r#"{"class": "Dense", "is_trained": true, "part": 0, "shard": 0}"#;
                let json = format!(r#"[{{"unit": "ends", "of": {of}, "digest": {digest}}}]"#);
                write(&folder.partial(3), rank, &serde_json::from_str::<Vec<CopyDigest>>(&json).unwrap()).unwrap();
                let (name, shape) = ("w".into(), vec![2]);
                let piece = Piece { name, shape, region: None, offset: rank, len: 1, has_moments: false };
                let values: Values = Box::new(|_| vec![1.0]);
                write_rank(&folder.partial(3), rank, &[(piece, values)], &Written::default()).unwrap();
            }
            assert_eq!(folder.clean(&are_same).unwrap().len(), if second == 7 { 1 } else { 0 });
            assert_eq!(folder.step(3).is_dir(), second == 7);
            assert!(!folder.partial(3).exists());
        }
    }
}
