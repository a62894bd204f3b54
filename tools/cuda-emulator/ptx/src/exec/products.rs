//! Products of `wgmma` that are under way.

use crate::fault::{Fault, FaultKind};
use crate::tensor::{Descriptor, Left, Scale, Wgmma, Words};

/// A product that is under way.
#[derive(Debug)]
pub(super) struct Product {
    pub op: Wgmma,
    pub left: Result<Left, Descriptor>,
    pub right: Descriptor,
    pub scale: Scale,
    pub transpose: [bool; 2],
    /// Number of the accumulator.
    pub sum: usize,
    pub group: u32,
}

/// Registers that products add to.
#[derive(Debug)]
pub(super) struct Accumulator {
    pub base: u32,
    pub rows: Vec<u32>,
    pub values: Vec<Words>,
    /// Products under way.
    pub open: usize,
}

/// The products of a warp that are under way.
#[derive(Debug, Default)]
pub(super) struct Products {
    pub products: Vec<Product>,
    pub sums: Vec<Accumulator>,
    pub committed: u32,
}

impl Products {
    /// `wgmma.commit_group`
    pub fn commit(&mut self) {
        self.committed += 1;
    }

    /// Number of the accumulator of these registers.
    pub fn accumulator(
        &mut self,
        base: u32,
        rows: &[u32],
        values: impl FnOnce() -> Vec<Words>,
    ) -> Result<usize, Fault> {
        if let Some(at) = self.sums.iter().position(|sum| sum.open > 0 && sum.base == base && sum.rows == rows) {
            return Ok(at);
        }
        let shared =
            |sum: &Accumulator| sum.open > 0 && sum.base == base && sum.rows.iter().any(|row| rows.contains(row));
        if self.sums.iter().any(shared) {
            let what = "a wgmma.mma_async adds to some registers of another one that is under way, but not to all";
            return Err(Fault::new(FaultKind::MissingWait, what).advice("wait for the first one with wgmma.wait_group"));
        }
        let made = Accumulator { base, rows: rows.to_vec(), values: values(), open: 0 };
        match self.sums.iter().position(|sum| sum.open == 0) {
            Some(at) => {
                self.sums[at] = made;
                Ok(at)
            }
            None => {
                self.sums.push(made);
                Ok(self.sums.len() - 1)
            }
        }
    }
}
