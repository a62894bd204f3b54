//! Loads and stores of addresses that have been checked.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

use super::access::Kind;
use super::machine::Machine;
use super::span::{Addresses, each};
use super::undefined::Missing;
use crate::code::{Access, NONE, Space};
use crate::fault::{Fault, FaultKind};
use crate::lanes::LANES;

impl Machine<'_, '_> {
    pub fn load(&mut self, access: &Access, mask: u32) -> Result<(), Fault> {
        let mut at = self.addresses(&access.address);
        let size = u32::from(access.element.bytes) * u32::from(access.count);
        let missing = self.resolve_read(access, &mut at, mask, size)?;
        for (i, &reg) in access.regs[..access.count.into()].iter().enumerate() {
            if reg != NONE {
                let shift = i as u64 * u64::from(access.element.bytes);
                // SAFETY: `resolve` has checked the addresses of the lanes of the mask; rows are the frame's.
                unsafe { self.fetch(access, &at, shift, mask, reg) };
                if let Some(missing) = &missing {
                    let bytes = &missing[shift as usize..][..access.element.bytes.into()];
                    self.set_undefined_row(reg, mask, bytes.iter().fold(0, |lanes, byte| lanes | byte));
                }
            }
        }
        if access.strong {
            self.acquire_at(access.address.space);
        }
        Ok(())
    }

    /// Checks a load and resolves its addresses, and tells which bytes nothing has written.
    #[inline(always)]
    fn resolve_read(
        &mut self,
        access: &Access,
        at: &mut Addresses,
        mask: u32,
        size: u32,
    ) -> Result<Option<Missing>, Fault> {
        let space = access.address.space;
        let before = self.counted();
        let Err(fault) = self.resolve(space, at, mask, size, Kind::Read, access.strong) else {
            return Ok(if self.warp.undefined.any { self.missing_local(access, mask, size) } else { None });
        };
        let fault = self.repeats(fault, before)?;
        *at = self.addresses(&access.address);
        let missing = self.missing(space, at, mask, size, &fault);
        self.lenient = true;
        let found = self.resolve(space, at, mask, size, Kind::Read, access.strong);
        self.lenient = false;
        found.map(|()| Some(missing))
    }

    /// Loads one element a lane.
    #[inline(always)]
    unsafe fn fetch(&mut self, access: &Access, at: &Addresses, shift: u64, mask: u32, reg: u32) {
        let row = self.row_mut(reg);
        macro_rules! go {
            ($atomic:ty, $slot:ty, |$x:ident| $put:expr) => {{
                let out = row.cast::<$slot>();
                let one = |lane: usize| {
                    // SAFETY: as above.
                    unsafe {
                        let $x = (*((at[lane] + shift) as *const $atomic)).load(Relaxed);
                        *out.add(lane) = $put;
                    }
                };
                if mask == u32::MAX { (0..LANES).for_each(one) } else { each(mask, one) }
            }};
        }
        let element = access.element;
        match (element.bytes, element.signed, element.wide) {
            (1, 0, false) => go!(AtomicU8, u32, |x| x.into()),
            (1, 0, true) => go!(AtomicU8, u64, |x| x.into()),
            (1, 16, _) => go!(AtomicU8, u32, |x| u32::from(x as i8 as u16)),
            (1, 32, _) => go!(AtomicU8, u32, |x| x as i8 as u32),
            (1, _, _) => go!(AtomicU8, u64, |x| x as i8 as u64),
            (2, 0 | 16, false) => go!(AtomicU16, u32, |x| x.into()),
            (2, 0 | 16, true) => go!(AtomicU16, u64, |x| x.into()),
            (2, 32, _) => go!(AtomicU16, u32, |x| x as i16 as u32),
            (2, _, _) => go!(AtomicU16, u64, |x| x as i16 as u64),
            (4, _, false) => go!(AtomicU32, u32, |x| x),
            (4, 0, true) => go!(AtomicU32, u64, |x| x.into()),
            (4, _, true) => go!(AtomicU32, u64, |x| x as i32 as u64),
            _ => go!(AtomicU64, u64, |x| x),
        }
    }

    pub fn store(&mut self, access: &Access, mask: u32) -> Result<(), Fault> {
        let mut at = self.addresses(&access.address);
        let size = u32::from(access.element.bytes) * u32::from(access.count);
        if access.address.space == Space::Param {
            return Err(Fault::new(FaultKind::OutOfBounds, "a kernel's parameters can't be written"));
        }
        if access.release {
            self.fence();
        }
        self.resolve(access.address.space, &mut at, mask, size, Kind::Write, access.strong)?;
        if !self.suspects.is_empty() {
            let asked = self.addresses(&access.address);
            self.judge(&asked, mask, size, |machine, lane, byte| machine.stored(access, lane, byte))?;
        }
        if self.warp.undefined.any {
            let asked = self.addresses(&access.address);
            self.store_undefined(access, &asked, mask);
        }
        for (i, &reg) in access.regs[..access.count.into()].iter().enumerate() {
            let shift = i as u64 * u64::from(access.element.bytes);
            // SAFETY: `resolve` has checked the addresses of the lanes of the mask.
            unsafe { self.put(access, &at, shift, mask, reg) };
        }
        Ok(())
    }

    /// One byte of what a lane stores.
    fn stored(&self, access: &Access, lane: usize, byte: usize) -> u8 {
        let (register, byte) = (byte / usize::from(access.element.bytes), byte % usize::from(access.element.bytes));
        let reg = access.regs[register];
        let value = if access.element.bytes > 4 { self.wide(reg)[lane] } else { u64::from(self.row(reg)[lane]) };
        value.to_le_bytes()[byte]
    }

    #[inline(always)]
    unsafe fn put(&mut self, access: &Access, at: &Addresses, shift: u64, mask: u32, reg: u32) {
        macro_rules! go {
            ($atomic:ty, $row:expr, $t:ty) => {{
                let row = $row;
                let one = |lane: usize| {
                    // SAFETY: as above.
                    unsafe { (*((at[lane] + shift) as *const $atomic)).store(row[lane] as $t, Relaxed) };
                };
                if mask == u32::MAX { (0..LANES).for_each(one) } else { each(mask, one) }
            }};
        }
        match access.element.bytes {
            1 => go!(AtomicU8, self.row(reg), u8),
            2 => go!(AtomicU16, self.row(reg), u16),
            4 => go!(AtomicU32, self.row(reg), u32),
            _ => go!(AtomicU64, self.wide(reg), u64),
        }
    }
}
