//! `train inspect`: prints the contents of a checkpoint.

use crate::commands::saved::{self, SavedError};
use crate::error::TrainError;
use crate::format::{count, human_count};
use crate::terminal::say;
use checkpoint::{Best, Checkpoint, CheckpointError, Elements, FileEntry, Index, Kind, Parameter};
use clap::Args;
use serde::Serialize;
use std::path::PathBuf;

/// Print the contents of a checkpoint: step, loss, layout, and every parameter with its shape and norm. Verifies all
/// digests.
#[derive(Debug, Args)]
pub struct InspectArgs {
    /// A run's folder (its newest checkpoint), RUN@best, RUN@12 (that step), or a folder step-N
    checkpoint: PathBuf,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &InspectArgs) -> Result<(), SavedError> {
    let checkpoint = Checkpoint::open(&saved::find(&args.checkpoint)?).map_err(TrainError::from)?;
    Ok(if args.json { print_json(&checkpoint) } else { print(&checkpoint) }?)
}

/// A parameter's shape, and the norms of its values and moments.
#[derive(Serialize)]
struct Norms<'a> {
    name: &'a str,
    shape: &'a [usize],
    norm: f64,
    /// Norms of AdamW's moments; `None` in a checkpoint before the first step.
    exp_avg: Option<f64>,
    exp_avg_sq: Option<f64>,
}

impl<'a> Norms<'a> {
    fn of(checkpoint: &Checkpoint, parameter: &'a Parameter) -> Result<Self, CheckpointError> {
        let mut elements = checkpoint.parameter(&parameter.name)?;
        let mut norm = |kind| norm(&mut elements, kind, parameter.len().unwrap_or_default());
        let value = norm(Kind::Param)?;
        let mut moment = |kind| checkpoint.index().kinds().contains(&kind).then(|| norm(kind)).transpose();
        let (exp_avg, exp_avg_sq) = (moment(Kind::ExpAvg)?, moment(Kind::ExpAvgSq)?);
        Ok(Self { name: &parameter.name, shape: &parameter.shape, norm: value, exp_avg, exp_avg_sq })
    }
}

fn print(checkpoint: &Checkpoint) -> Result<(), TrainError> {
    checkpoint.verify_all()?;
    let index = checkpoint.index();
    let loss = |loss: Option<f64>| loss.map_or("-".into(), |loss| format!("{loss:.4}"));
    let Index { step, tokens, world_size, strategy, optimizer_steps, .. } = index;
    say(&format!("{}: step {step}, {}", checkpoint.path().display(), human_count(*tokens as usize, "token")));
    say(&format!("loss {}, validation loss {}", loss(index.loss), loss(index.val_loss)));
    let (ranks, steps) = (count(*world_size, "rank"), count(*optimizer_steps as usize, "step"));
    say(&format!("written by {ranks} with {strategy}; {steps} of AdamW"));
    let width = index.parameters.iter().map(|parameter| parameter.name.len()).max().unwrap_or(0);
    say(&format!(
        "\n{:<width$}  {:>18}  {:>10}  {:>10}  {:>10}",
        "parameter", "shape", "norm", "exp_avg", "exp_avg_sq"
    ));
    for parameter in &index.parameters {
        let Norms { name, shape, norm, exp_avg, exp_avg_sq } = Norms::of(checkpoint, parameter)?;
        let [mean, square] = [exp_avg, exp_avg_sq].map(|norm| norm.map_or("-".into(), |norm| format!("{norm:.4e}")));
        let shape = format!("{shape:?}");
        say(&format!("{name:<width$}  {shape:>18}  {norm:>10.4}  {mean:>10}  {square:>10}"));
    }
    let total = index.parameters.iter().filter_map(Parameter::len).sum();
    say(&format!("\n{} in {}", human_count(total, "parameter"), count(index.parameters.len(), "tensor")));
    for file in index.files.iter().chain([&index.table]) {
        say(&format!("{:<24} {:>14} bytes  blake3 {}", file.name, file.bytes, file.blake3));
    }
    Ok(())
}

fn print_json(checkpoint: &Checkpoint) -> Result<(), TrainError> {
    #[derive(Serialize)]
    struct Contents<'a> {
        path: String,
        step: u64,
        seed: u64,
        tokens: u64,
        loss: Option<f64>,
        val_loss: Option<f64>,
        best: Option<Best>,
        world_size: usize,
        strategy: &'a str,
        optimizer_steps: u64,
        parameters: Vec<Norms<'a>>,
        files: Vec<&'a FileEntry>,
    }
    checkpoint.verify_all()?;
    let index = checkpoint.index();
    let norms = index.parameters.iter().map(|parameter| Norms::of(checkpoint, parameter));
    let contents = Contents {
        path: checkpoint.path().display().to_string(),
        step: index.step,
        seed: index.seed,
        tokens: index.tokens,
        loss: index.loss,
        val_loss: index.val_loss,
        best: index.best,
        world_size: index.world_size,
        strategy: &index.strategy,
        optimizer_steps: index.optimizer_steps,
        parameters: norms.collect::<Result<_, _>>()?,
        files: index.files.iter().chain([&index.table]).collect(),
    };
    say(&serde_json::to_string_pretty(&contents).expect("it is plain data"));
    Ok(())
}

/// The square root of the sum of squares, computed a million values at a time.
fn norm(elements: &mut Elements, kind: Kind, len: usize) -> Result<f64, CheckpointError> {
    const AT_ONCE: usize = 1 << 20;
    let mut square = 0.0;
    for start in (0..len).step_by(AT_ONCE) {
        let values = elements.read(kind, start..len.min(start + AT_ONCE))?;
        square += values.into_iter().map(|value| f64::from(value).powi(2)).sum::<f64>();
    }
    Ok(square.sqrt())
}
