//! Errors of opening, preparing and reading data.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// What to do if the text is in another field.
const NAME_THE_FIELD: &str = "name the one that holds the text as text_field";

/// Why there is no data. Each message names the file, crate or value, and says what to do in the words of
/// [`OpenOptions`](crate::OpenOptions) and [`PrepareOptions`](crate::PrepareOptions).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages are the documentation")]
pub enum DataError {
    #[error("no data is named: give the path of a text or of tokens, or the name of a corpus")]
    NoSource,

    #[error("data {} does not exist: {advice}", path.display())]
    Missing { path: PathBuf, advice: String },

    #[error("cannot read {}: {source}; check that it exists and is readable", path.display())]
    Unreadable { path: PathBuf, source: io::Error },

    #[error("cannot write {}: {source}; {}", path.display(), to_write(source))]
    Unwritable { path: PathBuf, source: io::Error },

    #[error("cannot write {} to the cache: {source}; name a folder for it with KILN_CACHE=FOLDER", path.display())]
    Cache { path: PathBuf, source: io::Error },

    #[error("data {} is empty: give a text", path.display())]
    Empty { path: PathBuf },

    #[error(
        "data {} is a pipe or a device, not a regular file, and is read more than once: write the text to a file, and give that",
        path.display()
    )]
    NotRegular { path: PathBuf },

    #[error(
        "data {} is the folder of a run, not data: give the text or the tokens that it trained on, which its config.yaml names",
        path.display()
    )]
    Run { path: PathBuf },

    #[error(
        "folder {} holds no text, JSONL, CSV, Parquet or .bin files: give one that does, or name a file itself",
        path.display()
    )]
    NoFiles { path: PathBuf },

    #[error(
        "data file {} is not UTF-8 text (first bad byte at offset {offset}): convert it (iconv -f ENCODING -t UTF-8), \
         or give another text",
        path.display()
    )]
    NotUtf8 { path: PathBuf, offset: u64 },

    #[error("{} is not whole {format} data ({problem}): copy or compress it again", path.display())]
    Compressed { path: PathBuf, format: &'static str, problem: String },

    #[error(
        "{} unpacks to far more than text does ({bytes} bytes out of {packed}; the limits are 200 times its size and 1 TiB): if \
         you trust it, {advice}",
        path.display()
    )]
    Bomb { path: PathBuf, packed: u64, bytes: u64, advice: String },

    #[error("{}, line {line}: {problem}; each line is an object with the text in \"{field}\"", path.display())]
    Json { path: PathBuf, line: u64, field: String, problem: String },

    #[error("{} is not a Parquet file that can be read ({problem}): copy or write it again", path.display())]
    Parquet { path: PathBuf, problem: String },

    #[error("{}, line {line}: has no field {field:?}, but {fields}: {NAME_THE_FIELD}", path.display())]
    JsonField { path: PathBuf, line: u64, field: String, fields: String },

    #[error("{} has no column {field:?} of strings, but {columns}: {NAME_THE_FIELD}", path.display())]
    ParquetColumn { path: PathBuf, field: String, columns: String },

    #[error("column {field:?} of {} holds {holds}, not strings: {NAME_THE_FIELD}", path.display())]
    ParquetType { path: PathBuf, field: String, holds: String },

    #[error(
        "{} names no column {field:?} in its first line, but {columns}: {}",
        path.display(),
        other.map_or(NAME_THE_FIELD.into(), |other| format!(
            "its columns are separated by {other:?}: write it again with commas (.csv) or tabs (.tsv) between them"
        ))
    )]
    TableColumn { path: PathBuf, field: String, columns: String, other: Option<char> },

    #[error("{}, {}: {problem}", path.display(), if *row == 0 { "header".into() } else { format!("row {row} below the header") })]
    Row { path: PathBuf, row: u64, problem: String },

    #[error("{}, row {row}: the text in column {field:?} is not UTF-8: write it again as UTF-8", path.display())]
    ParquetText { path: PathBuf, row: u64, field: String },

    #[error("token file {}: {problem}; prepare it again, or copy it again", path.display())]
    Tokens { path: PathBuf, problem: String },

    #[error(
        "token file {}: token {token} at position {position} is not below the vocabulary of {vocab_size}: give the \
         tokenizer that made the file",
        path.display()
    )]
    TokenRange { path: PathBuf, token: u32, position: u64, vocab_size: usize },

    #[error("{}: {problem}; prepare the folder again", path.display())]
    Meta { path: PathBuf, problem: String },

    #[error(
        "the prepared data {} in the cache is damaged: delete this folder and start again ({source})",
        path.display()
    )]
    DamagedCache { path: PathBuf, source: Box<DataError> },

    #[error(
        "the cache {} is not this user's alone (others may write into it, or it is a link): name a folder for it with \
         KILN_CACHE=FOLDER",
        path.display()
    )]
    SharedCache { path: PathBuf },

    #[error("{} exists and is not empty: name a new folder, or delete this one", path.display())]
    Exists { path: PathBuf },

    #[error("{} already contains tokens: train on them directly, or give text to prepare", path.display())]
    AlreadyTokens { path: PathBuf },

    #[error("val_fraction is {value}: give a fraction above 0 and at most 1, such as 0.1 for a tenth")]
    ValFraction { value: f64 },

    #[error(
        "crate {name} {version} of the corpus rust-crates is not in {}: run cargo fetch, give a text, or take the one that is built in \
         (shakespeare)",
        folder.display()
    )]
    MissingCrate { name: String, version: String, folder: PathBuf },

    #[error(
        "crate {name} of the corpus rust-crates is not in Cargo.lock: give a text, or take the one that is built in \
         (shakespeare)"
    )]
    NotLocked { name: String },

    #[error(
        "character {char:?} at byte {offset} is not one of the {vocab_size} characters of the training text: leave it \
         out, or train with the byte tokenizer"
    )]
    UnknownChar { char: char, offset: usize, vocab_size: usize },

    #[error("no tokenizer at {}: {problem}", path.display())]
    NoTokenizer { path: PathBuf, problem: String },

    #[error("tokenizer {}: {problem}; save or download it again", path.display())]
    Tokenizer { path: PathBuf, problem: String },

    #[error("the tokenizer cannot encode this text: {problem}")]
    Encode { problem: String },

    #[error("{source_name}, document {number}: {problem}")]
    Document { source_name: String, number: u64, problem: String },

    #[error("cannot train a tokenizer of {vocab_size} tokens: {problem}")]
    TrainBpe { vocab_size: usize, problem: String },

    #[error(
        "the tokens in {} were made with another tokenizer than {given}: give the text itself, or tokens of that tokenizer; to \
         use the tokenizer of these tokens, give this folder as tokenizer",
        path.display()
    )]
    OtherTokenizer { path: PathBuf, given: String },

    #[error(
        "the {split} split has {} and needs at least seq_len + 1 = {needed} ({total} in all): give a longer text, {}",
        count(*found, "token"),
        match (*total >= 2 * needed, *split) {
            (false, _) => "or lower seq_len",
            (true, "training") => "lower seq_len, or lower val_fraction, the fraction held out for validation",
            (true, _) => "lower seq_len, or raise val_fraction, the fraction held out for validation",
        }
    )]
    TooShort { split: &'static str, found: u64, needed: u64, total: u64 },

    #[error(
        "validation data {} is text, and the data that trains are tokens without a tokenizer: give tokens to validate on, \
         or the tokenizer that made those that train",
        path.display()
    )]
    ValidationText { path: PathBuf },

    #[error(
        "the training split has {}, whose documents do not fill one row of {needed} (the shortest length + 1): give a \
         longer text, or shorter rows",
        count(*found, "token")
    )]
    NoRow { found: u64, needed: usize },
}

impl DataError {
    /// The error of opening or reading `path`.
    pub(crate) fn read(path: &Path, source: io::Error) -> Self {
        Self::Unreadable { path: path.into(), source }
    }

    /// The error of writing `path`.
    pub(crate) fn write(path: &Path, source: io::Error) -> Self {
        Self::Unwritable { path: path.into(), source }
    }
}

/// What to do if a file cannot be written.
fn to_write(error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => "choose a folder that you may write into",
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "free space, or choose another folder",
        _ => "choose another folder",
    }
}

/// `1 token`, `2 tokens`.
pub(crate) fn count(number: u64, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}
