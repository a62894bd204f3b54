//! Text files, plain or compressed.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::read::MultiGzDecoder;

use super::files::{Compression, TextFile};
use super::pieces::{self, Emit, Piece};
use crate::DataError;

/// Maximum unpacked size of a compressed file, as a multiple of its size. Text shrinks to a third or a tenth, logs to a
/// fiftieth.
const MOST_TIMES: u64 = 200;

/// Unpacked size that every file may have, however small it is: repetitive text shrinks further.
const FREE_BYTES: u64 = 64 << 20;

/// Unpacked size that no file may exceed.
const MOST_BYTES: u64 = 1 << 40;

/// Emits a text file as one document.
pub fn read(file: &TextFile, count: &AtomicU64, emit: Emit<'_>) -> Result<(), DataError> {
    let mut reader = open(file, count)?;
    let (mut bytes, mut offset) = (Vec::new(), 0u64);
    loop {
        // Doubles the text if there was no place to cut, so that each byte is searched about twice, not once per read.
        let wanted = pieces::BYTES.saturating_sub(bytes.len()).max(bytes.len()) as u64;
        let got = reader.by_ref().take(wanted).read_to_end(&mut bytes).map_err(|error| failed(file, error))?;
        let last = (got as u64) < wanted;
        let not_utf8 = |valid| DataError::NotUtf8 { path: file.path.clone(), offset: offset + valid as u64 };
        let text = match std::str::from_utf8(&bytes) {
            Ok(text) => text,
            // A character that continues beyond what has been read.
            Err(error) if !last && error.error_len().is_none() => {
                std::str::from_utf8(&bytes[..error.valid_up_to()]).expect("valid up to there")
            }
            Err(error) => return Err(not_utf8(error.valid_up_to())),
        };
        if last {
            return if text.is_empty() { Ok(()) } else { emit(Piece::new(text, true)) };
        }
        if let Some(at) = pieces::cut_stream(text) {
            emit(Piece::new(&text[..at], false))?;
            bytes.drain(..at);
            offset += at as u64;
        }
    }
}

/// Opens a file for reading its decompressed text, which ends in an error if the file unpacks to far more than text
/// does. `count` grows by the bytes read from disk.
pub fn open<'a>(file: &TextFile, count: &'a AtomicU64) -> Result<Box<dyn BufRead + 'a>, DataError> {
    let failed = |error| DataError::read(&file.path, error);
    let packed = Rc::new(Cell::new(0));
    let counting = Counting { file: File::open(&file.path).map_err(failed)?, count, packed: packed.clone() };
    let raw = BufReader::with_capacity(1 << 18, counting);
    let unpacked: Box<dyn Read + 'a> = match file.compression {
        None => return Ok(Box::new(raw)),
        Some(Compression::Gzip) => Box::new(MultiGzDecoder::new(raw)),
        // The decoder itself needs at most 128 MiB, whatever the file says.
        Some(Compression::Zstd) => Box::new(zstd::Decoder::with_buffer(raw).map_err(failed)?),
    };
    Ok(Box::new(BufReader::with_capacity(1 << 18, Limited { unpacked, packed, bytes: 0 })))
}

/// The error of reading from [`open`]'s reader.
pub fn failed(file: &TextFile, error: io::Error) -> DataError {
    let path: &Path = &file.path;
    let (format, command) = match file.compression {
        None => return DataError::read(path, error),
        Some(Compression::Gzip) => ("gzip", "gzip -dk"),
        Some(Compression::Zstd) => ("zstd", "zstd -dk"),
    };
    match error.get_ref().and_then(|error| error.downcast_ref::<Bomb>()) {
        Some(&Bomb { packed, bytes }) => {
            let advice = format!("unpack it yourself (`{command} {}`) and give what comes out", path.display());
            DataError::Bomb { path: path.into(), packed, bytes, advice }
        }
        None => DataError::Compressed { path: path.into(), format, problem: error.to_string() },
    }
}

/// How many bytes a file of `packed` bytes may unpack to.
pub fn limit(packed: u64) -> u64 {
    FREE_BYTES.max(packed.saturating_mul(MOST_TIMES)).min(MOST_BYTES)
}

struct Counting<'a> {
    file: File,
    count: &'a AtomicU64,
    packed: Rc<Cell<u64>>,
}

impl Read for Counting<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        self.count.fetch_add(read as u64, Ordering::Relaxed);
        self.packed.set(self.packed.get() + read as u64);
        Ok(read)
    }
}

/// A reader that fails if a file unpacks to more than [`limit`] allows.
struct Limited<R> {
    unpacked: R,
    packed: Rc<Cell<u64>>,
    bytes: u64,
}

impl<R: Read> Read for Limited<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.unpacked.read(buffer)?;
        self.bytes += read as u64;
        let (packed, bytes) = (self.packed.get(), self.bytes);
        if bytes > limit(packed) {
            return Err(io::Error::other(Bomb { packed, bytes }));
        }
        Ok(read)
    }
}

/// A file that unpacks to too much: the bytes read from it, and the bytes that came out.
#[derive(Debug, thiserror::Error)]
#[error("{bytes} bytes out of {packed}")]
struct Bomb {
    packed: u64,
    bytes: u64,
}
