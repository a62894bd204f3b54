//! Counts the bytes that a rank holds, by purpose.

use burn::tensor::Tensor;
use std::fmt;
use std::ops::Index;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The purpose of a piece of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Category {
    /// Parameters at rest.
    Parameters,
    /// Gradients that wait for the next step or are in flight to their shards.
    Gradients,
    /// The optimizer's state, such as AdamW's two moments, which does not exist before the first step.
    Optimizer,
    /// Whole units' parameters, gathered for computation.
    Gathered,
    /// What forwards keep for their backwards.
    Activations,
}

impl Category {
    /// All categories.
    pub const ALL: [Self; 5] = [Self::Parameters, Self::Gradients, Self::Optimizer, Self::Gathered, Self::Activations];

    /// Returns the name in tables.
    pub fn name(self) -> &'static str {
        ["parameters", "gradients", "optimizer", "gathered", "activations"][self as usize]
    }
}

/// Bytes of one rank by category.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bytes([usize; 5]);

impl Index<Category> for Bytes {
    type Output = usize;

    fn index(&self, category: Category) -> &usize {
        &self.0[category as usize]
    }
}

impl Bytes {
    /// Returns the sum over all categories.
    pub fn total(&self) -> usize {
        self.0.iter().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }
}

/// A rank's memory, now and at its peak; each category has its own peak. It prints as a table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Memory {
    /// The current bytes; between steps these are the bytes at rest.
    pub now: Bytes,
    /// The highest number of bytes since the start.
    pub peak: Bytes,
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<14}{:>12}{:>12}", "memory (MB)", "now", "peak")?;
        let megabytes = |bytes: usize| bytes as f64 / 1e6;
        for category in Category::ALL {
            let (now, peak) = (megabytes(self.now[category]), megabytes(self.peak[category]));
            write!(f, "\n{:<14}{now:>12.2}{peak:>12.2}", category.name())?;
        }
        Ok(())
    }
}

/// Counts a rank's bytes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ledger(Arc<[Account; 5]>);

#[derive(Debug, Default)]
struct Account {
    now: AtomicUsize,
    peak: AtomicUsize,
}

/// Bytes that are counted until this is dropped.
#[derive(Debug)]
pub(crate) struct MemoryGuard {
    ledger: Ledger,
    category: Category,
    bytes: usize,
}

impl Ledger {
    pub fn hold(&self, category: Category, bytes: usize) -> MemoryGuard {
        let account = &self.0[category as usize];
        let now = account.now.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        account.peak.fetch_max(now, Ordering::Relaxed);
        MemoryGuard { ledger: self.clone(), category, bytes }
    }

    pub fn memory(&self) -> Memory {
        let read = |counter: fn(&Account) -> &AtomicUsize| {
            Bytes(Category::ALL.map(|category| counter(&self.0[category as usize]).load(Ordering::Relaxed)))
        };
        Memory { now: read(|account| &account.now), peak: read(|account| &account.peak) }
    }
}

impl Drop for MemoryGuard {
    fn drop(&mut self) {
        self.ledger.0[self.category as usize].now.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A tensor whose bytes are counted.
#[derive(Debug)]
pub(crate) struct Counted {
    pub tensor: Tensor<1>,
    _held: Option<MemoryGuard>,
}

impl Counted {
    pub fn new(tensor: Tensor<1>, category: Category, ledger: &Ledger) -> Self {
        let _held = Some(ledger.hold(category, bytes(&tensor)));
        Self { tensor, _held }
    }

    /// Wraps a view of memory that is already counted.
    pub fn free_of_charge(tensor: Tensor<1>) -> Self {
        Self { tensor, _held: None }
    }
}

pub(crate) fn bytes<const D: usize>(tensor: &Tensor<D>) -> usize {
    tensor.shape().num_elements() * tensor.dtype().size()
}
