//! Validation of options against each other and against the number of ranks.

use super::{ActivationCheckpointing, FsdpConfig, PipelineConfig, Strategy, Wrap};
use crate::FsdpError;
use comm::{Axis, MeshShape};

impl FsdpConfig {
    /// Returns the mesh of `world_size` ranks. Under `ddp`, which shards nothing, the inner axes are only as large as
    /// `ep` and the ranks of a sequence require; all other ranks are replicas.
    ///
    /// # Errors
    /// Returns an error if the sizes do not divide each other.
    pub fn mesh(&self, world_size: usize) -> Result<MeshShape, FsdpError> {
        let ranks = self.validate_pipeline(world_size)?;
        let shared = self.ranks_for_experts(world_size);
        let of = if self.replicas() > 1 { "of a replica" } else { "of a stage" };
        if self.ep == 0 || !shared.is_multiple_of(self.ep) {
            let fits = (1..=shared.min(self.ep)).rev().find(|fits| shared.is_multiple_of(*fits)).unwrap_or(1);
            return Err(FsdpError::Config(format!(
                "ep {} does not divide the number of ranks {of}, which is {shared}: use ep {fits}, for example",
                self.ep
            )));
        }
        let (pp, ep, tp, cp) = (self.pipeline.stages, self.ep, self.tp, self.cp);
        let together = tp.saturating_mul(cp);
        if together == 0 || !shared.is_multiple_of(together) {
            return Err(FsdpError::Config(format!(
                "tp {tp} x cp {cp} does not divide the number of ranks {of}, which is {shared}: take a divisor"
            )));
        }
        // The smallest number that both `ep` and the ranks of a sequence divide.
        let least = (1..).map(|times| times * together).find(|ranks| ranks.is_multiple_of(ep));
        let least = least.expect("their product is one");
        let sharded = if self.strategy.shards().optimizer { shared } else { least };
        let sizes = [
            (Axis::Pp, pp),
            (Axis::DpReplicate, ranks / sharded),
            (Axis::DpShard, sharded / together),
            (Axis::Cp, cp),
            (Axis::Tp, tp),
            (Axis::Ep, ep),
        ];
        Ok(MeshShape::new(&sizes))
    }

    /// Returns the number of ranks that [`ep`](Self::ep) must divide: those of a stage, or of a replica.
    pub fn ranks_for_experts(&self, world_size: usize) -> usize {
        let ranks = world_size / self.pipeline.stages.max(1);
        ranks / self.replicas().max(1)
    }

    /// Refuses a pipeline that does not fit the number of ranks; returns the number of ranks per stage.
    fn validate_pipeline(&self, world_size: usize) -> Result<usize, FsdpError> {
        let refuse = |reason: String| Err(FsdpError::Config(reason));
        let PipelineConfig { stages, schedule, virtual_stages, .. } = self.pipeline;
        let cut = stages.saturating_mul(virtual_stages) > 1 || schedule.splits_backward();
        let what = if stages > 1 { format!("pp {stages}") } else { format!("schedule {}", schedule.name()) };
        self.pipeline.of_a_round()?;
        if !world_size.is_multiple_of(stages) {
            let fits = world_size.next_multiple_of(stages);
            return refuse(format!(
                "pp {stages} does not divide the world size, {world_size}: use {fits} ranks, for example"
            ));
        }
        if cut && self.strategy == Strategy::Block {
            return refuse(format!("{what} with strategy block, which assigns blocks to ranks itself: use full_shard"));
        }
        Ok(world_size / stages)
    }

    /// Refuses replicas that do not fit the number of ranks per stage.
    ///
    /// # Errors
    /// Returns an error if the replicas cannot have the same number of ranks.
    pub fn validate_replicas(&self, ranks: usize) -> Result<(), FsdpError> {
        let replicas = self.replicas();
        if self.strategy == Strategy::Block && replicas != 1 {
            return Err(FsdpError::Config(format!(
                "dp_replicate {replicas} with strategy block, where one rank computes a block for all: use full_shard"
            )));
        }
        if replicas == 0 {
            return Err(FsdpError::Config("dp_replicate is 0: give at least 1".into()));
        }
        if !ranks.is_multiple_of(replicas) {
            return Err(FsdpError::Config(format!(
                "{replicas} replicas (dp_replicate) cannot share {}{} evenly",
                if ranks == 1 { "1 rank".into() } else { format!("{ranks} ranks") },
                if self.pipeline.stages > 1 { " of a stage" } else { "" },
            )));
        }
        Ok(())
    }

    /// Refuses options that make no sense together or on this number of ranks.
    pub fn validate(&self, world_size: usize) -> Result<(), FsdpError> {
        let refuse = |reason: String| Err(FsdpError::Config(reason));
        let ranks = self.validate_pipeline(world_size)?;
        self.validate_replicas(ranks)?;
        let mesh = self.mesh(world_size)?;
        let copies = mesh.ranks(&[Axis::DpReplicate]);
        if let Some(given) = self.dp_replicate.filter(|given| self.strategy == Strategy::Ddp && *given != copies) {
            let meant = match given {
                1 => "full_shard".into(),
                given => format!("hybrid_shard, for {given} replicas that each shard the model over their ranks"),
            };
            return refuse(format!(
                "dp_replicate {given} with strategy ddp, which has {} here: leave it out, or take {meant}",
                if copies == 1 { "1 copy".into() } else { format!("{copies} copies") }
            ));
        }
        if self.strategy == Strategy::Block {
            if self.ep > 1 {
                return refuse(format!(
                    "ep {} with strategy block, where one rank computes all of a block: use full_shard",
                    self.ep
                ));
            }
            if let Some((axis, size)) = [("tp", self.tp), ("cp", self.cp)].into_iter().find(|(_, size)| *size > 1) {
                return refuse(format!(
                    "{axis} {size} with strategy block, where one rank computes all of a block: use full_shard"
                ));
            }
            if let Wrap::Size(_) = self.wrap {
                return refuse(format!(
                    "wrap {} with strategy block: it places blocks on ranks one by one; take wrap block",
                    self.wrap
                ));
            }
            if self.no_sync == Some(true) {
                return refuse(
                    "no_sync with strategy block: the rank that computes a block keeps none of its gradients; leave it out"
                        .into(),
                );
            }
        }
        if !self.strategy.shards().parameters && !self.reshard_after_forward {
            return refuse(format!(
                "reshard_after_forward false with strategy {}: it never gathers parameters, so there is nothing to keep; leave \
                 it out",
                self.strategy.name()
            ));
        }
        if let Some(limit) = self.clip_grad_norm.filter(|limit| !limit.is_finite() || *limit <= 0.0) {
            return refuse(format!("clip_grad_norm {limit}: give a number above 0, or none for no limit"));
        }
        match self.activation_checkpointing {
            ActivationCheckpointing::Every(0) => {
                refuse("activation_checkpointing every:0: give every:1 for all calls, or none".into())
            }
            _ => Ok(()),
        }
    }
}
