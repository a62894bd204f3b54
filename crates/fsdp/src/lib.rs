//! Sharded training, unit by unit, in one stage or in a pipeline of several stages.
//!
//! A *unit* is an ordinary Burn module whose parameters are kept, gathered and freed together, for example a
//! transformer block. A model is passed as [`Units`]: modules, and the calls that a forward makes to them. [`Calls`]
//! builds them from one module, and the module's forward on one device then runs the same list. This crate knows
//! nothing of models or tokens.
//!
//! ```text
//! forward   for each call:            gather (prefetched while the previous one computes) -> bind -> run -> free
//! backward  for each call, reversed:  gather (prefetched) -> bind -> [recompute] -> vjp -> reduce_scatter -> free
//! step      clip by the global norm, the optimizer on this rank's shard
//! ```
//!
//! With [`PipelineConfig`] the calls are cut into chunks and assigned to stages with the same number of ranks;
//! everything below then applies to the ranks of one stage. Without stages, each micro-batch runs forward and
//! backward.
//!
//! PyTorch's FSDP hooks into one autograd graph of the whole model. Here every call has its own small graph: its input
//! is a leaf, and its output is seeded with the incoming cotangent (`vjp_seed`). The order of a step is therefore
//! explicit: the crate `schedule` lowers it to a list of [operations](Fsdp::operations) for each rank, which says what is
//! gathered, run, freed, reduced and sent, and when. `exec/executor.rs` runs the list, and the forecasts of memory and
//! traffic are sums over it.
//!
//! ```
//! use burn::module::Module;
//! use burn::nn::{Linear, LinearConfig};
//! use burn::optim::AdamConfig;
//! use burn::tensor::{Device, Tensor};
//! use fsdp::{Calls, Fsdp, FsdpConfig, FsdpError, Optimizers};
//!
//! #[derive(Module, Debug)]
//! struct Mlp { input: Linear, output: Linear }
//!
//! let device = Device::flex();
//! let mlp = Mlp { input: LinearConfig::new(4, 8).init(&device), output: LinearConfig::new(8, 1).init(&device) };
//! let losses = comm::run_ranks(vec![device; 2], comm::TIMEOUT, move |comm| {
//!     let mut calls = Calls::<Mlp, Tensor<2>>::new();
//!     calls.first("input", |mlp| &mlp.input, |linear, x| linear.forward(x.clone()));
//!     calls.last("output", |mlp| &mlp.output, |linear, h: Tensor<2>, x| {
//!         (linear.forward(h) - x.clone().sum_dim(1)).powi_scalar(2).mean()
//!     });
//!     let config = FsdpConfig { optimizers: Optimizers::new(AdamConfig::new().build()), ..FsdpConfig::default() };
//!     let mine = [Tensor::ones([3, 4], comm.device()) * comm.rank() as f32];
//!     let mut fsdp = Fsdp::new(calls.into_units(mlp.clone()), comm, config)?;
//!     let losses = (0..50).map(|_| Ok(fsdp.train_step(&mine, 1e-2)?.loss)).collect::<Result<Vec<f64>, FsdpError>>()?;
//!     let _trained: Option<Mlp> = fsdp.gather_model(mlp.clone(), true)?; // on every rank, to be saved by one
//!     Ok::<_, FsdpError>(losses)
//! })?;
//! assert!(losses[0][49] < losses[0][0]);
//! # Ok::<(), comm::RankFailure<FsdpError>>(())
//! ```
//!
//! Examples: `mlp`, `vision_transformer` (Burn's attention, the losses of one rank on four), `lora` (Burn's adapters
//! under every strategy) and `resume` (a checkpoint of four ranks on two).
//!
//! Ordinary Burn modules work, with these limits. Frozen parameters ([`Module::freeze`](burn::module::Module::freeze))
//! have no gradient. Burn's `Dropout` draws different numbers on each rank; it is refused with activation
//! checkpointing, because the recomputation would draw new numbers. Buffers, such as `BatchNorm`'s, are refused. Any
//! Burn optimizer that is [`Elementwise`] can step on shards.
//!
//! | [`Strategy`] | parameters and optimizer at rest | forward and backward | gradients |
//! |---|---|---|---|
//! | `ddp` | whole, on every rank | local | all_reduce |
//! | `zero1` | parameters whole, optimizer 1/N | local | reduce_scatter; all_gather of updated parameters |
//! | `shard_grad_op` | parameters whole, gradients and optimizer 1/N | local | as `zero1`, for every micro-batch |
//! | `full_shard` | 1/N (ZeRO-3) | all_gather | reduce_scatter |
//! | `hybrid_shard` | 1/S in each of N/S groups | all_gather in the group | reduce_scatter in it, all_reduce across |
//! | `block` | 1/N | gather to the block's rank; activations move from rank to rank | scatter from the block's rank |
//!
//! Parameters at rest are fp32. If computation is in 16 bits, parameters that are whole on a rank also have a resident
//! 16-bit copy (not with `cpu_offload`), which the optimizer updates in each step.
//!
//! The loss of a step is the mean of its micro-batches' losses over all ranks, for any strategy and number of ranks.
//! Micro-batches count alike in [`Fsdp::train_step`], and by their weights in [`Fsdp::train_step_with`]: give their
//! numbers of labels for the mean over all labels.
//!
//! Adapters on a sharded, frozen base, `cargo run --example lora`:
//!
//! ```ignore
#![doc = include_str!("../examples/lora.rs")]
//! ```

mod api;
mod exec;
mod forecast;
mod groups;
mod shard;

pub use api::activations::Activations;
pub use api::call::{CallOutput, Loss};
pub use api::calls::Calls;
pub use api::config::{ActivationCheckpointing, FsdpConfig, PipelineConfig, Strategy, Wrap};
pub use api::error::FsdpError;
pub use api::optimizers::{AnyOptimizer, Elementwise, Optimizers};
pub use api::precision::{FloatType, Precision};
pub use api::units::{UnitId, Units};
pub use exec::executor::{StageTimes, TimedOp};
pub use exec::fsdp::{Backward, BeforeStep, Fsdp, NonFinite, StepReport, Unloaded};
pub use exec::vjp::vjp_seed;
pub use forecast::offload::Offloaded;
pub use forecast::traffic::{CallTraffic, Operation, Received, Share, SharesRun, Transfer};
pub use forecast::{CallBytes, Forecast, ForecastRun};
pub use fused::FusedAdamW;
pub use groups::placement::Placement;
pub use schedule::{Op, Prefetch, Schedule};
#[doc(hidden)]
pub use shard::copies::{Copies, CopyDigest, compare_copies};
#[doc(hidden)]
pub use shard::layout::{Layout, ParamLayout};
pub use shard::memory::{Bytes, Category, Memory};
pub use shard::optimizer::MOMENTS;
pub use shard::pieces::{pieces, read_part};
pub use shard::state::{LossScale, Number, OptimizerState, Part, PartValues, Progress, ReadPart, State, StatePart};
