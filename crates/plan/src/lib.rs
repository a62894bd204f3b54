//! How long a training step takes on a cluster that need not exist.
//!
//! The operations of a step are those that the ranks would run ([`schedule::lower`]). Each one gets a time from the
//! rates of a [`Cluster`], and [`simulate`] runs them: a rank computes one operation after another, gathers and
//! reductions run beside it, and messages between pipeline stages arrive when they have been sent.
//!
//! ```text
//! Op, Work ──────────┐
//! Collective, Group ─┼─> Cluster: seconds ─> Task ─> simulate ─> Timeline ─> summary, Chrome trace, picture
//! rates of a cluster ┘
//! ```
//!
//! All times are seconds, all sizes bytes, all rates per second.
//!
//! * **Computation** is a sum of rooflines ([`Work`]): a matrix product of contracted dimension k reaches the fraction
//!   `product k / (k + product_half_k)` of the device's peak; attention has fractions of its own; everything else is
//!   bound by the memory's bandwidth.
//! * **Communication** is `latency hops + bytes / bandwidth` over the slowest link of the [`Group`].
//! * **Offload** to the CPU's memory is bound by each device's link and by that memory ([`Offload`]).
//! * **Ranks on a CPU** are threads that share its cores: each has an equal number of them, at least one, and more ranks
//!   than cores slow each other down ([`SharedCores`]).
//!
//! ```
//! use plan::{Cluster, Group, Collective};
//!
//! let cluster = Cluster::named("h100-sxm")?;
//! let node = Group::new((0..8).collect(), &cluster);
//! let seconds = cluster.communicate(Collective::AllGather, 1e9, &node);
//! assert!(seconds > 1e9 / 450e9);
//! # Ok::<(), plan::PlanError>(())
//! ```

pub mod chart;
mod chrome_trace;
mod cluster;
mod communication;
mod cores;
mod error;
mod offload;
mod picture;
mod simulate;
mod task;
mod timeline;
mod work;

pub use cluster::{Backend, Cluster, Device, Efficiency, Link, Peak};
pub use communication::{Collective, Group};
pub use cores::SharedCores;
pub use error::PlanError;
pub use offload::Offload;
pub use picture::{LEGEND, shown as shown_time};
pub use simulate::simulate;
pub use task::{Exchange, RankProgram, Task};
pub use timeline::{Activity, Span, Summary, Timeline};
pub use work::{Pass, Product, Work};
