//! The properties that all units of a rank share, and the stages that hold a unit.

use crate::api::precision::FloatType;
use crate::groups::placement::{Groups, ShardGroups};
use crate::shard::memory::{Category, Counted, Ledger};
use crate::{FsdpConfig, Strategy};
use burn::tensor::{DType, Device, Tensor};
use serde::{Deserialize, Serialize};

/// The stages of a pipeline that hold a unit, as seen from one stage.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct UnitStages {
    /// The first of these stages, which saves the unit's state.
    pub first: usize,
    /// Whether this rank's stage is one of them.
    pub is_here: bool,
    /// Whether this rank's stage is the first of them.
    pub is_first: bool,
    /// The index of their group in [`Groups::ties`], if there are several.
    pub tie: Option<usize>,
}

/// A class of parameters that are kept in the same way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Class {
    /// All parameters that are in no other class.
    Dense,
    /// Stacks of experts, cut along their first dimension: each of `ep` ranks holds a part of every stack.
    Expert,
    /// Heads and columns; each of `tp` ranks holds a part.
    Tensor,
    /// Like dense parameters, but always fp32.
    Fp32,
}

impl Class {
    pub const ALL: [Self; 4] = [Self::Dense, Self::Expert, Self::Tensor, Self::Fp32];
}

/// The properties that all units of a rank share, for one class of their parameters.
#[derive(Clone)]
pub(crate) struct Plan {
    pub class: Class,
    pub strategy: Strategy,
    pub param: FloatType,
    pub reduce: FloatType,
    /// The number of shards, S, and the number of this rank's shard.
    pub shards: usize,
    pub shard: usize,
    /// The number of parts into which each parameter is cut before it is sharded, and the number of this rank's part.
    pub parts: usize,
    pub part: usize,
    /// The number of ranks that hold this shard, and this rank's number among them.
    pub replicas: usize,
    pub replica: usize,
    pub rank: usize,
    /// The device on which the rank computes, and the device on which its share rests.
    pub device: Device,
    pub rest_device: Device,
    /// Whether the share rests in CPU memory. Data then crosses the bus in the type of its computation or reduction,
    /// and sums over micro-batches are computed where they rest.
    pub offloads: bool,
    pub ledger: Ledger,
}

impl Plan {
    pub fn new(config: &FsdpConfig, groups: &Groups) -> Self {
        let device = groups.world.device().clone();
        let alone = Self {
            class: Class::Dense,
            strategy: config.strategy,
            param: config.precision.param,
            reduce: config.precision.reduce,
            shards: 1,
            shard: 0,
            parts: 1,
            part: 0,
            replicas: 1,
            replica: 0,
            rank: groups.world.rank(),
            rest_device: if config.cpu_offload { Device::flex() } else { device.clone() },
            offloads: config.cpu_offload,
            device,
            ledger: Ledger::default(),
        };
        alone.of(Class::Dense, groups)
    }

    /// Returns the number of this rank's part of each parameter, and the number of parts.
    pub fn place(&self) -> [usize; 2] {
        [self.part, self.parts]
    }

    /// Returns the plan of another class.
    pub fn of(&self, class: Class, groups: &Groups) -> Self {
        let ShardGroups { shard, replicate, parts } = groups.of(class);
        Self {
            class,
            param: if class == Class::Fp32 { FloatType::Fp32 } else { self.param },
            shards: shard.world_size(),
            shard: shard.rank(),
            parts: parts.world_size(),
            part: parts.rank(),
            replicas: replicate.world_size(),
            replica: replicate.rank(),
            ..self.clone()
        }
    }

    /// Returns whether computing needs parameters that this rank does not hold, or not in the right type or place.
    pub fn gathers(&self) -> bool {
        let at_hand = self.shards == 1 && self.param == FloatType::Fp32 && self.device == self.rest_device;
        !at_hand && !self.replicates()
    }

    /// Returns whether all parameters rest here in the compute type: including those of other ranks, or as a 16-bit
    /// copy of the rank's own.
    pub fn replicates(&self) -> bool {
        match self.shards {
            1 => self.param != FloatType::Fp32 && !self.offloads,
            _ => !self.strategy.shards().parameters,
        }
    }

    /// Moves a gradient to where it rests, in fp32; it crosses in the type in which it arrives.
    pub fn to_rest(&self, gradient: Tensor<1>) -> Tensor<1> {
        gradient.to_device(&self.rest_device).cast(DType::F32)
    }

    pub fn count(&self, tensor: Tensor<1>, category: Category) -> Counted {
        Counted::new(tensor, category, &self.ledger)
    }
}
