//! Zero bubble (ZB-H1) is 1F1B with deferred weight gradients: a backward first computes the input gradient, which the
//! previous stage waits for, and weight gradients, which nothing waits for, fill the gaps.
//!
//! Source: Qi et al., [2401.10241](https://arxiv.org/abs/2401.10241), section 2.2. Stage r defers the weight gradients
//! of r micro-batches, so every stage keeps p micro-batches. (ZB-H2 has no bubble, for twice the memory, but needs an
//! optimizer that does not wait for the norm of all gradients.)
//!
//! ```
//! # use schedule::*;
//! # let pipeline = Pipeline::new(Schedule::ZeroBubble, 4, 1, 6).unwrap();
//! # let ticks = Ticks { forward: 1, input: 1, weights: 1 };
//! # let timeline = simulate(&pipeline, &pipeline.program(), &|_, action| ticks.of(action), Links::FREE).unwrap();
//! # assert_eq!(timeline.picture(), "\
//! 0  F0 F1 F2 F3 .  .  .  I0 W0 F4 I1 W1 F5 I2 W2 I3 W3 I4 W4 I5 W5
//! 1  .  F0 F1 F2 .  .  I0 F3 I1 W0 F4 I2 W1 F5 I3 W2 I4 W3 I5 W4 W5
//! 2  .  .  F0 F1 .  I0 F2 I1 F3 I2 W0 F4 I3 W1 F5 I4 W2 I5 W3 W4 W5
//! 3  .  .  .  F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 I4 W1 F5 I5 W2 W3 W4 W5
//! # ");
//! ```

use crate::{Action, Cell, Pipeline, Ticks};

pub(crate) fn order(pipeline: &Pipeline, stage: usize) -> Vec<Action> {
    let m = pipeline.micro_batches();
    let cell = |micro_batch| Cell { chunk: stage, micro_batch };
    let warm_up = (pipeline.stages() - 1 - stage).min(m);
    let mut order: Vec<Action> = (0..warm_up).map(|i| Action::Forward(cell(i))).collect();
    let mut weights = 0;
    for i in 0..m {
        order.extend((i + warm_up < m).then(|| Action::Forward(cell(i + warm_up))));
        order.push(Action::BackwardInput(cell(i)));
        if i + 1 - weights > stage {
            order.push(Action::BackwardWeights(cell(weights)));
            weights += 1;
        }
    }
    order.extend((weights..m).map(|i| Action::BackwardWeights(cell(i))));
    order
}

/// Holds for at least p micro-batches.
pub(crate) fn bubble(pipeline: &Pipeline, Ticks { forward, input, weights }: Ticks) -> Option<u64> {
    let longest = (forward + input).saturating_sub(weights).max(forward).max(input);
    (pipeline.micro_batches() >= pipeline.stages()).then(|| (pipeline.stages() as u64 - 1) * longest)
}

pub(crate) fn live(pipeline: &Pipeline) -> usize {
    pipeline.stages()
}
