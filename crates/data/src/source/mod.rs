//! What a source can name, and the pieces of text that it contains.

mod crates;
mod files;
mod json_lines;
mod missing;
mod pages;
mod parquet;
mod pieces;
mod shakespeare;
mod splits;
mod table;
mod text;

use std::fs;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use sha2::{Digest, Sha256};

use crate::DataError;
use crate::meta::Meta;
use crate::progress::Progress;
use files::{Format, TextFile};

pub use crates::DEFAULT_SOURCE;
pub use missing::how_to_get;
pub use pieces::{Emit, Piece};

/// The name of the tiny Shakespeare corpus.
const SHAKESPEARE: &str = "shakespeare";

/// What a source names.
#[derive(Debug)]
pub enum Source {
    /// Text to tokenize.
    Text(TextSource),
    /// A folder written by `prepare`.
    Prepared(PathBuf),
    /// Token files.
    Tokens(TokenFiles),
}

/// Token files that say nothing about their tokenizer.
#[derive(Debug, PartialEq, Eq)]
pub struct TokenFiles {
    pub name: String,
    pub train: Vec<PathBuf>,
    /// Empty if the validation split is the end of `train`.
    pub val: Vec<PathBuf>,
    /// A note for the user about the folder's files.
    pub note: Option<String>,
}

/// Text in memory or in files.
#[derive(Debug)]
pub struct TextSource {
    /// A description, for printing.
    pub name: String,
    text: Text,
    /// Whether there may be several documents, so that their ends are marked.
    pub many: bool,
    /// Number of the first validation file. None if the validation split is the end of all text.
    first_validating: Option<usize>,
    /// A note for the user about the folder's files.
    pub note: Option<String>,
    pub counts: Counts,
}

/// What has been seen of a source.
#[derive(Debug, Default)]
pub struct Counts {
    /// Bytes read so far, out of [`bytes`](TextSource::bytes).
    pub read: AtomicU64,
    /// Lines of JSON and rows of Parquet whose text is null.
    pub nulls: AtomicU64,
}

#[derive(Debug)]
enum Text {
    Memory(String),
    Files(Vec<TextFile>),
}

/// Whether `source` is the name of a built-in source, not a path.
pub fn is_name(source: &str) -> bool {
    [DEFAULT_SOURCE, SHAKESPEARE].contains(&source)
}

/// Finds what `source` names.
pub fn find(source: &str) -> Result<Source, DataError> {
    let path = Path::new(source);
    if source == DEFAULT_SOURCE {
        let (name, text) = crates::load()?;
        return Ok(Source::Text(TextSource::new(name, Text::Memory(text), false)));
    }
    if source == SHAKESPEARE {
        return Ok(Source::Text(TextSource::new(source.into(), Text::Memory(shakespeare::load()), false)));
    }
    let metadata = fs::metadata(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => DataError::Missing { path: path.into(), advice: missing::advice(source) },
        _ => DataError::read(path, error),
    })?;
    if metadata.is_dir() {
        return find_folder(path);
    }
    if !metadata.is_file() {
        return Err(DataError::NotRegular { path: path.into() });
    }
    if metadata.len() == 0 {
        return Err(DataError::Empty { path: path.into() });
    }
    if files::is_tokens(path) {
        let train = vec![path.into()];
        return Ok(Source::Tokens(TokenFiles { name: source.into(), train, val: Vec::new(), note: None }));
    }
    let file = TextFile::new(path.into());
    let many = file.format != Format::Text;
    Ok(Source::Text(TextSource::new(source.into(), Text::Files(vec![file]), many)))
}

fn find_folder(path: &Path) -> Result<Source, DataError> {
    if Meta::is_in(path) {
        return Ok(Source::Prepared(path.into()));
    }
    // The trainer writes files of these names. Otherwise its logs and YAML would be trained on as text.
    if ["config.yaml", "metrics.jsonl"].iter().all(|file| path.join(file).is_file()) {
        return Err(DataError::Run { path: path.into() });
    }
    let name = path.display().to_string();
    let [train, val, others, no_tokens] = files::token_files(path)?;
    if !train.is_empty() {
        let note = splits::note(&name, [train.len(), val.len()], &[others, no_tokens].concat());
        return Ok(Source::Tokens(TokenFiles { name, train, val, note }));
    }
    let (files, mut left_out) = files::text_files(path)?;
    if files.is_empty() && !others.is_empty() {
        let note = splits::note(&name, [others.len(), val.len()], &no_tokens);
        return Ok(Source::Tokens(TokenFiles { name, train: others, val, note }));
    }
    if files.is_empty() {
        return Err(DataError::NoFiles { path: path.into() });
    }
    let [train, val, others] = splits::split(files);
    left_out.extend(others.into_iter().map(|file| file.path));
    let note = splits::note(&name, [train.len(), val.len()], &left_out);
    let first_validating = (!val.is_empty()).then_some(train.len());
    let files = [train, val].concat();
    let many = files.len() > 1 || files[0].format != Format::Text;
    Ok(Source::Text(TextSource { first_validating, note, ..TextSource::new(name, Text::Files(files), many) }))
}

impl TextSource {
    fn new(name: String, text: Text, many: bool) -> Self {
        Self { name, text, many, first_validating: None, note: None, counts: Counts::default() }
    }

    /// Whether the source has validation files.
    pub fn has_split(&self) -> bool {
        self.first_validating.is_some()
    }

    /// Size of the source, for a progress bar.
    pub fn bytes(&self) -> u64 {
        match &self.text {
            Text::Memory(text) => text.len() as u64,
            Text::Files(files) => files.iter().filter_map(|file| fs::metadata(&file.path).ok()).map(|m| m.len()).sum(),
        }
    }

    /// Calls `emit` with the text in order, in pieces of bounded size, training text first. `field` names the field or
    /// column that holds the text in JSON lines and tables.
    pub fn read(&self, field: &str, emit: Emit<'_>) -> Result<(), DataError> {
        let Counts { read, nulls } = &self.counts;
        [read, nulls].into_iter().for_each(|count| count.store(0, Ordering::Relaxed));
        match &self.text {
            Text::Memory(text) => {
                pieces::document(text, emit)?;
                read.store(text.len() as u64, Ordering::Relaxed);
                Ok(())
            }
            Text::Files(files) => files.iter().enumerate().try_for_each(|(number, file)| {
                let validates = self.first_validating.is_some_and(|first| number >= first);
                let emit: Emit<'_> = &mut |piece| emit(Piece { validates, ..piece });
                match file.format {
                    Format::Text => text::read(file, read, emit),
                    Format::JsonLines => json_lines::read(file, field, &self.counts, emit),
                    Format::Table { delimiter } => table::read(file, delimiter, field, read, emit),
                    Format::Parquet => parquet::read(&file.path, field, &self.counts, emit),
                }
            }),
        }
    }

    /// Adds everything that the text depends on to a hash. With `progress` this is shown.
    pub fn hash(&self, hash: &mut Sha256, progress: bool) -> Result<(), DataError> {
        match &self.text {
            Text::Memory(text) => hash_part(hash, text.as_bytes()),
            Text::Files(files) => {
                let mut progress = Progress::new("reading", self.bytes(), !progress);
                let (mut buffer, mut read) = (vec![0; 1 << 20], 0);
                for TextFile { path, format, .. } in files {
                    let mut file = fs::File::open(path).map_err(|error| DataError::read(path, error))?;
                    let mut content = Sha256::new();
                    loop {
                        let count = file.read(&mut buffer).map_err(|error| DataError::read(path, error))?;
                        if count == 0 {
                            break;
                        }
                        content.update(&buffer[..count]);
                        read += count as u64;
                        progress.set(read);
                    }
                    hash_part(hash, format!("{format:?}").as_bytes());
                    hash_part(hash, &content.finalize());
                }
            }
        }
        hash_part(hash, &[u8::from(self.many)]);
        if let Some(first) = self.first_validating {
            hash_part(hash, &first.to_le_bytes());
        }
        Ok(())
    }
}

/// Adds bytes and their number, so that no two lists of parts have the same hash.
pub fn hash_part(hash: &mut Sha256, bytes: &[u8]) {
    hash.update((bytes.len() as u64).to_le_bytes());
    hash.update(bytes);
}

#[cfg(test)]
mod tests;
