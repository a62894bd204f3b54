//! A unit's parameters while they are computed with.

use crate::memory::{Category, Held, Ledger, bytes};
use crate::storage::device::Leaf;
use crate::storage::host::Storage;
use burn::tensor::Tensor;

/// A whole unit's parameters, for as long as this lives.
pub(crate) struct Weights {
    /// One buffer for each class that the unit has.
    pub flats: Vec<Flat>,
    /// On a device, of a graph whose memory was taken away: its parameters.
    leaves: Vec<Leaf>,
}

/// The parameters of a class.
pub(crate) struct Flat {
    pub tensor: Tensor<1>,
    storage: Option<Storage>,
    /// Counts what was gathered, and not what is at rest anyway.
    held: Option<Held>,
}

impl Weights {
    /// Buffers that another thread may have made.
    pub fn new(flats: Vec<Flat>) -> Self {
        // A clone is this thread's own: each view of another thread's would wait for Burn to make it one of this thread.
        let here = |flat: Flat| Flat { tensor: flat.tensor.clone(), ..flat };
        Self { flats: flats.into_iter().map(here).collect(), leaves: vec![] }
    }

    /// The same for somebody else, while the one who has this counts it and keeps it.
    pub fn lent(&self) -> Self {
        let flats = self.flats.iter().map(|flat| Flat::at_hand(flat.tensor.clone())).collect();
        Self { flats, leaves: vec![] }
    }

    /// The same, in memory that can be [`free`](Self::free)d while graphs hold it.
    pub fn refillable(self) -> Self {
        Self { flats: self.flats.into_iter().map(Flat::refillable).collect(), ..self }
    }

    /// Gives up the memory that `leaves`, each of a class, are views of; a graph that holds it must not run until it is
    /// [`refill`](Self::refill)ed.
    ///
    /// # Safety
    /// As of [`Storage::free`]: nobody has a slice of the parameters' memory any more.
    pub unsafe fn free(&mut self, leaves: impl Iterator<Item = (usize, Leaf)>) {
        self.leaves = leaves.filter(|(class, _)| self.flats[*class].is_gathered()).map(|(_, leaf)| leaf).collect();
        Leaf::free(&self.leaves);
        for flat in self.flats.iter_mut().filter(|flat| flat.is_gathered()) {
            match &mut flat.storage {
                // SAFETY: as the caller says.
                Some(storage) => unsafe { storage.free() },
                None => flat.tensor = Tensor::empty([0], (&flat.tensor.device(), flat.tensor.dtype())),
            }
            flat.held = None;
        }
    }

    /// Whether a graph's leaves are to have memory again.
    pub fn has_leaves(&self) -> bool {
        !self.leaves.is_empty()
    }

    /// Takes the memory of the same unit gathered again, with these leaves, in the place of what was freed.
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
    /// What rests on the rank anyway.
    pub fn at_hand(tensor: Tensor<1>) -> Self {
        Self { tensor, storage: None, held: None }
    }

    /// What was brought together.
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
