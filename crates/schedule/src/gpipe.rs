//! GPipe runs all micro-batches forward and then all of them backward, in the same order.
//!
//! Source: Huang et al., GPipe, [1811.06965](https://arxiv.org/abs/1811.06965). The bubble is as long as that of 1F1B,
//! but all micro-batches are alive at once.
//!
//! ```
//! # use schedule::*;
//! # let pipeline = Pipeline::new(Schedule::Gpipe, 4, 1, 4).unwrap();
//! # let ticks = Ticks { forward: 1, input: 1, weights: 1 };
//! # let timeline = simulate(&pipeline, &pipeline.program(), &|_, action| ticks.of(action), Links::FREE).unwrap();
//! # assert_eq!(timeline.picture(), "\
//! 0  F0 F1 F2 F3 .  .  .  .  .  .  .  .  .  B0 =  B1 =  B2 =  B3 =
//! 1  .  F0 F1 F2 F3 .  .  .  .  .  .  B0 =  B1 =  B2 =  B3 =  .  .
//! 2  .  .  F0 F1 F2 F3 .  .  .  B0 =  B1 =  B2 =  B3 =  .  .  .  .
//! 3  .  .  .  F0 F1 F2 F3 B0 =  B1 =  B2 =  B3 =  .  .  .  .  .  .
//! # ");
//! ```

use crate::{Action, Cell, Pipeline, Ticks};

pub(crate) fn order(pipeline: &Pipeline, stage: usize) -> Vec<Action> {
    let cell = |micro_batch| Cell { chunk: stage, micro_batch };
    let all = 0..pipeline.micro_batches();
    all.clone().map(|i| Action::Forward(cell(i))).chain(all.map(|i| Action::Backward(cell(i)))).collect()
}

/// The last stage starts after p - 1 forwards, and the first stage waits for p - 1 backwards after that.
pub(crate) fn bubble(pipeline: &Pipeline, ticks: Ticks) -> Option<u64> {
    Some((pipeline.stages() as u64 - 1) * ticks.all())
}

pub(crate) fn live(pipeline: &Pipeline) -> usize {
    pipeline.micro_batches()
}
