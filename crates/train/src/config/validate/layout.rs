//! Checks that the sizes of a layout are compatible with each other and with the model.

use super::{MAX_RANKS, require};
use crate::config::{Config, ParallelConfig};
use crate::error::TrainError;
use crate::format::count;
use crate::host::device;
use fsdp::Strategy;

impl Config {
    /// Rejects an invalid layout and says what would fit. The messages of [`Self::validate_layout`] name no number of
    /// ranks and no flag, so the only layouts that Kiln recommends are those that pass all checks.
    pub(crate) fn validate_parallel(&self) -> Result<(), TrainError> {
        self.validate_layout().map_err(|error| match error {
            TrainError::Config(why) => TrainError::Config(why + &self.what_fits()),
            error => error,
        })
    }

    pub(super) fn validate_layout(&self) -> Result<(), TrainError> {
        let parallel = &self.parallel;
        require(parallel.gpus > 0, || "parallel.gpus is 0: give at least 1".into())?;
        require(parallel.gpus <= MAX_RANKS, || {
            format!("parallel.gpus is {}: give at most {MAX_RANKS}", parallel.gpus)
        })?;
        self.validate_pipeline()?;
        let fsdp = self.fsdp_without_chunks();
        let refuse = |error| TrainError::Config(format!("parallel: {error}"));
        fsdp.validate_replicas(parallel.gpus / parallel.pp).map_err(refuse)?;
        self.validate_product()?;
        self.validate_experts()?;
        self.validate_sequence_ranks()?;
        fsdp.validate(parallel.gpus).map_err(refuse)?;
        require(!(parallel.cpu_offload && device::meant(&self.train.device) == "cpu"), || {
            format!(
                "parallel.cpu_offload is true, but the ranks compute on the CPU (train.device {}) already: leave it out",
                self.train.device
            )
        })
    }

    fn validate_pipeline(&self) -> Result<(), TrainError> {
        let (parallel, blocks) = (&self.parallel, self.model.blocks());
        let (gpus, pp, virtual_stages) = (parallel.gpus, parallel.pp, parallel.virtual_stages());
        require(pp > 0, || "parallel.pp is 0: give at least 1, which is no pipeline".into())?;
        require(gpus.is_multiple_of(pp), || {
            format!("parallel.pp is {pp}, which does not divide the {} (parallel.gpus)", count(gpus, "rank"))
        })?;
        let chunks = pp.saturating_mul(virtual_stages);
        require(chunks <= blocks + 2, || {
            format!(
                "parallel.pp {pp} x virtual_stages {virtual_stages} are {chunks} chunks of the model, which has {} beside \
                 embedding and head: give fewer stages",
                count(blocks, "block")
            )
        })?;
        let Some(stages) = parallel.stages.as_ref().filter(|_| pp > 1) else { return Ok(()) };
        let all = stages.iter().fold(0usize, |all, blocks| all.saturating_add(*blocks));
        let empty = stages.iter().enumerate().any(|(i, count)| *count == 0 && i > 0 && i + 1 < chunks);
        require(stages.len() == chunks && all == blocks && !empty, || {
            format!(
                "parallel.stages is {stages:?}: give the numbers of blocks of {} (parallel.pp x virtual_stages), which are {blocks} \
                 together, or null",
                count(chunks, "chunk")
            )
        })
    }

    /// If `dp_shard` is given, the sizes must multiply to the number of ranks.
    fn validate_product(&self) -> Result<(), TrainError> {
        let ParallelConfig { gpus, pp, tp, cp, strategy, dp_shard, .. } = self.parallel;
        let Some(dp_shard) = dp_shard else { return Ok(()) };
        let replicas = match strategy {
            Strategy::Ddp => gpus / pp / tp.max(1) / cp.max(1), // all ranks of a stage; nothing is sharded
            _ => self.fsdp_without_chunks().replicas(),
        };
        let product = pp.saturating_mul(replicas).saturating_mul(dp_shard).saturating_mul(cp).saturating_mul(tp);
        require(product == gpus, || {
            format!(
                "parallel.pp {pp} x {replicas} {} of {} x parallel.dp_shard {dp_shard}{} = {product}, but there are {} \
                 (parallel.gpus)",
                if replicas == 1 { "replica" } else { "replicas" },
                strategy.name(),
                [("cp", cp), ("tp", tp)]
                    .into_iter()
                    .filter(|(_, size)| *size > 1)
                    .map(|(axis, size)| format!(" x parallel.{axis} {size}"))
                    .collect::<String>(),
                count(gpus, "rank")
            )
        })
    }

    fn validate_experts(&self) -> Result<(), TrainError> {
        let (ep, family) = (self.parallel.ep, self.family());
        let layers = family.expert_layers();
        require(ep > 0, || "parallel.ep is 0: give at least 1, which is all experts on every rank".into())?;
        if ep == 1 {
            return Ok(());
        }
        let (_, experts) =
            layers.map_err(|why| TrainError::Config(format!("parallel.ep is {ep}, but {why}: leave it out")))?;
        let fsdp = self.fsdp_without_chunks();
        let ranks = fsdp.ranks_for_experts(self.parallel.gpus);
        let divides = experts.is_multiple_of(ep) && ranks.is_multiple_of(ep);
        require(divides || self.parallel.strategy == Strategy::Block, || {
            let of = if fsdp.replicas() > 1 { "of a replica" } else { "of a stage" };
            format!(
                "parallel.ep is {ep}: it must divide the {experts} experts (moe.num_experts) and the number of ranks {of}, which is \
                 {ranks}"
            )
        })
    }

    /// Each rank needs at least one token of the vocabulary. A vocabulary of 0 is not known yet.
    fn validate_vocabulary(&self) -> Result<(), TrainError> {
        let (vocab, tp) = (self.model.vocab_size(), self.parallel.tp);
        require(vocab == 0 || vocab >= tp, || {
            format!("parallel.tp is {tp}, more than the vocabulary's {} (model.vocab_size)", count(vocab, "token"))
        })
    }

    /// Heads, columns and ranks must divide evenly.
    fn validate_sequence_ranks(&self) -> Result<(), TrainError> {
        let ParallelConfig { gpus, tp, cp, strategy, .. } = self.parallel;
        require(tp > 0, || "parallel.tp is 0: give at least 1, which is all heads and columns on every rank".into())?;
        require(cp > 0, || "parallel.cp is 0: give at least 1, which is whole sequences on every rank".into())?;
        let together = tp.saturating_mul(cp);
        if together == 1 || strategy == Strategy::Block {
            return Ok(());
        }
        require(cp == 1 || self.family().context_parallel(), || {
            let kind = self.model.type_name();
            format!("parallel.cp is {cp}, and a model of type {kind} does not support context parallelism: give 1")
        })?;
        self.validate_vocabulary()?;
        let fsdp = self.fsdp_without_chunks();
        let ranks = fsdp.ranks_for_experts(gpus);
        let of = if fsdp.replicas() > 1 { "of a replica" } else { "of a stage" };
        require(ranks.is_multiple_of(together), || {
            let given = [("cp", cp), ("tp", tp)].into_iter().filter(|(_, size)| *size > 1);
            let given: Vec<String> = given.map(|(axis, size)| format!("parallel.{axis} {size}")).collect();
            let product = if given.len() > 1 { format!(" = {together}") } else { String::new() };
            format!("{}{product} does not divide the {} {of}", given.join(" x "), count(ranks, "rank"))
        })?;
        self.validate_heads()
    }

    /// Each rank has the same number of heads and columns.
    fn validate_heads(&self) -> Result<(), TrainError> {
        let tp = self.parallel.tp;
        let sizes = self.family().tensor_parallel_sizes();
        let odd = sizes.iter().find(|(_, size)| !size.is_multiple_of(tp));
        let kind = self.model.type_name();
        require(tp == 1 || sizes.iter().any(|(_, size)| *size > 1), || {
            format!("parallel.tp is {tp}, and a model of type {kind} does not support tensor parallelism: give 1")
        })?;
        odd.map_or(Ok(()), |(what, size)| {
            Err(TrainError::Config(format!("parallel.tp is {tp}, which does not divide {what}, {size}")))
        })
    }
}
