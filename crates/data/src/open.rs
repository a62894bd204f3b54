//! What `--data` names, as a dataset.

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::cache::{self, NewFolder};
use crate::checked;
use crate::dataset::val_tokens;
use crate::meta::VERSION;
use crate::prepare::{self, PrepareOptions};
use crate::progress::say;
use crate::source::{self, Source, TextSource, TokenFiles, hash_part};
use crate::tokens::Tokens;
use crate::{DataError, Dataset, Meta, Split, Tokenizer, TokenizerSpec};

/// How a source is opened.
#[derive(Debug, Clone)]
pub struct OpenOptions {
    /// How text becomes tokens; None for bytes, or for the tokenizer of a prepared folder.
    pub tokenizer: Option<TokenizerSpec>,
    /// The field of JSON lines, or column of CSV, TSV and Parquet, that holds the text.
    pub text_field: String,
    /// The share of the tokens, at the end, that validates, unless the source has files for that; None for a tenth but
    /// at most 10 million tokens.
    pub val_fraction: Option<f64>,
    /// Where text is prepared; None for `$KILN_CACHE`, else the user's cache.
    pub cache: Option<PathBuf>,
    /// Whether to show progress, and what is left out of a folder, on stderr.
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
pub struct Prepared {
    /// Its tokens.
    pub dataset: Dataset,
    /// How text becomes its tokens; None for token files alone that no tokenizer was given for.
    pub tokenizer: Option<Tokenizer>,
    /// What the data is, for printing.
    pub name: String,
    /// Whether the data itself says which of its tokens validate: a folder of [`prepare`](crate::prepare), or files for
    /// both.
    pub has_split: bool,
    /// What is known of it; None for token files alone.
    pub meta: Option<Meta>,
    /// The tokenizer, as it can be opened again.
    spec: Option<TokenizerSpec>,
}

impl Prepared {
    /// Number of token ids, if it is known.
    pub fn vocab_size(&self) -> Option<usize> {
        self.tokenizer.as_ref().map(Tokenizer::vocab_size)
    }

    /// The token that ends a document, if there is one and it is known.
    pub fn end_of_text(&self) -> Option<u32> {
        let of_tokenizer = self.tokenizer.as_ref().and_then(Tokenizer::eot);
        of_tokenizer.or_else(|| self.meta.as_ref()?.eot)
    }

    /// Opens data to validate on, with the tokenizer of these; `options` say the rest. As its validation split, the
    /// dataset has that of `source` where it has one of its own, and else all of its tokens.
    ///
    /// # Errors
    /// As of [`open`]; a text, where the tokenizer of these is not known.
    pub fn open_validation(&self, source: &str, options: &OpenOptions) -> Result<Dataset, DataError> {
        let options = OpenOptions { tokenizer: self.spec.clone(), val_fraction: None, ..options.clone() };
        if options.tokenizer.is_none() && matches!(source::find(source)?, Source::Text(_)) {
            return Err(DataError::ValidationText { path: source.into() });
        }
        let opened = open(source, &options)?;
        Ok(opened.dataset.only(if opened.has_split { Split::Val } else { Split::All }))
    }

    /// Has the tokens of `sets` validate. Those that validated before train too, unless the data itself says that they
    /// do not.
    pub fn validate_on(&mut self, sets: &[Dataset]) {
        self.dataset = self.dataset.clone().validated_on(sets, self.has_split);
    }

    /// What differs when other tokens train: 32 hexadecimal digits. Of prepared data it is made of the digests of the
    /// files, else of the number of tokens and of 64 samples of them, so that it takes no time however many there are.
    ///
    /// # Errors
    /// A token file that cannot be read any more.
    pub fn fingerprint(&self) -> Result<String, DataError> {
        let mut hash = Sha256::new();
        self.dataset.train.hash_samples(&mut hash)?;
        let shards = self.meta.iter().flat_map(|meta| &meta.shards);
        shards.filter_map(|shard| shard.sha256.as_ref()).for_each(|digest| hash_part(&mut hash, digest.as_bytes()));
        Ok(hex(hash))
    }
}

/// The first 16 bytes of a digest.
fn hex(hash: Sha256) -> String {
    hash.finalize()[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Opens what `--data` names: `rust-crates`, `shakespeare`, a file or folder of text, of tokens, or made by
/// [`prepare`](crate::prepare). Text is prepared into the cache first, unless it is there: its place depends on the
/// text and the tokenizer. Of several processes one does so, and the others wait for it.
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
    if !folder.is_dir() {
        let in_cache = |error| match error {
            DataError::Unwritable { path, source } => DataError::Cache { path, source },
            other => other,
        };
        let prepare_options = PrepareOptions {
            text_field: options.text_field.clone(),
            progress: options.progress,
            ..PrepareOptions::default()
        };
        // None if another process has made it meanwhile.
        if let Some(new) = NewFolder::create(&folder, options.progress).map_err(in_cache)? {
            prepare::write(text, &spec.to_string(), tokenizer, new.path(), &prepare_options).map_err(in_cache)?;
            new.publish().map_err(in_cache)?;
        }
    }
    let damaged = |error: DataError| DataError::DamagedCache { path: folder.clone(), problem: error.to_string() };
    let has_split = text.has_split();
    let val_fraction = options.val_fraction.filter(|_| !has_split);
    let opened = open_folder(&folder, &OpenOptions { val_fraction, ..options.clone() }, None).map_err(damaged)?;
    // The folder keeps the name of whoever made it.
    Ok(Prepared { name: text.name.clone(), has_split, ..opened })
}

/// The name of the folder for a text and its tokenizer.
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
            // Not always in that file.
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
            problem:
                "token files do not say which characters they are made of: give the text, or a tokenizer.json".into(),
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
