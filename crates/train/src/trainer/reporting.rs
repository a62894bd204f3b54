//! What a rank reports about the run.

use super::{Job, Trainer};
use crate::config::Config;
use crate::error::TrainError;
use crate::format::{count, human};
use crate::host::attempt;
use crate::host::device;
use crate::host::machine::{self, Machine};
use crate::overview;
use crate::plan::layout::LayoutTable;
use crate::reporting::metrics::{ExpertMetrics, ProcessMetrics, StageMetrics, StageSeconds, StepMetrics, UsageMetrics};
use crate::run::folder::RunFolder;
use crate::run::resume::Resume;
use crate::trainer::batch::RowCounts;
use crate::trainer::recorder::Recorder;
use comm::rank_list;
use fsdp::StepReport;
use std::time::Duration;

impl Trainer<'_> {
    /// Shows which ranks compute what, unless all compute everything.
    pub fn say_placement(&self) {
        if self.rank != 0 {
            return;
        }
        if let (ep @ 2.., Some((_, experts))) = (self.job.config.parallel.ep, self.job.config.expert_layers()) {
            let each = count(experts / ep, "expert");
            self.job
                .progress
                .say(&format!("each {ep} consecutive ranks share a layer's {experts} experts: {each} on each"));
        }
        let mut placements = self.fsdp.placements();
        // GPT-2's first and last call are one unit.
        if let [first, .., last] = &mut placements[..] {
            (first.unit, last.unit) = ("embedding".into(), "head".into());
        }
        for placed in placements.chunk_by(|a, b| a.ranks == b.ranks) {
            let Some(ranks) = &placed[0].ranks else { return };
            let (first, last) = (&placed[0].unit, &placed[placed.len() - 1].unit);
            let range = if first == last { first.clone() } else { format!("{first} to {last}") };
            let who = rank_list(&ranks.clone().collect::<Vec<_>>());
            let parameters = human(placed.iter().map(|placement| placement.parameters).sum());
            self.job.progress.say(&format!("{who}: {range} ({parameters} parameters)"));
        }
    }

    pub fn step_metrics(
        &mut self,
        step: usize,
        lr: f64,
        report: &StepReport,
        counts: RowCounts,
        [took, waited]: [Duration; 2],
    ) -> StepMetrics {
        let (step_seconds, bucket) = (took.as_secs_f64(), self.batches.bucket(step - 1));
        let tokens_per_second = self.batches.step_tokens(step - 1) as f64 / step_seconds;
        let tflops = self.flops[bucket].per_token(counts.squares / counts.positions.max(1.0)) * tokens_per_second
            / self.job.devices as f64
            / 1e12;
        StepMetrics {
            step,
            loss: report.loss,
            lr,
            aux_loss: report.aux_loss,
            grad_norm: report.grad_norm,
            skipped: report.skipped,
            tokens: self.tokens,
            seq_len: self.job.config.data.buckets.as_ref().map(|lengths| lengths[bucket]),
            tokens_per_second,
            tflops,
            mfu: self.job.config.metrics.peak_tflops.map(|peak| tflops / peak),
            step_seconds,
            data_wait_seconds: waited.as_secs_f64(),
            checkpoint_seconds: std::mem::take(&mut self.checkpoint_seconds),
            elapsed_seconds: self.recorder.elapsed(),
            loss_z: self.losses.z_score(report.loss),
            grad_norm_z: self.grad_norms.z_score(report.grad_norm),
            memory: self.fsdp.memory().peak.total(),
            epoch: overview::epochs(self.job, self.tokens),
        }
    }

    /// Reports memory and communication of rank 0, and the expert loads over all ranks; with `tell`, also shows them to
    /// the user.
    pub fn report(&mut self, step: usize, tell: bool) -> Result<(), TrainError> {
        let usage = UsageMetrics::new(step, self.rank, &self.fsdp.memory(), &self.device, &self.fsdp.traffic());
        self.recorder.usage(&usage, tell)?;
        self.report_stages(step, tell)?;
        let Some((layers, experts)) = self.job.config.expert_layers() else { return Ok(()) };
        let loads = model::layer_loads(&self.load_sums, &layers, experts);
        self.recorder.experts(&ExpertMetrics::new(step, loads), tell)
    }

    /// Reports the step's times on each stage, if there are several.
    fn report_stages(&mut self, step: usize, tell: bool) -> Result<(), TrainError> {
        let (stage, stages) = self.fsdp.stage();
        if stages == 1 {
            return Ok(());
        }
        let mut seconds = vec![0.0; 2 * stages];
        let ranks = (self.job.config.parallel.gpus / stages) as f64;
        seconds[2 * stage] = self.times.computing.as_secs_f64() / ranks;
        seconds[2 * stage + 1] = self.times.waiting.as_secs_f64() / ranks;
        let sums = self.fsdp.all_reduce(&seconds)?;
        let of_stage = |pair: &[f64]| StageSeconds { compute_seconds: pair[0], wait_seconds: pair[1] };
        let stages = sums.chunks(2).map(of_stage).collect();
        self.recorder.stages(&StageMetrics { step, stages }, tell)
    }
}

/// In runs with more ranks than this, only rank 0 logs each step, unless all are configured to.
const MOST_LOGS: usize = 16;

/// Opens the records of the run and writes their first lines.
pub(super) fn recorder<'a>(
    job: &'a Job,
    folder: &RunFolder,
    rank: usize,
    micro_batch_size: usize,
) -> Result<Recorder<'a>, TrainError> {
    let (world_size, done) = (job.config.parallel.gpus, job.resume.as_ref().map_or(0, Resume::step));
    let warnings_only = rank > 0 && world_size > MOST_LOGS && !job.config.metrics.all_logs;
    let mut recorder = Recorder::open(folder, rank, done, warnings_only, &job.progress)?;
    recorder.log(&format!("rank {rank} of {world_size} on {}", device::meant(&job.config.train.device)));
    if rank == 0 {
        let process = process(job, micro_batch_size);
        if !process.layout.is_empty() {
            if job.buckets.is_some() {
                recorder.detail(&format!("of steps with rows of {} tokens:", job.config.train.seq_len), true);
            }
            recorder.detail(&process.layout.to_string(), true);
        }
        recorder.metrics(&process)?;
    }
    let why_restarted = attempt::why_restarted();
    for event in why_restarted.iter().chain(&job.degraded()) {
        recorder.event(done, event)?;
    }
    if let Some(resume) = &job.resume {
        let event = format!("resumed from {} on {}", resume.path.display(), count(world_size, "rank"));
        recorder.event(resume.step(), &event)?;
        if let Some(partial) = resume.partial.as_ref().filter(|_| rank == 0) {
            partial.lines(true).iter().for_each(|line| recorder.log(line));
        }
    }
    Ok(recorder)
}

/// Describes this process.
fn process(job: &Job, micro_batch_size: usize) -> ProcessMetrics<'_> {
    let Config { train, parallel, .. } = &job.config;
    ProcessMetrics {
        started: machine::now(),
        step: job.resume.as_ref().map_or(0, Resume::step),
        version: env!("KILN_VERSION"),
        command: machine::command(),
        machine: Machine::this(),
        device: device::meant(&train.device),
        ranks: parallel.gpus,
        strategy: parallel.describe(),
        data: &job.data.name,
        train_tokens: job.dataset.train_tokens(),
        val_tokens: job.dataset.val_tokens(),
        bytes_per_token: job.data.meta.as_ref().map(|meta| meta.text_bytes as f64 / meta.tokens as f64),
        parameters: job.config.parameter_count(),
        global_batch_size: train.global_batch_size,
        micro_batch_size,
        seq_len: train.seq_len,
        layout: LayoutTable::new(&job.config),
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{Config, Source};
    use crate::{RunOptions, train};
    use serde_json::Value;
    use std::fs;

    /// Compute and wait times are parts of a step, however many ranks a stage has, and on any axes.
    #[test]
    fn seconds_of_a_stage_are_those_of_one_of_its_ranks() {
        let folder = test_kit::text_folder(300);
        let source = format!("data.source={}", folder.path().join("text.txt").display());
        let common = ["train.steps=2", "train.val_every=0", "train.sample_tokens=0", "checkpoint.keep=0", &source];
        let sizes = ["train.seq_len=64", "train.global_batch_size=4", "train.micro_batch_size=1", "parallel.pp=2"];
        for (i, layout) in [
            &["parallel.gpus=4"][..],
            &["parallel.gpus=4", "parallel.tp=2"],
            &["parallel.gpus=8", "parallel.tp=2", "parallel.cp=2"],
        ]
        .into_iter()
        .enumerate()
        {
            let overrides = [&common[..], &sizes, layout].concat().into_iter().map(String::from).collect::<Vec<_>>();
            let config = Config::load(Source::Preset("gpt2"), &overrides).unwrap();
            let options = RunOptions {
                name: "gpt2".into(),
                out: Some(folder.path().join(i.to_string())),
                ..RunOptions::default()
            };
            let outcome = train(config, &options, Default::default()).unwrap();
            let text = fs::read_to_string(outcome.folder.join("metrics.jsonl")).unwrap();
            let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            let of_stages = lines.iter().rfind(|line| line["stages"].is_array()).expect("there are two stages");
            let step = lines.iter().find(|line| line["step_seconds"].is_f64() && line["step"] == of_stages["step"]);
            let step = step.expect("the step has a line")["step_seconds"].as_f64().unwrap();
            for stage in of_stages["stages"].as_array().unwrap() {
                let seconds = stage["compute_seconds"].as_f64().unwrap() + stage["wait_seconds"].as_f64().unwrap();
                // Ranks do not start a step at the same moment.
                assert!(0.0 < seconds && seconds <= 1.5 * step, "{layout:?}: {seconds} s of {step} in {stage}");
            }
        }
    }
}
