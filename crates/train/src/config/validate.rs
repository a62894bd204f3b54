use super::{Config, ConfigError, LrSchedule, ModelConfig, preset};
use crate::schedule::learning_rate;
use crate::words::count;

/// Ranks of the largest clusters, and more.
const MAX_RANKS: usize = 1 << 16;

/// The sample is there to be read.
const MAX_SAMPLE: usize = 1_000_000;

impl Config {
    /// Refuses what cannot be trained: values out of range, and values that do not fit each other.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.preset.as_deref().map(preset).transpose()?;
        self.validate_model()?;
        self.validate_optim()?;
        self.validate_parallel()?;
        self.validate_comm()?;
        self.validate_batches()?;
        self.validate_sizes()?;
        self.validate_schedule()?;
        let peak = self.metrics.peak_tflops.unwrap_or(1.0);
        require(peak > 0.0 && peak.is_finite(), || {
            format!("metrics.peak_tflops is {peak:?}: give a number above 0, or null to report no MFU")
        })
    }

    /// What can be trained, but is hardly what was meant: a line each, for the user to read at the start.
    pub fn warnings(&self) -> Vec<String> {
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
        warmup.into_iter().collect()
    }

    fn validate_parallel(&self) -> Result<(), ConfigError> {
        let parallel = &self.parallel;
        require(parallel.gpus > 0, || "parallel.gpus is 0: give at least 1".into())?;
        require(parallel.gpus <= MAX_RANKS, || {
            format!("parallel.gpus is {}: give at most {MAX_RANKS}", parallel.gpus)
        })?;
        let fsdp = parallel.fsdp(&self.optim);
        fsdp.validate(parallel.gpus).map_err(|error| ConfigError::Invalid(format!("parallel: {error}")))?;
        require(!(parallel.cpu_offload && self.train.device == "cpu"), || {
            "parallel.cpu_offload is true, but the ranks compute on the CPU (train.device cpu) already: leave it out"
                .into()
        })
    }

    fn validate_comm(&self) -> Result<(), ConfigError> {
        let comm = &self.comm;
        let keys = [("timeout_seconds", comm.timeout_seconds), ("init_timeout_seconds", comm.init_timeout_seconds)];
        for (key, seconds) in keys {
            require((1..=A_WEEK).contains(&seconds), || {
                format!("comm.{key} is {seconds}: give a whole number from 1 to {A_WEEK}, a week")
            })?;
        }
        Ok(())
    }

    fn validate_model(&self) -> Result<(), ConfigError> {
        // A vocabulary of 0 is the tokenizer's, which is not known yet.
        match &self.model {
            ModelConfig::Gpt2(shape) => {
                let mut shape = shape.clone();
                shape.vocab_size = shape.vocab_size.max(1);
                shape.validate().map_err(ConfigError::Invalid)?;
                require(self.moe.is_none(), || {
                    "there is a `moe` section, but model.type gpt2 has no experts: remove it, or take deepseek".into()
                })
            }
            ModelConfig::DeepSeek(shape) => {
                let mut shape = shape.clone();
                shape.vocab_size = shape.vocab_size.max(1);
                shape.validate().map_err(ConfigError::Invalid)?;
                let (dense, layers) = (shape.first_k_dense_replace, shape.num_hidden_layers);
                require(dense <= layers, || {
                    format!(
                        "model.first_k_dense_replace is {dense} of {layers} layers: give at most as many as there are"
                    )
                })?;
                require(self.moe.is_some() || dense >= layers, || {
                    format!(
                        "model.first_k_dense_replace is {dense} of {layers} layers and the others have experts, but \
                         there is no `moe` section: add one (`moe: {{num_experts: 8}}`), or make all layers dense"
                    )
                })?;
                self.moe.as_ref().map_or(Ok(()), |moe| moe.validate().map_err(ConfigError::Invalid))
            }
        }
    }

    fn validate_batches(&self) -> Result<(), ConfigError> {
        let (train, gpus) = (&self.train, self.parallel.data_parallel_size());
        let counts = [
            ("train.steps", train.steps),
            ("train.seq_len", train.seq_len),
            ("train.global_batch_size", train.global_batch_size),
            ("train.micro_batch_size", train.micro_batch_size.unwrap_or(1)),
        ];
        for (key, value) in counts {
            require(value > 0, || format!("{key} is 0: give at least 1"))?;
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
        let batch = train.global_batch_size;
        require(batch.is_multiple_of(gpus), || {
            format!(
                "train.global_batch_size is {batch}, which {gpus} ranks (parallel.gpus) cannot share evenly: give a \
                 multiple of {gpus}, such as {fits} (--batch-size {fits})",
                fits = batch.checked_next_multiple_of(gpus).unwrap_or(gpus)
            )
        })?;
        let (share, micro) = (batch / gpus, train.micro_batch_size);
        require(micro.is_none_or(|micro| micro >= share || share.is_multiple_of(micro)), || {
            let micro = micro.unwrap_or_default();
            format!(
                "train.micro_batch_size is {micro}, which does not divide a rank's share of {share} sequences \
                 (train.global_batch_size {batch} shared by {gpus}): give a divisor of {share}, as in --set \
                 train.micro_batch_size={}, or null for the whole share",
                (1..=micro.min(1024)).rev().find(|fewer| share.is_multiple_of(*fewer)).unwrap_or(1)
            )
        })
    }

    fn validate_optim(&self) -> Result<(), ConfigError> {
        let optim = &self.optim;
        let (lr, unit) = (optim.lr, 0.0..1.0);
        // What is computed with is their fp32.
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
            ("weight_decay", optim.weight_decay, optim.weight_decay >= 0.0, "0 or a number above"),
            ("clip_grad_norm", optim.clip_grad_norm, optim.clip_grad_norm >= 0.0, "0 for no limit, or a number above"),
        ];
        for (key, value, fits, expected) in ranges {
            require(fits && (value as f32).is_finite(), || format!("optim.{key} is {value:?}: give {expected}"))?;
        }
        Ok(())
    }

    fn validate_schedule(&self) -> Result<(), ConfigError> {
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

/// In seconds.
const A_WEEK: u64 = 7 * 24 * 60 * 60;

pub(super) fn require(fits: bool, message: impl FnOnce() -> String) -> Result<(), ConfigError> {
    if fits { Ok(()) } else { Err(ConfigError::Invalid(message())) }
}
