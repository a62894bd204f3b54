//! Checkpoints in an object store, where a run has the same names as in its folder: `URL/checkpoints/step-N/index.json`.

pub(crate) mod download;
pub(crate) mod upload;

use store::{Bucket, StoreError};

/// The folder of checkpoints.
const CHECKPOINTS: &str = "checkpoints";
/// The file of a checkpoint without which it does not count; written last.
const MARK: &str = "index.json";

/// A checkpoint's folder.
fn folder(step: u64) -> String {
    format!("{CHECKPOINTS}/step-{step}")
}

/// Steps of the complete checkpoints, oldest first.
fn steps(bucket: &Bucket) -> Result<Vec<u64>, StoreError> {
    let names = bucket.whole(CHECKPOINTS, MARK)?;
    let mut steps: Vec<u64> = names.iter().filter_map(|name| name.strip_prefix("step-")?.parse().ok()).collect();
    steps.sort_unstable();
    Ok(steps)
}
