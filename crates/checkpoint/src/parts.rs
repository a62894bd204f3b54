//! Checkpoints whose parts are in several places, for example in the memory of several machines.
//!
//! ```text
//! machine 0   .step-120.partial   head, rank 0, rank 1   ─┐ copy_part
//! machine 1   .step-120.partial         rank 2, rank 3   ─┴─▶ a run's folder: .step-120.partial ── mend ─▶ step-120
//! ```

use crate::blocks::{Blocks, Digest};
use crate::commit::{read_entry, read_head};
use crate::write::{blocks_file, digests, entry_file, is_of, write_synced_with};
use crate::{CheckpointError, Folder};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// The parts of a checkpoint that a folder holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parts {
    /// The checkpoint's step.
    pub step: u64,
    /// The number of parts of the whole checkpoint, if the folder holds what rank 0 has [begun](Folder::begin).
    pub world_size: Option<usize>,
    /// The ranks whose parts are here.
    pub ranks: Vec<usize>,
}

impl Folder {
    /// The parts of checkpoints that are being written, oldest first.
    ///
    /// # Errors
    /// If a folder cannot be read.
    pub fn parts(&self) -> Result<Vec<Parts>, CheckpointError> {
        let mut all = vec![];
        for (step, partial) in self.entries(".step-", ".partial")? {
            let mut ranks: Vec<usize> = names(&partial)?.iter().filter_map(|name| rank_of_entry(name)).collect();
            ranks.sort_unstable();
            let world_size = read_head(&partial).ok().map(|head| head.world_size);
            all.push(Parts { step, world_size, ranks });
        }
        all.sort_by_key(|parts| parts.step);
        Ok(all)
    }

    /// The files of a rank's part. The last one marks the part as done. Those of rank 0 include what it has
    /// [begun](Self::begin).
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn files_of_part(&self, step: u64, rank: usize) -> Result<Vec<PathBuf>, CheckpointError> {
        let (partial, prefix, entry) = (self.partial(step), format!("rank-{rank}."), entry_file(rank));
        let belongs = |name: &String| {
            let of_checkpoint = rank == 0 && !name.starts_with("rank-");
            *name != entry && (of_checkpoint || name.starts_with(&prefix)) && !name.ends_with(".new")
        };
        let mut files: Vec<String> = names(&partial)?.into_iter().filter(belongs).collect();
        files.sort_unstable();
        Ok(files.into_iter().chain([entry]).map(|name| partial.join(name)).collect())
    }

    /// Copies a rank's part of a step's checkpoint from another folder, if its digests are right.
    /// [`mend`](Self::mend) completes the checkpoint once all parts are here.
    ///
    /// # Errors
    /// If the part is not what the rank has written, or if a file cannot be read or written.
    pub fn copy_part(&self, from: &Self, step: u64, rank: usize) -> Result<(), CheckpointError> {
        self.expect_own()?;
        let (source, target) = (from.partial(step), self.partial(step));
        fs::create_dir_all(&target).map_err(CheckpointError::write(&target))?;
        self.sync_parent()?;
        let entry = read_entry(&source.join(entry_file(rank)))?.file;
        let expected = digests(&source.join(blocks_file(rank)))?;
        for path in from.files_of_part(step, rank)? {
            let name = path.file_name().unwrap_or_default();
            let mut file = File::open(&path).map_err(CheckpointError::read(&path))?;
            if *name != *entry.name {
                write_synced_with(&target.join(name), |to| io::copy(&mut file, to).map(drop))?;
                continue;
            }
            let (found, mut is_same) = (file.metadata().map_err(CheckpointError::read(&path))?.len(), false);
            if found == entry.bytes {
                write_synced_with(&target.join(name), |to| {
                    is_same = is_of(&copy_digested(&mut file, to, found)?, &entry) && is_of(&expected, &entry);
                    Ok(())
                })?;
            }
            if !is_same {
                return Err(CheckpointError::broken(&path, "is not what the rank has written"));
            }
        }
        Ok(())
    }

    /// Removes the parts of checkpoints that are being written, of these steps.
    ///
    /// # Errors
    /// If a folder cannot be read or removed.
    pub fn remove_parts(&self, of: impl Fn(u64) -> bool) -> Result<(), CheckpointError> {
        for (_, path) in self.entries(".step-", ".partial")?.into_iter().filter(|(step, _)| of(*step)) {
            match fs::remove_dir_all(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(CheckpointError::write(&path)(error));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Copies `bytes` bytes; returns the digests of their blocks.
fn copy_digested(from: &mut File, to: &mut File, bytes: u64) -> io::Result<Vec<Digest>> {
    let (mut blocks, mut buffer, mut left) = (Blocks::new(bytes), vec![0; 1 << 20], bytes);
    while left > 0 {
        let now = &mut buffer[..left.min(1 << 20) as usize];
        from.read_exact(now)?;
        blocks.update(now);
        to.write_all(now)?;
        left -= now.len() as u64;
    }
    Ok(blocks.finish())
}

fn names(partial: &Path) -> Result<Vec<String>, CheckpointError> {
    let entries = match fs::read_dir(partial) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![]), // it has been removed
        entries => entries.map_err(CheckpointError::read(partial))?,
    };
    Ok(entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect())
}

/// The rank whose part is done if there is a file of this name.
fn rank_of_entry(name: &str) -> Option<usize> {
    name.strip_prefix("rank-")?.strip_suffix(".json")?.parse().ok().filter(|rank| name == entry_file(*rank))
}
