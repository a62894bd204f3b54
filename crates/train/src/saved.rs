//! A trained model from a checkpoint, whole and on one device.

use crate::config::{Config, Source};
use crate::memory_check;
use crate::resume;
use crate::run_folder::CONFIG;
use crate::trainer::TrainError;
use crate::units::Whole;
use burn::tensor::Device;
use checkpoint::{Checkpoint, CheckpointError, Folder, Kind};
use data::Tokenizer;
use model::fill;
use std::path::Path;

/// The newest checkpoint of a run, or one that was named.
pub(crate) struct Saved {
    pub checkpoint: Checkpoint,
    pub config: Config,
}

impl Saved {
    /// Opens a run's folder or a folder `step-N`, and checks every byte of it.
    pub fn open(path: &Path) -> Result<Self, TrainError> {
        let checkpoint = Checkpoint::open(&Folder::find(path)?)?;
        checkpoint.verify(0, 1)?;
        let config = Config::load(Source::File(&checkpoint.path().join(CONFIG)), &[])?;
        config.validate()?;
        checkpoint.expect(&crate::units::parameters(&config))?;
        Ok(Self { checkpoint, config })
    }

    /// The whole of a parameter, by its path in the model.
    pub fn parameter(&self, path: &str) -> Result<Vec<f32>, CheckpointError> {
        let parameter = self.checkpoint.index().parameters.iter().find(|parameter| parameter.name == path);
        let len = parameter.and_then(checkpoint::Parameter::len).unwrap_or_default();
        self.checkpoint.read(path, Kind::Param, 0..len)
    }

    /// The model with its trained parameters.
    pub fn model(&self, device: &Device) -> Result<Whole, TrainError> {
        memory_check::check_model(&self.config).map_err(TrainError::Memory)?;
        let values = |path: &str, _: &[usize]| self.parameter(path);
        Ok(match Whole::new(&self.config, device) {
            Whole::Gpt2(model) => Whole::Gpt2(fill(model, values)?),
            Whole::DeepSeek(model) => Whole::DeepSeek(fill(model, values)?),
        })
    }

    /// The tokenizer it was trained with.
    ///
    /// # Errors
    /// If it was trained on tokens whose tokenizer it was not given.
    pub fn tokenizer(&self) -> Result<Tokenizer, TrainError> {
        let path = self.checkpoint.path();
        match resume::has_tokenizer(&self.checkpoint) {
            true => Ok(Tokenizer::open(path)?),
            false => Err(TrainError::NoTokenizer { path: path.into() }),
        }
    }

    /// Names and bytes of the tokenizer's files; none of a run on tokens alone.
    pub fn tokenizer_files(&self) -> Result<Vec<(String, Vec<u8>)>, TrainError> {
        Ok(resume::tokenizer_files(&self.checkpoint)?)
    }
}
