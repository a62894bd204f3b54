//! A unit's parameters while they are computed with.

use crate::memory::{Category, Held, Ledger, bytes};
use crate::storage::Storage;
use burn::tensor::Tensor;

/// A whole unit's parameters, for as long as this lives: one buffer for each class that it has.
pub(crate) struct Weights(pub Vec<Flat>);

/// The parameters of a class.
pub(crate) struct Flat {
    pub tensor: Tensor<1>,
    storage: Option<Storage>,
    /// Counts what was gathered, and not what is at rest anyway.
    held: Option<Held>,
}

impl Weights {
    /// The same for somebody else, while the one who has this counts it and keeps it.
    pub fn lent(&self) -> Self {
        Self(self.0.iter().map(|flat| Flat::at_hand(flat.tensor.clone())).collect())
    }

    /// The same, in memory that can be [`free`](Self::free)d while graphs hold it.
    pub fn refillable(self) -> Self {
        Self(self.0.into_iter().map(Flat::refillable).collect())
    }

    /// Gives up the memory; a graph that holds it must not run until it is [`refill`](Self::refill)ed.
    ///
    /// # Safety
    /// As of [`Storage::free`]: nobody has a slice of the parameters' memory any more.
    pub unsafe fn free(&mut self) {
        for flat in &mut self.0 {
            if let Some(storage) = &mut flat.storage {
                // SAFETY: as the caller says.
                unsafe { storage.free() };
                flat.held = None;
            }
        }
    }

    /// Takes the memory of the same unit gathered again, in the place of what was freed.
    pub fn refill(&mut self, again: Self) {
        for (flat, again) in self.0.iter_mut().zip(again.0) {
            if let Some(storage) = &mut flat.storage {
                storage.refill(again.tensor);
                flat.held = again.held;
            }
        }
    }
}

impl Flat {
    /// What rests on the rank anyway.
    pub fn at_hand(tensor: Tensor<1>) -> Self {
        Self { tensor, storage: None, held: None }
    }

    /// What was brought together.
    pub fn gathered(tensor: Tensor<1>, ledger: &Ledger) -> Self {
        let held = Some(ledger.hold(Category::Gathered, bytes(&tensor)));
        Self { tensor, storage: None, held }
    }

    fn refillable(mut self) -> Self {
        if self.held.is_some()
            && let Some(storage) = Storage::new(self.tensor.clone())
        {
            self.tensor = storage.tensor().clone();
            self.storage = Some(storage);
        }
        self
    }
}
