//! Follows a growing file of metrics: each pass reads only what is new.

use crate::file;
use crate::lines::Line;
use crate::log::Log;
use std::fs::{File, Metadata};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// How many bytes before the resume position must be unchanged.
const TAIL: usize = 256;

/// Bytes read at once, and the longest line. Few in tests.
const CHUNK: u64 = if cfg!(test) { 100 } else { 4 << 20 };
const LINE: u64 = if cfg!(test) { 1000 } else { 16 << 20 };

/// A run's `metrics.jsonl`, as far as it has been read.
#[derive(Debug, Default)]
pub(crate) struct Follower {
    pub path: PathBuf,
    pub log: Log,
    /// The first line that is not JSON, and the number of such lines.
    torn: Option<(usize, usize)>,
    lines: usize,
    /// Bytes of all lines read so far.
    read: u64,
    /// The last of these bytes, and the file's inode. If either differs, it is a different file.
    tail: Vec<u8>,
    identity: u64,
}

impl Follower {
    /// Follows a file that need not exist yet.
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), ..Self::default() }
    }

    /// Reads the appended lines, or all lines if the file was replaced or became shorter, as it does when a run
    /// resumes. Returns whether anything has changed. An incomplete last line is left for the next time.
    pub fn read_on(&mut self) -> io::Result<bool> {
        let mut file = match file::open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.read > 0 => {
                *self = Self::new(&self.path);
                return Err(error);
            }
            file => file?,
        };
        let metadata = file.metadata()?;
        let before = self.read;
        if before > 0 && !self.is_same(&mut file, &metadata)? {
            *self = Self::new(&self.path);
        }
        self.identity = metadata.ino();
        let end = metadata.len();
        let (mut bytes, mut new) = (vec![], self.read < before);
        file.seek(SeekFrom::Start(self.read))?;
        loop {
            let wanted = (end - self.read - bytes.len() as u64).min(CHUNK);
            let got = (&mut file).take(wanted).read_to_end(&mut bytes)? as u64;
            let last = got < CHUNK;
            let rest = match (last, bytes.len() as u64 > LINE) {
                (true, _) => Rest::IfJson,
                (false, false) => Rest::Later,
                (false, true) => Rest::Now,
            };
            let read = self.take_lines(&bytes, rest);
            self.read += read as u64;
            self.tail = [&self.tail[..], &bytes[..read][read.saturating_sub(TAIL)..]].concat();
            self.tail.drain(..self.tail.len().saturating_sub(TAIL));
            bytes.drain(..read);
            new |= read > 0;
            if last {
                return Ok(new);
            }
        }
    }

    /// Number of lines read.
    pub fn lines(&self) -> usize {
        self.lines
    }

    /// Notes for the reader about the file.
    pub fn notes(&self) -> Vec<String> {
        let torn = self.torn.map(|(first, count)| {
            let which = match count {
                1 => format!("line {first} is not JSON and is"),
                2 => format!("line {first} and 1 other are not JSON and are"),
                many => format!("line {first} and {} others are not JSON and are", many - 1),
            };
            format!("metrics.jsonl: {which} left out")
        });
        self.log.note().into_iter().chain(torn).collect()
    }

    /// Whether the file still begins with what was read.
    fn is_same(&self, file: &mut File, metadata: &Metadata) -> io::Result<bool> {
        if metadata.len() < self.read || metadata.ino() != self.identity {
            return Ok(false);
        }
        let mut tail = vec![0; self.tail.len()];
        file.seek(SeekFrom::Start(self.read - tail.len() as u64))?;
        file.read_exact(&mut tail)?;
        Ok(tail == self.tail)
    }

    /// Adds the complete lines, treats the rest as `rest` says, and returns the number of bytes taken.
    fn take_lines(&mut self, bytes: &[u8], rest: Rest) -> usize {
        let mut read = 0;
        for line in bytes.split_inclusive(|&byte| byte == b'\n') {
            let parsed = Line::parse(&String::from_utf8_lossy(line));
            let taken = match rest {
                _ if line.last() == Some(&b'\n') => true,
                Rest::IfJson => parsed.is_ok(),
                Rest::Later => false,
                Rest::Now => true,
            };
            if !taken {
                break;
            }
            read += line.len();
            self.lines += 1;
            match parsed {
                Ok(line) => line.into_iter().for_each(|line| self.log.add(line)),
                Err(_) if line.trim_ascii().is_empty() => {}
                Err(_) => self.torn = Some(self.torn.map_or((self.lines, 1), |(first, count)| (first, count + 1))),
            }
        }
        read
    }
}

/// What to do with an unterminated last line.
#[derive(Debug, Clone, Copy)]
enum Rest {
    /// Takes it if it is JSON: the run is still writing it, or was stopped while writing it.
    IfJson,
    /// Waits: more of it has yet to be read.
    Later,
    /// Takes it: it is far too long and counts as torn.
    Now,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, OpenOptions};
    use std::io::Write;

    fn steps(follower: &Follower) -> Vec<u64> {
        follower.log.steps.iter().map(|step| step.step).collect()
    }

    fn lines(range: std::ops::RangeInclusive<u64>, loss: u64) -> String {
        range.map(|step| format!("{{\"step\":{step},\"loss\":{loss}}}\n")).collect()
    }

    fn all_of(text: &str) -> Follower {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        let mut follower = Follower::new(file.path());
        follower.read_on().unwrap();
        follower
    }

    #[test]
    fn only_what_was_appended_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let mut follower = Follower::new(&path);
        assert_eq!(follower.read_on().unwrap_err().kind(), io::ErrorKind::NotFound);

        fs::write(&path, lines(1..=40, 5) + "{\"step\":41,\"lo").unwrap();
        assert!(follower.read_on().unwrap());
        assert!(!follower.read_on().unwrap(), "nothing new");
        assert_eq!(steps(&follower), (1..=40).collect::<Vec<_>>());

        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"ss\":5}\n").unwrap();
        assert!(follower.read_on().unwrap());
        assert_eq!((steps(&follower).last(), follower.lines), (Some(&41), 41));

        // If the beginning were read again, it would now be torn. The tail is unchanged.
        let text = fs::read_to_string(&path).unwrap();
        let mut file = OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all(b"#").unwrap();
        OpenOptions::new().append(true).open(&path).unwrap().write_all(lines(42..=42, 5).as_bytes()).unwrap();
        assert!(text.len() > TAIL && follower.read_on().unwrap());
        assert_eq!((steps(&follower).last(), follower.torn), (Some(&42), None));
    }

    #[test]
    fn a_file_that_shrank_or_was_replaced_is_read_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        fs::write(&path, lines(1..=9, 5)).unwrap();
        let mut follower = Follower::new(&path);
        follower.read_on().unwrap();

        fs::write(&path, lines(1..=6, 5)).unwrap();
        assert!(follower.read_on().unwrap(), "shorter");
        assert_eq!(steps(&follower), (1..=6).collect::<Vec<_>>());

        fs::write(&path, lines(1..=6, 4) + &lines(7..=8, 4)).unwrap();
        assert!(follower.read_on().unwrap(), "longer, and other bytes before");
        assert_eq!(follower.log.steps.iter().map(|step| step.loss).collect::<Vec<_>>(), [4.0; 8]);

        let beside = folder.path().join("beside");
        fs::write(&beside, lines(1..=3, 3) + &lines(4..=8, 4) + &lines(9..=9, 4)).unwrap();
        fs::rename(&beside, &path).unwrap();
        assert!(follower.read_on().unwrap(), "renamed into its place");
        assert_eq!((steps(&follower).len(), follower.log.steps[0].loss, follower.log.note()), (9, 3.0, None));

        fs::remove_file(&path).unwrap();
        assert!(follower.read_on().is_err() && follower.log.is_empty());
    }

    #[test]
    fn a_torn_end_is_silent_and_a_torn_middle_is_a_note() {
        let follower = all_of("{\"step\":1,\"loss\":2}\n{\"step\":2,\"lo");
        assert_eq!((steps(&follower).len(), follower.notes().len()), (1, 0));
        let follower = all_of("{\"step\":1,\"loss\":2}\n{\"st\n\n{\"step\":2,\"loss\":1}");
        assert_eq!(steps(&follower), [1, 2]);
        assert_eq!(follower.notes(), ["metrics.jsonl: line 2 is not JSON and is left out"]);
        let two = all_of("x\n{\"step\":1,\"loss\":2}\ny\n").notes();
        assert_eq!(two, ["metrics.jsonl: line 1 and 1 other are not JSON and are left out"]);
        let three = all_of("x\ny\nz\n").notes();
        assert_eq!(three, ["metrics.jsonl: line 1 and 2 others are not JSON and are left out"]);
    }
}
