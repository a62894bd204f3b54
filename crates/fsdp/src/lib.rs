//! Sharded training, unit by unit, in one stage or in a pipeline of several stages.
//!
//! A *unit* is an ordinary Burn module whose parameters are kept, gathered and freed together, for example a
//! transformer block. A model is passed as [`Units`]: modules, and the calls that a forward makes to them. This crate
//! knows no model and no token.
//!
//! ```text
//! forward   for each call:            gather (prefetched while the previous one computes) -> bind -> run -> free
//! backward  for each call, reversed:  gather (prefetched) -> bind -> [recompute] -> vjp -> reduce_scatter -> free
//! step      clip by the global norm, AdamW on this rank's shard
//! ```
//!
//! With [`PipelineConfig`] the calls are cut into chunks and assigned to stages with the same number of ranks;
//! everything below then applies to the ranks of one stage. A step is a program of the crate `schedule`, run by
//! `interpreter.rs`. Without stages, the program runs each micro-batch forward and backward.
//!
//! PyTorch's FSDP hooks into one autograd graph of the whole model. Here every call has a small graph of its own: its
//! input is a leaf, and its output is seeded with the incoming cotangent (`vjp_seed`). The schedule is therefore
//! explicit: `chunk.rs` shows what is gathered, when it is freed and what is communicated. `examples/mlp.rs` is a
//! worked example.
//!
//! | [`Strategy`] | parameters and optimizer at rest | forward and backward | gradients |
//! |---|---|---|---|
//! | `ddp` | whole, on every rank | local | all_reduce |
//! | `zero1` | parameters whole, optimizer 1/N | local | reduce_scatter; all_gather of stepped parameters |
//! | `shard_grad_op` | parameters whole, gradients and optimizer 1/N | local | as `zero1`, for every micro-batch |
//! | `full_shard` | 1/N (ZeRO-3) | all_gather | reduce_scatter |
//! | `hybrid_shard` | 1/S in each of N/S groups | all_gather in the group | reduce_scatter in it, all_reduce across |
//! | `block` | 1/N | gather to the block's rank; activations move from rank to rank | scatter from the block's rank |
//!
//! Parameters at rest are fp32. If computation is in 16 bits, parameters that are whole on a rank also rest as a 16-bit
//! copy (not with `cpu_offload`), which AdamW writes as it steps.
//!
//! Losses are means over all labels of the global batch, for any strategy, number of ranks and distribution of the
//! labels.

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
