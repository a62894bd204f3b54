//! The writer of token files.

use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::file::{HEADER_BYTES, LLMC_U16, LLMC_U32, digest};
use crate::{DataError, Shard};

/// Writes a stream of tokens into shards `train-000000.bin`, `train-000001.bin`...
pub struct ShardWriter {
    folder: PathBuf,
    magic: [u32; 2],
    shard_tokens: u64,
    open: Option<BufWriter<File>>,
    shards: Vec<Shard>,
}

impl ShardWriter {
    pub fn new(folder: &Path, vocab_size: usize, shard_tokens: u64) -> Self {
        let magic = if vocab_size <= 1 << 16 { LLMC_U16 } else { LLMC_U32 };
        // The header's count is a signed 32-bit number.
        let shard_tokens = shard_tokens.clamp(1, i32::MAX as u64);
        Self { folder: folder.into(), magic, shard_tokens, open: None, shards: Vec::new() }
    }

    /// Appends tokens, starting a new shard whenever one is full.
    pub fn write(&mut self, mut tokens: &[u32]) -> Result<(), DataError> {
        while !tokens.is_empty() {
            if self.open.is_none() {
                self.start()?;
            }
            let (Some(file), Some(shard)) = (&mut self.open, self.shards.last_mut()) else { unreachable!("started") };
            let (now, later) = tokens.split_at(tokens.len().min((self.shard_tokens - shard.tokens) as usize));
            let bytes: Vec<u8> = match self.magic {
                LLMC_U16 => now.iter().flat_map(|&token| (token as u16).to_le_bytes()).collect(),
                _ => now.iter().flat_map(|&token| token.to_le_bytes()).collect(),
            };
            file.write_all(&bytes).map_err(|error| DataError::write(&self.folder.join(&shard.file), error))?;
            shard.tokens += now.len() as u64;
            if shard.tokens == self.shard_tokens {
                self.end()?;
            }
            tokens = later;
        }
        Ok(())
    }

    /// Ends the last shard and returns all shards.
    pub fn finish(mut self) -> Result<Vec<Shard>, DataError> {
        self.end()?;
        Ok(self.shards)
    }

    fn start(&mut self) -> Result<(), DataError> {
        let name = Shard::name(self.shards.len());
        let path = self.folder.join(&name);
        let failed = |error| DataError::write(&path, error);
        let mut file = BufWriter::with_capacity(
            1 << 20,
            File::options().read(true).write(true).create_new(true).open(&path).map_err(failed)?,
        );
        file.write_all(&[0; HEADER_BYTES as usize]).map_err(failed)?;
        self.open = Some(file);
        self.shards.push(Shard { file: name, tokens: 0, sha256: None });
        Ok(())
    }

    /// Writes the header, whose count is now known, syncs the file, and stores its digest.
    fn end(&mut self) -> Result<(), DataError> {
        let (Some(file), Some(shard)) = (self.open.take(), self.shards.last_mut()) else { return Ok(()) };
        let words = [self.magic[0], self.magic[1], shard.tokens as u32];
        let header: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
        let written = file.into_inner().map_err(|error| error.into_error()).and_then(|mut file| {
            file.seek(SeekFrom::Start(0))?;
            file.write_all(&header)?;
            file.sync_all()?;
            digest(&file, |_| {})
        });
        shard.sha256 = Some(written.map_err(|error| DataError::write(&self.folder.join(&shard.file), error))?);
        Ok(())
    }
}
