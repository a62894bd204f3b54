//! From addresses of lanes to addresses of the host, with all checks.

use super::access::{Kind, Role};
use super::machine::Machine;
use super::span::{Addresses, Span, each, sectors};
use crate::code::{Address, LOCAL_WINDOW, NONE, PARAM_WINDOW, SHARED_WINDOW, Space, WINDOW};
use crate::fault::{Fault, FaultKind};
use crate::lanes::LANES;
use crate::memory::{Memory, Region};

/// Whether a read finds written bytes. Compilers make atomic operations on 8 and 16 bits of those on the word around
/// them: of a strong access one written byte is enough.
#[inline(always)]
fn readable(region: &Region, address: u64, size: u32, strong: bool) -> bool {
    let size = size.into();
    region.written(address, size) || strong && size <= 8 && (0..size).any(|byte| region.written(address + byte, 1))
}

impl Machine<'_, '_> {
    /// The addresses of an operand.
    #[inline(always)]
    pub fn addresses(&self, address: &Address) -> Addresses {
        let offset = address.offset as u64;
        if address.base == NONE {
            return [offset; LANES];
        }
        let mut at = [0; LANES];
        if address.wide {
            let base = self.wide(address.base);
            for lane in 0..LANES {
                at[lane] = base[lane].wrapping_add(offset);
            }
        } else {
            let base = self.row(address.base);
            for lane in 0..LANES {
                at[lane] = u64::from(base[lane]).wrapping_add(offset);
            }
        }
        at
    }

    /// Checks an access of `size` bytes a lane, and turns addresses into those of the host.
    #[inline(always)]
    pub fn resolve(
        &mut self,
        space: Space,
        at: &mut Addresses,
        mask: u32,
        size: u32,
        kind: Kind,
        strong: bool,
    ) -> Result<(), Fault> {
        let span = self.span(at, mask, size);
        match space {
            Space::Global => self.global(at, mask, size, kind, strong, span),
            Space::Shared => self.shared(at, mask, size, kind, strong, span),
            Space::Local => self.local(at, mask, size, kind, span),
            Space::Param => self.param(at, mask, size, kind, span),
            Space::Generic => {
                if span.most < SHARED_WINDOW || span.least >= PARAM_WINDOW + WINDOW {
                    return self.global(at, mask, size, kind, strong, span);
                }
                self.generic(at, mask, size, kind, strong)
            }
        }
    }

    #[inline(always)]
    fn span(&self, at: &mut Addresses, mask: u32, size: u32) -> Span {
        // SAFETY: chosen for this processor.
        unsafe { (self.worker.survey)(at, mask, size.into()) }
    }

    fn generic(&mut self, at: &mut Addresses, mask: u32, size: u32, kind: Kind, strong: bool) -> Result<(), Fault> {
        let mut left = mask;
        for (window, space) in
            [(SHARED_WINDOW, Space::Shared), (LOCAL_WINDOW, Space::Local), (PARAM_WINDOW, Space::Param)]
        {
            let mut inside = 0;
            each(mask, |lane| inside |= u32::from(at[lane].wrapping_sub(window) < WINDOW) << lane);
            inside &= left;
            if inside == 0 {
                continue;
            }
            left &= !inside;
            let mut part = *at;
            each(inside, |lane| part[lane] -= window);
            let span = self.span(&mut part, inside, size);
            match space {
                Space::Shared => self.shared(&mut part, inside, size, kind, strong, span)?,
                Space::Local => self.local(&mut part, inside, size, kind, span)?,
                _ => self.param(&mut part, inside, size, kind, span)?,
            }
            each(inside, |lane| at[lane] = part[lane]);
        }
        if left != 0 {
            let mut part = *at;
            let span = self.span(&mut part, left, size);
            self.global(&mut part, left, size, kind, strong, span)?;
            each(left, |lane| at[lane] = part[lane]);
        }
        Ok(())
    }

    #[cold]
    pub fn misaligned(&mut self, at: &Addresses, mask: u32, size: u32, kind: Kind, of: &str) -> Fault {
        each(mask, |lane| {
            if !at[lane].is_multiple_of(size.into()) {
                self.lane = lane;
            }
        });
        let what = format!(
            "{} of {size} bytes at {:#x}{of}: the address is no multiple of {size}",
            kind.verb(),
            at[self.lane]
        );
        Fault::new(FaultKind::Misaligned, what)
    }

    #[inline(always)]
    fn global(
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
            return Err(self.misaligned(at, mask, size, kind, ""));
        }
        let bytes = u64::from(mask.count_ones() * size);
        self.count(bytes, kind);
        let end = most.wrapping_add(size.into());
        let slot = self.pc as usize % 32;
        self.refresh();
        let mut region = self.worker.regions.slots[slot];
        if !region.holds(least, end) || end < least {
            match self.find(least, end.wrapping_sub(least)) {
                Some(found) => {
                    self.worker.regions.slots[slot] = found;
                    region = found;
                }
                None => return self.scattered(at, mask, size, kind, strong),
            }
        }
        let span = end - least;
        self.worker.counts.sectors +=
            if dense || least == most { (end - 1) / 32 - least / 32 + 1 } else { sectors(at, mask, size, least, most) };
        if kind.reads() && self.checks().uninitialised && !(span <= 4096 && region.written(least, span)) {
            let mut missing = 0;
            each(mask, |lane| missing |= u32::from(!readable(&region, at[lane], size, strong)) << lane);
            if missing != 0 {
                self.lane = missing.trailing_zeros() as usize;
                return Err(self.uninitialised(at[self.lane], size));
            }
        }
        if kind.writes() {
            if dense || least == most {
                region.mark(least, span);
            } else {
                each(mask, |lane| region.mark(at[lane], size.into()));
            }
        }
        self.watch(&region, at, mask, size, (kind, strong), Some(Span { least, most, any, dense, words }))?;
        let shift = (region.host(least) as u64).wrapping_sub(least);
        for at in at.iter_mut() {
            *at = at.wrapping_add(shift);
        }
        Ok(())
    }

    /// Counts bytes of global memory; what happens later is counted then.
    #[inline(always)]
    fn count(&mut self, bytes: u64, kind: Kind) {
        if self.role == Role::None {
            return;
        }
        let counts = &mut self.worker.counts;
        if kind.reads() {
            counts.global_read += bytes;
        }
        if kind.writes() {
            counts.global_written += bytes;
        }
    }

    /// Forgets regions after an allocation or a free.
    #[inline(always)]
    fn refresh(&mut self) {
        let generation = crate::memory::generation();
        if self.worker.regions.generation != generation {
            self.worker.regions.slots = [Region::EMPTY; 32];
            self.worker.regions.generation = generation;
        }
    }

    /// An access whose lanes reach different allocations, or none.
    fn scattered(&mut self, at: &mut Addresses, mask: u32, size: u32, kind: Kind, strong: bool) -> Result<(), Fault> {
        if self.role != Role::None {
            // Several lanes, or a range of one.
            self.worker.counts.sectors += if mask.is_power_of_two() {
                (at[mask.trailing_zeros() as usize] % 32 + u64::from(size)).div_ceil(32)
            } else {
                sectors(at, mask, size, 0, u64::MAX)
            };
        }
        self.refresh();
        let slot = self.pc as usize % 32;
        let mut region = self.worker.regions.slots[slot];
        for lane in (0..LANES).filter(|lane| mask >> lane & 1 != 0) {
            self.lane = lane;
            let address = at[lane];
            if !region.holds(address, address.wrapping_add(size.into())) {
                let Some(found) = self.find(address, size.into()) else {
                    return Err(self.memory_of(address).explain(address, size.into(), kind.verb()));
                };
                region = found;
            }
            if kind.reads() && self.checks().uninitialised && !readable(&region, address, size, strong) {
                return Err(self.uninitialised(address, size));
            }
            if kind.writes() {
                region.mark(address, size.into());
            }
            self.watch(&region, at, 1 << lane, size, (kind, strong), None)?;
            at[lane] = region.host(address) as u64;
        }
        self.worker.regions.slots[slot] = region;
        Ok(())
    }

    pub fn memory_of(&self, address: u64) -> &Memory {
        let card = Memory::card_of(address).filter(|card| *card != self.env.memory.card());
        let peer = card.and_then(|card| self.env.peers.iter().find(|peer| peer.card() == card));
        peer.map_or(self.env.memory, |peer| peer)
    }

    pub fn find(&self, address: u64, len: u64) -> Option<Region> {
        self.memory_of(address).region(address, len)
    }

    #[cold]
    fn uninitialised(&self, address: u64, size: u32) -> Fault {
        let place = self.memory_of(address).find(address);
        let place = place.map_or(String::new(), |a| format!(", {} bytes into {a}", address - a.address));
        Fault::new(
            FaultKind::Uninitialised,
            format!("read of {size} bytes at {address:#x} that nothing has written{place}"),
        )
    }

    /// Like [`Machine::resolve`] for a range of any length, and any alignment.
    pub fn resolve_range(
        &mut self,
        space: Space,
        at: &mut Addresses,
        mask: u32,
        bytes: u32,
        kind: Kind,
    ) -> Result<(), Fault> {
        let lane = mask.trailing_zeros() as usize;
        let global = match space {
            Space::Global => true,
            Space::Generic => !(SHARED_WINDOW..PARAM_WINDOW + WINDOW).contains(&at[lane]),
            _ => false,
        };
        match space {
            _ if global => {
                self.count(u64::from(mask.count_ones()) * u64::from(bytes), kind);
                self.scattered(at, mask, bytes, kind, false)
            }
            // Small parts, of which each is aligned.
            _ => {
                let first = at[lane];
                for offset in (1..bytes.into()).rev().chain([0]) {
                    *at = [first + offset; LANES];
                    self.resolve(space, at, mask, 1, kind, false)?;
                }
                Ok(())
            }
        }
    }

    fn local(&mut self, at: &mut Addresses, mask: u32, size: u32, kind: Kind, span: Span) -> Result<(), Fault> {
        let Span { most, any, .. } = span;
        let stride = self.warp.stride as u64;
        if any & u64::from(size - 1) != 0 {
            return Err(self.misaligned(at, mask, size, kind, " of local memory"));
        }
        if most.saturating_add(size.into()) > stride {
            each(mask, |lane| {
                if at[lane] == most {
                    self.lane = lane;
                }
            });
            let what =
                format!("{} of {size} bytes at {most:#x} of local memory, which has {stride} bytes", kind.verb());
            return Err(Fault::new(FaultKind::OutOfBounds, what));
        }
        let start = self.warp.local_at(0);
        for (lane, at) in at.iter_mut().enumerate() {
            *at = at.wrapping_add(start + lane as u64 * stride);
        }
        Ok(())
    }

    fn param(&mut self, at: &mut Addresses, mask: u32, size: u32, kind: Kind, span: Span) -> Result<(), Fault> {
        let Span { most, any, .. } = span;
        let params = self.env.params();
        if kind.writes() {
            self.lane = mask.trailing_zeros() as usize;
            let what = format!("{} of {size} bytes in the kernel's parameters, which are read only", kind.verb());
            return Err(Fault::new(FaultKind::OutOfBounds, what));
        }
        if any & u64::from(size - 1) != 0 {
            return Err(self.misaligned(at, mask, size, Kind::Read, " of the parameters"));
        }
        if most.saturating_add(size.into()) > params.len() as u64 {
            let what =
                format!("read of {size} bytes at {most:#x} of the parameters, which have {} bytes", params.len());
            return Err(Fault::new(FaultKind::OutOfBounds, what));
        }
        let start = params.as_ptr() as u64;
        at.iter_mut().for_each(|at| *at = at.wrapping_add(start));
        Ok(())
    }
}
