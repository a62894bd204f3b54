//! A training step as data: the actions of each pipeline stage in order, and a simulator that runs them.
//!
//! A model is cut into consecutive *chunks*. A *stage* holds one or more chunks; it is one rank of the pipeline, or
//! several ranks that share its work. A *micro-batch* passes forward through all chunks and then backward through all
//! of them. A [`Pipeline`] defines the order: [`Pipeline::program`] lists the [`Action`]s of each stage, and [`simulate`]
//! times them. This crate does not handle tensors.
//!
//! ```text
//! Schedule ─> order of computations ─> program with messages ─> simulate: timeline, bubble, live cells
//!                                                            └> lower: operations of a rank
//! ```
//!
//! A chunk is a series of *calls* of *units*, whose parameters may be sharded over the ranks of a stage. [`lower()`]
//! lists the operations of a rank, one [`Op`] at a time: which unit is gathered, which call runs, what is freed, reduced
//! and sent, and when. Whatever needs to know a step reads that list.
//!
//! | [`Schedule`] | chunks per stage | bubble of p stages | most live cells on stage r |
//! |---|---|---|---|
//! | `gpipe` | 1 | (p - 1)(f + b) | m |
//! | `1f1b` | 1 | (p - 1)(f + b) | p - r |
//! | `interleaved_1f1b` | v | (p - 1)(f + b) if m >= p | (v - 1) g + 2 (p - 1 - r) + 1 |
//! | `zero_bubble` | 1 | (p - 1) max(f + i - w, f, i) if m >= p | p |
//! | `zb_v` | 2 | (p - 1) f if f = i = w and m >= 2 p - 1 | 2 p |
//!
//! f, i and w are the times that one chunk takes for the forward, the input gradient and the weight gradient of one
//! micro-batch; b = i + w. A step has m micro-batches. Interleaved 1F1B processes them in rounds of at most g = m /
//! floor(m / p), rounded up; g is p if p divides m. With v chunks per stage, a chunk has 1/v of the stage's layers, so
//! v times as many chunks make the bubble v times shorter. The *bubble* of a stage is the time in which it computes
//! nothing, from the start of the first action on any stage to the end of the last: a step ends on all stages at once.
//!
//! The example `draw` prints every schedule as a picture:
//!
//! ```
//! use schedule::{Links, Pipeline, Schedule, Ticks, simulate};
//!
//! let pipeline = Pipeline::new(Schedule::OneFOneB, 2, 1, 2)?;
//! let ticks = Ticks { forward: 1, input: 1, weights: 1 };
//! let timeline = simulate(&pipeline, &pipeline.program(), &|_, action| ticks.of(action), Links::FREE)?;
//! assert_eq!(timeline.picture(), "\
//! 0  F0 F1 .  .  B0 =  .  B1 =\n\
//! 1  .  F0 B0 =  F1 B1 =  .  .\n");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Every schedule as a picture, `cargo run --example draw`:
//!
//! ```ignore
#![doc = include_str!("../examples/draw.rs")]
//! ```

mod action;
mod error;
mod gpipe;
mod interleaved;
mod lower;
mod one_f_one_b;
mod op;
mod outline;
mod partition;
mod pipeline;
mod program;
mod simulate;
mod timeline;
mod zb_v;
mod zero_bubble;

pub use action::{Action, Cell, Direction};
pub use error::ScheduleError;
pub use lower::{lower, lower_forward, passes};
pub use op::{Keeps, Kind, Op, Peer, Value};
pub use outline::{CallOutline, Outline, Place, Prefetch};
pub use partition::partition;
pub use pipeline::{Pipeline, Schedule, Ticks};
pub use simulate::{Links, simulate};
pub use timeline::{Event, Timeline};
