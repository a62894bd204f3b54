//! The outline of a step, from which `schedule` makes the operations of each rank.

use crate::groups::placement::Stages;
use crate::{ActivationCheckpointing, FsdpConfig, Schedule};
use schedule::{CallOutline, Outline};

/// Returns the outline of a step. `units` are the units of the calls, `owners` the ranks that compute them under
/// `block`, and `gathers` returns whether a unit has parameters that must be gathered.
pub(crate) fn outline(
    config: &FsdpConfig,
    units: &[usize],
    stages: &Stages,
    owners: Option<&[usize]>,
    gathers: impl Fn(usize) -> bool,
) -> Outline {
    let calls = units.len();
    let call = |(i, unit): (usize, &usize)| CallOutline {
        unit: *unit,
        gathers: gathers(*unit),
        gathers_again: gathers(*unit) && gathers_again(config, i, calls),
        recomputes: recomputes(config, i, calls),
        owner: owners.map(|owners| owners[i]),
    };
    Outline {
        calls: units.iter().enumerate().map(call).collect(),
        chunks: stages.chunks().collect(),
        keeps_gathered: config.keeps_gathered(),
        reduces_once: config.reduces_once(),
        forward_prefetch: config.forward_prefetch,
        backward_prefetch: config.backward_prefetch,
    }
}

fn recomputes(config: &FsdpConfig, i: usize, calls: usize) -> bool {
    // Under gpipe all other micro-batches run in between.
    let is_last = i + 1 == calls && config.pipeline.schedule != Schedule::Gpipe;
    !is_last
        && match config.activation_checkpointing {
            ActivationCheckpointing::None => false,
            ActivationCheckpointing::Full => true,
            ActivationCheckpointing::Every(k) => (i + 1).is_multiple_of(k),
        }
}

/// The last call's parameters stay, because its backward follows at once; in a pipeline all stay.
fn gathers_again(config: &FsdpConfig, i: usize, calls: usize) -> bool {
    let is_last = i + 1 == calls;
    config.reshard_after_forward && !is_last && !config.keeps_gathered()
}
