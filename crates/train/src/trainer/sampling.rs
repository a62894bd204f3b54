//! Samples of the model during and at the end of a run, and a prompt to suggest.

use super::Trainer;
use crate::error::TrainError;
use crate::plan::memory_check;
use crate::plan::units::new_model;
use crate::reporting::metrics::SampleMetrics;
use model::{Generation, Sampling, generate};
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

impl Trainer<'_> {
    /// Shows a [`sample`](Self::sample) to the user during the run.
    pub fn tell_sample(&mut self, step: usize) -> Result<(), TrainError> {
        if let Some(sample) = self.sample(step)? {
            self.recorder.say(&format!("--- sample after step {step} ---\n{sample}\n--------------"));
        }
        Ok(())
    }

    /// Generates text from the trained model on rank 0. If the whole model does not fit there, prints a warning
    /// instead. A signal that stops the run ends the text.
    pub fn sample(&mut self, step: usize) -> Result<Option<String>, TrainError> {
        self.job.progress.doing("writing a sample");
        self.comm.note_place(step as u64, "writing a sample");
        let config = &self.job.config;
        let Some(tokenizer) = self.job.data.tokenizer.as_ref().filter(|_| config.train.sample_tokens > 0) else {
            return Ok(None);
        };
        let fits = if self.rank == 0 { memory_check::check_sample(config) } else { Ok(()) };
        if self.fsdp.all_reduce(&[if fits.is_ok() { 0.0 } else { 1.0 }])? != [0.0] {
            fits.err().iter().for_each(|line| self.recorder.say(&format!("warning: {line}")));
            return Ok(None);
        }
        let model = new_model(config, &self.device);
        let Some(model) = model.gather(&self.fsdp, self.rank == 0)? else {
            return Ok(None);
        };
        let line = tokenizer.encode("\n").ok().filter(|tokens| !tokens.is_empty());
        let prompt = line.unwrap_or_else(|| vec![0]);
        let sampling = Sampling { temperature: 0.8, seed: config.train.seed, ..Sampling::default() };
        let (max_new_tokens, window) = (config.train.sample_tokens, config.train.seq_len);
        let how = Generation { max_new_tokens, window, stop: vec![], sampling };
        let stop = &self.job.stop;
        let flight = self.comm.flight();
        let mut on_token = |_, _| {
            flight.heartbeat();
            if stop.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let tokens = generate(&*model, &[prompt], &how, &self.device, &mut on_token)
            .expect("a prompt of at least one token, and a temperature");
        let sample = tokenizer.decode(&tokens[0]);
        self.recorder.metrics(&SampleMetrics { step, sample: &sample })?;
        Ok(Some(sample))
    }

    /// A word of the validation split, as a prompt for the tokenizer.
    pub fn prompt(&self) -> Option<String> {
        let tokenizer = self.job.data.tokenizer.as_ref().filter(|_| self.rank == 0)?;
        let seq_len = self.job.config.train.seq_len;
        let tokens = self.job.dataset.val_batch([0], seq_len).ok()?.inputs;
        first_word(&tokenizer.decode(&tokens.iter().map(|token| *token as u32).collect::<Vec<_>>()))
    }
}

/// The second word of a text, whose first may be cut off; the first if it is the only one, shortened in scripts without
/// spaces.
fn first_word(text: &str) -> Option<String> {
    /// Limit for scripts without spaces.
    const LONGEST: usize = 16;
    let mut words = text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    let (first, second) = (words.next()?, words.next());
    Some(second.unwrap_or(first).chars().take(LONGEST).collect())
}

#[cfg(test)]
mod tests {
    use super::first_word;

    #[test]
    fn a_prompt_is_a_whole_word() {
        for (text, expected) in [
            ("umps. Over the dog", Some("Over")),
            ("(b) fn main() {", Some("fn")),
            ("one", Some("one")),
            (" \u{fffd}.\n", None),
            ("天地玄黃宇宙洪荒日月盈昃辰宿列張寒來暑往", Some("天地玄黃宇宙洪荒日月盈昃辰宿列張")),
        ] {
            assert_eq!(first_word(text).as_deref(), expected, "{text}");
        }
    }
}
