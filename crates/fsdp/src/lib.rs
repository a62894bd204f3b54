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
//! gathered, when it is freed and what is communicated stands in [`Fsdp::train_step`], to be read.
//!
//! | [`Strategy`] | parameters and optimizer at rest | forward, backward | gradients |
//! |---|---|---|---|
//! | `ddp` | whole, on every rank | local | all_reduce |
//! | `full_shard` | 1/N (ZeRO-3) | all_gather | reduce_scatter |
//!
//! Losses are means over the global batch, whatever the strategy and the number of ranks.

mod comm_thread;
mod config;
mod fsdp;
mod layout;
mod optimizer;
mod schedule;
mod shard;
mod unit;
mod vjp;

pub use config::{ActivationCheckpointing, FsdpConfig, FsdpError, Strategy};
pub use fsdp::{Fsdp, StepReport};
pub use fused::AdamW;
pub use layout::{Layout, ParamLayout};
pub use shard::AtRest;
pub use unit::{Activation, UnitId, Units};
pub use vjp::vjp_seed;
