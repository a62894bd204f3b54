//! `wgmma`: products that read shared memory, and write registers, when they are waited for.
//!
//! That is as late as a card may do it. A program that overwrites an operand too early, or that reads a result too early, shows: until
//! the wait the registers of the result hold NaNs.

use super::machine::Machine;
use super::products::Product;
use super::tensor::Own;
use crate::fault::Fault;
use crate::lanes::LANES;
use crate::tensor::{Descriptor, Left, Scale, Wgmma};

/// What registers hold while a product is under way.
const POISON: u32 = 0x7fff_ffff;

impl Machine<'_, '_> {
    /// `wgmma.mma_async`
    pub fn start_product(
        &mut self,
        op: Wgmma,
        d: &[u32],
        left: Result<Left, Descriptor>,
        right: Descriptor,
        scale: Scale,
        transpose: [bool; 2],
    ) -> Result<(), Fault> {
        let number = self.warp.number;
        let mut products = std::mem::take(&mut self.cluster.ctas[self.cta].products[number]);
        let values = || d.iter().map(|row| *self.row(*row)).collect();
        let sum = products.accumulator(self.base, d, values)?;
        products.sums[sum].open += 1;
        let group = products.committed;
        products.products.push(Product { op, left, right, scale, transpose, sum, group });
        self.cluster.ctas[self.cta].products[number] = products;
        d.iter().for_each(|row| self.set_all(*row, &[POISON; LANES]));
        Ok(())
    }

    /// `wgmma.wait_group`: all but the last `count` groups.
    pub fn wait_products(&mut self, count: u32) -> Result<(), Fault> {
        let number = self.warp.number;
        let mut all = std::mem::take(&mut self.cluster.ctas[self.cta].products[number]);
        let done = all.products.iter().take_while(|product| product.group + count < all.committed).count();
        for product in all.products.drain(..done) {
            let op = product.op;
            let (checks, bytes) = (self.checks(), self.env.shared_bytes);
            let mut shared = Own { shared: &mut self.cluster.ctas[self.cta].shared, warp: self.warp, checks, bytes };
            let left = match product.left {
                Ok(left) => left,
                Err(descriptor) => op.left_in_shared(descriptor, product.transpose[0], number % 4, &mut shared)?,
            };
            let right = op.right(product.right, product.transpose[1], &mut shared)?;
            let sum = &mut all.sums[product.sum];
            op.multiply(&left, &right, product.scale, &mut sum.values);
            sum.open -= 1;
            if sum.open == 0 {
                let first = sum.base as usize;
                for (&row, values) in sum.rows.iter().zip(&sum.values) {
                    self.warp.rows[first + row as usize].0 = *values;
                }
            }
        }
        self.cluster.ctas[self.cta].products[number] = all;
        Ok(())
    }
}
