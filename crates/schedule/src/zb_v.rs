//! ZB-V is zero bubble with two chunks per stage: the first chunks run from the first stage to the last, the second
//! ones back, like a V. The first stage holds both ends of the model, and the last stage continues directly with its
//! own output.
//!
//! Source: Qi et al., [2401.10241](https://arxiv.org/abs/2401.10241), section 5, in the order of PyTorch's
//! `ScheduleZBVZeroBubble`. It needs as much memory as 1F1B. If forward, input gradient and weight gradient take the
//! same time, the only lost time is the way to the last stage.
//!
//! ```
//! # use schedule::*;
//! # let pipeline = Pipeline::new(Schedule::ZbV, 4, 2, 7).unwrap();
//! # let ticks = Ticks { forward: 1, input: 1, weights: 1 };
//! # let timeline = simulate(&pipeline, &pipeline.program(), &|_, action| ticks.of(action), Links::FREE).unwrap();
//! # assert_eq!(timeline.picture(), "\
//! 0  F0 F1 F2 F3 F4 F5 F6 f0 i0 w0 f1 i1 w1 f2 i2 w2 f3 i3 w3 I0 W0 f4 i4 w4 I1 W1 f5 i5 w5 I2 W2 f6 i6 w6 I3 W3 I4 W4 I5 W5 I6 W6 .  .  .
//! 1  .  F0 F1 F2 F3 F4 f0 F5 f1 i0 w0 f2 i1 w1 f3 i2 w2 F6 I0 W0 f4 i3 w3 I1 W1 f5 i4 w4 I2 W2 f6 i5 w5 I3 i6 I4 W3 I5 W4 I6 W5 w6 W6 .  .
//! 2  .  .  F0 F1 F2 f0 F3 f1 F4 f2 i0 w0 f3 i1 w1 F5 I0 W0 f4 i2 w2 F6 I1 W1 f5 i3 w3 I2 W2 f6 i4 w4 I3 i5 I4 i6 I5 W3 I6 W4 w5 w6 W5 W6 .
//! 3  .  .  .  F0 f0 F1 f1 F2 f2 F3 f3 i0 w0 F4 I0 W0 f4 i1 w1 F5 I1 W1 f5 i2 w2 F6 I2 W2 f6 i3 w3 I3 i4 I4 i5 I5 i6 I6 W3 w4 w5 w6 W4 W5 W6
//! # ");
//! ```

use crate::{Action, Cell, Pipeline, Ticks};

/// What a stage does with one of its two chunks.
#[derive(Clone, Copy)]
enum Do {
    F,
    I,
    W,
}

struct Order {
    /// The stage's chunks.
    chunks: [usize; 2],
    micro_batches: usize,
    /// The number of times that each was done, per chunk.
    done: [[usize; 2]; 3],
    actions: Vec<Action>,
}

pub(crate) fn order(pipeline: &Pipeline, stage: usize) -> Vec<Action> {
    let (p, r) = (pipeline.stages(), stage);
    // The construction needs at least 2 p - 1 micro-batches. If there are fewer, `repeat` leaves out the excess cells.
    let m = pipeline.micro_batches().max(2 * p - 1);
    let mut order = Order {
        chunks: [r, 2 * p - 1 - r],
        micro_batches: pipeline.micro_batches(),
        done: Default::default(),
        actions: vec![],
    };
    order.repeat(2 * (p - r) - 1, &[(Do::F, 0)]);
    order.repeat(r, &[(Do::F, 1), (Do::F, 0)]);
    order.repeat(p - r, &[(Do::F, 1), (Do::I, 1), (Do::W, 1)]);
    while order.done[Do::F as usize][1] < m {
        if order.done[Do::F as usize][0] < m {
            order.repeat(1, &[(Do::F, 0)]);
        }
        order.repeat(1, &[(Do::I, 0), (Do::W, 0), (Do::F, 1), (Do::I, 1), (Do::W, 1)]);
    }
    order.repeat(r, &[(Do::I, 0), (Do::I, 1)]);
    order.repeat(p - r, &[(Do::I, 0), (Do::W, 0)]);
    order.repeat(m - order.done[Do::W as usize][1], &[(Do::W, 1)]);
    order.repeat(m - order.done[Do::W as usize][0], &[(Do::W, 0)]);
    order.actions
}

impl Order {
    fn repeat(&mut self, times: usize, what: &[(Do, usize)]) {
        for (what, chunk) in std::iter::repeat_n(what, times).flatten() {
            let done = &mut self.done[*what as usize][*chunk];
            let cell = Cell { chunk: self.chunks[*chunk], micro_batch: *done };
            *done += 1;
            if cell.micro_batch < self.micro_batches {
                self.actions.push(match what {
                    Do::F => Action::Forward(cell),
                    Do::I => Action::BackwardInput(cell),
                    Do::W => Action::BackwardWeights(cell),
                });
            }
        }
    }
}

/// Holds if the forward and both halves of the backward take the same time and there are at least 2 p - 1
/// micro-batches; there is no closed form otherwise.
pub(crate) fn bubble(pipeline: &Pipeline, Ticks { forward, input, weights }: Ticks) -> Option<u64> {
    let holds = forward == input && input == weights && pipeline.micro_batches() >= 2 * pipeline.stages() - 1;
    holds.then(|| (pipeline.stages() as u64 - 1) * forward)
}

pub(crate) fn live(pipeline: &Pipeline) -> usize {
    2 * pipeline.stages()
}
