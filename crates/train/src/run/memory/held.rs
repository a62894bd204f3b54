//! What a machine holds of checkpoints in memory, and what its supervisor may ask it to do with them.

use checkpoint::{CheckpointError, Folder};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};

/// A rank's part, and where a machine holds it.
pub(crate) type Part = (Place, usize);

/// Where in its memory a machine holds a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
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
    Copy { step: u64, parts: Vec<Part>, run: PathBuf },
    /// Remove the folder in memory.
    Remove,
}

/// The answer of a machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    Held(Vec<Held>),
    Done,
    /// Why, and which part is damaged, if that is the cause.
    Failed {
        why: String,
        part: Option<Part>,
    },
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
        let failed = |part, error: CheckpointError| Answer::Failed { why: error.to_string(), part };
        match &self.what {
            What::List => list(&self.memory).map_or_else(|error| failed(None, error), Answer::Held),
            What::Copy { step, parts, run } => {
                let to = Folder::of_run(run);
                let copy = |(place, rank): &Part| to.copy_part(&place.folder(&self.memory), *step, *rank);
                let failure = parts.iter().find_map(|part| Some((*part, copy(part).err()?)));
                let damaged =
                    |part, error: &CheckpointError| matches!(error, CheckpointError::Broken { .. }).then_some(part);
                failure.map_or(Answer::Done, |(part, error)| failed(damaged(part, &error), error))
            }
            What::Remove => {
                let _ = fs::remove_dir_all(&self.memory);
                Answer::Done
            }
        }
    }
}

/// Does all that is asked for, on this machine.
pub(crate) fn answer_here(requests: &[(usize, Request)]) -> Vec<Result<Answer, String>> {
    requests.iter().map(|(_, request)| Ok(request.answer())).collect()
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
