//! `train import`.

use crate::commands::{HfFolderError, NotNew, check_new, open_hf};
use crate::config::{Config, LrSchedule, OptimConfig};
use crate::error::TrainError;
use crate::format::{count, human_count};
use crate::hints;
use crate::program;
use crate::run::end_of_text;
use crate::run::folder::{CONFIG, RunFolder};
use crate::terminal::say;
use burn::tensor::Device;
use checkpoint::{CheckpointError, Folder as Checkpoints, Index, Kind, Piece, Values, Written, write_rank};
use clap::Args;
use data::{DataError, Tokenizer, TokenizerSpec};
use model::AnyModel;
use model::ModelError;
use model::hf::Pretrained;
use std::fs;
use std::path::PathBuf;

/// Turn a Hugging Face model into a run at step 0, to train, evaluate or generate with.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// Folder with config.json and model.safetensors (or its shards and index); model_type gpt2, llama, mistral, qwen2,
    /// qwen3, mixtral, qwen3_moe, deepseek_v2 or deepseek_v3
    #[arg(long, value_name = "DIR")]
    hf: PathBuf,
    /// The run folder to create
    #[arg(long, value_name = "RUN")]
    out: PathBuf,
}

/// Why nothing was imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    #[error(transparent)]
    NotNew(#[from] NotNew),
    #[error(transparent)]
    Folder(#[from] HfFolderError),
    #[error(transparent)]
    Hf(#[from] ModelError),
    #[error("{}", hints::data(.0))]
    Tokenizer(#[from] DataError),
    #[error(transparent)]
    Train(#[from] TrainError),
    #[error("{}", hints::checkpoint(.0))]
    Checkpoint(#[from] CheckpointError),
    #[error(
        "{}: parameter {parameter} (Kiln's name) is not finite, it has the value {value}: nothing can be computed with such a model; give another",
        path.display()
    )]
    NotFinite { path: PathBuf, parameter: String, value: f32 },
}

pub fn run(args: &ImportArgs) -> Result<(), ImportError> {
    check_new(&args.out)?;
    let folder = open_hf(&args.hf)?;
    let run = RunFolder::at(&args.out);
    let mut config = for_fine_tuning();
    let pretrained = Pretrained::load(&folder, &Device::flex())?;
    let pieces = pieces(&pretrained.model);
    (config.model, config.moe) = (pretrained.config, pretrained.moe);
    if let Some(first) = pretrained.unread.first() {
        let (n, hf) = (count(pretrained.unread.len(), "tensor"), args.hf.display());
        eprintln!(
            "warning: {hf} has {n} beyond the model of its config.json, such as {first}: is it another model's file?"
        );
    }
    config.train.seq_len = config.model.context().1.min(MAX_SEQ_LEN);
    let (mut tokenizer, end_of_text) = (folder.tokenizer_files()?, folder.end_of_text()?);
    if tokenizer.iter().any(|(name, _)| name == "tokenizer.json") {
        Tokenizer::open(&args.hf)?; // a damaged one could not be repaired in the checkpoint
    }
    if !tokenizer.is_empty() {
        tokenizer.extend((!end_of_text.is_empty()).then(|| end_of_text::file(&end_of_text)));
        config.data.tokenizer =
            Some(TokenizerSpec::Path(std::path::absolute(run.tokenizer()).unwrap_or(run.tokenizer())));
    }
    let parameters: usize = pieces.iter().map(|(piece, _)| piece.len).sum();
    let run = RunFolder::create(Some(&args.out), "", &config)?;
    let checkpoint = write(&run, &config, tokenizer, pieces).inspect_err(|_| {
        let _ = fs::remove_dir_all(run.path()); // this process created it, or it was empty
    });
    let checkpoint = checkpoint.map_err(|error| match error {
        ImportError::Checkpoint(CheckpointError::NotFinite { parameter, value, .. }) => {
            ImportError::NotFinite { path: args.hf.clone(), parameter, value }
        }
        error => error,
    })?;
    say(&format!("imported {} to {}", human_count(parameters, "parameter"), checkpoint.display()));
    if config.data.tokenizer.is_none() {
        let hf = args.hf.display();
        say(&format!(
            "{hf} has no tokenizer: to train give one with --set data.tokenizer=FILE, to generate with --tokenizer FILE"
        ));
    }
    let Config { train, optim, .. } = &config;
    say(&format!(
        "set for fine-tuning: lr {:e}, constant after {} of warm-up, no weight decay, {} of {} tokens per step",
        optim.lr,
        count(optim.warmup_steps, "step"),
        count(train.global_batch_size, "sequence"),
        train.seq_len
    ));
    say(&format!("next: {} --resume {} --data FILE --steps N", program::name(), run.path().display()));
    Ok(())
}

/// Maximum tokens per sequence: GPT-2's context, which nanoGPT fine-tunes with.
const MAX_SEQ_LEN: usize = 1024;

/// Settings for fine-tuning: nanoGPT's learning rate and batch, and no weight decay, which would pull the weights to 0
/// instead of their pretrained values. There is no data yet.
fn for_fine_tuning() -> Config {
    let mut config = Config::default();
    config.data.source = String::new();
    config.train.global_batch_size = 32;
    config.train.micro_batch_size = Some(1);
    let schedule = LrSchedule::Constant;
    config.optim =
        OptimConfig { lr: 3e-5, min_lr: 3e-6, schedule, warmup_steps: 20, weight_decay: 0.0, ..config.optim };
    config
}

/// Writes the run with its checkpoint, and returns the checkpoint's folder.
fn write(
    run: &RunFolder,
    config: &Config,
    tokenizer: Vec<(String, Vec<u8>)>,
    pieces: Vec<(Piece, Values<'static>)>,
) -> Result<PathBuf, ImportError> {
    let mut files = tokenizer;
    if !files.is_empty() {
        run.write_tokenizer(&files)?;
    }
    files.push((CONFIG.into(), config.to_yaml().into_bytes()));
    let checkpoints = Checkpoints::of_run(run.path());
    write_rank(&checkpoints.partial(0), 0, &pieces, &Written::default())?;
    let index = Index { world_size: 1, strategy: "imported".into(), seed: config.train.seed, ..Index::default() };
    Ok(checkpoints.commit(index, &files)?)
}

/// Every parameter as a piece of a checkpoint.
fn pieces(model: &AnyModel) -> Vec<(Piece, Values<'static>)> {
    let mut pieces: Vec<(Piece, Values<'static>)> = vec![];
    model.for_each_parameter(|name, shape, value| {
        let (name, len) = (name.into(), shape.iter().product());
        let values = move |_: Kind| value.clone().into_data().try_into_vec::<f32>().expect("weights are read as f32");
        pieces.push((Piece { name, shape, region: None, offset: 0, len, has_moments: false }, Box::new(values)));
    });
    pieces
}
