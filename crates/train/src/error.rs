//! The errors of a run.

use crate::format::quoted;
use crate::hints;
use crate::host::attempt::Cause;
use crate::program;
use checkpoint::CheckpointError;
use comm::RankFailure;
use data::DataError;
use fsdp::FsdpError;
use model::ModelConfig;
use std::io;
use std::path::PathBuf;
use std::time::Duration;
use store::StoreError;

/// Why a run failed. Each message names the file, key or rank, and says what to do.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages are the documentation")]
#[non_exhaustive]
pub enum TrainError {
    /// Values of a configuration that are out of range or do not fit each other.
    #[error("{0}")]
    Config(String),

    #[error("cannot read {}{role}: {error}: {}", file.display(), how_to_read(error))]
    ConfigFile { file: PathBuf, role: String, error: io::Error },

    #[error("{origin} {}", what_is_wrong(error))]
    ConfigSyntax { origin: String, error: yaml_serde::Error },

    #[error("`base` is circular: {}: remove one of them", chain.join(" -> "))]
    ConfigCycle { chain: Vec<String> },

    #[error("there is no preset `{name}`: {hint}")]
    UnknownPreset { name: String, hint: String },

    #[error("--set {given}: give KEY=VALUE with a dotted key, as in --set optim.lr=3e-4")]
    Override { given: String },

    #[error("unknown key `{key}` in {origin}: {hint}")]
    UnknownKey { key: String, origin: String, hint: String },

    #[error("`{key}` is {given} in {origin}: give {expected}")]
    WrongValue { key: String, given: String, origin: String, expected: String },

    #[error(
        "`model.type` is missing in {origin}: give one of {}, or inherit one with `base: preset:NAME`",
        ModelConfig::types().join(", ")
    )]
    NoModel { origin: String },

    #[error("{}", hints::data(.0))]
    Data(#[from] DataError),

    #[error("{}: {problem}; resume from another checkpoint", path.display())]
    Trained { path: PathBuf, problem: String },

    #[error("{0}")]
    Device(String),

    #[error("cannot write the run folder {}: {source}: choose another with --out", path.display())]
    RunFolder { path: PathBuf, source: io::Error },

    #[error(
        "{} holds a run already: {}choose another folder with --out, or remove it",
        path.display(),
        if *has_checkpoint { format!("resume it with `{} --resume {}`, ", program::name(), quoted(&path.display().to_string())) } else { String::new() }
    )]
    RunExists { path: PathBuf, has_checkpoint: bool },

    #[error(
        "step {step}: the run folder {} is gone, deleted or moved while the run went on: if it was moved, resume it there with \
         `{} --resume DIR`, or else begin again",
        path.display(),
        program::name()
    )]
    FolderGone { path: PathBuf, step: usize },

    #[error("another process trains in {}: wait until it ends, stop it, or choose another folder with --out", path.display())]
    RunInUse { path: PathBuf },

    #[error(
        "the run folder {} of rank 0 is not there for this rank: give one with --out that is on a file system all machines share",
        path.display()
    )]
    NotShared { path: PathBuf },

    #[error("cannot write {}: {source}", path.display())]
    Metrics { path: PathBuf, source: io::Error },

    #[error("cannot {what}: {source}")]
    Supervisor { what: &'static str, source: io::Error },

    /// A fault on purpose.
    #[error("{0}")]
    Fault(String),

    #[error(
        "{available} of the run's {asked} ranks can start, and it needs {least}: bring the devices or machines back, or set \
         resilience.min_gpus lower"
    )]
    TooFewRanks { available: usize, asked: usize, least: usize },

    #[error(
        "no rank of this process has made progress for {seconds} s: each is stuck outside of any call of a collective"
    )]
    Silent { seconds: u64 },

    #[error("the checkpoint of step {step} is not saved, because another rank could not write its part")]
    NotSavedElsewhere { step: u64 },

    #[error(
        "step {step} is the last one with this micro-batch, because memory is nearly full (resilience.dynamic_batch)"
    )]
    NearlyFull { step: u64 },

    #[error("cannot read the record {}: {source}: remove it", path.display())]
    FlightRecord { path: PathBuf, source: io::Error },

    #[error("cannot start the threads of a rank: {0}")]
    Threads(rayon::ThreadPoolBuildError),

    #[error("step {step}: {what}; {last_good}: lower optim.lr, check the data, or set train.on_non_finite to skip")]
    NotFinite { step: usize, what: String, last_good: String },

    #[error(
        "step {step}: {what}; {skipped}; {last_good}: lower optim.lr, check the data, or skip more with --set train.max_skips=N"
    )]
    Skipped { step: usize, what: String, skipped: String, last_good: String },

    #[error(
        "the checkpoint of step {step} is not saved, because parameter {parameter} is not finite (it has the value {value}); {last_good}: \
         lower optim.lr, or check the data"
    )]
    NotSaved { step: u64, parameter: String, value: f32, last_good: String },

    #[error(
        "there is token {token} in the data, and model.vocab_size is {vocab_size}: give the tokenizer that made the data \
         (data.tokenizer), or a model with its vocabulary"
    )]
    Token { token: u32, vocab_size: usize },

    #[error(
        "{key} is set, but nothing says where documents of {data} end: give the tokenizer that made its tokens (data.tokenizer), one that has an \
         end-of-text token, or remove the key"
    )]
    NoEndOfText { key: &'static str, data: String },

    #[error(
        "{} has no tokenizer that can be used: neither a run on tokens alone nor a model that was imported without one has one. Give \
         the one that made the model's tokens with --tokenizer FILE (in training with --set data.tokenizer=FILE)",
        path.display()
    )]
    NoTokenizer { path: PathBuf },

    #[error("{}", hints::checkpoint(.0))]
    Checkpoint(#[from] CheckpointError),

    #[error(
        "the checkpoint {} is not complete after {limit:?} (checkpoint.timeout): {what}: look at that disk, or give more time with \
         --set checkpoint.timeout=SECONDS; what all ranks have written is completed by --resume", path.display()
    )]
    SlowDisk { path: PathBuf, limit: Duration, what: String },

    #[error(
        "{0}; with --partial the run takes the parameters that fit, by name and shape, and begins with new ones for the others"
    )]
    OtherParameters(CheckpointError),

    #[error("{} is at step {step}, beyond train.steps, which is {steps}: give more with --steps", path.display())]
    Beyond { path: PathBuf, step: u64, steps: usize },

    #[error("finished at step {step}: give more with --steps ({})", path.display())]
    Finished { path: PathBuf, step: u64 },

    #[error(
        "ended early at step {step}, after {since} validations without a better loss (train.patience): give more with --set train.patience=N, \
         or null for no end before train.steps ({})", path.display()
    )]
    OutOfPatience { path: PathBuf, step: u64, since: u64 },

    #[error(
        "the run {0} has no checkpoint, so there is nothing to resume: start it anew with `--resume auto --out {1}` instead, or \
         name another run with --resume DIR",
        path.display(),
        quoted(&path.display().to_string())
    )]
    NoCheckpointYet { path: PathBuf },

    #[error("{}", hints::all_damaged(path, problems, upload.as_deref()))]
    AllDamaged { path: PathBuf, problems: Vec<String>, upload: Option<String> },

    #[error("{} is a run of a different model than --model {preset}: leave --model out, or choose another folder with --out", path.display())]
    OtherModel { path: PathBuf, preset: String },

    #[error("there is no run{of} in runs/: name one's folder with --resume DIR")]
    NoRun { of: String },

    #[error(
        "the ranks have found different checkpoints, this one {}: name the one that is meant with --resume DIR/checkpoints/step-N",
        path.display()
    )]
    OtherCheckpoint { path: PathBuf },

    #[error("checkpoint.upload: {0}")]
    Upload(StoreError),

    #[error(
        "checkpoint.upload: {url} has the checkpoints of another run, the newest of step {newest}: resume that run with `{} --resume {url}`, \
         or choose another place with --set checkpoint.upload=URL",
        program::name()
    )]
    UploadInUse { url: String, newest: u64 },

    #[error(
        "checkpoint.upload: {url} has later checkpoints than that of step {step}, the newest of step {newest}, and this folder did not \
         write them: if their run still trains, it needs the place. Name another one with --set checkpoint.upload=URL, or the same one \
         to continue there, where later checkpoints then no longer count"
    )]
    UploadInUseLater { url: String, step: u64, newest: u64 },

    #[error(
        "checkpoint.upload: checkpoints after step {step} must no longer count: {source}; or name another place with --set checkpoint.upload=URL"
    )]
    UploadKept { step: u64, source: StoreError },

    #[error("--resume: {0}")]
    Download(#[from] StoreError),

    #[error("{0}")]
    DataOfStore(StoreError),

    #[error(
        "{} does not have the {bytes} bytes of its object in the store: remove {}, and it is downloaded again",
        path.display(),
        copy.display()
    )]
    DamagedCopy { path: PathBuf, bytes: u64, copy: PathBuf },

    #[error("{url}: {problem}")]
    NotInStore { url: String, problem: String },

    #[error("{} exists and is not an empty folder: name a new one with --out", path.display())]
    FolderInUse { path: PathBuf },

    #[error("another process has trained in {} in the meantime: start again to resume from its checkpoint", path.display())]
    WentOn { path: PathBuf },

    #[error("--resume auto needs a run: name its folder with --out")]
    WhichRun,

    #[error("{0}")]
    Memory(String),

    #[error(
        "a checkpoint in memory that is newer than those in {} cannot be recovered: {why}: mend that and start again, or give up the \
         steps after the newest checkpoint on disk by removing its folder .supervisor",
        run.display()
    )]
    NotRecovered { run: PathBuf, why: String },

    #[error(
        "resilience.memory_every needs a folder in memory, and {} cannot be made: {source}: set it to 0",
        path.display()
    )]
    InMemory { path: PathBuf, source: io::Error },

    #[error(transparent)]
    Fsdp(#[from] FsdpError),

    #[error("{}{}", .0, remedy(.0))]
    Rank(#[from] Box<RankFailure<TrainError>>),

    /// A rank waited for others in vain; `told` says what the ranks' last calls tell of it.
    #[error("{failure}\n{told}")]
    Waited { failure: Box<RankFailure<TrainError>>, told: String },
}

impl TrainError {
    /// The cause, and the step that it is about, for a supervisor.
    pub(crate) fn cause(&self) -> (Cause, Option<u64>) {
        match self {
            Self::NotFinite { step, .. } => (Cause::NonFinite, Some(*step as u64)),
            Self::NearlyFull { step } => (Cause::NearlyFull, Some(step + 1)),
            Self::TooFewRanks { .. } => (Cause::TooFewRanks, None),
            Self::Rank(failure) | Self::Waited { failure, .. } => match &**failure {
                RankFailure::Failed { source, .. } => source.cause(),
                failure if is_out_of_memory(failure) => (Cause::OutOfMemory, None),
                _ => (Cause::Other, None),
            },
            _ => (Cause::Other, None),
        }
    }
}

/// Whether a device had too little memory; CubeCL reports it by a panic.
fn is_out_of_memory(failure: &RankFailure<TrainError>) -> bool {
    failure.to_string().contains("out of device memory")
}

/// Advice on a rank's failure, if its cause is known.
fn remedy(failure: &RankFailure<TrainError>) -> &'static str {
    if is_out_of_memory(failure) {
        "\n\nThe device has too little memory. What helps: a smaller train.micro_batch_size, \
         --set parallel.activation_checkpointing=full, or more ranks with --strategy full_shard."
    } else {
        ""
    }
}

/// Advice for a file that cannot be read.
fn how_to_read(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::InvalidData => "save it as UTF-8 (`iconv -f UTF-16 -t UTF-8`, or -f LATIN1)",
        io::ErrorKind::PermissionDenied => "check its permissions",
        _ => "check the path",
    }
}

/// The parser reads whole numbers beyond 64 bits but then fails to use them.
fn what_is_wrong(error: &yaml_serde::Error) -> String {
    match error.to_string() {
        message if message.contains("128") && message.contains("integer") => {
            format!("has a whole number that is too large: give at most {}", u64::MAX)
        }
        message => format!("is not valid YAML: {message}"),
    }
}
