//! What is the same for all units of a rank, and which stages hold a unit.

use crate::memory::{Category, Counted, Ledger};
use crate::placement::{Groups, Keepers};
use crate::precision::FloatType;
use crate::{FsdpConfig, Strategy};
use burn::tensor::{DType, Device, Tensor};
use serde::{Deserialize, Serialize};

/// The stages of a pipeline that hold a unit, seen from one of them.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Holders {
    /// The first of them: it keeps the unit's state.
    pub first: usize,
    /// Whether this rank's stage is one.
    pub is_here: bool,
    /// Whether it is the first.
    pub is_first: bool,
    /// Which of the groups of [`Groups::ties`] they are, if there are several.
    pub tie: Option<usize>,
}

/// Parameters that are kept alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Class {
    /// All but those of the other classes.
    Dense,
    /// Stacks of experts, cut along their first dimension: each of `ep` ranks has a part of every stack.
    Expert,
    /// Heads and columns, of which each of `tp` ranks has a part.
    Tensor,
    /// As dense ones, but fp32 whatever the precision is.
    Fp32,
}

impl Class {
    pub const ALL: [Self; 4] = [Self::Dense, Self::Expert, Self::Tensor, Self::Fp32];
}

/// What is the same for all units of a rank, for one class of their parameters.
#[derive(Clone)]
pub(crate) struct Plan {
    pub class: Class,
    pub strategy: Strategy,
    pub param: FloatType,
    pub reduce: FloatType,
    pub reduces_once: bool,
    /// S, and which of the S shards is this rank's.
    pub shards: usize,
    pub shard: usize,
    /// Into how many parts each parameter is cut before it is sharded, and which of them this rank has.
    pub parts: usize,
    pub part: usize,
    /// How many ranks hold this shard, and which of them this rank is.
    pub replicas: usize,
    pub replica: usize,
    pub rank: usize,
    /// Where the rank computes, and where its share rests.
    pub device: Device,
    pub rest_device: Device,
    /// Whether the share rests in the CPU's memory: then what crosses the bus has the type that it is computed with or
    /// reduced in, and sums of micro-batches are made where they rest.
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
            reduces_once: config.reduces_once(),
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

    /// Which of how many parts of each parameter this rank has.
    pub fn place(&self) -> [usize; 2] {
        [self.part, self.parts]
    }

    /// The same for another class.
    pub fn of(&self, class: Class, groups: &Groups) -> Self {
        let Keepers { shard, replicate, parts } = groups.of(class);
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

    /// Whether computing needs parameters that this rank does not hold, or not in the type or place that it needs.
    pub fn gathers(&self) -> bool {
        let at_hand = self.shards == 1 && self.param == FloatType::Fp32 && self.device == self.rest_device;
        !at_hand && !self.replicates()
    }

    /// Whether all parameters rest here in the type that they are computed with: other ranks' too, or a 16-bit copy of
    /// a rank's own.
    pub fn replicates(&self) -> bool {
        match self.shards {
            1 => self.param != FloatType::Fp32 && !self.offloads,
            _ => !self.strategy.shards().parameters,
        }
    }

    /// A gradient where it rests, in fp32: it crosses in the type that it comes in.
    pub fn to_rest(&self, gradient: Tensor<1>) -> Tensor<1> {
        gradient.to_device(&self.rest_device).cast(DType::F32)
    }

    pub fn count(&self, tensor: Tensor<1>, category: Category) -> Counted {
        Counted::new(tensor, category, &self.ledger)
    }
}
