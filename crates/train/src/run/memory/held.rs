//! What a machine holds of checkpoints in memory, and what its supervisor may ask it to do with them.

use checkpoint::{CheckpointError, Folder};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Where in its memory a machine holds a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Place {
    /// Parts of the machine's own ranks.
    Own,
    /// Copies of the parts of the machine before.
    Copies,
}

impl Place {
    const ALL: [Self; 2] = [Self::Own, Self::Copies];

    /// The place in an attempt's folder in memory.
    pub fn folder(self, memory: &Path) -> Folder {
        match self {
            Self::Own => Folder::of_run(memory),
            Self::Copies => Folder::of_run(&memory.join("neighbor")),
        }
    }
}

/// What a supervisor asks a machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Request {
    /// The folder in memory.
    pub memory: PathBuf,
    pub what: What,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum What {
    /// Which parts does it hold?
    List,
    /// Copy the parts of these ranks to the folder of the run, which all machines share.
    Copy { step: u64, parts: Chosen, run: PathBuf },
    /// Remove the folder in memory.
    Remove,
}

/// The answer of a machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    Held(Vec<Held>),
    Done,
    Failed(String),
}

/// Parts of a checkpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Held {
    pub step: u64,
    pub place: Place,
    /// The number of parts of the whole checkpoint, if what rank 0 has begun is here.
    pub world_size: Option<usize>,
    pub ranks: Vec<usize>,
}

impl Request {
    /// Does what is asked for on this machine.
    pub fn answer(&self) -> Answer {
        let failed = |error: CheckpointError| Answer::Failed(error.to_string());
        match &self.what {
            What::List => list(&self.memory).map_or_else(failed, Answer::Held),
            What::Copy { step, parts, run } => {
                let to = Folder::of_run(run);
                let copy = |(place, rank): &(Place, usize)| to.copy_part(&place.folder(&self.memory), *step, *rank);
                parts.iter().try_for_each(copy).map_or_else(failed, |()| Answer::Done)
            }
            What::Remove => {
                let _ = fs::remove_dir_all(&self.memory);
                Answer::Done
            }
        }
    }
}

fn list(memory: &Path) -> Result<Vec<Held>, CheckpointError> {
    let mut all = vec![];
    for place in Place::ALL {
        let parts = place.folder(memory).parts()?.into_iter();
        all.extend(parts.map(|parts| Held {
            step: parts.step,
            place,
            world_size: parts.world_size,
            ranks: parts.ranks,
        }));
    }
    Ok(all)
}

/// Ranks whose parts are taken from a machine, and where it holds them.
pub(crate) type Chosen = Vec<(Place, usize)>;

/// The checkpoints of which these machines hold all parts, newest first, with the parts to take from each machine.
pub(crate) fn whole(machines: &[Vec<Held>]) -> Vec<(u64, Vec<Chosen>)> {
    let steps: BTreeSet<u64> = machines.iter().flatten().map(|held| held.step).collect();
    steps.into_iter().rev().filter_map(|step| Some((step, whole_of(machines, step)?))).collect()
}

fn whole_of(machines: &[Vec<Held>], step: u64) -> Option<Vec<Chosen>> {
    let of_step = || machines.iter().enumerate().flat_map(|(i, all)| all.iter().map(move |held| (i, held)));
    let of_step = || of_step().filter(|(_, held)| held.step == step);
    let world_size = of_step().find_map(|(_, held)| held.world_size)?;
    let mut chosen = vec![vec![]; machines.len()];
    for rank in 0..world_size {
        // Rank 0's part includes what it has begun.
        let has = |held: &Held| held.ranks.contains(&rank) && (rank > 0 || held.world_size.is_some());
        let (machine, held) = of_step().find(|(_, held)| has(held))?;
        chosen[machine].push((held.place, rank));
    }
    Some(chosen)
}
