//! Completing a checkpoint that is being written.
//!
//! ```text
//! rank 0     begin: head.json, extra files ─ its file ─┐
//! rank 1               its file, rank-1.json ──────────┼─ complete: pieces.bin, blocks.bin, index.json, the rename
//! rank 2     its file, rank-2.json ────────────────────┘
//! ```
//!
//! The folder contains everything that the last step needs, so a later process can take this step if the first one ends
//! before it.

use crate::blocks::{self, Digest};
use crate::files::{BLOCKS, read_small};
use crate::folder::sync_folder;
use crate::table::{Builder, TABLE};
use crate::write::{RankEntry, blocks_file, digests, entry_file, is_of, write_synced, write_synced_with};
use crate::{CheckpointError, FileEntry, Folder, Index};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

/// The file that holds what is known of the run until there is an index.
const HEAD: &str = "head.json";

impl Folder {
    /// Begins the checkpoint of `index.step` with these `extra` files (name and bytes). It uses the run's progress in
    /// `index`; [`complete`](Self::complete) fills in parameters, files and digest.
    pub fn begin(&self, index: &Index, extra: &[(String, Vec<u8>)]) -> Result<(), CheckpointError> {
        self.expect_own()?;
        let partial = self.partial(index.step);
        fs::create_dir_all(&partial).map_err(CheckpointError::write(&partial))?;
        // Otherwise a power loss may destroy the folder of all checkpoints.
        self.sync_parent()?;
        let mut head = Index { format: Index::FORMAT, parameters: vec![], files: vec![], ..index.clone() };
        for (name, bytes) in extra {
            write_synced(&partial.join(name), bytes)?;
            head.files.push(FileEntry::new(name, bytes.len() as u64, &blocks::of(bytes)));
        }
        write_synced(&partial.join(HEAD), &serde_json::to_vec(&head).expect("an index is plain data"))
    }

    /// The ranks that have not yet written their part of a checkpoint.
    pub fn missing(&self, step: u64, world_size: usize) -> Vec<usize> {
        let partial = self.partial(step);
        (0..world_size).filter(|rank| !partial.join(entry_file(*rank)).is_file()).collect()
    }

    /// Completes a checkpoint that was [begun](Self::begin) and whose ranks have all written their files. Returns its
    /// folder.
    pub fn complete(&self, step: u64) -> Result<PathBuf, CheckpointError> {
        self.expect_own()?;
        let (partial, whole) = (self.partial(step), self.step(step));
        if !partial.exists() && whole.join("index.json").is_file() {
            self.sync_parent()?; // an earlier call has failed after the rename
            return Ok(whole);
        }
        let index_path = partial.join("index.json");
        // An existing index was written last, by a process that ended before it could rename the folder.
        let index = if index_path.is_file() { Index::read(&index_path)? } else { write_index(&partial)? };
        let ranks = (0..index.world_size).flat_map(|rank| [entry_file(rank), blocks_file(rank)]);
        for name in ranks.chain([HEAD.into()]) {
            let path = partial.join(name);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(CheckpointError::write(&path)(error));
                }
                _ => {}
            }
        }
        self.replace(&partial, &whole, step)?;
        Ok(whole)
    }

    /// [`begin`](Self::begin)s and [`complete`](Self::complete)s the checkpoint of `index.step`, whose ranks have all
    /// written their files.
    pub fn commit(&self, index: Index, extra: &[(String, Vec<u8>)]) -> Result<PathBuf, CheckpointError> {
        self.begin(&index, extra)?;
        self.complete(index.step)
    }

    /// The number of ranks that have written a checkpoint that lacks only the last step.
    ///
    /// # Errors
    /// If this cannot be determined because the disk fails to answer. Nothing must be removed in that case.
    pub(crate) fn ranks_of_complete(&self, step: u64) -> Result<Option<usize>, CheckpointError> {
        let partial = self.partial(step);
        if !is_there(&partial, fs::Metadata::is_dir)? {
            return Ok(None);
        }
        if let Some(index) = if_whole(Index::read(&partial.join("index.json")))? {
            return Ok(Some(index.world_size));
        }
        let Some(head) = if_whole(read_head(&partial))? else { return Ok(None) };
        // Stops at the first missing rank: a damaged head may claim more ranks than can be looked up.
        for rank in 0..head.world_size {
            if !is_there(&partial.join(entry_file(rank)), fs::Metadata::is_file)? {
                return Ok(None);
            }
        }
        Ok(Some(head.world_size))
    }
}

/// None for a file that is missing or broken.
fn if_whole(index: Result<Index, CheckpointError>) -> Result<Option<Index>, CheckpointError> {
    match index {
        Ok(index) => Ok(Some(index)),
        Err(CheckpointError::Broken { .. } | CheckpointError::OtherFormat { .. }) => Ok(None),
        Err(CheckpointError::Read { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether there is something of this kind at `path`. A link is never of the kind.
fn is_there(path: &Path, is_kind: impl FnOnce(&fs::Metadata) -> bool) -> Result<bool, CheckpointError> {
    match fs::symlink_metadata(path) {
        Ok(found) => Ok(is_kind(&found)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(CheckpointError::read(path)(error)),
    }
}

pub(crate) fn read_head(partial: &Path) -> Result<Index, CheckpointError> {
    let path = partial.join(HEAD);
    let text = read_small(&path)?;
    let head: Index = serde_json::from_slice(&text)
        .map_err(|error| CheckpointError::broken(&path, format!("not what begins a checkpoint: {error}")))?;
    match head.format == Index::FORMAT {
        true => Ok(head),
        false => Err(CheckpointError::OtherFormat { path, format: head.format }),
    }
}

/// Writes the checkpoint's table, digests and index from the ranks' entries.
fn write_index(partial: &Path) -> Result<Index, CheckpointError> {
    let head = read_head(partial)?;
    let broken = |reason: String| CheckpointError::broken(partial, reason);
    let (mut files, mut table) = (vec![], Builder::default());
    for rank in 0..head.world_size {
        let RankEntry { file, pieces } = read_entry(&partial.join(entry_file(rank)))?;
        expect_length(&partial.join(&file.name), file.bytes)?;
        pieces.into_iter().try_for_each(|piece| table.add(rank, piece)).map_err(broken)?;
        files.push(file);
    }
    let (parameters, table) = table.finish().map_err(broken)?;
    let of_table = blocks::of(&table);
    write_synced(&partial.join(TABLE), &table)?;
    let table = FileEntry::new(TABLE, table.len() as u64, &of_table);
    let mut of_extra = vec![];
    for file in &head.files {
        let path = partial.join(&file.name);
        let of = blocks::of(&read_small(&path)?);
        if !is_of(&of, file) || files.iter().any(|other| other.name == file.name) {
            return Err(CheckpointError::broken(&path, "is not what the checkpoint was begun with"));
        }
        of_extra.push(of);
    }
    write_blocks(partial, &files, of_extra.iter().chain([&of_table]))?;
    files.extend(head.files);
    let mut index = Index { parameters, files, table, ..head };
    let text = index.to_json();
    let path = partial.join("index.json");
    index = Index::from_json(&text, &path)?;
    sync_folder(partial)?;
    write_synced(&path, text.as_bytes())?;
    Ok(index)
}

/// Writes the digests of the ranks' files, which are next to these files, and those of the other files.
fn write_blocks<'a>(
    partial: &Path,
    ranks: &[FileEntry],
    others: impl Iterator<Item = &'a Vec<Digest>>,
) -> Result<(), CheckpointError> {
    let mut failure = None;
    let written = write_synced_with(&partial.join(BLOCKS), |file| {
        let mut file = std::io::BufWriter::new(file);
        for (rank, entry) in ranks.iter().enumerate() {
            let path = partial.join(blocks_file(rank));
            match digests(&path) {
                Ok(blocks) if is_of(&blocks, entry) => file.write_all(blocks.as_flattened())?,
                Ok(_) => {
                    failure = Some(CheckpointError::broken(&path, format!("has not the digests of {}", entry.name)));
                }
                Err(error) => failure = Some(error),
            }
        }
        for blocks in others {
            file.write_all(blocks.as_flattened())?;
        }
        file.flush()
    });
    failure.map_or(written, Err)
}

pub(crate) fn read_entry(path: &Path) -> Result<RankEntry, CheckpointError> {
    let text = read_small(path)?;
    serde_json::from_slice(&text).map_err(|error| CheckpointError::broken(path, format!("not an entry: {error}")))
}

fn expect_length(path: &Path, bytes: u64) -> Result<(), CheckpointError> {
    match fs::metadata(path).map_err(CheckpointError::read(path))?.len() {
        found if found == bytes => Ok(()),
        found => Err(CheckpointError::broken(path, format!("has {found} bytes, not {bytes}"))),
    }
}
