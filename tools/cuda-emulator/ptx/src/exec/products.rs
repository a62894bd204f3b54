//! Products of `wgmma` that are under way.

use crate::fault::{Fault, FaultKind};
use crate::tensor::{Descriptor, Left, Scale, Wgmma, Words};

/// Warps of a warpgroup.
pub(super) const GROUP: usize = 4;

/// A warp's part of a product that is under way.
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
    /// Whether a register of `a` is undefined.
    pub undefined: bool,
}

impl Product {
    /// What all parts of a product have in common.
    pub fn operands(&self) -> (Wgmma, [bool; 2], Option<Descriptor>, Descriptor) {
        (self.op, self.transpose, self.left.as_ref().err().copied(), self.right)
    }
}

/// Registers that products add to.
#[derive(Debug)]
pub(super) struct Accumulator {
    pub base: u32,
    pub rows: Vec<u32>,
    pub values: Vec<Words>,
    /// Products that have not been waited for.
    pub open: usize,
    pub undefined: bool,
}

/// The products of a warp that it has not waited for.
#[derive(Debug, Default)]
pub(super) struct Products {
    pub products: Vec<Product>,
    pub sums: Vec<Accumulator>,
    pub committed: u32,
    /// Products of the warp so far, and how many of them are complete, which is so for all warps of its group at once.
    pub issued: u64,
    pub complete: u64,
}

impl Products {
    /// `wgmma.commit_group`
    pub fn commit(&mut self) {
        self.committed += 1;
    }

    /// Number of the first product of those that have not been waited for.
    pub fn first(&self) -> u64 {
        self.issued - self.products.len() as u64
    }

    /// How many products are of groups before the last `count`.
    pub fn before(&self, count: u32) -> usize {
        self.products.iter().take_while(|product| product.group + count < self.committed).count()
    }

    /// Number of the accumulator of these registers.
    pub fn accumulator(
        &mut self,
        base: u32,
        rows: &[u32],
        made: impl FnOnce() -> (Vec<Words>, bool),
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
        let (values, undefined) = made();
        let made = Accumulator { base, rows: rows.to_vec(), values, open: 0, undefined };
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
