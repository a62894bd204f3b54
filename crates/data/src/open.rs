//! Opens a source of text or tokens as a dataset.

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::cache;
use crate::checked;
use crate::dataset::val_tokens;
use crate::meta::VERSION;
use crate::prepare::{self, PrepareOptions};
use crate::progress::say;
use crate::source::{self, Source, TextSource, TokenFiles, hash_part};
use crate::tokens::Tokens;
use crate::{DataError, Dataset, Meta, Split, Tokenizer, TokenizerSpec};

/// Options for opening a source.
#[derive(Debug, Clone)]
pub struct OpenOptions {
    /// How text becomes tokens. None for bytes, or for the tokenizer of a prepared folder.
    pub tokenizer: Option<TokenizerSpec>,
    /// The field of JSON lines, or the column of CSV, TSV and Parquet, that holds the text.
    pub text_field: String,
    /// Fraction of the tokens, at the end, held out for validation, unless the source has validation files. None for
    /// 10%, at most 10 million tokens.
    pub val_fraction: Option<f64>,
    /// Where text is prepared. None for `$KILN_CACHE`, or else the user's cache.
    pub cache: Option<PathBuf>,
    /// Whether to report progress, and skipped files of a folder, on stderr.
    pub progress: bool,
}

impl Default for OpenOptions {
    fn default() -> Self {
        let text_field = PrepareOptions::default().text_field;
        Self { tokenizer: None, text_field, val_fraction: None, cache: None, progress: false }
    }
}

/// A source that is ready to train on.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Prepared {
    /// The source's tokens.
    pub dataset: Dataset,
    /// The tokenizer. None for token files for which none was given.
    pub tokenizer: Option<Tokenizer>,
    /// A description of the data, for printing.
    pub name: String,
    /// Whether the data itself defines a validation split: a folder of [`prepare`](crate::prepare), or files for both
    /// splits.
    pub has_split: bool,
    /// The metadata. None for bare token files.
    pub meta: Option<Meta>,
    /// How to open the tokenizer again.
    spec: Option<TokenizerSpec>,
}

impl Prepared {
    /// Number of token ids, if known.
    pub fn vocab_size(&self) -> Option<usize> {
        self.tokenizer.as_ref().map(Tokenizer::vocab_size)
    }

    /// The token that ends a document, if there is one and it is known.
    pub fn end_of_text(&self) -> Option<u32> {
        let of_tokenizer = self.tokenizer.as_ref().and_then(Tokenizer::eot);
        of_tokenizer.or_else(|| self.meta.as_ref()?.eot)
    }

    /// Opens other data to validate on, with this data's tokenizer and otherwise `options`. The validation split of the
    /// result is that of `source`, or all of its tokens if it defines none.
    ///
    /// # Errors
    /// Those of [`open`], and if `source` is text and the tokenizer of this data is unknown.
    pub fn open_validation(&self, source: &str, options: &OpenOptions) -> Result<Dataset, DataError> {
        let options = OpenOptions { tokenizer: self.spec.clone(), val_fraction: None, ..options.clone() };
        if options.tokenizer.is_none() && matches!(source::find(source)?, Source::Text(_)) {
            return Err(DataError::ValidationText { path: source.into() });
        }
        let opened = open(source, &options)?;
        Ok(opened.dataset.only(if opened.has_split { Split::Val } else { Split::All }))
    }

    /// Replaces the validation split with the tokens of `sets`. The old validation tokens join the training split
    /// unless the data itself defines its splits.
    pub fn validate_on(&mut self, sets: &[Dataset]) {
        self.dataset = self.dataset.clone().validated_on(sets, self.has_split);
    }

    /// A fingerprint of the training tokens: 32 hexadecimal digits. It covers the number of tokens, 64 samples of them,
    /// and the shards' digests if the data was prepared, so its cost does not grow with the data.
    ///
    /// # Errors
    /// If a token file can no longer be read.
    pub fn fingerprint(&self) -> Result<String, DataError> {
        let mut hash = Sha256::new();
        self.dataset.train.hash_samples(&mut hash)?;
        let shards = self.meta.iter().flat_map(|meta| &meta.shards);
        shards.filter_map(|shard| shard.sha256.as_ref()).for_each(|digest| hash_part(&mut hash, digest.as_bytes()));
        Ok(hex(hash))
    }
}

/// The first 16 bytes of a digest, in hexadecimal digits.
fn hex(hash: Sha256) -> String {
    hash.finalize()[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Opens a source by its name: `rust-crates`, `shakespeare`, a file or folder of text or tokens, or a folder written by
/// [`prepare`](crate::prepare). Text is first prepared into the cache unless it is already there; its folder there
/// depends on the text and the tokenizer. Only one of several processes prepares it, and the others wait.
///
/// # Errors
/// Whatever is wrong with the source, the tokenizer, or the cache; see [`DataError`].
pub fn open(source: &str, options: &OpenOptions) -> Result<Prepared, DataError> {
    prepare::check_fraction(options.val_fraction)?;
    if source.is_empty() {
        return Err(DataError::NoSource);
    }
    match source::find(source)? {
        Source::Text(text) => open_text(&text, options),
        Source::Prepared(folder) => open_folder(&folder, options, options.tokenizer.as_ref()),
        Source::Tokens(files) => open_tokens(files, options),
    }
}

fn open_text(text: &TextSource, options: &OpenOptions) -> Result<Prepared, DataError> {
    say(text.note.as_ref(), options.progress);
    let spec = options.tokenizer.clone().unwrap_or_default();
    let tokenizer = spec.open()?;
    let cache = options.cache.clone().map_or_else(cache::root, Ok)?;
    let folder = cache.join("prepared").join(key(text, options, &spec, tokenizer.as_ref())?);
    cache::fill_once(&folder, options.progress, |new| {
        let prepare_options = PrepareOptions {
            text_field: options.text_field.clone(),
            progress: options.progress,
            ..PrepareOptions::default()
        };
        prepare::write(text, &spec.to_string(), tokenizer, new, &prepare_options).map(drop).map_err(cache::in_cache)
    })?;
    let damaged = |error: DataError| DataError::DamagedCache { path: folder.clone(), source: error.into() };
    let has_split = text.has_split();
    let val_fraction = options.val_fraction.filter(|_| !has_split);
    let opened = open_folder(&folder, &OpenOptions { val_fraction, ..options.clone() }, None).map_err(damaged)?;
    // The folder keeps the name that its creator used.
    Ok(Prepared { name: text.name.clone(), has_split, ..opened })
}

/// The folder name for a text and its tokenizer.
fn key(
    text: &TextSource,
    options: &OpenOptions,
    spec: &TokenizerSpec,
    tokenizer: Option<&Tokenizer>,
) -> Result<String, DataError> {
    let mut hash = Sha256::new();
    hash_part(&mut hash, &VERSION.to_le_bytes());
    hash_part(&mut hash, options.text_field.as_bytes());
    match tokenizer {
        Some(tokenizer) => {
            hash_part(&mut hash, tokenizer.to_json().as_bytes());
            // The file does not always contain this.
            hash_part(&mut hash, format!("{:?}", tokenizer.eot()).as_bytes());
        }
        None => hash_part(&mut hash, spec.to_string().as_bytes()),
    }
    text.hash(&mut hash, options.progress)?;
    Ok(hex(hash))
}

fn open_folder(folder: &Path, options: &OpenOptions, given: Option<&TokenizerSpec>) -> Result<Prepared, DataError> {
    let meta = Meta::load(folder)?;
    let tokenizer = Tokenizer::open(folder)?;
    if let Some(spec) = given {
        let same = match spec.open()? {
            Some(given) => given.same_as(&tokenizer),
            None => tokenizer.is_char(),
        };
        if !same {
            return Err(DataError::OtherTokenizer { path: folder.into(), given: spec.to_string() });
        }
    }
    let wrong = |path: PathBuf, problem| DataError::Meta { path, problem };
    if tokenizer.vocab_size() != meta.vocab_size {
        let problem = format!("vocab_size is {}, the tokenizer's {}", meta.vocab_size, tokenizer.vocab_size());
        return Err(wrong(folder.join(Meta::FILE), problem));
    }
    let paths: Vec<PathBuf> = meta.shards.iter().map(|shard| folder.join(&shard.file)).collect();
    let tokens = Tokens::open(&paths, Some(meta.vocab_size))?;
    checked::check(&tokens, &meta.shards, options)?;
    if tokens.len() != meta.tokens {
        let problem = format!("has {} tokens, the shards {}", meta.tokens, tokens.len());
        return Err(wrong(folder.join(Meta::FILE), problem));
    }
    let val = match options.val_fraction {
        None => meta.val_tokens,
        fraction => val_tokens(meta.tokens, fraction),
    };
    let dataset = Dataset::split(tokens, val);
    let name = folder.display().to_string();
    let spec = Some(TokenizerSpec::Path(folder.into()));
    Ok(Prepared { dataset, tokenizer: Some(tokenizer), name, has_split: true, meta: Some(meta), spec })
}

fn open_tokens(files: TokenFiles, options: &OpenOptions) -> Result<Prepared, DataError> {
    say(files.note.as_ref(), options.progress);
    let tokenizer = match &options.tokenizer {
        None => None,
        Some(spec) => Some(spec.open()?.ok_or_else(|| DataError::NoTokenizer {
            path: (&files.name).into(),
            problem: "token files do not identify their tokenizer: give the text, or a tokenizer.json".into(),
        })?),
    };
    let vocab_size = tokenizer.as_ref().map(Tokenizer::vocab_size);
    let train = Tokens::open(&files.train, vocab_size)?;
    let has_split = !files.val.is_empty();
    let dataset = if files.val.is_empty() {
        let val = val_tokens(train.len(), options.val_fraction);
        Dataset::split(train, val)
    } else {
        Dataset::pair(train, Tokens::open(&files.val, vocab_size)?)
    };
    let spec = options.tokenizer.clone();
    Ok(Prepared { dataset, tokenizer, name: files.name, has_split, meta: None, spec })
}
