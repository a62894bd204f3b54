//! The executor of a step, from one call of a unit up to whole steps.

pub mod chunk;
pub mod fsdp;
pub mod interpreter;
pub mod point_to_point;
pub mod vjp;
pub mod work;
