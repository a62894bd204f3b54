//! Tables from handles to objects.
//!
//! A handle is a number that was never used before, so one that was destroyed, or that was never made, is found out
//! wherever it is used.

use crate::errors::{Answer, Code};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Handles of all kinds are distinct, so that a stream in the place of an event is found out too. They start in a range
/// that no process has mapped: a client that reads through one crashes.
static NEXT: AtomicUsize = AtomicUsize::new(0x0e30_0000_0000_0000);

/// A handle that no table has.
pub fn fresh() -> usize {
    NEXT.fetch_add(16, Ordering::Relaxed)
}

/// The live objects of one kind.
pub struct Table<T> {
    rows: Mutex<BTreeMap<usize, Arc<T>>>,
    wrong: Code,
}

impl<T> Table<T> {
    /// An empty table; a handle that is not in it is answered with `wrong`.
    pub const fn new(wrong: Code) -> Self {
        Self { rows: Mutex::new(BTreeMap::new()), wrong }
    }

    fn rows(&self) -> MutexGuard<'_, BTreeMap<usize, Arc<T>>> {
        self.rows.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Adds what `make` returns for a fresh handle.
    pub fn add(&self, make: impl FnOnce(usize) -> T) -> Arc<T> {
        self.add_at(fresh(), make)
    }

    /// Adds an object under a handle of its own.
    pub fn add_at(&self, handle: usize, make: impl FnOnce(usize) -> T) -> Arc<T> {
        let object = Arc::new(make(handle));
        self.rows().insert(handle, object.clone());
        object
    }

    /// The object of a handle.
    ///
    /// # Errors
    /// The table's code if there is none.
    pub fn get(&self, handle: usize) -> Answer<Arc<T>> {
        self.rows().get(&handle).cloned().ok_or(self.wrong)
    }

    /// Takes an object out.
    ///
    /// # Errors
    /// The table's code if there is none.
    pub fn remove(&self, handle: usize) -> Answer<Arc<T>> {
        self.rows().remove(&handle).ok_or(self.wrong)
    }

    /// Takes out all objects that `which` names.
    pub fn remove_all(&self, which: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        let mut rows = self.rows();
        let handles: Vec<_> = rows.iter().filter(|row| which(row.1)).map(|row| *row.0).collect();
        handles.iter().filter_map(|handle| rows.remove(handle)).collect()
    }

    /// All objects, oldest first.
    pub fn all(&self) -> Vec<Arc<T>> {
        self.rows().values().cloned().collect()
    }
}
