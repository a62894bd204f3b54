//! Token files: what is in one, and how it is read.
//!
//! ```text
//! llm.c     256 x i32 header [20240520, 1, tokens, 0...] then u16 tokens; [20240801, 7, tokens, 0...] then u32 tokens
//! nanoGPT   u16 tokens, no header
//! ```
//!
//! All numbers are little-endian. Files stay open and are read at each batch's position, not mapped. So a file that is
//! truncated while in use, or a failing disk, causes an error instead of ending the process.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::DataError;

/// Length of llm.c's header.
pub const HEADER_BYTES: u64 = 1024;
/// Magic number and version of files with 16-bit tokens.
pub const LLMC_U16: [u32; 2] = [20_240_520, 1];
/// Magic number and version of files with 32-bit tokens.
pub const LLMC_U32: [u32; 2] = [20_240_801, 7];

/// Tokens at the start of a shard that are compared with the vocabulary when it is opened: enough to detect a wrong
/// tokenizer without reading a corpus of terabytes. Training compares the others batch by batch.
pub const CHECKED_TOKENS: u64 = 1_000_000;

/// An open file of `len` tokens of `width` bytes, 2 or 4, that start at `offset`.
#[derive(Debug)]
pub struct TokenFile {
    pub path: PathBuf,
    pub file: File,
    offset: u64,
    pub width: u64,
    pub len: u64,
}

impl TokenFile {
    /// Opens a file whose length is that of its header, or that has none.
    pub fn open(path: &Path) -> Result<Self, DataError> {
        let failed = |error| DataError::read(path, error);
        let wrong = |problem: String| DataError::Tokens { path: path.into(), problem };
        let file = File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() {
            return Err(wrong("is no regular file".into()));
        }
        let bytes = metadata.len();
        if bytes == 0 {
            return Err(DataError::Empty { path: path.into() });
        }
        let mut words = [0; 12];
        let words = &mut words[..bytes.min(12) as usize];
        file.read_exact_at(words, 0).map_err(failed)?;
        let header: Vec<u32> = u32s(words).collect();
        let of_width = |offset, width| Self { path: path.into(), file, offset, width, len: (bytes - offset) / width };
        let width = match header.get(..2) {
            Some(magic) if magic == LLMC_U16 => 2,
            Some(magic) if magic == LLMC_U32 => 4,
            Some(&[magic, version]) if [LLMC_U16[0], LLMC_U32[0]].contains(&magic) && bytes >= HEADER_BYTES => {
                let expected = if magic == LLMC_U16[0] { LLMC_U16[1] } else { LLMC_U32[1] };
                return Err(wrong(format!("its header has version {version} where {expected} is known")));
            }
            _ if bytes.is_multiple_of(2) => return Ok(of_width(0, 2)),
            _ => return Err(wrong(format!("has no llm.c header, and {bytes} bytes are no 16-bit tokens"))),
        };
        let expected = HEADER_BYTES + header.get(2).map_or(0, |&tokens| u64::from(tokens)) * width;
        if bytes != expected {
            return Err(wrong(format!("its header says {expected} bytes, but it has {bytes}")));
        }
        Ok(of_width(HEADER_BYTES, width))
    }

    /// The bytes of a range of tokens.
    pub fn bytes(&self, range: Range<u64>) -> Result<Vec<u8>, DataError> {
        let mut bytes = vec![0; ((range.end - range.start) * self.width) as usize];
        let read = || self.file.read_exact_at(&mut bytes, self.offset + range.start * self.width);
        retry(read).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => {
                let problem = format!("was cut short while it is in use: it ends before token {}", range.end);
                DataError::Tokens { path: self.path.clone(), problem }
            }
            _ => DataError::read(&self.path, error),
        })?;
        Ok(bytes)
    }

    /// Checks that the first [`CHECKED_TOKENS`] tokens are below `vocab_size`.
    pub fn check(&self, vocab_size: usize) -> Result<(), DataError> {
        if self.width == 2 && vocab_size > usize::from(u16::MAX) {
            return Ok(());
        }
        let bytes = self.bytes(0..self.len.min(CHECKED_TOKENS))?;
        let outside = |&(_, token): &(u64, u32)| token as usize >= vocab_size;
        let found = match self.width {
            2 => (0..).zip(u16s(&bytes)).find(outside),
            _ => (0..).zip(u32s(&bytes)).find(outside),
        };
        match found {
            None => Ok(()),
            Some((position, token)) => {
                Err(DataError::TokenRange { path: self.path.clone(), token, position, vocab_size })
            }
        }
    }
}

/// The numbers in bytes of 16-bit tokens.
pub fn u16s(bytes: &[u8]) -> impl Iterator<Item = u32> + '_ {
    bytes.as_chunks().0.iter().map(|&bytes| u32::from(u16::from_le_bytes(bytes)))
}

/// The numbers in bytes of 32-bit tokens.
pub fn u32s(bytes: &[u8]) -> impl Iterator<Item = u32> + '_ {
    bytes.as_chunks().0.iter().map(|&bytes| u32::from_le_bytes(bytes))
}

/// SHA-256 of a file, in hexadecimal digits. Calls `read` with the number of bytes of each read.
pub fn digest(file: &File, mut read: impl FnMut(u64)) -> io::Result<String> {
    let (mut hash, mut buffer, mut at) = (Sha256::new(), vec![0; 1 << 20], 0);
    let len = file.metadata()?.len();
    while at < len {
        let now = buffer.len().min((len - at) as usize);
        file.read_exact_at(&mut buffer[..now], at)?;
        hash.update(&buffer[..now]);
        at += now as u64;
        read(now as u64);
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Waits between the attempts to read: the server of a network file system may be back soon.
const AGAIN: [Duration; 3] = if cfg!(test) {
    [Duration::from_millis(1); 3]
} else {
    [Duration::from_millis(100), Duration::from_secs(1), Duration::from_secs(5)]
};

/// Tries to read four times, unless the file is too short.
fn retry(mut read: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    for wait in AGAIN {
        match read() {
            Err(error) if error.kind() != ErrorKind::UnexpectedEof => thread::sleep(wait),
            other => return other,
        }
    }
    read()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_that_fails_is_tried_again_unless_the_file_is_too_short() {
        let attempts = |fails: usize, kind: ErrorKind| {
            let mut attempts = 0;
            let result = retry(|| {
                attempts += 1;
                if attempts <= fails { Err(kind.into()) } else { Ok(()) }
            });
            (attempts, result.is_ok())
        };
        assert_eq!(attempts(3, ErrorKind::StaleNetworkFileHandle), (4, true));
        assert_eq!(attempts(9, ErrorKind::StaleNetworkFileHandle), (4, false));
        assert_eq!(attempts(1, ErrorKind::UnexpectedEof), (1, false));
    }
}
