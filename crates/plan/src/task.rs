//! What the ranks of a step do.

use schedule::Op;

/// An operation with its durations.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// The operation.
    pub op: Op,
    /// Seconds of computation, on a device that computes nothing else.
    pub compute: f64,
    /// Copies between the device and the CPU's memory. They follow the computation, and the rank computes nothing else
    /// meanwhile: a device takes copies and kernels in one order.
    pub copies: Option<Exchange>,
    /// What the rank receives. Gathers, reductions and values of other stages come beside computations; a run of a call
    /// and the optimizer's step wait for theirs.
    pub exchanges: Vec<Exchange>,
}

/// One exchange of a task.
#[derive(Debug, Clone, PartialEq)]
pub struct Exchange {
    /// The axes of its group.
    pub axes: String,
    /// Seconds that it takes.
    pub seconds: f64,
}

/// The tasks of a rank, which also stands for others that do the same at the same time.
#[derive(Debug, Clone, PartialEq)]
pub struct RankProgram {
    /// Stage of the pipeline.
    pub stage: usize,
    /// The rank.
    pub rank: usize,
    /// Number of ranks that it stands for.
    pub ranks: usize,
    /// What it does, in order.
    pub tasks: Vec<Task>,
}
