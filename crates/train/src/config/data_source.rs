//! The section `data`: what is learned from, and validated on.

use data::TokenizerSpec;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

use super::ConfigError;
use super::validate::require;

/// What is learned from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DataConfig {
    /// `rust-crates`, the default corpus (Rust source that the build has put on disk), `shakespeare`, or the path of a
    /// file or folder: text, JSONL, CSV, TSV, each as it is or in gzip or zstd, Parquet, tokens (`.bin`), or what
    /// `train prepare` has made. Flag: `--data`.
    pub source: String,
    /// `byte`, `char`, `gpt2` or the path of a Hugging Face tokenizer; null for bytes, or for that of prepared data.
    #[schemars(with = "Option<String>")]
    pub tokenizer: Option<TokenizerSpec>,
    /// The field of JSONL, or the column of CSV, TSV or Parquet, that holds the text.
    pub text_field: String,
    /// Fraction of the tokens, at the end, held out for validation, unless the data has files for that; null for a tenth,
    /// but at most 10 million tokens.
    pub val_fraction: Option<f64>,
    /// Separate validation data, in any form that `source` takes: one source, or several by name, `{wiki: wiki.txt, code:
    /// src/}`. If a source has a validation split of its own, only that split counts. Each source is reported under its
    /// name, and the mean of their losses decides which validation is the best. All tokens of `data.source` then train,
    /// except a validation split of its own. Flag: `--val-data`.
    pub validation: Option<Validation>,
    /// Whether documents that share a row are apart: none attends to another, positions begin anew in each, and nothing
    /// is predicted across their border. The data must have an end-of-text token.
    pub document_mask: bool,
    /// Lengths of rows, from short to `train.seq_len`, into which documents are packed: the longest left opens the
    /// shortest row that holds it, and shorter ones fill it up. Every step has rows of one length, and about as many
    /// tokens as at `train.seq_len`, or the batch that `parallel.adaptive` has for it. Null: windows of
    /// `train.seq_len`, wherever documents end.
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
    /// The same, wherever the process that reads it runs: with absolute paths.
    pub(crate) fn with_absolute_paths(&self) -> Self {
        let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.into());
        let of_source = |source: &String| match data::is_name(source) || source.is_empty() {
            true => source.clone(),
            false => absolute(Path::new(source)).display().to_string(),
        };
        let validation = self.validation.as_ref().map(|validation| match validation {
            Validation::One(source) => Validation::One(of_source(source)),
            Validation::Named(sources) => {
                Validation::Named(sources.iter().map(|(name, source)| (name.clone(), of_source(source))).collect())
            }
        });
        let tokenizer = self.tokenizer.clone().map(|tokenizer| match tokenizer {
            TokenizerSpec::Path(path) => TokenizerSpec::Path(absolute(&path)),
            named => named,
        });
        Self { source: of_source(&self.source), tokenizer, validation, ..self.clone() }
    }

    /// Refuses what to validate on that does not fit together.
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
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

    /// The same for the data crate.
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
    /// Several, by name.
    Named(BTreeMap<String, String>),
}

impl Validation {
    /// The sources, each with its name, if it has one.
    pub(crate) fn sources(&self) -> Vec<(Option<&str>, &str)> {
        match self {
            Self::One(source) => vec![(None, source)],
            Self::Named(sources) => {
                sources.iter().map(|(name, source)| (Some(name.as_str()), source.as_str())).collect()
            }
        }
    }
}
