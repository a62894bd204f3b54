//! A training step as data: what each stage of a pipeline does, in which order, and a simulator that runs it.
//!
//! A model is cut into *chunks*, which follow each other; a *stage*, one rank of the pipeline or several that share the
//! work of one, holds one chunk or more. A *micro-batch* goes through all chunks forward and then through all of them
//! backward. A [`Pipeline`] says in which order: [`Pipeline::program`] is a list of [`Action`]s for each stage, which a
//! trainer interprets and [`simulate`] times. Nothing here knows a tensor.
//!
//! ```text
//! Schedule ─> order of computation ─> program: with messages ─> simulate: time line, bubble, what is alive
//! ```
//!
//! | [`Schedule`] | chunks a stage | bubble, of p stages | alive at most, of chunks on stage r |
//! |---|---|---|---|
//! | `gpipe` | 1 | (p - 1)(f + b) | m |
//! | `1f1b` | 1 | (p - 1)(f + b) | p - r |
//! | `interleaved_1f1b` | v | (p - 1)(f + b), from m = p on | (v - 1) g + 2 (p - 1 - r) + 1 |
//! | `zero_bubble` | 1 | (p - 1) max(f + i - w, f, i) | p |
//! | `zb_v` | 2 | (p - 1) f, where f = i = w | 2 p |
//!
//! f, i, w: what a chunk's forward takes for a micro-batch, its backward to the input, and that to the weights; and
//! b = i + w. There are m micro-batches, in rounds of at most g = m / floor(m / p), rounded up, which is p where p
//! divides m. A chunk of v on a stage has 1 / v of the stage's layers, so v times as many chunks mean v times shorter
//! bubbles. The *bubble* is the time in which a stage computes nothing, from the first action of any stage to the last
//! one's end, for a step ends everywhere at once.

mod action;
mod deal;
mod gpipe;
mod interleaved;
mod one_f_one_b;
mod pipeline;
mod program;
mod simulate;
mod timeline;
mod zb_v;
mod zero_bubble;

pub use action::{Action, Cell, Direction};
pub use deal::deal;
pub use pipeline::{Pipeline, PipelineError, Schedule, Ticks};
pub use simulate::{Fault, Links, simulate};
pub use timeline::{Event, Timeline};
