//! 1F1B runs a backward as soon as one is ready and a forward otherwise, so few micro-batches are alive at once.
//!
//! Source: Narayanan et al., PipeDream, 1806.03377, with the flush of [2104.04473](https://arxiv.org/abs/2104.04473),
//! section 2.2.1. Stage r starts with p - 1 - r forwards, the number it can run before its first backward arrives.
//!
//! ```
//! # use schedule::*;
//! # let pipeline = Pipeline::new(Schedule::OneFOneB, 4, 1, 4).unwrap();
//! # let ticks = Ticks { forward: 1, input: 1, weights: 1 };
//! # let timeline = simulate(&pipeline, &pipeline.program(), &|_, action| ticks.of(action), Links::FREE).unwrap();
//! # assert_eq!(timeline.picture(), "\
//! 0  F0 F1 F2 F3 .  .  .  .  .  .  B0 =  .  B1 =  .  B2 =  .  B3 =
//! 1  .  F0 F1 F2 .  .  .  .  B0 =  F3 B1 =  .  B2 =  .  B3 =  .  .
//! 2  .  .  F0 F1 .  .  B0 =  F2 B1 =  F3 B2 =  .  B3 =  .  .  .  .
//! 3  .  .  .  F0 B0 =  F1 B1 =  F2 B2 =  F3 B3 =  .  .  .  .  .  .
//! # ");
//! ```

use crate::{Action, Cell, Pipeline, Ticks};

pub(crate) fn order(pipeline: &Pipeline, stage: usize) -> Vec<Action> {
    let m = pipeline.micro_batches();
    let cell = |micro_batch| Cell { chunk: stage, micro_batch };
    let (forward, backward) = (|i| Action::Forward(cell(i)), |i| Action::Backward(cell(i)));
    alternate(pipeline.stages() - 1 - stage, m, forward, backward)
}

/// Runs `warm_up` forwards, then alternates forwards and backwards until `all` of both are done.
pub(crate) fn alternate(
    warm_up: usize,
    all: usize,
    forward: impl Fn(usize) -> Action,
    backward: impl Fn(usize) -> Action,
) -> Vec<Action> {
    let warm_up = warm_up.min(all);
    let mut order: Vec<Action> = (0..warm_up).map(&forward).collect();
    for i in 0..all {
        order.extend((i + warm_up < all).then(|| forward(i + warm_up)));
        order.push(backward(i));
    }
    order
}

/// A stage waits for p - 1 forwards and p - 1 backwards of other stages until its first micro-batch returns.
pub(crate) fn bubble(pipeline: &Pipeline, ticks: Ticks) -> Option<u64> {
    Some((pipeline.stages() as u64 - 1) * ticks.all())
}

pub(crate) fn live(pipeline: &Pipeline, stage: usize) -> usize {
    pipeline.stages() - stage
}
