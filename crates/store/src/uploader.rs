//! Uploads in the background.
//!
//! ```text
//! caller   step 100 ─ start ─┬─ ...      step 200 ─ start ─┬─ ...                the end: wait
//! thread                     └─ upload ✗ 1 s ─ upload ──────┘ └─ upload ──────────────┘
//! ```
//!
//! What fails is tried again after 1, 4, 16 and 60 s; a file that has arrived need not be sent again, and begins the
//! waits anew. Then the upload is given up, and the next one tried.

use crate::retry::AGAIN;
use crate::{Bucket, StoreError};
use std::collections::VecDeque;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How many uploads wait at most. Each keeps a folder on the disk.
const LINE: usize = 2;

/// A folder to copy to a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transfer {
    /// What the caller counts folders by, such as a step.
    pub number: u64,
    /// The folder.
    pub folder: PathBuf,
    /// Names of its files. The last one is its mark.
    pub names: Vec<String>,
    /// Name of the folder in the store.
    pub to: String,
}

/// What has happened to an upload.
#[derive(Debug)]
pub enum Event {
    /// It is complete.
    Uploaded {
        /// Its number.
        number: u64,
        /// Where it is.
        url: String,
        /// Bytes sent; 0 if it was there already.
        bytes: u64,
        /// Time since it was begun.
        took: Duration,
    },
    /// It failed, and is tried again.
    Failed {
        /// Its number.
        number: u64,
        /// Why.
        error: StoreError,
        /// The wait until then.
        wait: Duration,
    },
    /// It failed too often, or a file cannot be read, which is not tried again.
    GivenUp {
        /// Its number.
        number: u64,
        /// Where it should be.
        url: String,
        /// Why.
        error: StoreError,
    },
    /// Newer ones came before it was begun.
    Overtaken {
        /// Its number.
        number: u64,
        /// Where it should be.
        url: String,
    },
    /// A folder of another course of the run no longer counts.
    SetAside {
        /// Where it is.
        url: String,
    },
}

/// Copies folders to a place in a store, one at a time, on a thread of its own.
pub struct Uploader {
    url: String,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// Bytes sent of the upload under way.
    sent: AtomicU64,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Transfer>,
    /// Number and size of the upload under way.
    now: Option<(u64, u64)>,
    events: Vec<Event>,
    is_over: bool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Uploader {
    /// Starts the thread. Before its first upload it takes the marks of the folders `abandoned`.
    pub fn new(bucket: Bucket, abandoned: Vec<String>) -> Self {
        let shared = Arc::<Shared>::default();
        let (of_thread, url) = (shared.clone(), bucket.url().to_string());
        thread::spawn(move || Worker { bucket, abandoned, shared: of_thread }.run());
        Self { url, shared }
    }

    /// The URL of the place.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Uploads a folder, which must stay as it is while it is [`pending`](Self::pending). If uploads are slower than new
    /// ones come, the oldest waiting one is left out.
    pub fn start(&self, transfer: Transfer) {
        let mut state = self.shared.state();
        if state.waiting.len() == LINE
            && let Some(Transfer { number, to, .. }) = state.waiting.pop_front()
        {
            state.events.push(Event::Overtaken { number, url: format!("{}/{to}", self.url) });
        }
        state.waiting.push_back(transfer);
        self.shared.changed.notify_all();
    }

    /// Numbers of the uploads that wait or are under way.
    pub fn pending(&self) -> Vec<u64> {
        let state = self.shared.state();
        let waiting = state.waiting.iter().map(|transfer| transfer.number);
        state.now.iter().map(|(number, _)| *number).chain(waiting).collect()
    }

    /// Number of the upload under way, its bytes sent so far, and all of its bytes.
    pub fn under_way(&self) -> Option<(u64, u64, u64)> {
        let now = self.shared.state().now;
        now.map(|(number, bytes)| (number, self.shared.sent.load(Ordering::Relaxed), bytes))
    }

    /// What has happened since the last call.
    pub fn events(&self) -> Vec<Event> {
        std::mem::take(&mut self.shared.state().events)
    }

    /// Waits until nothing is pending, at most for a `limit`. Returns whether nothing is.
    pub fn wait(&self, limit: Duration) -> bool {
        let is_busy = |state: &mut State| state.now.is_some() || !state.waiting.is_empty();
        let state = self.shared.changed.wait_timeout_while(self.shared.state(), limit, is_busy);
        !is_busy(&mut state.unwrap_or_else(PoisonError::into_inner).0)
    }
}

impl Drop for Uploader {
    /// The thread ends after the request under way.
    fn drop(&mut self) {
        self.shared.state().is_over = true;
        self.shared.changed.notify_all();
    }
}

/// What the thread works with.
struct Worker {
    bucket: Bucket,
    abandoned: Vec<String>,
    shared: Arc<Shared>,
}

impl Worker {
    fn run(mut self) {
        while let Some(transfer) = self.next() {
            let event = self.attempts(&transfer);
            let mut state = self.shared.state();
            state.events.extend(event);
            state.now = None;
            self.shared.changed.notify_all();
        }
    }

    /// Waits for the next transfer; `None` at the end.
    fn next(&self) -> Option<Transfer> {
        let is_idle = |state: &mut State| state.waiting.is_empty() && !state.is_over;
        let state = self.shared.changed.wait_while(self.shared.state(), is_idle);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        let transfer = state.waiting.pop_front().filter(|_| !state.is_over)?;
        let bytes = |name: &String| fs::metadata(transfer.folder.join(name)).map_or(0, |found| found.len());
        state.now = Some((transfer.number, transfer.names.iter().map(bytes).sum()));
        self.shared.sent.store(0, Ordering::Relaxed);
        Some(transfer)
    }

    /// Uploads until it succeeds or has failed too often; `None` if nobody waits any more.
    fn attempts(&mut self, transfer: &Transfer) -> Option<Event> {
        let Transfer { number, to, .. } = transfer;
        let (number, url, began) = (*number, format!("{}/{to}", self.bucket.url()), Instant::now());
        let (mut done, mut failures) = (0, 0);
        loop {
            let before = (done, self.abandoned.len());
            let error = match self.attempt(transfer, &mut done) {
                Ok(()) => {
                    let bytes = self.shared.sent.load(Ordering::Relaxed);
                    return Some(Event::Uploaded { number, url, bytes, took: began.elapsed() });
                }
                Err(error) => error,
            };
            if before != (done, self.abandoned.len()) {
                failures = 0;
            }
            let Some(wait) = AGAIN.get(failures).copied().filter(|_| !matches!(error, StoreError::File { .. })) else {
                return Some(Event::GivenUp { number, url, error });
            };
            failures += 1;
            let mut state = self.shared.state();
            state.events.push(Event::Failed { number, error, wait });
            let state = self.shared.changed.wait_timeout_while(state, wait, |state| !state.is_over);
            if state.unwrap_or_else(PoisonError::into_inner).0.is_over {
                return None;
            }
        }
    }

    fn attempt(&mut self, transfer: &Transfer, done: &mut usize) -> Result<(), StoreError> {
        let Transfer { folder, names, to, .. } = transfer;
        while let (Some(other), Some(mark)) = (self.abandoned.last(), names.last()) {
            self.bucket.set_aside(other, mark)?;
            let url = format!("{}/{other}", self.bucket.url());
            self.shared.state().events.push(Event::SetAside { url });
            self.abandoned.pop();
        }
        self.bucket.upload(folder, names, to, done, &self.shared.sent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uploads_that_are_too_slow_leave_out_the_oldest_that_waits() {
        let uploader = Uploader { url: "s3://b".into(), shared: Arc::default() }; // nothing uploads
        for number in 1..=3 {
            uploader.start(Transfer { number, folder: "x".into(), names: vec![], to: format!("step-{number}") });
        }
        assert_eq!(uploader.pending(), [2, 3]);
        let events = uploader.events();
        assert!(matches!(&events[..], [Event::Overtaken { number: 1, url }] if url == "s3://b/step-1"), "{events:?}");
        assert!(!uploader.wait(Duration::ZERO));
    }
}
