use crate::config::Config;
use crate::trainer::TrainError;
use data::Tokenizer;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

/// The folder of a run, and the only place that knows the names in it.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
}

impl RunFolder {
    /// Makes the folder and writes the resolved configuration into it. Without `out` it is the first free `runs/NAME-NNN`.
    ///
    /// # Errors
    /// If the folder cannot be written, or holds a run already.
    pub fn create(out: Option<&Path>, name: &str, config: &Config) -> Result<Self, TrainError> {
        let path = match out {
            Some(path) => path.to_path_buf(),
            None => free_folder(Path::new("runs"), name)?,
        };
        let unwritable = |source| TrainError::RunFolder { path: path.clone(), source };
        fs::create_dir_all(&path).map_err(unwritable)?;
        let folder = Self { path: path.clone() };
        // Whoever makes this file has the folder, even when several runs start at the same time.
        match File::create_new(folder.metrics()) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Err(TrainError::RunExists { path }),
            file => file.map_err(unwritable)?,
        };
        fs::write(path.join("config.yaml"), config.to_yaml()).map_err(unwritable)?;
        Ok(folder)
    }

    /// Opens the folder of a run that goes on after `step` steps: what it wrote after them, or only a part of, is taken away.
    pub fn resume(path: &Path, step: usize, config: &Config) -> Result<Self, TrainError> {
        let unwritable = |source| TrainError::RunFolder { path: path.into(), source };
        let folder = Self { path: path.into() };
        let text = match fs::read_to_string(folder.metrics()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            text => text.map_err(unwritable)?,
        };
        let is_before = |line: &&str| {
            let line = serde_json::from_str::<serde_json::Value>(line).ok();
            line.is_some_and(|line| line["step"].as_u64().is_none_or(|of| of <= step as u64))
        };
        let kept: String = text.lines().filter(is_before).flat_map(|line| [line, "\n"]).collect();
        write_whole(&folder.metrics(), kept.as_bytes()).map_err(unwritable)?;
        write_whole(&path.join("config.yaml"), config.to_yaml().as_bytes()).map_err(unwritable)?;
        Ok(folder)
    }

    /// Files that belong to every checkpoint: the configuration, and the tokenizer's.
    pub(crate) fn checkpoint_files(
        &self,
        config: &Config,
        tokenizer: Option<&Tokenizer>,
    ) -> Result<Vec<(String, Vec<u8>)>, TrainError> {
        let mut files = vec![("config.yaml".to_string(), config.to_yaml().into_bytes())];
        let Some(tokenizer) = tokenizer else { return Ok(files) };
        let folder = self.path.join("tokenizer");
        let unwritable = |source| TrainError::RunFolder { path: folder.clone(), source };
        fs::create_dir_all(&folder).map_err(unwritable)?;
        tokenizer.save(&folder)?;
        for entry in fs::read_dir(&folder).map_err(unwritable)?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            files.push((name, fs::read(entry.path()).map_err(unwritable)?));
        }
        Ok(files)
    }

    /// What the processes without rank 0 have: no folder, they write nothing.
    pub(crate) fn of_rank_0() -> Self {
        Self { path: PathBuf::new() }
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `metrics.jsonl`: one JSON object a line.
    pub fn metrics(&self) -> PathBuf {
        self.path.join("metrics.jsonl")
    }

    pub(crate) fn open_metrics(&self) -> io::Result<File> {
        OpenOptions::new().create(true).append(true).open(self.metrics())
    }
}

/// Writes beside the file and renames, so that it is whole at any time.
fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let beside = path.with_extension("partial");
    fs::write(&beside, bytes)?;
    fs::rename(&beside, path)
}

/// Makes the first `NAME-NNN` in `runs` that is not there yet.
fn free_folder(runs: &Path, name: &str) -> Result<PathBuf, TrainError> {
    let unwritable = |path: &Path, source| TrainError::RunFolder { path: path.into(), source };
    fs::create_dir_all(runs).map_err(|source| unwritable(runs, source))?;
    let mut folders = (1..).map(|number| runs.join(format!("{name}-{number:03}")));
    let made = folders.find_map(|path| match fs::create_dir(&path) {
        Ok(()) => Some(Ok(path)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => None,
        Err(source) => Some(Err(unwritable(&path, source))),
    });
    made.expect("numbers do not run out")
}
