//! Interleaved 1F1B gives each stage v chunks, p chunks apart, so a micro-batch returns to a stage after 1/v of the
//! time.
//!
//! Source: Narayanan et al., [2104.04473](https://arxiv.org/abs/2104.04473), section 2.2.2, in Megatron-Core's order.
//! Micro-batches are processed in rounds: a round passes through a stage's first chunk, then through its second one,
//! and so on. The schedule sends v times as much data as 1F1B.
//!
//! Any number m of micro-batches works. There are floor(m / p) rounds, but at least one, and the first rounds take one
//! micro-batch more if m does not divide evenly: m = 7 on three stages makes rounds of 4 and 3. A round of p or more
//! keeps every stage busy until its first micro-batch returns for the next chunk. A shorter round, which occurs only if
//! m < p, leaves gaps between chunks. PyTorch forms rounds in the same way but refuses unequal ones; the last round of
//! Megatron-Core may be larger or smaller than the others.
//!
//! A micro-batch returns from the last stage to the first p turns after it left. In a round of more than p it is
//! received on arrival rather than at its turn, so that a sending stage never waits for a turn that depends on its own
//! next one.
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
//!
//! Five micro-batches on two stages in rounds of 3 and 2:
//!
//! ```
//! # use schedule::*;
//! # let pipeline = Pipeline::new(Schedule::Interleaved1F1B, 2, 2, 5).unwrap();
//! # let ticks = Ticks { forward: 1, input: 1, weights: 1 };
//! # let timeline = simulate(&pipeline, &pipeline.program(), &|_, action| ticks.of(action), Links::FREE).unwrap();
//! # assert_eq!(timeline.picture(), "\
//! 0  F0 F1 F2 f0 f1 f2 .  b0 =  F3 b1 =  F4 b2 =  f3 B0 =  f4 B1 =  .  B2 =  .  b3 =  b4 =  B3 =  B4 =
//! 1  .  F0 F1 F2 f0 b0 =  f1 b1 =  f2 b2 =  F3 B0 =  F4 B1 =  f3 B2 =  f4 b3 =  b4 =  B3 =  B4 =  .  .
//! # ");
//! ```

use crate::one_f_one_b::alternate;
use crate::{Action, Cell, Direction, Pipeline, Ticks};
use std::ops::Range;

pub(crate) fn order(pipeline: &Pipeline, stage: usize) -> Vec<Action> {
    let (p, v) = (pipeline.stages(), pipeline.virtual_stages());
    // Each turn is one of the stage's chunks and a micro-batch.
    let mut turns = vec![];
    for round in rounds(pipeline) {
        turns.extend((0..v).flat_map(|chunk| round.clone().map(move |micro_batch| (chunk, micro_batch))));
    }
    let cell = |chunk: usize, micro_batch: usize| Cell { chunk: chunk * p + stage, micro_batch };
    let forward = |k: usize| {
        let (chunk, micro_batch) = turns[k];
        Action::Forward(cell(chunk, micro_batch))
    };
    let backward = |k: usize| {
        let (chunk, micro_batch) = turns[k];
        Action::Backward(cell(v - 1 - chunk, micro_batch))
    };
    alternate(warm_up(pipeline, stage), turns.len(), forward, backward)
}

/// Returns the micro-batches of each round. A round has at least p of them if m >= p. Rounds differ by at most one
/// micro-batch, and larger rounds come first.
fn rounds(pipeline: &Pipeline) -> impl Iterator<Item = Range<usize>> {
    let (m, rounds) = (pipeline.micro_batches(), (pipeline.micro_batches() / pipeline.stages()).max(1));
    let (each, more) = (m / rounds, m % rounds);
    let start = move |round: usize| round * each + round.min(more);
    (0..rounds).map(move |round| start(round)..start(round + 1))
}

/// Returns how many turns early the input of a cell is received: between the last stage and the first one, the number
/// of micro-batches that the round has beyond p.
pub(crate) fn early(pipeline: &Pipeline, stage: usize, way: Direction, cell: Cell) -> usize {
    let goes_round = match way {
        Direction::Forward => stage == 0,
        Direction::Backward => stage + 1 == pipeline.stages(),
    };
    let round = rounds(pipeline).find(|round| goes_round && round.contains(&cell.micro_batch));
    round.map_or(0, |round| round.len().saturating_sub(pipeline.stages()))
}

/// Returns the number of forwards before the first backward can arrive: one round through all chunks but the last, plus
/// the way to the last stage and back.
fn warm_up(pipeline: &Pipeline, stage: usize) -> usize {
    let (p, v) = (pipeline.stages(), pipeline.virtual_stages());
    let first = rounds(pipeline).next().map_or(0, |round| round.len());
    (v - 1) * first + 2 * (p - 1 - stage)
}

/// The bubble of 1F1B, but made of chunks, each of which costs 1/v of a stage. With fewer micro-batches than stages, a
/// stage also waits in each of its chunks for the missing ones.
pub(crate) fn bubble(pipeline: &Pipeline, ticks: Ticks) -> Option<u64> {
    let (p, v, m) = (pipeline.stages(), pipeline.virtual_stages(), pipeline.micro_batches());
    let chunks = v * p.saturating_sub(m) + p.min(m) - 1;
    Some(chunks as u64 * ticks.all())
}

pub(crate) fn live(pipeline: &Pipeline, stage: usize) -> usize {
    warm_up(pipeline, stage) + 1
}
