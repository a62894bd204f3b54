//! Text files, plain or compressed.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::read::MultiGzDecoder;

use super::files::{Compression, TextFile};
use super::pieces::{self, Emit, Piece};
use crate::DataError;

/// Emits a text file as one document.
pub fn read(file: &TextFile, count: &AtomicU64, emit: Emit<'_>) -> Result<(), DataError> {
    let mut reader = open(file, count)?;
    let (mut bytes, mut offset) = (Vec::new(), 0u64);
    loop {
        let wanted = (pieces::BYTES as u64).saturating_sub(bytes.len() as u64).max(pieces::BYTES as u64 / 2);
        let got = reader.by_ref().take(wanted).read_to_end(&mut bytes).map_err(|error| failed(file, error))?;
        let last = (got as u64) < wanted;
        let not_utf8 = |valid| DataError::NotUtf8 { path: file.path.clone(), offset: offset + valid as u64 };
        let text = match std::str::from_utf8(&bytes) {
            Ok(text) => text,
            // A character that goes on in what has not been read.
            Err(error) if !last && error.error_len().is_none() => {
                std::str::from_utf8(&bytes[..error.valid_up_to()]).expect("valid up to there")
            }
            Err(error) => return Err(not_utf8(error.valid_up_to())),
        };
        if last {
            return if text.is_empty() { Ok(()) } else { emit(Piece { text: text.into(), end: true }) };
        }
        if let Some(at) = pieces::cut_stream(text) {
            emit(Piece { text: text[..at].into(), end: false })?;
            bytes.drain(..at);
            offset += at as u64;
        }
    }
}

/// Opens a file, through its decompression; `count` grows by the bytes that are read from the disk.
pub fn open<'a>(file: &TextFile, count: &'a AtomicU64) -> Result<Box<dyn BufRead + 'a>, DataError> {
    let failed = |error| DataError::read(&file.path, error);
    let raw = BufReader::with_capacity(1 << 18, Counting { file: File::open(&file.path).map_err(failed)?, count });
    Ok(match file.compression {
        None => Box::new(raw),
        Some(Compression::Gzip) => Box::new(BufReader::with_capacity(1 << 18, MultiGzDecoder::new(raw))),
        Some(Compression::Zstd) => {
            let decoder = zstd::Decoder::with_buffer(raw).map_err(failed)?;
            Box::new(BufReader::with_capacity(1 << 18, decoder))
        }
    })
}

/// The error of reading from [`open`]'s reader.
pub fn failed(file: &TextFile, error: io::Error) -> DataError {
    let path: &Path = &file.path;
    match file.compression {
        None => DataError::read(path, error),
        Some(compression) => {
            let format = match compression {
                Compression::Gzip => "gzip",
                Compression::Zstd => "zstd",
            };
            DataError::Compressed { path: path.into(), format, problem: error.to_string() }
        }
    }
}

struct Counting<'a> {
    file: File,
    count: &'a AtomicU64,
}

impl Read for Counting<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        self.count.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}
