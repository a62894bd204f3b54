//! Streams of tokens: in files that are read in place, or in memory.

mod file;
mod writer;

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rayon::prelude::*;
use sha2::{Digest, Sha256};

use self::file::{TokenFile, u16s, u32s};
use crate::DataError;
use crate::progress::Progress;
use crate::source::hash_part;

pub use self::file::digest;
pub use self::writer::ShardWriter;

/// Tokens that a pass over all of them reads at once.
const PASS_TOKENS: u64 = 1 << 20;

/// Positions of a stream that its fingerprint samples, and the number of tokens of each sample.
const SAMPLES: u64 = 64;
const SAMPLE_TOKENS: u64 = 1024;

/// A stream of tokens in several files or in memory. Clones share the files.
#[derive(Debug, Clone)]
pub struct Tokens {
    parts: Vec<FilePart>,
}

/// A part of one file, and its start in the stream.
#[derive(Debug, Clone)]
struct FilePart {
    start: u64,
    file: Arc<Bytes>,
    range: Range<u64>,
}

impl FilePart {
    fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    fn end(&self) -> u64 {
        self.start + self.len()
    }
}

#[derive(Debug)]
enum Bytes {
    File(TokenFile),
    Memory(Vec<u32>),
}

impl Tokens {
    /// Tokens in memory.
    pub fn from_vec(tokens: Vec<u32>) -> Self {
        Self::of_files([Bytes::Memory(tokens)])
    }

    /// The tokens of `paths`, one file after another. If `vocab_size` is known, the first tokens of each file must be
    /// below it.
    pub fn open(paths: &[PathBuf], vocab_size: Option<usize>) -> Result<Self, DataError> {
        allow_open_files(paths.len());
        let open = |path: &PathBuf| {
            let file = TokenFile::open(path)?;
            vocab_size.map_or(Ok(()), |vocab_size| file.check(vocab_size))?;
            Ok(Bytes::File(file))
        };
        Ok(Self::of_files(paths.iter().map(open).collect::<Result<Vec<_>, DataError>>()?))
    }

    /// The open files, with their paths.
    pub fn files(&self) -> impl Iterator<Item = (&Path, &File)> {
        self.parts.iter().filter_map(|part| match &*part.file {
            Bytes::File(file) => Some((&*file.path, &file.file)),
            Bytes::Memory(_) => None,
        })
    }

    fn of_files(files: impl IntoIterator<Item = Bytes>) -> Self {
        let parts = files.into_iter().map(|file| (0..file.len(), Arc::new(file)));
        Self::of_parts(parts)
    }

    fn of_parts(parts: impl IntoIterator<Item = (Range<u64>, Arc<Bytes>)>) -> Self {
        let mut start = 0;
        let place = |(range, file): (Range<u64>, _)| {
            let part = FilePart { start, file, range };
            start = part.end();
            part
        };
        Self { parts: parts.into_iter().map(place).collect() }
    }

    /// Number of tokens.
    pub fn len(&self) -> u64 {
        self.parts.last().map_or(0, FilePart::end)
    }

    /// Number of bytes of these tokens.
    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.len() * part.file.width()).sum()
    }

    /// Splits the stream into the tokens before `at` and those from `at` on.
    pub fn split(self, at: u64) -> (Self, Self) {
        let [mut before, mut after] = [vec![], vec![]];
        for FilePart { start, file, range } in self.parts {
            let middle = range.start + at.saturating_sub(start).min(range.end - range.start);
            before.push((range.start..middle, file.clone()));
            after.push((middle..range.end, file));
        }
        (Self::of_parts(before), Self::of_parts(after))
    }

    /// These tokens, followed by those of `other`.
    pub fn then(self, other: Self) -> Self {
        Self::of_parts(self.parts.into_iter().chain(other.parts).map(|part| (part.range, part.file)))
    }

    /// The largest token, at most `i32::MAX`, found by all threads in a pass over all tokens. None if there are no
    /// tokens.
    ///
    /// # Errors
    /// If a file can no longer be read, or was truncated since it was opened.
    pub fn largest(&self, progress: bool) -> Result<Option<u32>, DataError> {
        let done = Mutex::new((Progress::new("looking for the largest token in", self.bytes(), !progress), 0));
        let largest_of = |pass: u64| {
            let range = pass * PASS_TOKENS..self.len().min((pass + 1) * PASS_TOKENS);
            let mut tokens = Vec::with_capacity((range.end - range.start) as usize);
            self.read(range, &mut tokens)?;
            let (bar, read) = &mut *done.lock().unwrap_or_else(PoisonError::into_inner);
            *read += tokens.len() as u64;
            bar.set((self.bytes() as f64 * (*read as f64 / self.len() as f64)) as u64);
            Ok(tokens.into_iter().max().map(|token| token as u32))
        };
        let passes = (0..self.len().div_ceil(PASS_TOKENS)).into_par_iter();
        passes.map(largest_of).try_reduce(|| None, |a, b| Ok(a.max(b)))
    }

    /// Adds the number of tokens and a sample of them to a hash: 64 evenly spread positions from first to last.
    ///
    /// # Errors
    /// If a file can no longer be read, or was truncated since it was opened.
    pub fn hash_samples(&self, hash: &mut Sha256) -> Result<(), DataError> {
        hash_part(hash, &self.len().to_le_bytes());
        let sample = self.len().min(SAMPLE_TOKENS);
        for place in 0..SAMPLES {
            let start = ((self.len() - sample) as u128 * u128::from(place) / u128::from(SAMPLES - 1)) as u64;
            let mut tokens = vec![];
            self.read(start..start + sample, &mut tokens)?;
            tokens.iter().for_each(|token| hash.update(token.to_le_bytes()));
        }
        Ok(())
    }

    /// Appends tokens `range` to `out`. A file's tokens above `i32::MAX` become `i32::MAX`.
    ///
    /// # Errors
    /// If a file can no longer be read, or was truncated since it was opened.
    ///
    /// # Panics
    /// If the range exceeds the stream.
    pub fn read(&self, range: Range<u64>, out: &mut Vec<i32>) -> Result<(), DataError> {
        assert!(range.start <= range.end && range.end <= self.len(), "{range:?} of {} tokens", self.len());
        let first = self.parts.partition_point(|part| part.end() <= range.start);
        self.parts[first..].iter().take_while(|part| part.start < range.end).try_for_each(|part| {
            let at = |token: u64| part.range.start + (token - part.start);
            part.file.read(at(range.start.max(part.start))..at(range.end.min(part.end())), out)
        })
    }
}

impl Bytes {
    fn len(&self) -> u64 {
        match self {
            Self::File(file) => file.len,
            Self::Memory(tokens) => tokens.len() as u64,
        }
    }

    /// Bytes per token.
    fn width(&self) -> u64 {
        match self {
            Self::File(file) => file.width,
            Self::Memory(_) => size_of::<u32>() as u64,
        }
    }

    fn read(&self, range: Range<u64>, out: &mut Vec<i32>) -> Result<(), DataError> {
        match self {
            Self::Memory(tokens) => {
                let tokens = &tokens[range.start as usize..range.end as usize];
                out.extend(tokens.iter().map(|&token| token as i32));
                Ok(())
            }
            Self::File(file) => {
                let bytes = file.bytes(range)?;
                match file.width {
                    2 => out.extend(u16s(&bytes).map(|token| token as i32)),
                    // No vocabulary is that large; clamping keeps comparisons free of negative numbers.
                    _ => out.extend(u32s(&bytes).map(|token| token.min(i32::MAX as u32) as i32)),
                }
                Ok(())
            }
        }
    }
}

/// Raises this process's limit of open files as far as the system allows, if this many more may exceed the usual 1024.
fn allow_open_files(files: usize) {
    if files > 256 {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: both calls access only `limit`. If they fail, opening the files reports what is wrong.
        unsafe {
            if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 && limit.rlim_cur < limit.rlim_max {
                limit.rlim_cur = limit.rlim_max;
                libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::file::{CHECKED_TOKENS, HEADER_BYTES};
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn what_is_written_in_shards_is_read_back_over_their_borders(
            tokens in prop::collection::vec(0u32..60_000, 1..200), shard in 1u64..50, wide: bool, at in 0u64..200,
        ) {
            let folder = tempfile::tempdir().unwrap();
            let vocab_size = if wide { 70_000 } else { 60_000 };
            let mut writer = ShardWriter::new(folder.path(), vocab_size, shard);
            tokens.chunks(17).for_each(|chunk| writer.write(chunk).unwrap());
            let shards = writer.finish().unwrap();
            let paths: Vec<_> = shards.iter().map(|shard| folder.path().join(&shard.file)).collect();
            let read = |tokens: &Tokens| {
                let mut read = Vec::new();
                tokens.read(0..tokens.len(), &mut read).unwrap();
                read
            };
            let (before, after) = Tokens::open(&paths, Some(vocab_size)).unwrap().split(at);
            let expected: Vec<i32> = tokens.iter().map(|&token| token as i32).collect();
            prop_assert_eq!([read(&before), read(&after)].concat(), &expected[..]);
            prop_assert_eq!(read(&before.then(after)), expected);
        }
    }

    #[test]
    fn broken_token_files_are_errors_that_name_the_file_and_what_is_wrong() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.bin");
        let header = |words: [u32; 3], rest: &[u8]| {
            let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            bytes.resize(HEADER_BYTES as usize, 0);
            [&bytes, rest].concat()
        };
        let cases = [
            (vec![1, 2, 3], "has no llm.c header, and 3 bytes are no 16-bit tokens"),
            (header([20_240_520, 1, 9], &[0; 4]), "its header says 1042 bytes, but it has 1028"),
            (header([20_240_520, 1, u32::MAX], &[0; 4]), "its header says 8589935614 bytes, but it has 1028"),
            (header([20_240_801, 1, 1], &[0; 4]), "its header has version 1 where 7 is known"),
            (
                header([20_240_801, 7, 2], &[0, 0, 0, 0, 9, 0, 0, 0]),
                "token 9 at position 1 is not below the vocabulary",
            ),
            (vec![0, 0, 8, 0], "token 8 at position 1 is not below the vocabulary of 8"),
            (vec![], "is empty"),
        ];
        for (bytes, expected) in cases {
            std::fs::write(&path, bytes).unwrap();
            let message = Tokens::open(std::slice::from_ref(&path), Some(8)).unwrap_err().to_string();
            assert!(message.contains(expected) && message.contains("x.bin"), "{message}");
        }
    }

    #[test]
    fn a_million_tokens_of_a_file_are_checked_and_no_number_is_read_as_a_negative_one() {
        let folder = tempfile::tempdir().unwrap();
        let paths = [folder.path().join("x.bin")];
        let with = |at: usize| {
            let mut tokens = vec![0; CHECKED_TOKENS as usize + 1];
            tokens[at] = u32::MAX;
            let mut writer = ShardWriter::new(folder.path(), 1 << 17, 1 << 21);
            writer.write(&tokens).unwrap();
            std::fs::rename(folder.path().join(&writer.finish().unwrap()[0].file), &paths[0]).unwrap();
            Tokens::open(&paths, Some(1 << 17))
        };
        let message = with(CHECKED_TOKENS as usize - 1).unwrap_err().to_string();
        assert!(message.contains("token 4294967295 at position 999999 is not below"), "{message}");
        let mut read = Vec::new();
        with(CHECKED_TOKENS as usize).unwrap().read(999_999..1_000_001, &mut read).unwrap();
        assert_eq!(read, [0, i32::MAX]);
    }

    #[test]
    fn a_file_that_is_cut_short_while_it_is_in_use_is_an_error_and_no_signal() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.bin");
        std::fs::write(&path, vec![1; 1 << 20]).unwrap();
        let tokens = Tokens::open(std::slice::from_ref(&path), None).unwrap();
        let (mut before, mut after) = (Vec::new(), Vec::new());
        tokens.read(500_000..500_010, &mut before).unwrap();
        File::options().write(true).open(&path).unwrap().set_len(1000).unwrap();
        let message = tokens.read(500_000..500_010, &mut after).unwrap_err().to_string();
        assert!(message.contains("x.bin: was cut short while it is in use: it ends before token 500010"), "{message}");
        assert_eq!((before.len(), after.len()), (10, 0));
        tokens.read(490..500, &mut after).unwrap();
        std::fs::write(folder.path().join("new"), vec![2; 1 << 20]).unwrap();
        std::fs::rename(folder.path().join("new"), &path).unwrap();
        assert!(tokens.read(500_000..500_010, &mut after).is_err(), "the file that was opened is read, not its name");
    }
}
