//! `wgmma`: products of a warpgroup that read shared memory, and write registers, when they are waited for.
//!
//! That is as late as a card may do it. A program that overwrites an operand too early, or that reads a result too early, shows: until
//! the wait the registers of the result hold NaNs.
//!
//! A product is one of all four warps. It reads its operands when the first of them waits for it, and that warp goes on when the
//! others have issued their parts: so the wait of one warp says that the operands are free. The other way round, what it reads
//! leaves no trace, as which warp will tell of it is not known.

use super::cta::Cta;
use super::machine::Machine;
use super::products::{GROUP, Product, Products};
use super::tensor::Own;
use crate::fault::{Fault, FaultKind};
use crate::lanes::LANES;
use crate::options::Class;

/// What registers hold while a product is under way.
const POISON: u32 = 0x7fff_ffff;

impl Machine<'_, '_> {
    /// `wgmma.mma_async`; of the product, accumulator and group are still to be found.
    pub fn start_product(&mut self, mut product: Product, d: &[u32]) -> Result<(), Fault> {
        let number = self.warp.number;
        let first = number / GROUP * GROUP;
        if first + GROUP > self.env.warps {
            let what = format!("wgmma by warp {number} of {}: a warpgroup has 4 warps", self.env.warps);
            return Err(Fault::new(FaultKind::Mask, what));
        }
        let mut products = std::mem::take(&mut self.cluster.ctas[self.cta].products[number]);
        let values = || (d.iter().map(|row| *self.row(*row)).collect(), self.any_undefined(d));
        (product.sum, product.group) = (products.accumulator(self.base, d, values)?, products.committed);
        products.sums[product.sum].open += 1;
        products.products.push(product);
        products.issued += 1;
        let cta = &mut self.cluster.ctas[self.cta];
        cta.products[number] = products;
        for warp in cta.warps[first..first + GROUP].iter_mut().flatten() {
            warp.ready |= warp.group_waiting & warp.live;
            warp.group_waiting = 0;
        }
        d.iter().for_each(|row| self.set_all(*row, &[POISON; LANES]));
        Ok(())
    }

    /// `wgmma.wait_group`: all but the last `count` groups. False if other warps have not issued their parts yet: then
    /// the warp comes here again when they have.
    pub fn wait_products(&mut self, count: u32) -> Result<bool, Fault> {
        let number = self.warp.number;
        let first = number / GROUP * GROUP;
        let cta = &self.cluster.ctas[self.cta];
        let own = &cta.products[number];
        let done = own.before(count);
        if done == 0 {
            return Ok(true);
        }
        let until = own.first() + done as u64;
        if let Some(late) = (first..first + GROUP).find(|other| cta.products[*other].issued < until) {
            if cta.live[late] == 0 {
                return Err(Self::not_issued(number, late));
            }
            self.warp.place(u32::MAX, self.pc);
            self.warp.group_waiting = self.warp.live;
            self.warp.ready = 0;
            // It counts when it goes on.
            self.worker.counts.instructions[Class::Tensor as usize] -= 1;
            return Ok(false);
        }
        self.complete(first, until)?;
        let mut own = std::mem::take(&mut self.cluster.ctas[self.cta].products[number]);
        for product in own.products.drain(..done) {
            let sum = &mut own.sums[product.sum];
            sum.open -= 1;
            if sum.open > 0 {
                continue;
            }
            for (&row, values) in sum.rows.iter().zip(&sum.values) {
                self.warp.rows[(sum.base + row) as usize].0 = *values;
            }
            if self.warp.undefined.any {
                let lanes = if sum.undefined { u32::MAX } else { 0 };
                sum.rows.iter().for_each(|row| self.warp.undefined.set_row((sum.base + row) as usize, u32::MAX, lanes));
            }
        }
        self.cluster.ctas[self.cta].products[number] = own;
        Ok(true)
    }

    /// A fault of a warp that waits for a product of which another warp of its group has no part.
    pub fn not_issued(number: usize, late: usize) -> Fault {
        let what =
            format!("warp {number} waits for a wgmma.mma_async that warp {late} of its warpgroup does not execute");
        Fault::new(FaultKind::Mask, what)
            .advice("let the four warps of a warpgroup execute the same wgmma instructions")
    }

    /// Computes the products of a warpgroup with numbers below `until`, of which all four warps have issued their parts.
    fn complete(&mut self, first: usize, until: u64) -> Result<(), Fault> {
        let (checks, bytes, pc) = (self.checks(), self.env.shared_bytes, self.pc);
        let running = &mut *self.warp;
        let me = running.number - first;
        let Cta { shared, warps, products, .. } = &mut self.cluster.ctas[self.cta];
        let parts = &mut products[first..first + GROUP];
        for number in parts[me].complete..until {
            let at = |part: &Products| (number - part.first()) as usize;
            let operands = parts[me].products[at(&parts[me])].operands();
            let (op, transpose, of_left, of_right) = operands;
            let mut own = Own { shared, warp: running, checks, bytes, missing: None };
            let right = op.right(of_right, transpose[1], &mut own)?;
            let missing_right = own.missing;
            for (rank, part) in parts.iter_mut().enumerate() {
                let at = at(part);
                let (product, sums) = (&part.products[at], &mut part.sums);
                if product.operands() != operands {
                    let what =
                        "the warps of a warpgroup execute different wgmma.mma_async, or one with different descriptors";
                    return Err(Fault::new(FaultKind::Mask, what));
                }
                let mut missing = missing_right.clone();
                // The running warp is not in its place.
                let warp = warps[first + rank].as_deref_mut().unwrap_or(&mut *running);
                let read = match of_left {
                    None => None,
                    Some(descriptor) => {
                        let mut own = Own { shared, warp, checks, bytes, missing: None };
                        let read = op.left_in_shared(descriptor, transpose[0], rank, &mut own)?;
                        missing = missing.or(own.missing);
                        Some(read)
                    }
                };
                let sum = &mut sums[product.sum];
                if let Some(left) = product.left.as_ref().ok().or(read.as_ref()) {
                    op.multiply(left, &right, product.scale, &mut sum.values);
                }
                sum.undefined = sum.undefined && product.scale.d || product.undefined || missing.is_some();
                if let Some(fault) = missing {
                    warp.undefined.any = true;
                    warp.undefined.origin = (fault.what().to_owned(), pc);
                }
            }
            parts.iter_mut().for_each(|part| part.complete = number + 1);
        }
        Ok(())
    }
}
