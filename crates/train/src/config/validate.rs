//! Validation of a configuration, and warnings about valid ones.

mod layout;
mod nearest;
#[cfg(test)]
mod tests;

use super::{Config, LrSchedule, ResilienceConfig, preset};
use crate::config::learning_rate::learning_rate;
use crate::error::TrainError;
use crate::format::count;
use crate::host::device;
use cpu::simd;
use fsdp::{FloatType, Schedule};
use schedule::Pipeline;

/// More ranks than the largest clusters have.
pub(crate) const MAX_RANKS: usize = 1 << 17;

/// A sample is meant to be read.
const MAX_SAMPLE: usize = 1_000_000;

impl Config {
    /// Rejects configurations that cannot be trained: values out of range, and values that do not fit each other.
    pub fn validate(&self) -> Result<(), TrainError> {
        self.validate_keys().map_err(|error| self.name_adaptive(error))?;
        self.validate_buckets()
    }

    pub(super) fn validate_keys(&self) -> Result<(), TrainError> {
        self.preset.as_deref().map(preset).transpose()?;
        self.validate_model()?;
        self.validate_optim()?;
        self.validate_parallel()?;
        self.validate_comm()?;
        self.validate_batches()?;
        self.validate_sizes()?;
        self.validate_resilience()?;
        self.data.validate()?;
        if self.train.epochs.is_none() {
            self.validate_schedule()?;
        }
        let coef = self.train.z_loss_coef;
        require(coef >= 0.0 && (coef as f32).is_finite(), || {
            format!("train.z_loss_coef is {coef:?}: give 0 or a small positive number, such as 1e-4")
        })?;
        let coef = self.train.mtp_loss_coef;
        require(coef >= 0.0 && (coef as f32).is_finite(), || {
            format!("train.mtp_loss_coef is {coef:?}: give 0 or more, such as 0.3")
        })?;
        let peak = self.metrics.peak_tflops.unwrap_or(1.0);
        require(peak > 0.0 && peak.is_finite(), || {
            format!("metrics.peak_tflops is {peak:?}: give a number above 0, or null to report no MFU")
        })
    }

    /// Warnings about configurations that can be trained but are probably not intended, one line each.
    pub fn warnings(&self) -> Vec<String> {
        let Self { parallel, .. } = self;
        let (optim, steps) = (&self.optim, self.train.steps);
        let within_warmup = optim.warmup_steps >= steps;
        let warmup = within_warmup.then(|| {
            format!(
                "the warm-up (optim.warmup_steps {}) is not over after {}: the learning rate ends at {:.2e} and never reaches \
                 optim.lr {:?}",
                optim.warmup_steps,
                count(steps, "step"),
                learning_rate(optim, steps.saturating_sub(1), steps),
                optim.lr
            )
        });
        let param = parallel.precision.param();
        let multiplied = param == FloatType::Fp32 || param == FloatType::Bf16 && simd::multiplies_bf16();
        let widened = (device::meant(&self.train.device) == "cpu" && !multiplied).then(|| {
            format!(
                "this CPU multiplies {} in fp32, so a step takes no less time than with parallel.precision.param=fp32, the default: \
                 fp32 is more accurate",
                format!("{param:?}").to_lowercase()
            )
        });
        let ResilienceConfig { restarts, dynamic_batch, skip_non_finite, memory_every, .. } = self.resilience;
        let keys = [
            ("memory_every", memory_every > 0),
            ("dynamic_batch", dynamic_batch),
            ("skip_non_finite", skip_non_finite),
        ];
        let idle = keys.into_iter().filter(|(_, given)| *given && restarts == 0);
        let idle = idle.map(|(key, _)| format!("resilience.{key} is without effect: give resilience.restarts too"));
        warmup.into_iter().chain(self.layout_warnings()).chain(widened).chain(idle).collect()
    }

    /// Those of [`warnings`](Self::warnings) that are about the layout, on any machine.
    pub fn layout_warnings(&self) -> Vec<String> {
        let (stages, micro_batches) = (self.parallel.pp, self.micro_batches());
        let waits = stages > 1 && micro_batches < 2 * stages;
        let bubble = waits.then(|| {
            let virtual_stages = self.parallel.virtual_stages();
            // In each chunk of interleaved_1f1b, a stage waits for the missing micro-batches.
            let chunks = if self.parallel.schedule == Schedule::Interleaved1F1B { virtual_stages } else { 1 };
            let missing = stages.saturating_sub(micro_batches);
            let idle = chunks * missing + stages - missing - 1;
            format!(
                "with {} per step, the {stages} stages are idle {:.0}% of the time; more and smaller ones (train.micro_batch_size; \
                 null gives four per stage if the batch has as many sequences) shorten that",
                count(micro_batches, "micro-batch"),
                100.0 * idle as f64 / (idle + virtual_stages * micro_batches) as f64
            )
        });
        let Self { parallel, .. } = self;
        let pipelined =
            parallel.schedule != Schedule::OneFOneB || parallel.virtual_stages.is_some() || parallel.stages.is_some();
        let without = (pipelined && parallel.pp == 1).then(|| {
            "parallel.schedule, virtual_stages and stages are for a pipeline, and parallel.pp is 1: they have no effect".into()
        });
        bubble.into_iter().chain(without).collect()
    }

    fn validate_comm(&self) -> Result<(), TrainError> {
        let comm = &self.comm;
        let keys = [
            ("comm.timeout_seconds", comm.timeout_seconds),
            ("comm.init_timeout_seconds", comm.init_timeout_seconds),
            ("checkpoint.timeout", self.checkpoint.timeout),
        ];
        for (key, seconds) in keys {
            require((1..=A_WEEK).contains(&seconds), || {
                format!("{key} is {seconds}: give a whole number from 1 to {A_WEEK}, a week")
            })?;
        }
        let minutes = self.checkpoint.every_minutes.unwrap_or(1.0);
        require(minutes > 0.0 && minutes.is_finite(), || {
            format!(
                "checkpoint.every_minutes is {minutes:?}: give a number above 0, such as 30, or null for none by time"
            )
        })?;
        let Some(url) = &self.checkpoint.upload else { return Ok(()) };
        store::check(url).map_err(TrainError::Upload)?;
        require(self.checkpoint.keep > 0, || {
            "checkpoint.upload is given, and checkpoint.keep is 0, so there is nothing to upload: keep at least 1"
                .into()
        })
    }

    fn validate_resilience(&self) -> Result<(), TrainError> {
        require(self.resilience.min_gpus != Some(0), || {
            "resilience.min_gpus is 0: give at least 1, or null to require all ranks".into()
        })?;
        let (least, gpus) = (self.resilience.min_gpus.unwrap_or(0), self.parallel.gpus);
        require(least <= gpus, || {
            format!("resilience.min_gpus is {least}, and parallel.gpus is {gpus}: give at most as many, or null")
        })
    }

    fn validate_model(&self) -> Result<(), TrainError> {
        self.model.validate(self.moe.as_ref()).map_err(|error| TrainError::Config(error.to_string()))?;
        require(!self.data.document_mask || self.family().document_masking(), || {
            let kind = self.model.type_name();
            format!("data.document_mask is true, and a model of type {kind} attends across documents: give false")
        })
    }

    fn validate_batches(&self) -> Result<(), TrainError> {
        let train = &self.train;
        require(train.epochs.is_none_or(|epochs| epochs > 0.0 && epochs.is_finite()), || {
            let epochs = train.epochs.unwrap_or_default();
            format!("train.epochs is {epochs:?}: give a number above 0, such as 1, or null and train.steps")
        })?;
        let counts = [
            ("train.steps", if train.epochs.is_some() { 1 } else { train.steps }),
            ("train.seq_len", train.seq_len),
            ("train.global_batch_size", train.global_batch_size),
            ("train.micro_batch_size", train.micro_batch_size.unwrap_or(1)),
            ("train.max_skips", train.max_skips),
        ];
        for (key, value) in counts {
            require(value > 0, || format!("{key} is 0: give at least 1"))?;
        }
        if let Some(patience) = train.patience {
            require(patience > 0, || {
                "train.patience is 0: give at least 1, or null for no end before train.steps".into()
            })?;
            require(train.val_every > 0, || {
                format!(
                    "train.patience is {patience}, but train.val_every is 0, so there is no validation before the end: set \
                     train.val_every, or train.patience to null"
                )
            })?;
            require(self.checkpoint.keep > 0, || {
                format!(
                    "train.patience is {patience}, but checkpoint.keep is 0, so nothing would hold how long a run has waited: keep at \
                     least 1, or set train.patience to null"
                )
            })?;
        }
        require(train.sample_tokens <= MAX_SAMPLE, || {
            format!("train.sample_tokens is {}: give at most {MAX_SAMPLE}, or 0 for no sample", train.sample_tokens)
        })?;
        let (context_key, context) = self.model.context();
        require(train.seq_len <= context, || {
            let length = train.seq_len;
            format!(
                "train.seq_len is {length}, more than {context_key}, which is {context}: lower it, or --set {context_key}={length}"
            )
        })?;
        let depth = self.model.mtp_depth();
        require(depth < train.seq_len, || {
            let length = train.seq_len;
            format!(
                "model.mtp_depth is {depth}, but of train.seq_len {length} tokens no position has a target so far ahead: give \
                 fewer, or longer sequences (--seq-len)"
            )
        })?;
        self.validate_shares()
    }

    /// Rejects a batch that the layout cannot divide.
    fn validate_shares(&self) -> Result<(), TrainError> {
        let (batch, gpus) = (self.train.global_batch_size, self.parallel.data_parallel_size());
        let alone = self.parallel.tp.saturating_mul(self.parallel.cp) == 1;
        let who = if alone { "ranks" } else { "groups of ranks" };
        require(batch >= gpus, || {
            format!(
                "train.global_batch_size is {batch}, fewer sequences than the {gpus} {who} that share them (parallel.gpus): give at \
                 least {gpus} (--batch-size {gpus}), or fewer ranks"
            )
        })?;
        self.validate_micro_batches()
    }

    /// Rejects a number of micro-batches that the pipeline's schedule does not support.
    fn validate_micro_batches(&self) -> Result<(), TrainError> {
        let (parallel, micro_batches) = (&self.parallel, self.micro_batches());
        if parallel.pp == 1 {
            return Ok(());
        }
        Pipeline::new(parallel.schedule, parallel.pp, parallel.virtual_stages(), micro_batches)
            .map(drop)
            .map_err(|error| TrainError::Config(format!("parallel: {error}")))
    }

    fn validate_optim(&self) -> Result<(), TrainError> {
        let optim = &self.optim;
        let (lr, unit) = (optim.lr, 0.0..1.0);
        // The computation uses their fp32 values.
        let is_above_0 = |value: f64| value as f32 > 0.0;
        let is_beta = |value: f64| unit.contains(&(value as f32));
        let ranges = [
            ("lr", lr, is_above_0(lr), "a number above 0"),
            (
                "min_lr",
                optim.min_lr,
                (0.0..=lr).contains(&optim.min_lr),
                "a number from 0 to optim.lr (--lr scales both)",
            ),
            ("beta1", optim.beta1, is_beta(optim.beta1), "a number from 0 to below 1"),
            ("beta2", optim.beta2, is_beta(optim.beta2), "a number from 0 to below 1"),
            ("epsilon", optim.epsilon, is_above_0(optim.epsilon), "a small number above 0, such as 1e-8"),
            ("weight_decay", optim.weight_decay, optim.weight_decay >= 0.0, "0 or more"),
            (
                "clip_grad_norm",
                optim.clip_grad_norm,
                optim.clip_grad_norm >= 0.0,
                "0 for no limit, or a number above 0",
            ),
        ];
        for (key, value, fits, expected) in ranges {
            require(fits && (value as f32).is_finite(), || format!("optim.{key} is {value:?}: give {expected}"))?;
        }
        Ok(())
    }

    fn validate_schedule(&self) -> Result<(), TrainError> {
        let (optim, steps) = (&self.optim, self.train.steps);
        if optim.schedule != LrSchedule::Wsd {
            return require(optim.decay_steps.is_none(), || {
                format!(
                    "optim.decay_steps is {}, but of the schedules only wsd has a decay of its own length: set \
                     optim.schedule to wsd, or optim.decay_steps to null",
                    optim.decay_steps.unwrap_or_default()
                )
            });
        }
        let decay = optim.decay_length(steps);
        require(decay > 0, || "optim.decay_steps is 0: give at least 1, or null for a tenth of train.steps".into())?;
        let warmup = optim.warmup_steps;
        require(warmup.saturating_add(decay) <= steps, || {
            format!(
                "optim.warmup_steps {warmup} and a decay of {decay} steps (optim.decay_steps; null: a tenth) do not fit into \
                 train.steps {steps}: lower one of them, or raise train.steps"
            )
        })
    }
}

/// A week in seconds.
const A_WEEK: u64 = 7 * 24 * 60 * 60;

pub(super) fn require(fits: bool, message: impl FnOnce() -> String) -> Result<(), TrainError> {
    if fits { Ok(()) } else { Err(TrainError::Config(message())) }
}
