use super::{Config, ConfigError, LrSchedule, ModelConfig};

impl Config {
    /// Refuses what cannot be trained: values out of range, and values that do not fit each other.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.validate_model()?;
        self.validate_parallel()?;
        self.validate_comm()?;
        self.validate_batches()?;
        self.validate_optim()?;
        self.validate_schedule()
    }

    fn validate_parallel(&self) -> Result<(), ConfigError> {
        let parallel = &self.parallel;
        require(parallel.gpus > 0, || "parallel.gpus is 0: give at least 1".into())?;
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
        let (context_key, context) = self.model.context();
        require(train.seq_len <= context, || {
            let length = train.seq_len;
            format!(
                "train.seq_len is {length}, more than {context_key}, which is {context}: lower it, or raise the other"
            )
        })?;
        let batch = train.global_batch_size;
        require(batch.is_multiple_of(gpus), || {
            format!(
                "train.global_batch_size is {batch}, which {gpus} ranks (parallel.gpus) cannot share evenly: give a \
                 multiple of {gpus}, such as {}",
                batch.checked_next_multiple_of(gpus).unwrap_or(gpus)
            )
        })?;
        let (share, micro) = (batch / gpus, train.micro_batch_size);
        require(micro.is_none_or(|micro| micro >= share || share.is_multiple_of(micro)), || {
            format!(
                "train.micro_batch_size is {}, which does not divide a rank's share of {share} sequences \
                 (train.global_batch_size {batch} shared by {gpus}): give a divisor of {share}, or null for \
                 the whole share",
                micro.unwrap_or_default()
            )
        })
    }

    fn validate_optim(&self) -> Result<(), ConfigError> {
        let optim = &self.optim;
        let (lr, unit) = (optim.lr, 0.0..1.0);
        let ranges = [
            ("lr", lr, lr > 0.0, "a number above 0"),
            ("min_lr", optim.min_lr, (0.0..=lr).contains(&optim.min_lr), "a number from 0 to optim.lr"),
            ("beta1", optim.beta1, unit.contains(&optim.beta1), "a number from 0 to below 1"),
            ("beta2", optim.beta2, unit.contains(&optim.beta2), "a number from 0 to below 1"),
            ("epsilon", optim.epsilon, optim.epsilon > 0.0, "a number above 0"),
            ("weight_decay", optim.weight_decay, optim.weight_decay >= 0.0, "0 or a number above"),
            ("clip_grad_norm", optim.clip_grad_norm, optim.clip_grad_norm >= 0.0, "0 for no limit, or a number above"),
        ];
        for (key, value, fits, expected) in ranges {
            require(fits && value.is_finite(), || format!("optim.{key} is {value}: give {expected}"))?;
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

fn require(fits: bool, message: impl FnOnce() -> String) -> Result<(), ConfigError> {
    if fits { Ok(()) } else { Err(ConfigError::Invalid(message())) }
}
