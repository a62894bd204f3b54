//! A trained model from a checkpoint, whole and on one device.

use crate::config::Config;
use crate::error::TrainError;
use crate::plan::memory_check;
use crate::plan::units::new_model;
use crate::program;
use crate::run::end_of_text;
use crate::run::folder::{CONFIG, RUNS, config_in, run_of};
use crate::run::resume;
use burn::tensor::Device;
use checkpoint::{Checkpoint, CheckpointError, Folder, Kind, run_of_unknown, split_at};
use data::{OpenOptions, Prepared, Tokenizer, TokenizerSpec};
use model::AnyModel;
use std::path::{Path, PathBuf};

/// The checkpoint of a run, with its configuration.
pub(crate) struct Saved {
    pub checkpoint: Checkpoint,
    pub config: Config,
}

/// Why a trained model cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SavedError {
    #[error(transparent)]
    Train(#[from] TrainError),
    #[error("there is no run {}: {hint}", path.display())]
    NoRun { path: PathBuf, hint: String },
    #[error(
        "{path} is a Hugging Face folder: make a run of it with `{} import --hf {path} --out RUN`, and give that",
        program::name(),
        path = path.display()
    )]
    HuggingFace { path: PathBuf },
    #[error("{} was trained with a different tokenizer than {given} and has its own: omit --tokenizer", path.display())]
    OtherTokenizer { path: PathBuf, given: TokenizerSpec },
    #[error(
        "tokenizer {given} has {found} tokens, but the model only {vocab_size}: give the one that made the tokens it was trained on"
    )]
    Vocabulary { given: TokenizerSpec, found: usize, vocab_size: usize },
    #[error("--tokenizer char depends on the training text: give a tokenizer.json")]
    Characters,
}

/// Finds the checkpoint at `path`: the newest of a run's folder, `RUN@best`, `RUN@12`, or a folder `step-N`.
pub(crate) fn find(path: &Path) -> Result<PathBuf, SavedError> {
    let run = split_at(path).map(|(run, _)| run).or(run_of_unknown(path)).or(run_of(path)).unwrap_or(path);
    if !path.is_dir() && !run.is_dir() {
        let (path, among_runs) = (run, Path::new(RUNS).join(run));
        let hint = match among_runs.is_dir() {
            true => format!("did you mean {}?", among_runs.display()),
            false => format!("give a run's folder ({RUNS}/ has those without --out), or one of its checkpoints"),
        };
        return Err(SavedError::NoRun { path: path.into(), hint });
    }
    match Folder::find(path) {
        Err(_) if path.join("config.json").is_file() => Err(SavedError::HuggingFace { path: path.into() }),
        found => Ok(found.map_err(TrainError::from)?),
    }
}

impl Saved {
    /// Opens a run's folder or a folder `step-N`, and verifies every byte of it.
    pub fn open(path: &Path) -> Result<Self, SavedError> {
        Ok(Self::read(&find(path)?)?)
    }

    fn read(path: &Path) -> Result<Self, TrainError> {
        let checkpoint = Checkpoint::open(path)?;
        checkpoint.read_file(CONFIG)?; // verifies that it is unchanged
        let config = config_in(checkpoint.path())?;
        config.validate()?;
        checkpoint.expect(&config.parameters())?;
        checkpoint.verify_all()?;
        Ok(Self { checkpoint, config })
    }

    /// Reads a whole parameter by its path in the model.
    ///
    /// # Errors
    /// If a value is not finite: such a model is useless, but older versions of Kiln have saved some.
    pub fn parameter(&self, path: &str) -> Result<Vec<f32>, CheckpointError> {
        let parameter = self.checkpoint.index().parameters.iter().find(|parameter| parameter.name == path);
        let len = parameter.and_then(checkpoint::Parameter::len).unwrap_or_default();
        let values = self.checkpoint.read(path, Kind::Param, 0..len)?;
        CheckpointError::expect_finite(&values, self.checkpoint.path(), path)?;
        Ok(values)
    }

    /// Checks that all [`parameter`](Self::parameter)s are finite, before any of them is written elsewhere.
    pub fn expect_finite(&self) -> Result<(), CheckpointError> {
        self.checkpoint.index().parameters.iter().try_for_each(|of| self.parameter(&of.name).map(drop))
    }

    /// The model with its trained parameters.
    pub fn model(&self, device: &Device) -> Result<AnyModel, TrainError> {
        memory_check::check_model(&self.config).map_err(TrainError::Memory)?;
        Ok(new_model(&self.config, device).fill(|path, _| self.parameter(path))?)
    }

    /// The tokenizer the model was trained with, or if it has none, the `given` one.
    ///
    /// # Errors
    /// If the model has none and none is given, or if the given one differs from the model's own or has tokens outside
    /// its vocabulary.
    pub fn tokenizer(&self, given: Option<&TokenizerSpec>) -> Result<Tokenizer, SavedError> {
        let path = self.checkpoint.path();
        let own = resume::has_tokenizer(&self.checkpoint).then(|| Tokenizer::open(path)).transpose();
        let own = own.map_err(TrainError::from)?;
        let Some(spec) = given else {
            return own.ok_or_else(|| TrainError::NoTokenizer { path: path.into() }.into());
        };
        let tokenizer = spec.open().map_err(TrainError::from)?.ok_or(SavedError::Characters)?;
        let (found, vocab_size) = (tokenizer.vocab_size(), self.config.model.vocab_size());
        if own.is_some_and(|own| !own.same_as(&tokenizer)) {
            return Err(SavedError::OtherTokenizer { path: path.into(), given: spec.clone() });
        }
        if found > vocab_size {
            return Err(SavedError::Vocabulary { given: spec.clone(), found, vocab_size });
        }
        Ok(tokenizer)
    }

    /// Opens data for the model with its tokenizer, or if it has none, with the `given` one.
    ///
    /// # Errors
    /// See [`tokenizer`](Self::tokenizer); data that is already tokenized needs none.
    pub fn open_data(
        &self,
        source: &str,
        mut options: OpenOptions,
        given: Option<&TokenizerSpec>,
    ) -> Result<Prepared, SavedError> {
        if given.is_some() {
            self.tokenizer(given)?; // checks that it is the right one
        }
        if given.is_none() || resume::has_tokenizer(&self.checkpoint) {
            return Ok(resume::open_data(&self.checkpoint, source, options)?);
        }
        options.tokenizer = given.cloned();
        Ok(data::open(source, &options).map_err(TrainError::from)?)
    }

    /// The tokens that end a text: the tokenizer's, and others of an imported model.
    pub fn end_of_text(&self, tokenizer: &Tokenizer) -> Result<Vec<u32>, TrainError> {
        Ok(end_of_text::of(&self.checkpoint, tokenizer)?)
    }

    /// Names and contents of the tokenizer's files; empty for a run on tokens alone.
    pub fn tokenizer_files(&self) -> Result<Vec<(String, Vec<u8>)>, TrainError> {
        Ok(resume::tokenizer_files(&self.checkpoint)?)
    }
}
