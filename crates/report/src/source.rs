//! The folders in a report, and what was read from them.

use crate::config::{self, Entries};
use crate::follow::Follower;
use crate::planned::{PLANNED, Planned};
use crate::run::{Run, planned};
use crate::setup::name_data_alike;
use crate::verdict::State;
use crate::{ReportError, file, page};
use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Maximum size of an accepted configuration, far above what a configuration needs.
const CONFIG_BYTES: u64 = 1 << 20;

/// Run folders, each with what was read from it.
#[derive(Debug)]
pub(crate) struct Sources {
    pub sources: Vec<Source>,
    /// Paths that were named but are not folders.
    pub left_out: Vec<String>,
}

/// One run's folder.
#[derive(Debug)]
pub(crate) struct Source {
    folder: PathBuf,
    pub name: String,
    pub metrics: Follower,
    /// The text of `config.yaml` and its entries, or why there are none.
    config: (String, Result<Entries, String>),
    checkpoints: Vec<String>,
    /// What `train plan --run` has compared, or why it cannot be read.
    planned: Result<Vec<Planned>, String>,
    /// Seconds since 1970 at which it was compared.
    compared: Option<u64>,
    /// Why the metrics could not be read last time.
    unreadable: Option<String>,
    /// Seconds since 1970 at the last line.
    written: Option<u64>,
    state: State,
}

impl Sources {
    /// Accepts the folders without reading them.
    ///
    /// # Errors
    /// If there are none, or one of them does not exist. A file among several paths only gives a note, because `runs/*`
    /// may include one.
    pub fn new(folders: &[PathBuf]) -> Result<Self, ReportError> {
        let missing = |path: &&PathBuf| if folders.len() == 1 { !path.is_dir() } else { !path.exists() };
        if let Some(path) = folders.iter().find(missing) {
            return Err(ReportError::NotAFolder { path: path.clone() });
        }
        let (folders, files): (Vec<_>, Vec<_>) = folders.iter().cloned().partition(|path| path.is_dir());
        if folders.is_empty() {
            return Err(files
                .first()
                .map_or(ReportError::NoRuns, |path| ReportError::NotAFolder { path: path.clone() }));
        }
        let left_out = files.iter().map(|path| format!("{}: no folder, left out", path.display())).collect();
        let sources = folders.iter().zip(names(&folders)).map(|(folder, name)| Source::new(folder, name)).collect();
        Ok(Self { sources, left_out })
    }

    /// The page's title.
    pub fn title(&self) -> String {
        let names: Vec<_> = self.sources.iter().map(|source| source.name.as_str()).collect();
        if names.len() > 4 { format!("{} runs", names.len()) } else { names.join(", ") }
    }

    /// The page's numbers as JSON.
    pub fn data(&self) -> serde_json::Result<String> {
        let mut runs: Vec<_> = self.sources.iter().map(Source::run).collect();
        name_data_alike(runs.iter_mut().flat_map(|run| &mut run.setups));
        page::data(&runs, &self.left_out)
    }

    /// Reads what is new in all of them. Returns whether anything is new.
    pub fn read_on(&mut self) -> bool {
        // Reads each one, whatever the others return.
        self.sources.iter_mut().fold(false, |new, source| source.read_on() | new)
    }

    /// Leaves out the runs that have not made a step yet, each with a note.
    ///
    /// # Errors
    /// If no run has made a step, or if a file cannot be read.
    pub fn leave_out_empty(&mut self) -> Result<(), ReportError> {
        let mut first = None;
        for source in self.sources.iter().filter(|source| source.metrics.log.is_empty()) {
            let path = source.metrics.path.clone();
            let (what, error) = match &source.unreadable {
                Some(text) => return Err(ReportError::Read { path, source: io::Error::other(text.clone()) }),
                None if !path.exists() => ("no metrics.jsonl", ReportError::NoMetrics { path }),
                None => ("no step yet", ReportError::NothingToShow { path, lines: source.metrics.lines() }),
            };
            self.left_out.push(format!("{}: {what}, left out", source.folder.display()));
            first.get_or_insert(error);
        }
        self.sources.retain(|source| !source.metrics.log.is_empty());
        first.filter(|_| self.sources.is_empty()).map_or(Ok(()), Err)
    }
}

impl Source {
    fn new(folder: &Path, name: String) -> Self {
        let metrics = Follower::new(&folder.join("metrics.jsonl"));
        let config = (String::new(), Ok(vec![]));
        let (checkpoints, planned, state) = (vec![], Ok(vec![]), State::Waiting);
        Self {
            folder: folder.into(),
            name,
            metrics,
            config,
            checkpoints,
            planned,
            compared: None,
            unreadable: None,
            written: None,
            state,
        }
    }

    fn read_on(&mut self) -> bool {
        let (new, unreadable) = match self.metrics.read_on() {
            Ok(new) => (new, None),
            // The run has not started yet, or its folder was removed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => (self.written.is_some(), None),
            Err(error) => (false, Some(error.to_string())),
        };
        if new {
            let written = fs::metadata(&self.metrics.path).and_then(|metadata| metadata.modified()).ok();
            self.written = written.and_then(seconds);
        }
        let other = unreadable != self.unreadable;
        self.unreadable = unreadable;
        new | other | self.read_config() | self.read_checkpoints() | self.read_planned() | self.see_state()
    }

    /// Whether the run's state has changed. Time alone can change it: a run that stops writing has stopped.
    fn see_state(&mut self) -> bool {
        let silent = self.written.zip(seconds(SystemTime::now()));
        let silent = silent.map(|(written, now)| now.saturating_sub(written) as f64);
        let planned = self.config.1.as_ref().ok().and_then(planned);
        let state = State::new(&self.metrics.log, planned, silent);
        std::mem::replace(&mut self.state, state) != state
    }

    /// Reads the configuration. A run without one is still worth a page.
    fn read_config(&mut self) -> bool {
        let text = file::text(&self.folder.join("config.yaml"), CONFIG_BYTES);
        let (text, read) = text.map_or_else(|error| (error.to_string(), false), |text| (text, true));
        let new = text != self.config.0;
        if new {
            let entries = if read { config::entries(&text) } else { Err(text.clone()) };
            self.config = (text, entries);
        }
        new
    }

    /// Reads the names of the checkpoints, ordered by step.
    fn read_checkpoints(&mut self) -> bool {
        let step = |name: &str| name.strip_prefix("step-").and_then(|step| step.parse::<u64>().ok());
        let entries = fs::read_dir(self.folder.join("checkpoints")).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let mut names: Vec<_> = names.filter_map(|name| Some((step(&name)?, name))).collect();
        names.sort();
        let names: Vec<_> = names.into_iter().map(|(_, name)| name).collect();
        let new = names != self.checkpoints;
        self.checkpoints = names;
        new
    }

    /// Reads what was planned, if it has been compared.
    fn read_planned(&mut self) -> bool {
        let path = self.folder.join(PLANNED);
        let planned = match file::text(&path, CONFIG_BYTES) {
            Ok(text) => serde_json::from_str(&text).map_err(|error| error.to_string()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(vec![]),
            Err(error) => Err(error.to_string()),
        };
        let compared = fs::metadata(&path).and_then(|metadata| metadata.modified()).ok().and_then(seconds);
        let new = (&planned, compared) != (&self.planned, self.compared);
        (self.planned, self.compared) = (planned, compared);
        new
    }

    /// Notes for the reader about the folder.
    pub fn notes(&self) -> Vec<String> {
        let unreadable = self.unreadable.iter().map(|error| format!("metrics.jsonl: cannot be read: {error}"));
        // A folder without lines yet lacks nothing.
        let config = self.config.1.as_ref().err().filter(|_| self.metrics.lines() > 0);
        let config = config.map(|error| format!("config.yaml: {error}"));
        let is_old = self.compared.zip(self.written).is_some_and(|(compared, written)| compared < written);
        let planned = match &self.planned {
            Err(error) => Some(format!("{PLANNED} is not shown: {error}: write it again with `plan --run`")),
            Ok(_) if is_old => Some(format!("{PLANNED} is older than metrics.jsonl: write it again with `plan --run`")),
            Ok(_) => None,
        };
        unreadable.chain(self.metrics.notes()).chain(config).chain(planned).collect()
    }

    /// The run as the page shows it.
    pub fn run(&self) -> Run {
        let none = vec![];
        let config = self.config.1.as_ref().unwrap_or(&none);
        let run =
            Run::new(&self.name, &self.metrics.log, config, &self.checkpoints, self.notes(), self.written, self.state);
        Run { planned: self.planned.clone().unwrap_or_default(), ..run }
    }
}

/// Seconds since 1970.
fn seconds(time: SystemTime) -> Option<u64> {
    time.duration_since(UNIX_EPOCH).ok().map(|time| time.as_secs())
}

/// The last part of each path, or as many parts as it takes to distinguish the runs.
fn names(runs: &[PathBuf]) -> Vec<String> {
    // Resolves `.`, which has no name.
    let full: Vec<_> = runs.iter().map(|run| run.canonicalize().unwrap_or_else(|_| run.clone())).collect();
    let parts = |path: &PathBuf, count: usize| {
        let all: Vec<_> = path.components().map(|part| part.as_os_str().to_string_lossy().into_owned()).collect();
        all[all.len().saturating_sub(count)..].join("/")
    };
    let longest = full.iter().map(|path| path.components().count()).max().unwrap_or(1);
    for count in 1..longest {
        let names: Vec<_> = full.iter().map(|path| parts(path, count)).collect();
        if names.iter().collect::<HashSet<_>>().len() == names.len() {
            return names;
        }
    }
    // The same folder occurs twice.
    full.iter().enumerate().map(|(index, path)| format!("{} ({})", parts(path, 1), index + 1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_wrote_long_ago_has_stopped() {
        let folder = tempfile::tempdir().unwrap();
        let metrics = folder.path().join("metrics.jsonl");
        fs::write(&metrics, "{\"step\":1,\"loss\":5,\"elapsed_seconds\":2}\n").unwrap();
        fs::write(folder.path().join("config.yaml"), "train:\n  steps: 9\n").unwrap();
        let state = || {
            let mut source = Source::new(folder.path(), "a".into());
            source.read_on();
            (source.run().verdict.state, source.read_on())
        };
        assert_eq!(state(), (State::Running, false));
        let hour_ago = SystemTime::now() - std::time::Duration::from_secs(3600);
        fs::File::options().append(true).open(&metrics).unwrap().set_modified(hour_ago).unwrap();
        assert_eq!(state(), (State::Stopped, false));
        fs::write(folder.path().join("config.yaml"), "train:\n  steps: 1\n").unwrap();
        assert_eq!(state(), (State::Finished, false));
    }

    #[test]
    fn comparisons_with_a_plan_that_are_damaged_or_old_are_noted() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("metrics.jsonl"), "{\"step\":1,\"loss\":5,\"elapsed_seconds\":2}\n").unwrap();
        fs::write(folder.path().join("config.yaml"), "train:\n  steps: 1\n").unwrap();
        let notes = || {
            let mut source = Source::new(folder.path(), "a".into());
            source.read_on();
            source.notes().join("; ")
        };
        assert_eq!(notes(), "");
        let path = folder.path().join(PLANNED);
        fs::write(&path, "[{\"name\":\"step\",\"unit\":\"seconds\",\"planned\":1,\"measured\":2}]").unwrap();
        assert_eq!(notes(), "");
        let hour_ago = SystemTime::now() - std::time::Duration::from_secs(3600);
        fs::File::options().append(true).open(&path).unwrap().set_modified(hour_ago).unwrap();
        assert!(notes().starts_with("planned.json is older than metrics.jsonl"), "{}", notes());
        fs::write(&path, "[{\"name\":\"step\"").unwrap();
        assert!(notes().starts_with("planned.json is not shown: EOF"), "{}", notes());
    }

    #[test]
    fn names_are_as_long_as_it_takes() {
        let names = |paths: &[&str]| names(&paths.iter().map(PathBuf::from).collect::<Vec<_>>());
        assert_eq!(names(&["/none/a/x", "/none/b/y"]), ["x", "y"]);
        assert_eq!(names(&["/none/a/x", "/none/b/x"]), ["a/x", "b/x"]);
        assert_eq!(names(&["/none/a/x", "/none/a/x"]), ["x (1)", "x (2)"]);
    }
}
