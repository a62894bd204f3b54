//! The summary before the first step: a box that describes the run.
//!
//! ```text
//! ╭────────────────────────────────────────────────────────────────────────────────────────────╮
//! │ model   deepseek (4 layers of width 128, 8 experts): 1.9M parameters, 734.6K active        │
//! │ data    4.2M tokens of rust-crates (326 source files of 18 crates), 418.8K for validation; │
//! │         vocabulary 256                                                                     │
//! │ run     300 steps of 32 x 128 tokens: 1.2M tokens, 0.33 epochs                             │
//! │ layout  4 ranks share 1 device (cpu), full_shard                                           │
//! │ memory  about 0.17 GB per rank, 0.49 GB in all; this machine has 21.5 GB                   │
//! │ folder  runs/deepseek-001                                                                  │
//! ╰────────────────────────────────────────────────────────────────────────────────────────────╯
//! ```

use crate::format::{count, human, human_count, wrapped};
use crate::host::device::Devices;
use crate::plan::memory_check::Estimate;
use crate::run::resume::Resume;
use crate::terminal;
use crate::trainer::job::Job;
use fsdp::FloatType;

/// Maximum width of the box, also used if stderr is not a terminal.
const WIDEST: usize = 100;
/// Minimum width, even in a narrower terminal.
const NARROWEST: usize = 40;

/// Shows the box. `devices` are those of the ranks on this machine.
pub(crate) fn say(job: &Job, devices: &Devices, memory: &Estimate) {
    let folder = match &job.folder {
        _ if job.dry_run => "none (dry run)".into(),
        Some(folder) => folder.path().display().to_string(),
        None => String::new(), // that of rank 0's process, which shows it
    };
    let rows = [
        ("model", model(job)),
        ("data", data(job)),
        ("run", run(job)),
        ("layout", layout(job, devices)),
        ("memory", memory.line()),
        ("folder", folder),
    ];
    let width = terminal::width().map_or(WIDEST, |width| width.clamp(NARROWEST, WIDEST));
    job.progress.show(&boxed(&rows, width));
}

fn model(job: &Job) -> String {
    let (all, active) = (job.config.parameter_count(), job.config.active_parameters());
    let active = if active < all { format!(", {} active", human(active)) } else { String::new() };
    format!("{}: {} parameters{active}", job.config.describe_model(), human(all))
}

fn data(job: &Job) -> String {
    let (train, val) = (job.dataset.train_tokens(), job.dataset.val_tokens());
    let vocabulary = job.config.model.vocab_size();
    let (all, val) = (human_count((train + val) as usize, "token"), human(val as usize));
    format!("{all} of {}, {val} for validation; vocabulary {vocabulary}", job.data.name)
}

/// The steps this process will make: for a resumed run, those that are left.
pub(crate) fn run(job: &Job) -> String {
    let train = &job.config.train;
    let done = job.resume.as_ref().map_or(0, Resume::step);
    let steps = match done {
        0 => count(train.steps, "step"),
        _ => format!("steps {} to {}", done + 1, train.steps),
    };
    let sizes = match &job.config.data.buckets {
        Some(lengths) => {
            let lengths: Vec<String> = lengths.iter().map(usize::to_string).collect();
            format!("of rows of {} tokens", lengths.join(", "))
        }
        None => format!("of {} x {} tokens", train.global_batch_size, train.seq_len),
    };
    let tokens = (train.steps - done) * train.global_batch_size * train.seq_len;
    let about = if job.config.data.buckets.is_some() { "about " } else { "" };
    let epochs = epochs(job, tokens as u64);
    let digits = if epochs < 0.1 { 4 } else { 2 };
    format!("{steps} {sizes}: {about}{}, {epochs:.digits$} epochs", human_count(tokens, "token"))
}

/// Number of passes over the data that `tokens` tokens make.
pub(crate) fn epochs(job: &Job, tokens: u64) -> f64 {
    let seq_len = job.config.train.seq_len;
    let epoch = match job.config.data.buckets {
        Some(_) => job.dataset.train_tokens(),
        None => job.dataset.epoch_sequences(seq_len) * seq_len as u64,
    };
    tokens as f64 / epoch as f64
}

fn layout(job: &Job, devices: &Devices) -> String {
    let parallel = &job.config.parallel;
    let elsewhere = if devices.of_rank.len() < parallel.gpus {
        format!("{} on several machines; here ", count(parallel.gpus, "rank"))
    } else {
        String::new()
    };
    let spread = if parallel.gpus > 1 { format!(", {}", parallel.describe()) } else { String::new() };
    let precision = match parallel.precision.param() {
        FloatType::Fp32 => String::new(),
        other => format!(", {}", format!("{other:?}").to_lowercase()),
    };
    format!("{elsewhere}{}{spread}{precision}", devices.describe())
}

/// Formats rows of a name and a text in a frame of at most `width` columns, wrapping texts that do not fit.
fn boxed(rows: &[(&str, String)], width: usize) -> String {
    let names = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let room = width.saturating_sub("│ ".chars().count() + names + 2 + " │".chars().count());
    let mut lines = vec![];
    for (name, text) in rows {
        let parts = wrapped(text, room).into_iter().enumerate();
        lines.extend(parts.map(|(i, part)| format!("{:<names$}  {part}", if i == 0 { name } else { "" })));
    }
    let inner = lines.iter().map(|line| line.chars().count()).max().unwrap_or(0);
    let edge = "─".repeat(inner + 2);
    let lines = lines.into_iter().map(|line| format!("│ {line:<inner$} │\n"));
    format!("╭{edge}╮\n{}╰{edge}╯", lines.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_box_is_as_wide_as_its_text_and_breaks_what_has_no_room() {
        let rows = [("model", "two layers".to_string()), ("folder", "runs/é".into())];
        let expected = "╭────────────────────╮\n│ model   two layers │\n│ folder  runs/é     │\n╰────────────────────╯";
        assert_eq!(boxed(&rows, 100), expected);
        let long = [("data", "some words and a/path/that/is/longer/than/a/line".to_string())];
        for width in [20, 30, 60] {
            let text = boxed(&long, width);
            assert!(text.lines().all(|line| line.chars().count() <= width), "{text}");
            let widths: Vec<_> = text.lines().map(|line| line.chars().count()).collect();
            assert!(widths.iter().all(|width| *width == widths[0]), "{text}");
            let words: String = text.lines().flat_map(|line| line.split_whitespace()).collect();
            assert!(words.replace('│', "").contains("and") && words.contains("a/"), "{text}");
        }
    }
}
