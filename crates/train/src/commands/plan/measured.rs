//! `train plan --measure`.

use super::PlanCommandError;
use crate::dry_run::Scratch;
use crate::host::launch::Launch;
use crate::host::signals::stop_at_once;
use crate::output::{self, OutputError, check_folder};
use crate::plan::measure::measure;
use crate::terminal::say;
use plan::Cluster;
use std::fs::{self, File};
use std::path::Path;

/// Measures this machine and writes it to a file, which may hold what was measured before.
pub fn measured(device: &str, path: &Path) -> Result<(), PlanCommandError> {
    if !path.extension().is_some_and(|suffix| suffix == "yaml" || suffix == "yml") {
        return Err(PlanCommandError::Suffix(path.display().to_string()));
    }
    if path.exists() && !fs::read_to_string(path).is_ok_and(|text| Cluster::parse("", &text).is_ok()) {
        return Err(PlanCommandError::NoCluster { path: path.into() });
    }
    check_folder(path)?;
    // Before the measurement, which takes a while. The name is new: nothing of the user's is touched.
    let beside = path.with_extension(format!("{}.tmp", std::process::id()));
    File::create_new(&beside).map_err(|source| OutputError::Write { path: path.into(), source })?;
    let _ = fs::remove_file(&beside);
    let launch = Launch::threads();
    stop_at_once(Scratch::remover(&launch));
    let cluster = measure(device, &Scratch::at(&launch)?)?;
    let text = yaml_serde::to_string(&cluster).expect("a cluster is plain data");
    Cluster::parse("what was measured", &text)?;
    output::write(path, &text)?;
    say(&format!("wrote {}: use it with --cluster {}", path.display(), path.display()));
    Ok(())
}
