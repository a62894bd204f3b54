//! A unit's parameters, gradients and optimizer state on one rank: their layout, memory, optimizer step, and state on
//! disk.

pub mod copies;
pub mod flat_shard;
pub mod layout;
pub mod memory;
pub mod modules;
pub mod optimizer;
pub mod pieces;
pub mod sharded_unit;
pub mod state;
pub mod storage;
pub mod tensor_shard;
pub mod weights;
