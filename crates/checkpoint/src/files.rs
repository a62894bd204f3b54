//! A checkpoint's files, read block by block. The first use of a block in a process compares its digest with the index.

use crate::blocks::{self, Digest, hex};
use crate::{CheckpointError, FileEntry, Index};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Digests of all blocks of all files, in the order of the index, followed by the table's.
pub(crate) const BLOCKS: &str = "blocks.bin";

/// Files open at once. Systems commonly limit a process to 1,024.
const OPEN: usize = 256;

/// The files of a checkpoint, opened when they are needed: those of the index, then the table.
pub(crate) struct Files {
    folder: PathBuf,
    entries: Vec<FileEntry>,
    /// The number of each file's first block, followed by the number of all blocks.
    first: Vec<u64>,
    /// The most recently used file is last.
    open: Mutex<Vec<(usize, Arc<Open>)>>,
}

impl Files {
    /// # Errors
    /// If the lengths in the index cannot be those of files.
    pub fn new(folder: &Path, index: &Index) -> Result<Self, CheckpointError> {
        let entries: Vec<FileEntry> = index.files.iter().chain([&index.table]).cloned().collect();
        let mut first = vec![0u64];
        for entry in &entries {
            let next = first[first.len() - 1].checked_add(blocks::count(entry.bytes));
            let next = next.filter(|next| next.checked_mul(size_of::<Digest>() as u64).is_some());
            first.push(next.ok_or_else(|| CheckpointError::broken(&folder.join(&entry.name), "is too long"))?);
        }
        Ok(Self { folder: folder.into(), entries, first, open: Mutex::default() })
    }

    pub fn entries(&self) -> &[FileEntry] {
        &self.entries
    }

    /// The number of blocks of all files.
    pub fn blocks(&self) -> u64 {
        self.first[self.entries.len()]
    }

    /// A file. The most recently used files stay open.
    ///
    /// # Errors
    /// If the file is missing, if its length differs from the index, or if its list of block digests does not match the
    /// index.
    pub fn get(&self, number: usize) -> Result<Arc<Open>, CheckpointError> {
        if let Some(open) = self.used(number) {
            return Ok(open);
        }
        let open = Arc::new(self.open(number)?);
        let mut all = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() == OPEN {
            all.remove(0);
        }
        all.push((number, open.clone()));
        Ok(open)
    }

    fn used(&self, number: usize) -> Option<Arc<Open>> {
        let mut all = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let at = all.iter().rposition(|(of, _)| *of == number)?;
        let used = all.remove(at);
        all.push(used);
        Some(all[all.len() - 1].1.clone())
    }

    fn open(&self, number: usize) -> Result<Open, CheckpointError> {
        let entry = &self.entries[number];
        let path = self.folder.join(&entry.name);
        let file = open_with_length(&path, entry.bytes)?;
        let list = self.folder.join(BLOCKS);
        let of_list = open_with_length(&list, self.blocks() * size_of::<Digest>() as u64)?;
        let mut digests = vec![[0; 32]; blocks::count(entry.bytes) as usize];
        let at = self.first[number] * size_of::<Digest>() as u64;
        let bytes = digests.as_flattened_mut();
        of_list.read_exact_at(bytes, at).map_err(CheckpointError::read(&list))?;
        if hex(&blocks::root(&digests)) != entry.blake3 {
            let reason = format!("its digests of {} are not what the index says", entry.name);
            return Err(CheckpointError::broken(&list, reason));
        }
        let checked = digests.iter().map(|_| AtomicBool::new(false)).collect();
        Ok(Open { path, file, bytes: entry.bytes, digests, checked })
    }

    /// Checks one part of the blocks of all files. A part may span several files.
    pub fn verify(&self, part: usize, parts: usize) -> Result<(), CheckpointError> {
        let share = blocks::share(self.blocks(), part, parts);
        let mut buffer = vec![];
        for (number, range) in self.first.windows(2).enumerate() {
            let within = share.start.max(range[0])..share.end.min(range[1]);
            if !within.is_empty() {
                let file = self.get(number)?;
                within.clone().try_for_each(|block| file.read_block(block - range[0], &mut buffer))?;
            }
        }
        Ok(())
    }

    /// Closes all files, so that the space of a removed checkpoint is freed.
    pub fn close(&self) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// Maximum number of bytes read into memory at once from files other than those of the ranks. The index of 1,024 ranks
/// has a million bytes.
const AT_ONCE: u64 = 1 << 30;

/// Reads a whole small file.
pub(crate) fn read_small(path: &Path) -> Result<Vec<u8>, CheckpointError> {
    expect_file(path)?;
    let file = File::open(path).map_err(CheckpointError::read(path))?;
    expect_small(path, file.metadata().map_err(CheckpointError::read(path))?.len())?;
    let mut bytes = vec![];
    file.take(AT_ONCE).read_to_end(&mut bytes).map_err(CheckpointError::read(path))?;
    Ok(bytes)
}

/// An error if a file would take too much memory.
pub(crate) fn expect_small(path: &Path, bytes: u64) -> Result<(), CheckpointError> {
    match bytes <= AT_ONCE {
        true => Ok(()),
        false => Err(CheckpointError::broken(path, format!("has {bytes} bytes, which it cannot need"))),
    }
}

/// An error unless `path` is a regular file: opening a pipe would block forever.
fn expect_file(path: &Path) -> Result<(), CheckpointError> {
    match fs::metadata(path).map_err(CheckpointError::read(path))?.is_file() {
        true => Ok(()),
        false => Err(CheckpointError::broken(path, "is not a file")),
    }
}

/// Opens a regular file that must have this length.
fn open_with_length(path: &Path, bytes: u64) -> Result<File, CheckpointError> {
    expect_file(path)?;
    let file = File::open(path).map_err(CheckpointError::read(path))?;
    match file.metadata().map_err(CheckpointError::read(path))?.len() {
        found if found == bytes => Ok(file),
        found => Err(CheckpointError::broken(path, format!("has {found} bytes, not {bytes}"))),
    }
}

/// An open file of a checkpoint. The verified bytes are the bytes used: both come from one descriptor.
pub(crate) struct Open {
    pub path: PathBuf,
    file: File,
    bytes: u64,
    digests: Vec<Digest>,
    /// Whether each block has been read once and matched its digest.
    checked: Vec<AtomicBool>,
}

impl Open {
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Reads a block.
    ///
    /// # Errors
    /// If the block cannot be read or does not match its digest.
    pub fn read_block(&self, number: u64, into: &mut Vec<u8>) -> Result<(), CheckpointError> {
        let range = blocks::range(self.bytes, number);
        into.resize((range.end - range.start) as usize, 0);
        self.file.read_exact_at(into, range.start).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => CheckpointError::broken(&self.path, "was cut off while it was read"),
            _ => CheckpointError::read(&self.path)(error),
        })?;
        let (expected, checked) = (&self.digests[number as usize], &self.checked[number as usize]);
        if checked.load(Ordering::Relaxed) {
            return Ok(());
        }
        let found = blocks::digest(self.bytes, number, into);
        if found != *expected {
            let (found, expected) = (hex(&found), hex(expected));
            let reason =
                format!("has digest {found} in bytes {range:?}, not {expected}: it was changed after it was written");
            return Err(CheckpointError::broken(&self.path, reason));
        }
        checked.store(true, Ordering::Relaxed);
        Ok(())
    }
}

/// The most recently used blocks, so reading a matrix whose columns are in several files reads each block once.
pub(crate) struct Recent {
    kept: usize,
    blocks: Vec<((usize, u64), Vec<u8>)>,
}

impl Recent {
    /// For a matrix whose rows span `files` files. It keeps 128 blocks (256 MB) at most: beyond that, memory costs more
    /// than reading again.
    pub fn new(files: usize) -> Self {
        Self { kept: files.clamp(4, 128), blocks: vec![] }
    }

    /// A block of a file.
    pub fn block(&mut self, files: &Files, number: usize, block: u64) -> Result<&[u8], CheckpointError> {
        let key = (number, block);
        let last = match self.blocks.iter().rposition(|(of, _)| *of == key) {
            Some(at) => self.blocks.remove(at),
            None => {
                let mut buffer = if self.blocks.len() == self.kept { self.blocks.remove(0).1 } else { vec![] };
                files.get(number)?.read_block(block, &mut buffer)?;
                (key, buffer)
            }
        };
        self.blocks.push(last);
        Ok(&self.blocks[self.blocks.len() - 1].1)
    }
}
