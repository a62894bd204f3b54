//! What a file contains, judged by its name, and the files of a folder.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use crate::DataError;

/// A file of text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextFile {
    pub path: PathBuf,
    pub format: Format,
    pub compression: Option<Compression>,
}

/// How a file stores its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// The file is one document.
    Text,
    /// A document per line, in a field of an object.
    JsonLines,
    /// CSV or TSV: a document per row, in a column that the first row names.
    Table { delimiter: u8 },
    /// A document per row, in a column.
    Parquet,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    Gzip,
    Zstd,
}

/// Extensions of the text files taken from a folder. A file that is named itself may have any extension.
#[rustfmt::skip]
const TEXT: &[&str] = &[
    "txt", "text", "md", "markdown", "rst", "tex", "org", "html", "htm", "xml",
    "rs", "toml", "py", "pyi", "c", "h", "cc", "cpp", "cxx", "hpp", "cu", "cuh", "go", "java", "kt", "scala", "swift", "js",
    "mjs", "ts", "tsx", "jsx", "css", "rb", "php", "pl", "lua", "r", "jl", "hs", "ml", "ex", "exs", "erl", "clj", "el", "sh",
    "bash", "zsh", "sql", "yaml", "yml", "proto", "cmake",
];

impl TextFile {
    /// The file at `path`. A file with an unknown extension is text.
    pub fn new(path: PathBuf) -> Self {
        let (ending, compression) = ending(&path);
        let format = match &ending[..] {
            "jsonl" | "ndjson" | "json" => Format::JsonLines,
            "csv" => Format::Table { delimiter: b',' },
            "tsv" => Format::Table { delimiter: b'\t' },
            "parquet" => Format::Parquet,
            _ => Format::Text,
        };
        Self { path, format, compression }
    }
}

/// Whether a file holds tokens.
pub fn is_tokens(path: &Path) -> bool {
    path.extension() == Some(OsStr::new("bin"))
}

/// The last extension of a file's name in lower case, without that of its compression.
fn ending(path: &Path) -> (String, Option<Compression>) {
    let lower =
        |path: &Path| path.extension().map(|ending| ending.to_string_lossy().to_lowercase()).unwrap_or_default();
    let compression = match &lower(path)[..] {
        "gz" | "gzip" => Compression::Gzip,
        "zst" | "zstd" => Compression::Zstd,
        _ => return (lower(path), None),
    };
    (path.file_stem().map(|stem| lower(Path::new(stem))).unwrap_or_default(), Some(compression))
}

/// The text files and the other files below a folder, each sorted by path. Skips hidden files and folders, and linked
/// folders.
pub fn text_files(folder: &Path) -> Result<(Vec<TextFile>, Vec<PathBuf>), DataError> {
    let (mut files, mut others) = (Vec::new(), Vec::new());
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for (path, is_folder) in list(&folder)? {
            if is_folder {
                folders.push(path);
                continue;
            }
            match path.is_file() {
                true if is_text(&path) => files.push(TextFile::new(path)),
                true => others.push(path),
                false => {}
            }
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    others.sort();
    Ok((files, others))
}

/// Whether a file is taken from a folder, judged by its name.
fn is_text(path: &Path) -> bool {
    let (ending, compression) = ending(path);
    match &ending[..] {
        "jsonl" | "ndjson" | "csv" | "tsv" | "parquet" => true,
        // An uncompressed one is more likely a `package.json` than a corpus.
        "json" | "" => compression.is_some(),
        ending => TEXT.contains(&ending),
    }
}

/// The files of a folder, each list sorted: training tokens, validation tokens, tokens under other names, and
/// everything else. Recognizes nanoGPT's `train.bin` and `val.bin` and llm.c's `NAME_train_000000.bin` and
/// `NAME_val_000000.bin`.
pub fn token_files(folder: &Path) -> Result<[Vec<PathBuf>; 4], DataError> {
    let (mut train, mut val, mut others, mut no_tokens) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (path, is_folder) in list(folder)? {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if is_folder || !is_tokens(&path) {
            no_tokens.extend((!is_folder && path.is_file()).then_some(path));
            continue;
        }
        if name.starts_with("train") || name.contains("_train") {
            train.push(path);
        } else if name.starts_with("val") || name.contains("_val") {
            val.push(path);
        } else {
            others.push(path);
        }
    }
    let mut files = [train, val, others, no_tokens];
    files.iter_mut().for_each(|files| files.sort());
    Ok(files)
}

/// The entries of a folder that are not hidden, and whether each is a folder.
fn list(folder: &Path) -> Result<Vec<(PathBuf, bool)>, DataError> {
    let failed = |error| DataError::read(folder, error);
    let mut entries = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if !entry.file_name().to_string_lossy().starts_with('.') {
            entries.push((entry.path(), entry.file_type().map_err(failed)?.is_dir()));
        }
    }
    Ok(entries)
}
