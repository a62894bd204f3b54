//! A unit's parameters while they are used for computation.

use crate::shard::memory::{Category, Ledger, MemoryGuard, bytes};
use crate::shard::storage::cpu::Storage;
use crate::shard::storage::device::Leaf;
use burn::tensor::Tensor;

/// A whole unit's parameters, for as long as this lives.
pub(crate) struct Weights {
    /// One buffer for each class in the unit.
    pub flats: Vec<Flat>,
    /// On a device: the parameters of a graph whose memory was freed.
    leaves: Vec<Leaf>,
}

/// The parameters of a class.
pub(crate) struct Flat {
    pub tensor: Tensor<1>,
    storage: Option<Storage>,
    /// Counts gathered memory, but not memory at rest.
    held: Option<MemoryGuard>,
}

impl Weights {
    /// Wraps buffers that another thread may have created.
    pub fn new(flats: Vec<Flat>) -> Self {
        // A clone belongs to this thread; every view of another thread's tensor would wait until Burn moves it to this
        // thread.
        let here = |flat: Flat| Flat { tensor: flat.tensor.clone(), ..flat };
        Self { flats: flats.into_iter().map(here).collect(), leaves: vec![] }
    }

    /// Moves the weights to memory that can be [`free`](Self::free)d while graphs hold it.
    pub fn refillable(self) -> Self {
        Self { flats: self.flats.into_iter().map(Flat::refillable).collect(), ..self }
    }

    /// Frees the memory that `leaves`, each with its class, are views of. A graph that holds them must not run until
    /// they are [`refill`](Self::refill)ed.
    ///
    /// # Safety
    /// As for [`Storage::free`], no slice of the parameters' memory may still exist.
    pub unsafe fn free(&mut self, leaves: impl Iterator<Item = (usize, Leaf)>) {
        self.leaves = leaves.filter(|(class, _)| self.flats[*class].is_gathered()).map(|(_, leaf)| leaf).collect();
        Leaf::free(&self.leaves);
        for flat in self.flats.iter_mut().filter(|flat| flat.is_gathered()) {
            match &mut flat.storage {
                // SAFETY: guaranteed by the caller.
                Some(storage) => unsafe { storage.free() },
                None => flat.tensor = Tensor::empty([0], (&flat.tensor.device(), flat.tensor.dtype())),
            }
            flat.held = None;
        }
    }

    /// Returns whether leaves of a graph need memory again.
    pub fn has_leaves(&self) -> bool {
        !self.leaves.is_empty()
    }

    /// Replaces what was freed by the memory of the same unit gathered again, with these leaves.
    pub fn refill(&mut self, again: Self, leaves: impl Iterator<Item = (usize, Leaf)>) {
        for (flat, again) in self.flats.iter_mut().zip(again.flats).filter(|(_, again)| again.is_gathered()) {
            match &mut flat.storage {
                Some(storage) => storage.refill(again.tensor),
                None => flat.tensor = again.tensor,
            }
            flat.held = again.held;
        }
        let leaves = leaves.filter(|(class, _)| self.flats[*class].is_gathered()).map(|(_, leaf)| leaf).collect();
        Leaf::refill(&std::mem::take(&mut self.leaves), leaves);
    }
}

impl Flat {
    /// Wraps parameters that rest on the rank anyway.
    pub fn at_hand(tensor: Tensor<1>) -> Self {
        Self { tensor, storage: None, held: None }
    }

    /// Wraps parameters that were gathered.
    pub fn gathered(tensor: Tensor<1>, ledger: &Ledger) -> Self {
        let held = Some(ledger.hold(Category::Gathered, bytes(&tensor)));
        Self { tensor, storage: None, held }
    }

    fn is_gathered(&self) -> bool {
        self.held.is_some()
    }

    fn refillable(mut self) -> Self {
        if self.is_gathered()
            && let Some(storage) = Storage::new(self.tensor.clone())
        {
            self.tensor = storage.tensor().clone();
            self.storage = Some(storage);
        }
        self
    }
}
