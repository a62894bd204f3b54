//! What a run does about failures.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a run does about failures.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ResilienceConfig {
    /// How many times a failed run is restarted from its newest checkpoint: if a rank panics or hangs, or if the process is
    /// killed. The program then runs as two processes, one of which supervises the other. Flag: `--restarts`.
    pub restarts: usize,
    /// The smallest number of ranks to continue with if devices are lost, or if fewer processes than ranks are started. The
    /// global batch stays the same. The number of data ranks shrinks first, then `ep`, `cp`, `pp` and `tp`. The next start
    /// with all devices uses the whole layout again. null requires all ranks.
    pub min_gpus: Option<usize>,
    /// Whether a failed allocation, or more than 90% used memory, leads to a restart on half the micro-batch, with the same
    /// global batch in more micro-batches. It requires `restarts`.
    pub dynamic_batch: bool,
    /// Whether a restart skips a step whose loss or gradient was not finite in three attempts (with
    /// `train.on_non_finite: stop`).
    pub skip_non_finite: bool,
    /// Steps between checkpoints in memory (/dev/shm); 0 saves none. A restart uses them if they are newer than those on
    /// disk. Each machine keeps the parts of its ranks and, with several machines, copies of those of another one, so they
    /// survive the loss of a machine. Two checkpoints must fit in memory. They require `restarts`.
    pub memory_every: usize,
}
