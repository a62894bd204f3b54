//! What a run does about failures.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a run does about failures.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ResilienceConfig {
    /// How often a run that fails is started again from its last checkpoint: if a rank panics or is stuck, or if the
    /// process is killed. The program then runs as two processes, of which one supervises the other. Flag: `--restarts`.
    pub restarts: usize,
    /// The smallest number of ranks to continue with if some of the run's devices are gone, or fewer processes than
    /// ranks were started. The global batch stays the same, and the layout is the nearest that fits: data-parallel ranks
    /// go first, then `ep`, `cp`, `pp` and `tp`. The next start with all devices uses the whole layout again. null
    /// requires all ranks.
    pub min_gpus: Option<usize>,
    /// Whether a restart after memory ran out halves the micro-batch: the same global batch in more micro-batches.
    pub dynamic_batch: bool,
    /// Whether a restart skips a step whose loss or gradient was not finite in three attempts (with
    /// `train.on_non_finite: stop`).
    pub skip_non_finite: bool,
    /// Steps between checkpoints in the memory of this machine (/dev/shm), from which a restart goes on if they are newer
    /// than those on disk; 0 keeps none. Two of them must fit in the memory, and they need `restarts` and a run on one
    /// machine.
    pub memory_every: usize,
}
