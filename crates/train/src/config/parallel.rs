//! The distribution of a run over ranks.

use super::{AdaptedKey, Adaptive, Config, PrecisionConfig};
use crate::format::count;
use comm::SequenceRanks;
use fsdp::{
    ActivationCheckpointing, FsdpConfig, FusedAdamW, Optimizers, PipelineConfig, Prefetch, Schedule, Strategy, Wrap,
};
use schedule::partition;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How the run is distributed over ranks; see [`FsdpConfig`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ParallelConfig {
    /// Number of ranks (the world size); they share devices if there are fewer. Flag: `--gpus`.
    pub gpus: usize,
    /// Number of pipeline stages, which divide the ranks and the model; 1 for no pipeline. The sizes below apply to the
    /// `gpus / pp` ranks of a stage.
    pub pp: usize,
    /// The order in which stages process micro-batches.
    pub schedule: Schedule,
    /// Chunks of the model per stage; null means 1, or 2 with a schedule that needs several.
    pub virtual_stages: Option<usize>,
    /// Number of blocks in each chunk; the embedding belongs to the first chunk and the head to the last. null balances
    /// the chunks by compute time.
    pub stages: Option<Vec<usize>>,
    /// What each of N ranks holds of parameters, gradients and optimizer state. Aliases: `zero2` (`shard_grad_op`),
    /// `zero3` and `fsdp` (`full_shard`), `hsdp` (`hybrid_shard`). Flag: `--strategy`.
    pub strategy: Strategy,
    /// Replicas within a stage. `strategy` shards over the `gpus / pp / dp_replicate` ranks of each. With more than
    /// one, sharding is hybrid, and `full_shard` is the same as `hybrid_shard`. null means 2 with `hybrid_shard`, else
    /// 1. Under `ddp`, the number of copies, if given.
    pub dp_replicate: Option<usize>,
    /// Ranks that shard each replica; null takes all that remain. If given, `pp`, the replicas, `dp_shard`, `cp` and
    /// `tp` must multiply to `gpus`.
    pub dp_shard: Option<usize>,
    /// Expert parallelism: ranks that divide a layer's experts among them, each computing its part for the tokens of
    /// all; 1 keeps all experts on every rank. Must divide the number of experts and the ranks of a stage or replica.
    /// `strategy` then shards an expert's parameters over the ranks that hold it.
    pub ep: usize,
    /// Tensor and sequence parallelism: ranks that compute the same sequences together, each with a part of the heads,
    /// the MLP columns and the vocabulary, and between these a part of each sequence's rows; 1 for none. Must divide
    /// the ranks of a stage or replica, the heads and the MLP widths. `strategy` also shards parameters that are not
    /// cut over these ranks.
    pub tp: usize,
    /// Context parallelism: ranks that each hold a part of each sequence's rows through all layers, while KV blocks
    /// circulate among them; 1 for none. Must divide the ranks of a stage or replica.
    pub cp: usize,
    /// The unit of parameters that is sharded, gathered and freed together.
    pub wrap: Wrap,
    /// Whether gathered parameters are freed after the forward and gathered again for the backward.
    pub reshard_after_forward: bool,
    /// Which activations of the forward are kept for the backward; the rest are recomputed.
    pub activation_checkpointing: ActivationCheckpointing,
    /// Types of gathered parameters and of gradients in transit; resident state is fp32.
    pub precision: PrecisionConfig,
    /// For GPUs: whether shards, their gradients and optimizer state reside in CPU memory, and the optimizer runs
    /// there.
    pub cpu_offload: bool,
    /// When the forward requests the next block's parameters.
    pub forward_prefetch: Prefetch,
    /// When the backward requests the next block's parameters.
    pub backward_prefetch: Prefetch,
    /// Whether gradients are communicated only with a step's last micro-batch: less traffic, but each rank keeps whole
    /// gradients until then. null enables it if whole parameters are kept as long, as with `full_shard` and
    /// `hybrid_shard` in a pipeline. `ddp` and `zero1` keep whole gradients anyway and always do this.
    pub no_sync: Option<bool>,
    /// Whether `train.global_batch_size`, `train.micro_batch_size`, `parallel.tp` and
    /// `parallel.activation_checkpointing` follow `train.seq_len`: true for the built-in table, or rows of your own.
    /// Values of these keys that are given next to this one, or later, take precedence; see
    /// docs/parallelism/adaptive.md.
    pub adaptive: Adaptive,
    /// The keys that the table of `adaptive` has set; filled in automatically. Shorter rows (`data.buckets`) take these
    /// keys from the table too. A key that is given later is removed from this list.
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
            adaptive: Adaptive::BuiltIn(false),
            adapted: vec![],
        }
    }
}

impl ParallelConfig {
    /// Number of ranks, or groups of `cp` x `tp` ranks, that share a batch: all of a stage. Under `block` it is 1,
    /// because each rank computes a part of the model for the whole batch.
    pub fn data_parallel_size(&self) -> usize {
        if self.strategy == Strategy::Block {
            1
        } else {
            (self.gpus / self.pp.max(1) / self.cp.max(1) / self.tp.max(1)).max(1)
        }
    }

    /// Chunks of the model per stage; 1 without a pipeline, whatever its schedule.
    pub fn virtual_stages(&self) -> usize {
        match self.pp {
            1 => 1,
            _ => self.virtual_stages.unwrap_or(self.schedule.default_virtual_stages()),
        }
    }

    /// A short description: `full_shard`, `pp 4 x ep 4 x zero1`.
    pub(crate) fn describe(&self) -> String {
        let replicas = self.dp_replicate.filter(|_| self.strategy != Strategy::Ddp).unwrap_or(1);
        let axes = [("pp", self.pp), ("dp_replicate", replicas), ("cp", self.cp), ("tp", self.tp), ("ep", self.ep)]
            .into_iter()
            .filter(|(_, size)| *size > 1);
        axes.map(|(name, size)| format!("{name} {size} x ")).chain([self.strategy.name().into()]).collect()
    }

    /// The same layout without a pipeline.
    pub(crate) fn without_pipeline(&self) -> Self {
        Self { pp: 1, schedule: Schedule::OneFOneB, virtual_stages: None, stages: None, ..self.clone() }
    }
}

impl Config {
    /// The configuration of the sharding layer. If the model is cut into stages, its vocabulary must be known.
    pub(crate) fn fsdp(&self) -> FsdpConfig {
        self.fsdp_of_chunks(self.calls_of_chunks())
    }

    /// The same without the chunks of a pipeline, which take thousands of times as long to balance as all else. Meshes,
    /// replicas and the times of reductions do not depend on them.
    pub(crate) fn fsdp_without_chunks(&self) -> FsdpConfig {
        self.fsdp_of_chunks(vec![])
    }

    /// The same with this many calls in each chunk.
    fn fsdp_of_chunks(&self, calls: Vec<usize>) -> FsdpConfig {
        let (parallel, optim) = (&self.parallel, &self.optim);
        let pipeline = match parallel.pp {
            1 => PipelineConfig::default(), // drops the schedule of a run that had more stages
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
            optimizers: Optimizers::new(FusedAdamW {
                beta1: optim.beta1,
                beta2: optim.beta2,
                epsilon: optim.epsilon,
                weight_decay: optim.weight_decay,
            }),
            clip_grad_norm: (optim.clip_grad_norm > 0.0).then_some(optim.clip_grad_norm),
            allocated: None,
        }
    }

    /// A line on the replicas of what a stage shards, if there are several.
    pub(crate) fn describe_replicas(&self) -> Option<String> {
        let (fsdp, ranks) = (self.fsdp_without_chunks(), self.parallel.gpus / self.parallel.pp);
        let (replicas, hybrid) = (fsdp.replicas(), self.parallel.strategy == Strategy::HybridShard);
        let within = if hybrid { Strategy::FullShard } else { self.parallel.strategy };
        (replicas > 1).then(|| {
            let of = count(ranks / replicas, "rank");
            format!("hybrid: {replicas} replicas of {of} each, {} within a replica (dp_replicate)", within.name())
        })
    }

    /// The sequence length, padded so that `tp` and `cp` divide it.
    pub(crate) fn padded_length(&self) -> usize {
        let (length, ParallelConfig { tp, cp, .. }) = (self.train.seq_len, &self.parallel);
        length.next_multiple_of(SequenceRanks::divisor(*tp, *cp))
    }

    /// A line on the padding, if there is any.
    pub(crate) fn describe_padding(&self) -> Option<String> {
        let (length, padded, ParallelConfig { tp, cp, .. }) =
            (self.train.seq_len, self.padded_length(), &self.parallel);
        (padded > length).then(|| {
            format!(
                "sequences of {length} tokens are padded to {padded}: tp {tp} x cp {cp} require a multiple of {}",
                SequenceRanks::divisor(*tp, *cp)
            )
        })
    }

    /// The number of the model's calls (embedding, blocks, head) in each chunk; empty without a pipeline. All calls
    /// after the blocks are in the last chunk, because activations between chunks are as wide as the model.
    fn calls_of_chunks(&self) -> Vec<usize> {
        let chunks = self.parallel.pp * self.parallel.virtual_stages();
        let behind = self.family().calls_after_blocks();
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
                let t = self.train.seq_len as f64;
                let mut flops: Vec<f64> = self.family().flops().iter().map(|call| call.per_token(t)).collect();
                let last = flops.split_off(flops.len() - behind).iter().sum();
                flops.push(last);
                let mut calls = partition(&flops, chunks);
                calls[chunks - 1] += behind - 1;
                calls
            }
        }
    }

    /// Micro-batch size of a rank. In a pipeline whose micro-batch size is not set, there are four micro-batches per
    /// stage if the share has enough sequences, so that the bubble takes at most a fifth of the time.
    pub(crate) fn micro_batch_size(&self) -> usize {
        let (share, pp) = (self.share(), self.parallel.pp);
        match self.train.micro_batch_size {
            Some(micro) => micro.clamp(1, share),
            None if pp == 1 => share,
            None => share.div_ceil(pp.saturating_mul(4).min(share)),
        }
    }

    /// The largest number of sequences of a step that a rank computes.
    pub(super) fn share(&self) -> usize {
        self.train.global_batch_size.div_ceil(self.parallel.data_parallel_size()).max(1)
    }

    /// Micro-batches per step on each rank.
    pub(crate) fn micro_batches(&self) -> usize {
        self.micro_batches_of(self.micro_batch_size())
    }

    fn micro_batches_of(&self, size: usize) -> usize {
        let at_once = size.saturating_mul(self.parallel.data_parallel_size());
        self.train.global_batch_size.div_ceil(at_once).max(1)
    }
}
