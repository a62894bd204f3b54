//! The last lines of a run: its result, and commands to type next.

use crate::format::{count, duration, human, quoted};
use crate::host::attempt;
use crate::host::launch::Launch;
use crate::program;
use crate::terminal::{self, detail_to_stderr, to_stderr};
use crate::trainer::Outcome;

/// Prints the result of a run of `steps` steps to stdout.
pub(crate) fn say_result(outcome: &Outcome, steps: usize, how_to_resume: Option<String>) {
    let folder = outcome.folder.display();
    match outcome.val_loss {
        _ if outcome.stopped => {
            let last = match outcome.steps == steps {
                true => format!(", the last one: `{} eval` validates it", program::name()),
                false => String::new(),
            };
            let resume = how_to_resume.map_or(String::new(), |command| format!("; resume with `{command}`"));
            terminal::say(&format!(
                "stopped after {}{last}; metrics are in {folder}{resume}",
                count(outcome.steps, "step")
            ))
        }
        Some(loss) => terminal::say(&format!(
            "validation loss {loss:.4} after {}; metrics are in {folder}",
            count(outcome.steps, "step")
        )),
        None => terminal::say(&format!("{}; metrics are in {folder}", count(outcome.steps, "step"))),
    }
    if let Some((step, loss)) = outcome.best.filter(|(step, _)| *step != outcome.steps) {
        terminal::say(&format!(
            "the best validation loss was {loss:.4} after step {step}, kept as {folder}/checkpoints/step-{step}"
        ));
    }
    if let Some(sample) = &outcome.sample {
        terminal::say(&format!("--- sample ---\n{sample}\n--------------"));
    }
}

/// Prints the last lines to stderr.
pub(crate) fn say(outcome: &Outcome, launch: &Launch) {
    to_stderr(&came_to(outcome));
    let commands = commands(outcome, &program::path(), launch.processes());
    if !commands.is_empty() {
        detail_to_stderr("next:");
        commands.iter().for_each(|command| to_stderr(&format!("  {command}")));
    }
}

/// `300 steps in 1 min 33 s, 13.2K tokens/s; best validation loss 1.8538 at step 300`.
fn came_to(outcome: &Outcome) -> String {
    let Outcome { pace, best, .. } = outcome;
    let best = best.map(|(step, loss)| format!("; best validation loss {loss:.4} at step {step}"));
    format!(
        "{} in {}, {} tokens/s{}",
        count(pace.steps, "step"),
        duration(pace.all),
        human(pace.tokens_per_second() as usize),
        best.unwrap_or_default()
    )
}

/// The command that resumes a run, with as many `processes` if `mpirun` started it.
fn resume(outcome: &Outcome, program: &str, processes: Option<usize>) -> Option<String> {
    let mpirun = processes.map_or(String::new(), |processes| format!("mpirun -n {processes} "));
    let run = quoted(&outcome.folder.display().to_string());
    let alone = || format!("{mpirun}{} --resume {run}", quoted(program));
    (outcome.stopped && outcome.is_saved).then(|| attempt::resume_command().unwrap_or_else(alone))
}

/// The command that resumes a stopped run, if it can be resumed.
pub(crate) fn how_to_resume(outcome: &Outcome, launch: &Launch) -> Option<String> {
    resume(outcome, &program::path(), launch.processes())
}

/// Suggested commands for a shell in the same folder; `processes` is the number that `mpirun` started.
fn commands(outcome: &Outcome, program: &str, processes: Option<usize>) -> Vec<String> {
    let resume = resume(outcome, program, processes);
    let (program, run) = (quoted(program), quoted(&outcome.folder.display().to_string()));
    let prompt = outcome.prompt.as_deref().map(quoted);
    let generate = prompt.map(|prompt| format!("{program} generate {run} --prompt {prompt}"));
    let (report, eval) = (format!("{program} report {run}"), format!("{program} eval {run}"));
    let saved = |command: String| Some(command).filter(|_| outcome.is_saved);
    let commands = match outcome.stopped {
        true => [resume, generate.and_then(saved), Some(report)],
        false => [generate.and_then(saved), Some(report), saved(eval)],
    };
    commands.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trainer::Pace;
    use std::time::Duration;

    fn outcome(stopped: bool, is_saved: bool) -> Outcome {
        let (first, all) = (Duration::from_secs(3), Duration::from_secs(93));
        Outcome {
            folder: "my runs/a".into(),
            steps: 300,
            stopped,
            val_loss: Some(1.85),
            best: Some((250, 1.8)),
            sample: None,
            prompt: Some("it's".into()),
            is_saved,
            pace: Pace { steps: 300, tokens: 1_228_800, first, all },
        }
    }

    #[test]
    fn a_run_that_was_stopped_goes_on_and_one_that_has_ended_is_looked_at() {
        let said = came_to(&outcome(false, true));
        assert_eq!(said, "300 steps in 1 min 33 s, 13.2K tokens/s; best validation loss 1.8000 at step 250");
        let [generate, report, eval] =
            [r"generate 'my runs/a' --prompt 'it'\''s'", "report 'my runs/a'", "eval 'my runs/a'"]
                .map(|command| format!("train {command}"));
        assert_eq!(commands(&outcome(false, true), "train", None), [generate.clone(), report.clone(), eval]);
        let resume = "train --resume 'my runs/a'".to_string();
        assert_eq!(commands(&outcome(true, true), "train", None), [resume.clone(), generate, report.clone()]);
        assert_eq!(commands(&outcome(true, true), "train", Some(4))[0], format!("mpirun -n 4 {resume}"));
        assert_eq!(commands(&outcome(true, false), "train", None), [report]);
    }
}
