//! Sharded data-parallel training, unit by unit.
//!
//! A *unit* is an ordinary Burn module whose parameters are kept, gathered and freed together: a transformer block, say. A
//! model is handed over as [`Units`]: modules, and the calls a forward makes of them. This crate knows no model and no token.
//!
//! ```text
//! forward   for each call:            gather (prefetched while the one before computes) -> bind -> run -> free
//! backward  for each call, reversed:  gather (prefetched) -> bind -> [recompute] -> vjp -> reduce_scatter -> free
//! step      clip by the global norm, AdamW on this rank's shard
//! ```
//!
//! PyTorch's FSDP hooks into one autograd graph of the whole model. Here every call is a small graph of its own: its input
//! is a leaf, and its output is seeded with the incoming cotangent (`vjp_seed`). So the schedule is explicit: what is
//! gathered, when it is freed and what is communicated stands in `schedule.rs`, to be read. `examples/mlp.rs` is a worked example.
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
//! Losses are means over the global batch, whatever the strategy and the number of ranks.

mod call;
mod comm_thread;
mod config;
mod forecast;
mod fsdp;
mod group;
mod layout;
mod memory;
mod optimizer;
mod placement;
mod precision;
mod schedule;
mod shard;
mod state;
mod storage;
mod unit;
mod vjp;
mod wire;

pub use config::{ActivationCheckpointing, FsdpConfig, FsdpError, Prefetch, Strategy, Wrap};
pub use forecast::{CallBytes, Forecast, ForecastRun};
pub use fsdp::{Fsdp, NonFinite, Placement, StepReport};
pub use fused::AdamW;
pub use layout::{Layout, ParamLayout};
pub use memory::{Bytes, Category, Memory};
pub use precision::{FloatType, Precision};
pub use state::{PartValues, Progress, ReadPart, State, StatePart, WantedPart};
pub use unit::{Activation, UnitId, Units};
pub use vjp::vjp_seed;
