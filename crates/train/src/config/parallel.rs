//! How a run is spread over ranks.

use super::{AdaptedKey, Adaptive, Config, PrecisionConfig};
use crate::flops;
use crate::words::count;
use comm::SequenceRanks;
use fsdp::{ActivationCheckpointing, AdamW, FsdpConfig, PipelineConfig, Prefetch, Schedule, Strategy, Wrap};
use schedule::deal;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How the run is spread over ranks; see [`FsdpConfig`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ParallelConfig {
    /// Number of ranks (the world size), which share devices where there are fewer. Flag: `--gpus`.
    pub gpus: usize,
    /// Stages of a pipeline, which divide the ranks and the model; 1 for none. What follows is about the `gpus / pp`
    /// ranks of a stage.
    pub pp: usize,
    /// The order in which stages work on micro-batches.
    pub schedule: Schedule,
    /// Chunks of the model that each stage has; null for 1, or 2 with a schedule that needs several.
    pub virtual_stages: Option<usize>,
    /// How many blocks each chunk has, the embedding being with the first and the head with the last; null: dealt so
    /// that all take about as long.
    pub stages: Option<Vec<usize>>,
    /// What each of N ranks holds of parameters, gradients and optimizer state. Also by the names `zero2`
    /// (`shard_grad_op`), `zero3` and `fsdp` (`full_shard`), and `hsdp` (`hybrid_shard`). Flag: `--strategy`.
    pub strategy: Strategy,
    /// Replicas within a stage, each of `gpus / pp / dp_replicate` ranks, over which `strategy` shards. With more than
    /// one it is hybrid, and `full_shard` is `hybrid_shard`. null for 2 with `hybrid_shard`, and else 1. Under `ddp`
    /// the number of copies, if it is given.
    pub dp_replicate: Option<usize>,
    /// Ranks that share what is sharded, of each replica; null for what `pp` and the replicas leave. Given, `pp`,
    /// replicas and this multiply to `gpus`.
    pub dp_shard: Option<usize>,
    /// Ranks that have a layer's experts together, a part each, for the tokens of all of them; 1 for all experts on
    /// every rank. It divides the experts and the ranks of a stage, or of a replica. An expert's parameters are then
    /// sharded by `strategy` over the ranks that have it.
    pub ep: usize,
    /// Ranks that compute the same sequences together: each has a part of the heads, of the MLPs' columns and of the
    /// vocabulary, and between them a part of each sequence's rows (tensor and sequence parallelism); 1 for none. It
    /// divides the ranks of a stage, or of a replica, the heads and the MLPs' widths. What is not cut is sharded by
    /// `strategy` over these ranks too.
    pub tp: usize,
    /// Ranks that have a part of each sequence's rows each, through all layers, keys and values going round them
    /// (context parallelism); 1 for none. It divides the ranks of a stage, or of a replica.
    pub cp: usize,
    /// What is kept, gathered and freed together.
    pub wrap: Wrap,
    /// Whether gathered parameters are freed after the forward, and gathered again for the backward.
    pub reshard_after_forward: bool,
    /// What is kept of the forward for the backward; the rest is recomputed.
    pub activation_checkpointing: ActivationCheckpointing,
    /// Types of gathered parameters and of gradients on their way; what rests is fp32.
    pub precision: PrecisionConfig,
    /// For GPUs: whether shards, their gradients and optimizer state rest in the CPU's memory, and the optimizer steps
    /// there.
    pub cpu_offload: bool,
    /// When the forward sends for the next block's parameters.
    pub forward_prefetch: Prefetch,
    /// When the backward sends for the next block's parameters.
    pub backward_prefetch: Prefetch,
    /// Whether gradients are communicated with a step's last micro-batch only: less traffic, and each rank keeps whole
    /// gradients until then. null: where whole parameters are kept as long, which is `full_shard` and `hybrid_shard` in
    /// a pipeline. `ddp` and `zero1`, which keep whole gradients anyway, always do so.
    pub no_sync: Option<bool>,
    /// Whether `train.global_batch_size`, `train.micro_batch_size`, `parallel.tp` and
    /// `parallel.activation_checkpointing` follow `train.seq_len`: true for the guide's table, or rows of one's own. Of
    /// these keys those count that are given beside this one, or later; see docs/parallelism/adaptive.md.
    pub adaptive: Adaptive,
    /// Which keys the table of `adaptive` has decided; it is filled in. A shorter row (`data.buckets`) takes these from
    /// the table too. A key that is given later is left out from then on.
    pub adapted: Vec<AdaptedKey>,
}

impl Default for ParallelConfig {
    fn default() -> Self {
        let fsdp = FsdpConfig::default();
        Self {
            gpus: 1,
            pp: 1,
            schedule: Schedule::OneFOneB,
            virtual_stages: None,
            stages: None,
            strategy: fsdp.strategy,
            dp_replicate: fsdp.dp_replicate,
            dp_shard: None,
            ep: fsdp.ep,
            tp: fsdp.tp,
            cp: fsdp.cp,
            wrap: fsdp.wrap,
            reshard_after_forward: fsdp.reshard_after_forward,
            activation_checkpointing: fsdp.activation_checkpointing,
            precision: PrecisionConfig::default(),
            cpu_offload: fsdp.cpu_offload,
            forward_prefetch: fsdp.forward_prefetch,
            backward_prefetch: fsdp.backward_prefetch,
            no_sync: fsdp.no_sync,
            adaptive: Adaptive::Guide(false),
            adapted: vec![],
        }
    }
}

impl ParallelConfig {
    /// Ranks, or groups of `cp` x `tp` ranks, that share a batch: of each stage all, but under `block` each computes a
    /// part of the model for all of it.
    pub fn data_parallel_size(&self) -> usize {
        if self.strategy == Strategy::Block {
            1
        } else {
            (self.gpus / self.pp.max(1) / self.cp.max(1) / self.tp.max(1)).max(1)
        }
    }

    /// Chunks of the model on each stage; 1 without a pipeline, whatever its schedule would be.
    pub fn virtual_stages(&self) -> usize {
        match self.pp {
            1 => 1,
            _ => self.virtual_stages.unwrap_or(self.schedule.default_virtual_stages()),
        }
    }

    /// In a word or two: `full_shard`, `pp 4 x ep 4 x zero1`.
    pub(crate) fn describe(&self) -> String {
        let replicas = self.dp_replicate.filter(|_| self.strategy != Strategy::Ddp).unwrap_or(1);
        let axes = [("pp", self.pp), ("dp_replicate", replicas), ("cp", self.cp), ("tp", self.tp), ("ep", self.ep)]
            .into_iter()
            .filter(|(_, size)| *size > 1);
        axes.map(|(name, size)| format!("{name} {size} x ")).chain([self.strategy.name().into()]).collect()
    }

    /// The same in one stage.
    pub(crate) fn without_pipeline(&self) -> Self {
        Self { pp: 1, schedule: Schedule::OneFOneB, virtual_stages: None, stages: None, ..self.clone() }
    }
}

impl Config {
    /// What the sharding layer is told. The model's vocabulary must be known where it is cut into stages.
    pub(crate) fn fsdp(&self) -> FsdpConfig {
        self.fsdp_of_chunks(self.calls_of_chunks())
    }

    /// The same with so many calls in each chunk.
    pub(super) fn fsdp_of_chunks(&self, calls: Vec<usize>) -> FsdpConfig {
        let (parallel, optim) = (&self.parallel, &self.optim);
        let pipeline = match parallel.pp {
            1 => PipelineConfig::default(), // of a schedule that a run had with more stages nothing is left
            stages => {
                let (schedule, virtual_stages) = (parallel.schedule, parallel.virtual_stages());
                PipelineConfig { stages, schedule, virtual_stages, calls }
            }
        };
        FsdpConfig {
            pipeline,
            strategy: parallel.strategy,
            dp_replicate: parallel.dp_replicate,
            ep: parallel.ep,
            tp: parallel.tp,
            cp: parallel.cp,
            wrap: parallel.wrap,
            reshard_after_forward: parallel.reshard_after_forward,
            activation_checkpointing: parallel.activation_checkpointing,
            precision: parallel.precision.of_fsdp(),
            cpu_offload: parallel.cpu_offload,
            forward_prefetch: parallel.forward_prefetch,
            backward_prefetch: parallel.backward_prefetch,
            no_sync: parallel.no_sync,
            adamw: AdamW {
                beta1: optim.beta1,
                beta2: optim.beta2,
                epsilon: optim.epsilon,
                weight_decay: optim.weight_decay,
            },
            clip_grad_norm: (optim.clip_grad_norm > 0.0).then_some(optim.clip_grad_norm),
            allocated: None,
        }
    }

    /// A line on the replicas of what a stage shards, where there are several.
    pub(crate) fn describe_replicas(&self) -> Option<String> {
        let (fsdp, ranks) = (self.fsdp_of_chunks(vec![]), self.parallel.gpus / self.parallel.pp);
        let (replicas, hybrid) = (fsdp.replicas(), self.parallel.strategy == Strategy::HybridShard);
        let within = if hybrid { Strategy::FullShard } else { self.parallel.strategy };
        (replicas > 1).then(|| {
            let of = count(ranks / replicas, "rank");
            format!("hybrid: {replicas} replicas of {of} each, {} within a replica (dp_replicate)", within.name())
        })
    }

    /// The length of sequences, with the padding that makes it one that `tp` and `cp` divide.
    pub(crate) fn padded_length(&self) -> usize {
        let (length, ParallelConfig { tp, cp, .. }) = (self.train.seq_len, &self.parallel);
        length.next_multiple_of(SequenceRanks::divisor(*tp, *cp))
    }

    /// A line on that padding, where there is some.
    pub(crate) fn describe_padding(&self) -> Option<String> {
        let (length, padded, ParallelConfig { tp, cp, .. }) =
            (self.train.seq_len, self.padded_length(), &self.parallel);
        (padded > length).then(|| {
            format!(
                "sequences of {length} tokens are padded to {padded}, of which tp {tp} x cp {cp} take a multiple of {}",
                SequenceRanks::divisor(*tp, *cp)
            )
        })
    }

    /// How many of the model's calls (embedding, blocks, head) each chunk has; nothing without a pipeline. What is
    /// behind the blocks is all in the last one: between chunks activations are as wide as the model.
    fn calls_of_chunks(&self) -> Vec<usize> {
        let chunks = self.parallel.pp * self.parallel.virtual_stages();
        let behind = self.model.calls_behind_blocks();
        match &self.parallel.stages {
            _ if self.parallel.pp == 1 => vec![],
            Some(blocks) => {
                let mut calls = blocks.clone();
                let last = calls.len() - 1;
                calls[0] += 1;
                calls[last] += behind;
                calls
            }
            None => {
                let mut flops = flops::per_call(self);
                let last = flops.split_off(flops.len() - behind).iter().sum();
                flops.push(last);
                let mut calls = deal(&flops, chunks);
                calls[chunks - 1] += behind - 1;
                calls
            }
        }
    }

    /// Sequences that a rank computes at once of its share of the batch. In a pipeline there are four micro-batches a
    /// stage where nobody says how large they are and the share has as many sequences: then a fifth of the time or less
    /// is the pipeline's bubble.
    pub(crate) fn micro_batch_size(&self) -> usize {
        let (share, pp) = (self.share(), self.parallel.pp);
        match self.train.micro_batch_size {
            Some(micro) => micro.clamp(1, share),
            None if pp == 1 => share,
            None => share.div_ceil(pp.saturating_mul(4).min(share)),
        }
    }

    /// Sequences of a step that a rank computes at most.
    pub(super) fn share(&self) -> usize {
        self.train.global_batch_size.div_ceil(self.parallel.data_parallel_size()).max(1)
    }

    /// Micro-batches of a step on each rank.
    pub(crate) fn micro_batches(&self) -> usize {
        self.micro_batches_of(self.micro_batch_size())
    }

    fn micro_batches_of(&self, size: usize) -> usize {
        let at_once = size.saturating_mul(self.parallel.data_parallel_size());
        self.train.global_batch_size.div_ceil(at_once).max(1)
    }
}
