//! Collects the newest checkpoint in memory from the machines that hold its parts.

use super::held::{Answer, Held, Part, What};
use crate::run::copies;
use checkpoint::Folder;
use std::collections::BTreeSet;
use std::path::Path;

/// What was found in memory.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// The checkpoint of this step, which is on disk now.
    Step(u64),
    /// Only parts that cannot be used.
    Damaged(String),
    Nothing,
}

/// Why a checkpoint is not copied.
enum CopyError {
    /// The part of a machine is not what was written, or all of them together are not.
    Damaged { why: String, source: Option<(usize, Part)> },
    /// A machine does not answer, or the disk refuses a file: that may be over later.
    Refused(String),
}

/// Asks machines, given by number, at the same time.
type Ask<'a> = dyn Fn(Vec<(usize, What)>) -> Vec<Result<Answer, String>> + 'a;

/// Copies the newest checkpoint that `machines` machines hold to the folder of the run, if it is newer than those there.
/// Returns what was found, and the machines that have answered.
///
/// # Errors
/// If one cannot be copied, or if a machine does not answer that may hold parts of a newer one.
pub(crate) fn copy_newest(machines: usize, run: &Path, ask: &Ask) -> Result<(Found, Vec<usize>), String> {
    let disk = Folder::of_run(run);
    disk.clean(&copies::are_same).map_err(|error| error.to_string())?;
    let on_disk = disk.list().map_err(|error| error.to_string())?.last().map(|(step, _)| *step);
    let (mut held, mut answered, mut unanswered) = (vec![], vec![], None);
    for (machine, answer) in ask((0..machines).map(|machine| (machine, What::List)).collect()).into_iter().enumerate() {
        held.push(match answer {
            Ok(Answer::Held(held)) => {
                answered.push(machine);
                held
            }
            Ok(Answer::Failed { why, .. }) | Err(why) => {
                unanswered.get_or_insert(why);
                vec![]
            }
            Ok(Answer::Done) => vec![],
        });
    }
    let (mut bad, mut failure, mut found) = (vec![], None, Found::Nothing);
    for step in steps(&held).into_iter().filter(|step| Some(*step) > on_disk) {
        // Where all have answered, what is missing has not been written.
        failure = failure.or(unanswered.take());
        while let Some(parts) = whole(&held, step, &bad) {
            match copy(run, step, parts, ask) {
                Ok(()) => return Ok((Found::Step(step), answered)),
                Err(CopyError::Refused(why)) => return Err(why),
                Err(CopyError::Damaged { why, source }) => {
                    found = Found::Damaged(why);
                    match source {
                        Some(source) => bad.push(source),
                        None => break,
                    }
                }
            }
        }
    }
    failure.map_or(Ok((found, answered)), Err)
}

/// Copies the chosen parts of each machine to the disk, and completes the checkpoint there.
fn copy(run: &Path, step: u64, parts: Vec<Vec<Part>>, ask: &Ask) -> Result<(), CopyError> {
    let (disk, run) = (Folder::of_run(run), std::path::absolute(run).unwrap_or_else(|_| run.into()));
    let needed = parts.into_iter().enumerate().filter(|(_, parts)| !parts.is_empty());
    let (machines, of_each): (Vec<usize>, Vec<_>) =
        needed.map(|(machine, parts)| (machine, (machine, What::Copy { step, parts, run: run.clone() }))).unzip();
    for (machine, answer) in machines.into_iter().zip(ask(of_each)) {
        let failure = match answer {
            Ok(Answer::Failed { why, part: Some(part) }) => CopyError::Damaged { why, source: Some((machine, part)) },
            Ok(Answer::Failed { why, part: None }) | Err(why) => CopyError::Refused(why),
            Ok(_) => continue,
        };
        let _ = disk.discard(step);
        return Err(failure);
    }
    disk.clean(&copies::are_same).map_err(|error| CopyError::Refused(error.to_string()))?;
    let why = || format!("the parts of step {step} do not fit together, or copies of parameters differ");
    disk.step(step).is_dir().then_some(()).ok_or_else(|| CopyError::Damaged { why: why(), source: None })
}

/// The steps of which a machine holds a part, newest first.
fn steps(machines: &[Vec<Held>]) -> Vec<u64> {
    let steps: BTreeSet<u64> = machines.iter().flatten().map(|held| held.step).collect();
    steps.into_iter().rev().collect()
}

/// The parts to take from each machine for the checkpoint of a step, without the `bad` ones of some machines. `None` if the
/// machines do not hold all parts.
fn whole(machines: &[Vec<Held>], step: u64, bad: &[(usize, Part)]) -> Option<Vec<Vec<Part>>> {
    let of_step = || machines.iter().enumerate().flat_map(|(i, all)| all.iter().map(move |held| (i, held)));
    let of_step = || of_step().filter(|(_, held)| held.step == step);
    let world_size = of_step().find_map(|(_, held)| held.world_size)?;
    let mut chosen = vec![vec![]; machines.len()];
    for rank in 0..world_size {
        // Rank 0's part includes what it has begun.
        let has = |(machine, held): &(usize, &Held)| {
            let is_there = held.ranks.contains(&rank) && (rank > 0 || held.world_size.is_some());
            is_there && !bad.contains(&(*machine, (held.place, rank)))
        };
        // From its own machine if possible, so that all machines write.
        let (machine, held) = of_step().filter(has).min_by_key(|(_, held)| held.place)?;
        chosen[machine].push((held.place, rank));
    }
    Some(chosen)
}
