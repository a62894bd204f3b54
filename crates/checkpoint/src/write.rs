//! Writes a rank's part of a checkpoint.

use crate::blocks::{Blocks, Digest, root};
use crate::files::read_small;
use crate::table::{NONE, PieceEntry};
use crate::{CheckpointError, FileEntry, Kind, Region};
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// A part of a parameter that a rank writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// The parameter's name: its path of fields in the model.
    pub name: String,
    /// Shape of the whole parameter.
    pub shape: Vec<usize>,
    /// The box of the parameter that this is a part of. None: the whole parameter. All boxes of a parameter are cells
    /// of one grid.
    pub region: Option<Region>,
    /// Where the part begins in the flattened box or parameter.
    pub offset: usize,
    /// Its length.
    pub len: usize,
    /// Whether the piece has AdamW's moments.
    pub has_moments: bool,
}

/// Produces the values of a piece just before they are written, so that only one piece at a time is in memory.
pub type Values<'a> = Box<dyn Fn(Kind) -> Vec<f32> + Send + 'a>;

/// How much of its file a rank has written, for those who wait for it.
#[derive(Debug, Default)]
pub struct Written {
    bytes: AtomicU64,
    of: AtomicU64,
}

impl Written {
    /// Bytes written and the total. Both are 0 before writing begins.
    pub fn bytes(&self) -> (u64, u64) {
        (self.bytes.load(Ordering::Relaxed), self.of.load(Ordering::Relaxed))
    }
}

/// Bytes written at a time.
const AT_ONCE: usize = 4 << 20;

/// Writes and syncs a rank's file in a [`partial`](crate::Folder::partial) folder, which it creates if needed. The file
/// `rank-N.json`, which marks the rank as done, comes last.
///
/// # Errors
/// If a file cannot be written, or if a parameter has a non-finite value. The rank's part then never counts as
/// complete.
pub fn write_rank(
    partial: &Path,
    rank: usize,
    pieces: &[(Piece, Values)],
    written: &Written,
) -> Result<(), CheckpointError> {
    fs::create_dir_all(partial).map_err(CheckpointError::write(partial))?;
    let name = format!("rank-{rank}.safetensors");
    let path = partial.join(&name);
    let (entries, header) = layout(pieces);
    let failed = |source| CheckpointError::write(&path)(source);
    let write = || -> Result<_, CheckpointError> {
        let bytes = header.len() as u64 + pieces.iter().map(|(piece, _)| data_len(piece)).sum::<u64>();
        written.of.store(bytes, Ordering::Relaxed);
        written.bytes.store(0, Ordering::Relaxed); // it may have failed before
        let (mut file, mut blocks) = (File::create(&path).map_err(failed)?, Blocks::new(bytes));
        let mut put = |bytes: &[u8]| {
            blocks.update(bytes);
            written.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            file.write_all(bytes)
        };
        put(&header).map_err(failed)?;
        for kind in Kind::ALL {
            for (piece, values) in pieces.iter().filter(|(piece, _)| kinds(piece).contains(&kind)) {
                let values = values(kind);
                assert_eq!(values.len(), piece.len, "a piece has as many values as it says");
                if kind == Kind::Param {
                    CheckpointError::expect_finite(&values, partial, &piece.name)?;
                }
                // The format is little-endian, like all machines that Kiln supports.
                bytemuck::cast_slice(&values).chunks(AT_ONCE).try_for_each(&mut put).map_err(failed)?;
            }
        }
        file.sync_all().map_err(failed)?;
        Ok((bytes, blocks.finish()))
    };
    let (bytes, blocks) = write()?;
    write_synced(&partial.join(blocks_file(rank)), blocks.as_flattened())?;
    let entry = RankEntry { file: FileEntry::new(name, bytes, &blocks), pieces: entries };
    let json = serde_json::to_vec(&entry).expect("a file's entry is plain data");
    write_synced(&partial.join(entry_file(rank)), &json)
}

/// A rank's description of its file, until the commit.
#[derive(Serialize, Deserialize)]
pub(crate) struct RankEntry {
    pub file: FileEntry,
    pub pieces: Vec<PieceEntry>,
}

/// The file that keeps a rank's [`RankEntry`] until the commit. Its presence means that the rank is done.
pub(crate) fn entry_file(rank: usize) -> String {
    format!("rank-{rank}.json")
}

/// The file with the digests of a rank's file, until the commit.
pub(crate) fn blocks_file(rank: usize) -> String {
    format!("rank-{rank}.blocks")
}

fn kinds(piece: &Piece) -> &'static [Kind] {
    if piece.has_moments { &Kind::ALL } else { &Kind::ALL[..1] }
}

fn data_len(piece: &Piece) -> u64 {
    (piece.len * size_of::<f32>() * kinds(piece).len()) as u64
}

/// The location of each piece and the header of the safetensors file. All values come first, then all means, then all
/// squares, so data that is read together is stored together.
fn layout(pieces: &[(Piece, Values)]) -> (Vec<PieceEntry>, Vec<u8>) {
    let (mut tensors, mut at) = (serde_json::Map::new(), 0);
    let mut entries: Vec<PieceEntry> = pieces.iter().map(|(piece, _)| entry(piece)).collect();
    for kind in Kind::ALL {
        for ((piece, _), entry) in
            pieces.iter().zip(&mut entries).filter(|((piece, _), _)| kinds(piece).contains(&kind))
        {
            let end = at + (piece.len * size_of::<f32>()) as u64;
            let info = serde_json::json!({ "dtype": "F32", "shape": [piece.len], "data_offsets": [at, end] });
            tensors.insert(kind.tensor(&piece.name), info);
            entry.at[kind as usize] = at;
            at = end;
        }
    }
    let mut json = serde_json::to_vec(&tensors).expect("a header is plain data");
    json.resize(json.len().next_multiple_of(8), b' ');
    let header = [&(json.len() as u64).to_le_bytes()[..], &json].concat();
    let places = entries.iter_mut().flat_map(|entry| &mut entry.at);
    places.filter(|at| **at != NONE).for_each(|at| *at += header.len() as u64);
    (entries, header)
}

fn entry(piece: &Piece) -> PieceEntry {
    let Piece { name, shape, region, offset, len, .. } = piece.clone();
    PieceEntry { name, shape, region, offset, len, at: [NONE; 3] }
}

/// Writes a file under a temporary name, syncs it, and renames it, so readers find either nothing or the complete file.
/// It does not follow a link.
pub(crate) fn write_synced(path: &Path, bytes: &[u8]) -> Result<(), CheckpointError> {
    write_synced_with(path, |file| file.write_all(bytes))
}

pub(crate) fn write_synced_with(
    path: &Path,
    write: impl FnOnce(&mut File) -> io::Result<()>,
) -> Result<(), CheckpointError> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let whole = || {
        let mut open = OpenOptions::new();
        let mut file = open.write(true).create(true).truncate(true).custom_flags(libc::O_NOFOLLOW).open(&beside)?;
        write(&mut file)?;
        file.sync_all()?;
        fs::rename(&beside, path)
    };
    whole().map_err(CheckpointError::write(path))
}

/// The digests in a file written by [`write_rank`].
pub(crate) fn digests(path: &Path) -> Result<Vec<Digest>, CheckpointError> {
    let bytes = read_small(path)?;
    let (digests, _) = bytes.as_chunks();
    Ok(digests.to_vec())
}

/// Whether these are the digests of the file that `entry` describes.
pub(crate) fn is_of(blocks: &[Digest], entry: &FileEntry) -> bool {
    blocks.len() as u64 == crate::blocks::count(entry.bytes) && crate::blocks::hex(&root(blocks)) == entry.blake3
}
