use crate::config::Config;
use crate::trainer::TrainError;
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
            None => (1..)
                .map(|number| Path::new("runs").join(format!("{name}-{number:03}")))
                .find(|path| !path.exists())
                .expect("numbers do not run out"),
        };
        let folder = Self { path };
        let unwritable = |source| TrainError::RunFolder { path: folder.path.clone(), source };
        fs::create_dir_all(&folder.path).map_err(unwritable)?;
        if folder.metrics().exists() {
            return Err(TrainError::RunExists { path: folder.path });
        }
        fs::write(folder.path.join("config.yaml"), config.to_yaml()).map_err(unwritable)?;
        folder.open_metrics().map_err(unwritable)?;
        Ok(folder)
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
