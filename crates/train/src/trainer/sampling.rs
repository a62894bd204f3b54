//! Some text at the end of a run.

use super::Trainer;
use crate::error::TrainError;
use crate::memory_check;
use crate::metrics::SampleMetrics;
use model::{Generation, Sampling, generate};
use std::ops::ControlFlow;

impl Trainer<'_> {
    /// Some text from the trained model, on rank 0, where the whole model fits there; where it does not, the run says so.
    pub fn sample(&mut self, step: usize) -> Result<Option<String>, TrainError> {
        self.job.progress.doing("writing a sample");
        let config = &self.job.config;
        let Some(tokenizer) = self.job.data.tokenizer.as_ref().filter(|_| config.train.sample_tokens > 0) else {
            return Ok(None);
        };
        let fits = if self.rank == 0 { memory_check::check_sample(config) } else { Ok(()) };
        if self.fsdp.all_reduce(&[if fits.is_ok() { 0.0 } else { 1.0 }])? != [0.0] {
            fits.err().iter().for_each(|line| self.recorder.say(line));
            return Ok(None);
        }
        let Some(model) = self.parts.gather(config, &self.fsdp, self.rank == 0, &self.device)? else {
            return Ok(None);
        };
        let line = tokenizer.encode("\n").ok().filter(|tokens| !tokens.is_empty());
        let prompt = line.unwrap_or_else(|| vec![0]);
        let sampling = Sampling { temperature: 0.8, seed: config.train.seed, ..Sampling::default() };
        let (max_new_tokens, window) = (config.train.sample_tokens, config.train.seq_len);
        let how = Generation { max_new_tokens, window, stop: None, sampling };
        let tokens = generate(&*model, &[prompt], &how, &self.device, &mut |_, _| ControlFlow::Continue(()))
            .expect("a prompt of at least one token, and a temperature");
        let sample = tokenizer.decode(&tokens[0]);
        self.recorder.metrics(&SampleMetrics { step, sample: &sample })?;
        Ok(Some(sample))
    }
}
