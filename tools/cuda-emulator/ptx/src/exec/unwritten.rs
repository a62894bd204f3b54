//! Reads of memory that nothing has written, by instructions that only move what they read: they pass, and what they move
//! stays undefined.

use super::access::Kind;
use super::machine::Machine;
use super::span::{Addresses, each};
use super::undefined::Missing;
use crate::code::{Space, Src};
use crate::fault::{Fault, FaultKind};
use crate::lanes::LANES;
use crate::options::Counts;
use crate::tensor::{self, Ldmatrix, Words};

/// Bytes under way, and places of those that nothing has written.
#[derive(Clone, Debug)]
pub(super) struct Bytes {
    pub data: Vec<u8>,
    pub missing: Vec<u32>,
}

/// What is undefined of the rows that lanes read: all bits of a byte.
struct Shadow<'a>(&'a Missing);

impl tensor::Space for Shadow<'_> {
    type Error = Fault;

    fn read(&mut self, lane: u64, into: &mut [u8]) -> Result<(), Fault> {
        into.iter_mut().zip(self.0).for_each(|(byte, lanes)| *byte = if lanes >> lane & 1 != 0 { 0xff } else { 0 });
        Ok(())
    }

    fn write(&mut self, _lane: u64, _from: &[u8]) -> Result<(), Fault> {
        Ok(())
    }
}

impl Machine<'_, '_> {
    /// Counts that a read changes.
    pub fn counted(&self) -> [u64; 4] {
        let Counts { global_read, sectors, shared_accesses, bank_conflicts, .. } = self.worker.counts;
        [global_read, sectors, shared_accesses, bank_conflicts]
    }

    /// Takes back what a read has counted that is repeated, if it was a fault because of bytes that nothing has written.
    ///
    /// # Errors
    /// Any other fault.
    #[cold]
    pub fn repeats(&mut self, fault: Fault, before: [u64; 4]) -> Result<Fault, Fault> {
        if fault.kind() != FaultKind::Uninitialised {
            return Err(fault);
        }
        let counts = &mut self.worker.counts;
        [counts.global_read, counts.sectors, counts.shared_accesses, counts.bank_conflicts] = before;
        Ok(fault)
    }

    /// A read that passes although nothing has written what it reads, and the fault that it would have been.
    pub fn lenient<T>(
        &mut self,
        mut read: impl FnMut(&mut Self) -> Result<T, Fault>,
    ) -> Result<(T, Option<Fault>), Fault> {
        let before = self.counted();
        let fault = match read(self) {
            Ok(done) => return Ok((done, None)),
            Err(fault) => self.repeats(fault, before)?,
        };
        self.lenient = true;
        let done = read(self);
        self.lenient = false;
        Ok((done?, Some(fault)))
    }

    /// The host's address of a range that one lane reads, and places in it that nothing has written.
    pub fn range(&mut self, space: Space, address: u64, bytes: u32) -> Result<(u64, Vec<u32>), Fault> {
        let (at, fault) = self.lenient(|machine| machine.one(space, address, bytes, Kind::Read))?;
        let missing = match fault {
            None => Vec::new(),
            Some(_) => (0..bytes).filter(|byte| !self.is_written(space, address + u64::from(*byte), 0)).collect(),
        };
        Ok((at, missing))
    }

    /// From now on there are undefined values; `why` is the read that they come from.
    pub fn has_undefined(&mut self, why: &Fault) {
        self.warp.undefined.any = true;
        self.warp.undefined.origin = (why.what().to_owned(), self.pc);
    }

    /// Shades the parts of matrices that `ldmatrix` has read from rows at these addresses.
    pub fn shade_matrices(
        &mut self,
        op: Ldmatrix,
        d: &[u32],
        space: Space,
        at: &Addresses,
        lanes: u32,
        why: &Fault,
    ) -> Result<(), Fault> {
        let missing = self.missing(space, at, lanes, 16, why);
        let mut shades: [Words; 4] = [[0; LANES]; 4];
        op.execute(&std::array::from_fn(|lane| lane as u64), &mut Shadow(&missing), &mut shades)?;
        for (row, shade) in d.iter().zip(shades) {
            let mut lanes = 0;
            each(u32::MAX, |lane| lanes |= u32::from(shade[lane] != 0) << lane);
            self.set_undefined_row(*row, u32::MAX, lanes);
        }
        Ok(())
    }

    /// Shades all registers of a fragment.
    pub fn shade_fragment(&mut self, d: &[u32], why: &Fault) {
        self.has_undefined(why);
        d.iter().for_each(|row| self.set_undefined_row(*row, u32::MAX, u32::MAX));
    }

    /// Takes back that the rows at these addresses are written, of matrices of which a register is undefined.
    pub fn store_undefined_matrices(&mut self, from: &[Src], space: Space, at: &Addresses) {
        for (rows, register) in at.chunks(8).zip(from) {
            if self.any_undefined(&[*register]) {
                for address in rows {
                    (0..16).for_each(|byte| self.unwrite(space, address + byte, 0));
                }
            }
        }
    }

    pub fn any_undefined(&self, rows: &[Src]) -> bool {
        self.warp.undefined.any && rows.iter().any(|row| self.undefined_row(*row) != 0)
    }
}
