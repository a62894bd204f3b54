use crate::memory::{Category, Ledger, bytes};
use crate::storage::Storage;
use burn::tensor::Tensor;

/// A whole unit's parameters, for as long as this lives.
pub(crate) struct Weights {
    pub flat: Tensor<1>,
    storage: Option<Storage>,
    /// Counts what was gathered, and not what is at rest anyway.
    held: Option<crate::memory::Held>,
}

impl Weights {
    /// What rests on the rank anyway.
    pub fn at_hand(flat: Tensor<1>) -> Self {
        Self { flat, storage: None, held: None }
    }

    /// What was brought together.
    pub fn gathered(flat: Tensor<1>, ledger: &Ledger) -> Self {
        let held = Some(ledger.hold(Category::Gathered, bytes(&flat)));
        Self { flat, storage: None, held }
    }

    /// The same for somebody else, while the one who has this counts it and keeps it.
    pub fn lent(&self) -> Self {
        Self::at_hand(self.flat.clone())
    }

    /// The same, in memory that can be [`free`](Self::free)d while graphs hold it.
    pub fn refillable(mut self) -> Self {
        if self.held.is_some()
            && let Some(storage) = Storage::new(self.flat.clone())
        {
            self.flat = storage.tensor().clone();
            self.storage = Some(storage);
        }
        self
    }

    /// Gives up the memory; a graph that holds it must not run until it is [`refill`](Self::refill)ed.
    pub fn free(&mut self) {
        if let Some(storage) = &mut self.storage {
            storage.free();
            self.held = None;
        }
    }

    /// Takes the memory of the same unit gathered again.
    pub fn refill(&mut self, again: Self) {
        if let Some(storage) = &mut self.storage {
            storage.refill(again.flat);
            self.held = again.held;
        }
    }
}
