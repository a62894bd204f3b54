//! Sharded training, unit by unit, in one stage or a pipeline of several.
//!
//! A *unit* is an ordinary Burn module whose parameters are kept, gathered and freed together: a transformer block,
//! say. A model is handed over as [`Units`]: modules, and the calls a forward makes of them. This crate knows no model
//! and no token.
//!
//! ```text
//! forward   for each call:            gather (prefetched while the one before computes) -> bind -> run -> free
//! backward  for each call, reversed:  gather (prefetched) -> bind -> [recompute] -> vjp -> reduce_scatter -> free
//! step      clip by the global norm, AdamW on this rank's shard
//! ```
//!
//! With [`PipelineConfig`] the calls are cut into chunks over stages, each of as many ranks; what follows is then about
//! the ranks of a stage. A step is a program of the crate `schedule`, which `interpreter.rs` runs: without stages, each
//! micro-batch forward and backward.
//!
//! PyTorch's FSDP hooks into one autograd graph of the whole model. Here every call is a small graph of its own: its
//! input is a leaf, and its output is seeded with the incoming cotangent (`vjp_seed`). So the schedule is explicit:
//! what is gathered, when it is freed and what is communicated stands in `chunk.rs`, to be read. `examples/mlp.rs` is a
//! worked example.
//!
//! | [`Strategy`] | parameters and optimizer at rest | forward, backward | gradients |
//! |---|---|---|---|
//! | `ddp` | whole, on every rank | local | all_reduce |
//! | `zero1` | parameters whole, optimizer 1/N | local | reduce_scatter; all_gather of stepped parameters |
//! | `shard_grad_op` | parameters whole, gradients and optimizer 1/N | local | as `zero1`, for every micro-batch |
//! | `full_shard` | 1/N (ZeRO-3) | all_gather | reduce_scatter |
//! | `hybrid_shard` | 1/S in each of N/S groups | all_gather in the group | reduce_scatter in the group, all_reduce across |
//! | `block` | 1/N | gather to the block's rank; activations from rank to rank | scatter from the block's rank |
//!
//! Parameters rest in fp32. Computed with in 16 bits, those that are whole on a rank rest in that type too (not with
//! `cpu_offload`): AdamW writes the copy as it steps.
//!
//! Losses are means over all labels of the global batch, whatever the strategy, the number of ranks and their shares.

mod call;
mod chunk;
mod comm_thread;
mod config;
mod copies;
mod cut;
mod error;
mod forecast;
mod fsdp;
mod interpreter;
mod layout;
mod memory;
mod modules;
mod optimizer;
mod placement;
mod plan;
mod precision;
mod shapes;
mod shard;
mod sharded_unit;
mod state;
mod storage;
mod traffic;
mod unit;
mod vjp;
mod weights;
mod wire;
mod work;

pub use config::{ActivationCheckpointing, FsdpConfig, PipelineConfig, Prefetch, Strategy, Wrap};
pub use copies::{Copies, CopyDigest, compare_copies};
pub use error::FsdpError;
pub use forecast::{CallBytes, Forecast, ForecastRun};
pub use fsdp::{BeforeStep, Fsdp, NonFinite, StepReport, Unloaded};
pub use fused::AdamW;
pub use interpreter::StageTimes;
pub use layout::{Layout, ParamLayout};
pub use memory::{Bytes, Category, Memory};
pub use placement::Placement;
pub use precision::{FloatType, Precision};
pub use schedule::Schedule;
pub use state::{LossScale, Part, PartValues, Progress, ReadPart, State, StatePart};
pub use traffic::{CallTraffic, Received, Share, SharesRun};
pub use unit::{Activation, Loss, UnitId, Units};
pub use vjp::vjp_seed;
