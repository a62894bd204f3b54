//! Instructions against products and copies that are written out plainly.
//!
//! Layouts are given here as the manual's formulas, element by element, and share nothing with the code they test.

mod ldmatrix;
mod mma;
mod speed;
mod tma;
mod wgmma;
mod wmma;

use super::*;

/// Numbers that look random, the same in every run.
struct Numbers(u64);

impl Numbers {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let word = (self.0 ^ self.0 >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
        word ^ word >> 32
    }

    fn below(&mut self, end: u64) -> u64 {
        self.bits() % end
    }

    /// A whole number from `-end` to `end`.
    fn whole(&mut self, end: i64) -> i64 {
        self.below(2 * end as u64 + 1) as i64 - end
    }
}

/// Shared memory that refuses what is misaligned or outside of it.
struct Bytes(Vec<u8>);

impl Bytes {
    fn place(&self, address: u64, size: usize) -> Result<std::ops::Range<usize>, String> {
        let at = address as usize;
        if !matches!(size, 1 | 2 | 4 | 8 | 16) || !at.is_multiple_of(size) || at + size > self.0.len() {
            return Err(format!("{size} bytes at {address:#x}"));
        }
        Ok(at..at + size)
    }
}

impl Space for Bytes {
    type Error = String;

    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), String> {
        let place = self.place(address, into.len())?;
        into.copy_from_slice(&self.0[place]);
        Ok(())
    }

    fn write(&mut self, address: u64, from: &[u8]) -> Result<(), String> {
        let place = self.place(address, from.len())?;
        self.0[place].copy_from_slice(from);
        Ok(())
    }
}
