//! The `data` section: training and validation data.

use data::TokenizerSpec;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::Path;

use super::validate::require;
use crate::error::TrainError;

/// Training and validation data.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DataConfig {
    /// `rust-crates`, the default corpus (the source of Kiln's dependencies), `shakespeare`, or the path of a
    /// file or folder. Files may be text, JSONL, CSV or TSV, each plain or compressed with gzip or zstd; Parquet;
    /// tokens (`.bin`); or the output of the command `prepare`. A URL of an object store, such as
    /// `s3://BUCKET/FOLDER`, is downloaded into the cache. Flag: `--data`.
    pub source: String,
    /// `byte`, `char`, `gpt2` or the path of a Hugging Face tokenizer; null means bytes, or the tokenizer of prepared
    /// data.
    #[schemars(with = "Option<String>")]
    pub tokenizer: Option<TokenizerSpec>,
    /// The JSONL field, or the CSV, TSV or Parquet column, that holds the text.
    pub text_field: String,
    /// Fraction of the tokens, taken from the end, held out for validation, unless the data has its own validation
    /// files; null means a tenth, but at most 10 million tokens.
    pub val_fraction: Option<f64>,
    /// Separate validation data, in any form that `source` accepts: one source, or several by name, `{wiki: wiki.txt,
    /// code: src/}`. If a source has a validation split of its own, only that split is used. Each source is reported
    /// under its name, and the mean of their losses determines the best validation. All tokens of `data.source` are
    /// then used for training, except its own validation split. Flag: `--val-data`.
    pub validation: Option<Validation>,
    /// Document masking: whether documents that share a row are separate. No document attends to another, positions
    /// restart in each, and nothing is predicted across a document's end. The data must have an end-of-text token.
    pub document_mask: bool,
    /// Row lengths, from short to `train.seq_len`, into which documents are packed. The longest remaining document
    /// opens the shortest row that holds it, and shorter documents fill the row. Every step has rows of one length,
    /// with about as many tokens as at `train.seq_len` or the batch that `parallel.adaptive` has for that length. null
    /// means windows of `train.seq_len`, regardless of document ends.
    pub buckets: Option<Vec<usize>>,
}

impl Default for DataConfig {
    fn default() -> Self {
        Self {
            source: data::DEFAULT_SOURCE.into(),
            tokenizer: None,
            text_field: "text".into(),
            val_fraction: None,
            validation: None,
            document_mask: false,
            buckets: None,
        }
    }
}

impl DataConfig {
    /// The same section with absolute paths, so that it is valid in any working directory.
    pub(crate) fn with_absolute_paths(&self) -> Self {
        let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.into());
        let of_source = |source: &str| match data::is_name(source) || store::is_of_store(source) || source.is_empty() {
            true => source.into(),
            false => absolute(Path::new(source)).display().to_string(),
        };
        let Ok(with_sources) = self.with_sources(|source| Ok::<_, Infallible>(of_source(source)));
        let tokenizer = self.tokenizer.clone().map(|tokenizer| match tokenizer {
            TokenizerSpec::Path(path) => TokenizerSpec::Path(absolute(&path)),
            named => named,
        });
        Self { tokenizer, ..with_sources }
    }

    /// Whether some of the data is in an object store.
    pub(crate) fn is_in_store(&self) -> bool {
        let of_validation = self.validation.iter().flat_map(Validation::sources).map(|(_, source)| source);
        of_validation.chain([self.source.as_str()]).any(store::is_of_store)
    }

    /// The same section with other names for the training and validation data.
    pub(crate) fn with_sources<E>(&self, of: impl Fn(&str) -> Result<String, E>) -> Result<Self, E> {
        let named = |(name, source): (&String, &String)| Ok::<_, E>((name.clone(), of(source)?));
        let validation = match &self.validation {
            None => None,
            Some(Validation::One(source)) => Some(Validation::One(of(source)?)),
            Some(Validation::Named(sources)) => {
                Some(Validation::Named(sources.iter().map(named).collect::<Result<_, _>>()?))
            }
        };
        Ok(Self { source: of(&self.source)?, validation, ..self.clone() })
    }

    /// Rejects inconsistent validation settings.
    pub(super) fn validate(&self) -> Result<(), TrainError> {
        let Some(validation) = &self.validation else { return Ok(()) };
        require(self.val_fraction.is_none(), || {
            let fraction = self.val_fraction.unwrap_or_default();
            format!(
                "data.val_fraction is {fraction}, but data.validation (--val-data) names separate validation data: give one of \
                 them, and set the other to null"
            )
        })?;
        let sources = validation.sources();
        require(
            sources.iter().all(|(name, source)| name.is_none_or(|name| !name.trim().is_empty()) && !source.is_empty()),
            || "data.validation has an empty name or source: give `{NAME: SRC}`, or a source alone".into(),
        )?;
        require(!sources.is_empty(), || "data.validation names no data: give some, or null".into())
    }

    /// The options of the data crate.
    pub(crate) fn options(&self, progress: bool) -> data::OpenOptions {
        data::OpenOptions {
            tokenizer: self.tokenizer.clone(),
            text_field: self.text_field.clone(),
            val_fraction: self.val_fraction,
            progress,
            ..data::OpenOptions::default()
        }
    }
}

/// Separate validation data.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Validation {
    /// One source.
    One(String),
    /// Several sources by name.
    Named(BTreeMap<String, String>),
}

impl Validation {
    /// The sources, each with its name if it has one.
    pub(crate) fn sources(&self) -> Vec<(Option<&str>, &str)> {
        match self {
            Self::One(source) => vec![(None, source)],
            Self::Named(sources) => {
                sources.iter().map(|(name, source)| (Some(name.as_str()), source.as_str())).collect()
            }
        }
    }
}
