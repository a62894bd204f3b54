//! The executor of a step, from one call of a unit up to whole steps.

pub mod call_graph;
pub mod executor;
pub mod fsdp;
pub mod gathered;
pub mod gradients;
pub mod point_to_point;
pub mod vjp;
pub mod work;
