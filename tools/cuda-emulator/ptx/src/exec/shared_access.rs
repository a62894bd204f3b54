//! Accesses of a warp to shared memory, of its own block and of others of the cluster.

use super::access::Kind;
use super::machine::Machine;
use super::shared::{Checks, Lanes};
use super::span::{Addresses, Span, conflicts};
use crate::code::SHARED_RANK;
use crate::fault::{Fault, FaultKind};
use crate::lanes::LANES;

impl Machine<'_, '_> {
    pub fn shared(
        &mut self,
        at: &mut Addresses,
        mask: u32,
        size: u32,
        kind: Kind,
        strong: bool,
        span: Span,
    ) -> Result<(), Fault> {
        let Span { least, most, any, dense, words } = span;
        if any & u64::from(size - 1) != 0 {
            return Err(self.misaligned(at, mask, size, kind, " of shared memory"));
        }
        self.worker.counts.shared_accesses += 1;
        if !dense && most.wrapping_sub(least) >= 128 {
            self.worker.counts.bank_conflicts += conflicts(at, mask, size);
        }
        let checks = self.checks();
        if most >= 1 << 32 || most + u64::from(size) > u64::from(self.env.shared_bytes) {
            return self.remote(at, mask, size, kind, strong, checks);
        }
        self.watch_shared(self.cta, at, mask, size, (kind, strong), Some(span))?;
        let shared = &mut self.cluster.ctas[self.cta].shared;
        let lanes = Lanes { least: least as u32, most: most as u32, dense, words };
        let whole_words = size >= 4 || dense && least.is_multiple_of(4);
        let plain = !strong && kind != Kind::Update && whole_words;
        if !(plain && shared.visit(self.warp, lanes, size, kind == Kind::Write, checks)) {
            let mut left = mask;
            while left != 0 {
                let lane = left.trailing_zeros() as usize;
                left &= left - 1;
                let address = at[lane] as u32;
                let done = if strong || kind == Kind::Update {
                    if checks.orders {
                        shared.order(self.warp, address, kind.writes());
                    }
                    shared.touch(address, size, kind.reads(), kind.writes(), checks)
                } else if kind == Kind::Read {
                    shared.read(self.warp, address, size, checks)
                } else {
                    shared.write(self.warp, address, size, checks)
                };
                if let Err(fault) = done {
                    self.lane = lane;
                    return Err(fault);
                }
            }
        }
        let start = shared.start();
        at.iter_mut().for_each(|at| *at = at.wrapping_add(start));
        Ok(())
    }

    #[inline(always)]
    pub fn checks(&self) -> Checks {
        let options = self.env.options;
        let several = self.env.warps > 1;
        Checks {
            uninitialised: options.uninitialised && !self.lenient,
            races: options.races && several,
            orders: (options.races || options.global_races) && several,
        }
    }

    /// Shared memory of other blocks of the cluster, or none.
    #[cold]
    pub fn remote(
        &mut self,
        at: &mut Addresses,
        mask: u32,
        size: u32,
        kind: Kind,
        strong: bool,
        checks: Checks,
    ) -> Result<(), Fault> {
        for lane in (0..LANES).filter(|lane| mask >> lane & 1 != 0) {
            self.lane = lane;
            let (cta, offset) = self.shared_place(at[lane], size)?;
            let own = cta == self.cta;
            let shared = &mut self.cluster.ctas[cta].shared;
            match kind {
                Kind::Read if own => shared.read(self.warp, offset, size, checks)?,
                Kind::Write if own => shared.write(self.warp, offset, size, checks)?,
                _ => shared.touch(offset, size, kind.reads(), kind.writes(), checks)?,
            }
            let start = shared.start();
            self.watch_shared(cta, &[offset.into(); LANES], 1 << lane, size, (kind, strong), None)?;
            at[lane] = start + u64::from(offset);
        }
        Ok(())
    }

    /// The block of the cluster and the offset that an address of shared memory means.
    pub fn shared_place(&self, address: u64, size: u32) -> Result<(usize, u32), Fault> {
        let (rank, offset) = ((address >> SHARED_RANK) as usize, address & ((1 << SHARED_RANK) - 1));
        let bytes = self.env.shared_bytes;
        if rank > self.cluster.ctas.len() || offset + u64::from(size) > bytes.into() {
            let what = format!("access of {size} bytes at {address:#x} of shared memory, which has {bytes} bytes");
            return Err(Fault::new(FaultKind::OutOfBounds, what));
        }
        Ok((if rank == 0 { self.cta } else { rank - 1 }, offset as u32))
    }
}
