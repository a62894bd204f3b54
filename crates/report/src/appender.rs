//! Writes to the end of a file on a disk that may be full.

use std::fs::File;
use std::io::{self, ErrorKind, Write};

/// Appends to a file. Bytes that the disk refuses are kept and written before the next ones, so the file misses none and
/// has no partial line or record once the disk takes them.
#[derive(Debug)]
pub struct Appender {
    file: File,
    refused: Vec<u8>,
}

impl Appender {
    /// Appends to a file that was opened for that, or is new.
    pub fn new(file: File) -> Self {
        Self { file, refused: vec![] }
    }

    /// Writes to another file from now on, with the bytes that the old one has refused.
    pub fn continue_in(&mut self, file: File) {
        self.file = file;
    }

    /// Appends bytes, in one system call if the disk takes them at once.
    ///
    /// # Errors
    /// If the disk refuses some of the bytes. Those are kept.
    pub fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.refused.extend(bytes);
        while !self.refused.is_empty() {
            match self.file.write(&self.refused) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => drop(self.refused.drain(..written)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Number of bytes that the disk has refused so far.
    pub fn refused(&self) -> usize {
        self.refused.len()
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::fs::{self, OpenOptions};

    #[test]
    fn what_a_full_disk_refuses_is_written_later() {
        let mut appender = Appender::new(OpenOptions::new().append(true).open("/dev/full").unwrap());
        let refused = appender.append(b"one\n").unwrap_err();
        assert_eq!((refused.kind(), appender.refused()), (ErrorKind::StorageFull, 4));
        let file = tempfile::NamedTempFile::new().unwrap();
        appender.continue_in(file.reopen().unwrap());
        appender.append(b"two\n").unwrap();
        assert_eq!((fs::read(file.path()).unwrap(), appender.refused()), (b"one\ntwo\n".to_vec(), 0));
    }
}
