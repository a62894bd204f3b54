use crate::cli::say;
use crate::error::TrainError;
use crate::saved::{self, SavedError};
use crate::words::{count, human_count};
use checkpoint::{Checkpoint, CheckpointError, Elements, Index, Kind};
use clap::Args;
use std::path::PathBuf;

/// Prints what a checkpoint holds: step, loss, layout, and every parameter with its shape and norm. Checks all digests.
#[derive(Debug, Args)]
pub struct InspectArgs {
    /// A run's folder, or one of its checkpoints (checkpoints/step-N)
    checkpoint: PathBuf,
}

pub fn run(args: &InspectArgs) -> Result<(), SavedError> {
    Ok(print(&Checkpoint::open(&saved::find(&args.checkpoint)?).map_err(TrainError::from)?)?)
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
    let mut total = 0;
    for parameter in &index.parameters {
        let len = parameter.len().unwrap_or_default();
        total += len;
        let mut elements = checkpoint.parameter(&parameter.name)?;
        let mut norm = |kind: Kind| norm(&mut elements, kind, len);
        let values = norm(Kind::Param)?;
        let mut moment = |kind| match index.kinds().contains(&kind) {
            true => norm(kind).map(|norm| format!("{norm:.4e}")),
            false => Ok("-".into()),
        };
        let (mean, square) = (moment(Kind::ExpAvg)?, moment(Kind::ExpAvgSq)?);
        let shape = format!("{:?}", parameter.shape);
        say(&format!("{:<width$}  {shape:>18}  {values:>10.4}  {mean:>10}  {square:>10}", parameter.name));
    }
    say(&format!("\n{} in {}", human_count(total, "parameter"), count(index.parameters.len(), "tensor")));
    for file in index.files.iter().chain([&index.table]) {
        say(&format!("{:<24} {:>14} bytes  blake3 {}", file.name, file.bytes, file.blake3));
    }
    Ok(())
}

/// Square root of the sum of squares, a million values at a time.
fn norm(elements: &mut Elements, kind: Kind, len: usize) -> Result<f64, CheckpointError> {
    const AT_ONCE: usize = 1 << 20;
    let mut square = 0.0;
    for start in (0..len).step_by(AT_ONCE) {
        let values = elements.read(kind, start..len.min(start + AT_ONCE))?;
        square += values.into_iter().map(|value| f64::from(value).powi(2)).sum::<f64>();
    }
    Ok(square.sqrt())
}
