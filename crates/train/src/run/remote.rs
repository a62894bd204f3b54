//! What a run reads from an object store and writes there: its data, and checkpoints, which have the same names there as
//! in the run's folder: `URL/checkpoints/step-N/index.json`.

pub(crate) mod data;
pub(crate) mod download;
pub(crate) mod upload;

use crate::format::bytes;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;
use store::{Bucket, StoreError};

/// The folder of checkpoints.
const CHECKPOINTS: &str = "checkpoints";
/// The file of a checkpoint without which it does not count; written last.
const MARK: &str = "index.json";
/// Time between reports of a download.
const TELL: Duration = Duration::from_secs(10);

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

/// Calls `download` with a counter of bytes, and says from time to time how many of `size` have arrived.
fn reporting<T: Send>(size: u64, say: impl Fn(&str), download: impl FnOnce(&AtomicU64) -> T + Send) -> T {
    let (got, (done, is_done)) = (AtomicU64::new(0), mpsc::channel::<()>());
    thread::scope(|scope| {
        let got = &got;
        let work = scope.spawn(move || {
            let _done = done; // dropped at the end
            download(got)
        });
        while is_done.recv_timeout(TELL) == Err(RecvTimeoutError::Timeout) {
            say(&format!("downloaded {} of {}", bytes(got.load(Ordering::Relaxed) as usize), bytes(size as usize)));
        }
        work.join().expect("downloading does not panic")
    })
}
