//! Interleaved 1F1B: a stage holds v chunks, p apart, so that a micro-batch is back at a stage after a v-th of the time.
//!
//! Narayanan et al., [2104.04473](https://arxiv.org/abs/2104.04473), section 2.2.2; Megatron-Core's order. Micro-batches go in rounds of p: those of a
//! round through a stage's first chunk, then through its second one, and so on. It sends v times as much as 1F1B.
//!
//! ```
//! # use schedule::*;
//! # let pipeline = Pipeline::new(Schedule::Interleaved1F1B, 4, 2, 4).unwrap();
//! # let ticks = Ticks { forward: 1, input: 1, weights: 1 };
//! # let timeline = simulate(&pipeline, &pipeline.program(), &|_, action| ticks.of(action), Links::FREE).unwrap();
//! # assert_eq!(timeline.picture(), "\
//! 0  F0 F1 F2 F3 f0 f1 f2 f3 .  .  .  .  .  .  b0 =  .  b1 =  .  b2 =  .  b3 =  B0 =  B1 =  B2 =  B3 =
//! 1  .  F0 F1 F2 F3 f0 f1 f2 f3 .  .  .  b0 =  .  b1 =  .  b2 =  .  b3 =  B0 =  B1 =  B2 =  B3 =  .  .
//! 2  .  .  F0 F1 F2 F3 f0 f1 f2 .  b0 =  f3 b1 =  .  b2 =  .  b3 =  B0 =  B1 =  B2 =  B3 =  .  .  .  .
//! 3  .  .  .  F0 F1 F2 F3 f0 b0 =  f1 b1 =  f2 b2 =  f3 b3 =  B0 =  B1 =  B2 =  B3 =  .  .  .  .  .  .
//! # ");
//! ```

use crate::one_f_one_b::alternate;
use crate::{Action, Cell, Pipeline, Ticks};

pub(crate) fn order(pipeline: &Pipeline, stage: usize) -> Vec<Action> {
    let (p, v) = (pipeline.stages(), pipeline.virtual_stages());
    let all = pipeline.micro_batches() * v;
    // The k-th turn: which of the stage's chunks, and which micro-batch.
    let turn = |k: usize| (k % (p * v) / p, k / (p * v) * p + k % p);
    let cell = |chunk: usize, micro_batch: usize| Cell { chunk: chunk * p + stage, micro_batch };
    let forward = |k| {
        let (chunk, micro_batch) = turn(k);
        Action::Forward(cell(chunk, micro_batch))
    };
    let backward = |k| {
        let (chunk, micro_batch) = turn(k);
        Action::Backward(cell(v - 1 - chunk, micro_batch))
    };
    alternate(warm_up(pipeline, stage), all, forward, backward)
}

/// Forwards before the first backward can be there: a round through all chunks but the last, and the way to the last stage and back.
fn warm_up(pipeline: &Pipeline, stage: usize) -> usize {
    let (p, v) = (pipeline.stages(), pipeline.virtual_stages());
    (v - 1) * p + 2 * (p - 1 - stage)
}

/// As that of 1F1B, but of chunks, which cost a v-th.
pub(crate) fn bubble(pipeline: &Pipeline, ticks: Ticks) -> Option<u64> {
    Some((pipeline.stages() as u64 - 1) * ticks.all())
}

pub(crate) fn live(pipeline: &Pipeline, stage: usize) -> usize {
    warm_up(pipeline, stage) + 1
}
