use crate::{CheckpointError, FileEntry, Kind, PieceEntry, Region};
use safetensors::{Dtype, SafeTensorError, View, serialize_to_file};
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

/// A part of a parameter that a rank writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// The parameter's name, the path of fields in the model.
    pub name: String,
    /// Shape of the whole parameter.
    pub shape: Vec<usize>,
    /// The box of the parameter that it is a part of; none: the whole parameter.
    pub region: Option<Region>,
    /// Where the part begins in that, flat.
    pub offset: usize,
    /// Its length.
    pub len: usize,
    /// Whether there are moments, too.
    pub has_moments: bool,
}

/// Gives the values of a piece when they are about to be written, so that only one piece at a time is in memory.
pub type Values<'a> = Box<dyn Fn(Kind) -> Vec<f32> + Send + 'a>;

/// Writes and syncs a rank's file in a [`partial`](crate::Folder::partial) folder, which it makes where it is not there.
pub fn write_rank(partial: &Path, rank: usize, pieces: Vec<(Piece, Values)>) -> Result<(), CheckpointError> {
    fs::create_dir_all(partial).map_err(CheckpointError::write(partial))?;
    let name = format!("rank-{rank}.safetensors");
    let path = partial.join(&name);
    let tensors = pieces.iter().flat_map(|(piece, values)| {
        let kinds = if piece.has_moments { &Kind::ALL[..] } else { &Kind::ALL[..1] };
        kinds.iter().map(|kind| (kind.tensor(&piece.name), Lazy { values, kind: *kind, len: [piece.len] }))
    });
    serialize_to_file(tensors, None, &path).map_err(|error| {
        let source = match error {
            SafeTensorError::IoError(error) => error,
            other => io::Error::other(other),
        };
        CheckpointError::Write { path: path.clone(), source }
    })?;
    let (bytes, sha256) = File::open(&path).and_then(sync_and_digest).map_err(CheckpointError::write(&path))?;
    let entry = |(piece, _): (Piece, Values)| PieceEntry {
        name: piece.name,
        shape: piece.shape,
        region: piece.region,
        offset: piece.offset,
        len: piece.len,
    };
    let entry = FileEntry { name, bytes, sha256, pieces: pieces.into_iter().map(entry).collect() };
    let json = serde_json::to_vec(&entry).expect("a file's entry is plain data");
    write_synced(&partial.join(entry_file(rank)), &json)
}

/// Where a rank's [`FileEntry`] waits for the commit.
pub(crate) fn entry_file(rank: usize) -> String {
    format!("rank-{rank}.json")
}

/// Writes a file, and waits for the disk.
pub(crate) fn write_synced(path: &Path, bytes: &[u8]) -> Result<(), CheckpointError> {
    let write = || {
        let mut file = File::create(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().map_err(CheckpointError::write(path))
}

/// Length and SHA-256 of a file whose bytes are on the disk afterwards.
fn sync_and_digest(file: File) -> io::Result<(u64, String)> {
    file.sync_all()?;
    digest(file)
}

pub(crate) fn digest(mut file: File) -> io::Result<(u64, String)> {
    let (mut hasher, mut bytes) = (Sha256::new(), 0);
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok((bytes, hex(&hasher.finalize()))),
            read => {
                hasher.update(&buffer[..read]);
                bytes += read as u64;
            }
        }
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A tensor that is made when it is written.
struct Lazy<'a, 'b> {
    values: &'a Values<'b>,
    kind: Kind,
    len: [usize; 1],
}

impl View for Lazy<'_, '_> {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        &self.len
    }

    fn data(&self) -> Cow<'_, [u8]> {
        let values = (self.values)(self.kind);
        assert_eq!(values.len(), self.len[0], "a piece has as many values as it says");
        // The format is little-endian, as are the machines that this runs on.
        bytemuck::cast_slice(&values).to_vec().into()
    }

    fn data_len(&self) -> usize {
        self.len[0] * size_of::<f32>()
    }
}
