use crate::cli::say;
use crate::config::{Config, ModelConfig};
use crate::trainer::{TrainError, human};
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Tensor};
use checkpoint::{CheckpointError, Folder as Checkpoints, Index, Kind, Piece, Values, write_rank};
use clap::Args;
use data::TokenizerSpec;
use model::hf::{Folder, HfError, Pretrained};
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Makes a run, at step 0, of a Hugging Face model: to train it on, evaluate it, or generate with it.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// Folder with config.json and model.safetensors (or its shards and index); model_type gpt2, deepseek_v2 or deepseek_v3
    #[arg(long, value_name = "DIR")]
    hf: PathBuf,
    /// The run's folder, a new one
    #[arg(long, value_name = "RUN")]
    out: PathBuf,
}

/// Why nothing was imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    #[error(transparent)]
    Hf(#[from] HfError),
    #[error(transparent)]
    Train(#[from] TrainError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
}

pub fn run(args: &ImportArgs) -> Result<(), ImportError> {
    let folder = Folder::open(&args.hf)?;
    let run = &args.out;
    if fs::read_dir(run).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(TrainError::RunExists { path: run.clone() }.into());
    }
    let pretrained = Pretrained::load(&folder, &Device::flex())?;
    let mut config = Config::default();
    let mut pieces = Pieces::default();
    match pretrained {
        Pretrained::Gpt2(shape, model) => {
            model.visit(&mut pieces);
            config.model = ModelConfig::Gpt2(shape);
        }
        Pretrained::DeepSeek(shape, moe, model) => {
            model.visit(&mut pieces);
            (config.model, config.moe) = (ModelConfig::DeepSeek(shape), Some(moe));
        }
    }
    config.train.seq_len = config.train.seq_len.min(config.model.context().1);
    let tokenizer = folder.tokenizer_files();
    let run_tokenizer = run.join("tokenizer");
    let unwritable = |source| TrainError::RunFolder { path: run.clone(), source };
    let mut extra = vec![];
    for path in &tokenizer {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        fs::create_dir_all(&run_tokenizer).map_err(unwritable)?;
        let bytes = fs::read(path).map_err(|source| HfError::Io { path: path.clone(), source })?;
        fs::write(run_tokenizer.join(&name), &bytes).map_err(unwritable)?;
        extra.push((name, bytes));
    }
    if !tokenizer.is_empty() {
        config.data.tokenizer = Some(TokenizerSpec::Path(run_tokenizer));
    }
    let yaml = config.to_yaml();
    extra.push(("config.yaml".into(), yaml.clone().into_bytes()));
    let checkpoints = Checkpoints::of_run(run);
    let parameters: usize = pieces.pieces.iter().map(|(piece, _)| piece.len).sum();
    let write = || -> Result<PathBuf, CheckpointError> {
        write_rank(&checkpoints.partial(0), 0, pieces.pieces)?;
        let index = Index { world_size: 1, strategy: "imported".into(), seed: config.train.seed, ..Index::default() };
        let extra: Vec<_> = extra.iter().map(|(name, bytes)| (name.as_str(), &bytes[..])).collect();
        checkpoints.commit(index, &extra)
    };
    let checkpoint = write()?;
    write_config(run, &yaml)?;
    say(&format!("imported {} parameters to {}", human(parameters), checkpoint.display()));
    say(&format!("go on with: train --resume {} --data FILE --steps N", run.display()));
    Ok(())
}

fn write_config(run: &Path, yaml: &str) -> Result<(), TrainError> {
    let written: io::Result<()> = fs::write(run.join("config.yaml"), yaml);
    written.map_err(|source| TrainError::RunFolder { path: run.into(), source })
}

#[derive(Default)]
struct Pieces {
    path: Vec<String>,
    pieces: Vec<(Piece, Values<'static>)>,
}

impl ModuleVisitor for Pieces {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let (value, shape) = (param.val(), param.lazy_shape().to_vec());
        let len = shape.iter().product();
        let piece = Piece { name: self.path.join("."), shape, offset: 0, len, has_moments: false };
        let values = move |_: Kind| value.clone().into_data().try_into_vec::<f32>().expect("weights are read as f32");
        self.pieces.push((piece, Box::new(values)));
    }
}
