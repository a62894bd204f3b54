//! Bytes between the host and cards: reading, writing, filling, and copies of rows.

use crate::abi::CUdeviceptr;
use crate::call::refuse;
use crate::card::{allocation, card_of, pinned_at, report};
use crate::errors::{Answer, Code};
use std::sync::Arc;

/// One side of a copy.
#[derive(Clone)]
pub enum Side {
    /// Memory of a card.
    Device(CUdeviceptr),
    /// Memory of the host that stays valid until the copy is done.
    Host(usize),
    /// Bytes that were taken at the call.
    Staged(Arc<Vec<u8>>),
}

/// Sizes of a copy in bytes, rows and planes.
#[derive(Clone, Copy, Default, Debug)]
pub struct Shape {
    /// Bytes of a row.
    pub width: usize,
    /// Rows of a plane.
    pub height: usize,
    /// Planes.
    pub depth: usize,
    /// Bytes from row to row, in the source and in the destination.
    pub pitch: (usize, usize),
    /// Bytes from plane to plane, in the source and in the destination.
    pub plane: (usize, usize),
}

impl Shape {
    /// `len` bytes in a row.
    pub fn line(len: usize) -> Self {
        Self { width: len, height: 1, depth: 1, pitch: (len, len), plane: (len, len) }
    }

    /// Offsets of all rows in the source and in the destination.
    fn rows(self) -> impl Iterator<Item = (usize, usize)> {
        (0..self.depth).flat_map(move |z| {
            (0..self.height).map(move |y| (z * self.plane.0 + y * self.pitch.0, z * self.plane.1 + y * self.pitch.1))
        })
    }

    /// Bytes from the first to the last, in the source and in the destination; none if those are more than there are
    /// addresses.
    fn extent(self) -> Option<(usize, usize)> {
        if self.width == 0 || self.height == 0 || self.depth == 0 {
            return Some((0, 0));
        }
        let side = |pitch: usize, plane: usize| {
            let rows = pitch.checked_mul(self.height - 1)?.checked_add(self.width)?;
            plane.checked_mul(self.depth - 1)?.checked_add(rows)
        };
        Some((side(self.pitch.0, self.plane.0)?, side(self.pitch.1, self.plane.1)?))
    }

    /// Bytes that are copied.
    pub fn bytes(self) -> usize {
        self.width.saturating_mul(self.height).saturating_mul(self.depth)
    }
}

/// A copy that waits for its turn.
pub struct Copy {
    /// Where the bytes are.
    pub from: Side,
    /// Where they go.
    pub to: Side,
    /// How many, and how they lie.
    pub shape: Shape,
}

impl Side {
    /// What an address is: a card's, or the host's.
    pub fn of(address: u64) -> Side {
        match card_of(address) {
            Some(_) => Side::Device(address),
            None => Side::Host(address as usize),
        }
    }

    /// Whether it is host memory that no card knows.
    pub fn is_pageable(&self) -> bool {
        matches!(self, Side::Host(address) if pinned_at(*address).is_none())
    }

    /// Whether it is host memory.
    pub fn is_host(&self) -> bool {
        !matches!(self, Side::Device(_))
    }

    /// Refuses a range that is not inside one allocation, as the call of a copy does.
    ///
    /// # Errors
    /// An invalid value, which stderr explains.
    pub fn check(&self, len: usize) -> Answer {
        match *self {
            Side::Device(address) => check(address, len),
            Side::Host(0) if len > 0 => refuse(Code::INVALID_VALUE, "a copy has a host address that is null"),
            _ => Ok(()),
        }
    }
}

/// Refuses a range of a card's memory that is not inside one allocation.
///
/// # Errors
/// An invalid value, which stderr explains.
pub fn check(address: CUdeviceptr, len: usize) -> Answer {
    if len == 0 {
        return Ok(());
    }
    match allocation(address) {
        Some((_, found)) if len as u64 <= found.address + found.size - address => Ok(()),
        Some((card, _)) if card.memory.holds(address, len as u64) => Ok(()),
        Some((_, found)) => refuse(
            Code::INVALID_VALUE,
            &format!(
                "{len} bytes at {address:#x} go beyond {found}, of which {} bytes are left",
                found.address + found.size - address
            ),
        ),
        None if pinned_at(address as usize).is_some_and(|row| len <= row.start + row.len - address as usize) => Ok(()),
        None => {
            refuse(Code::INVALID_VALUE, &format!("{len} bytes at {address:#x} are in no live allocation of a card"))
        }
    }
}

/// Reads bytes of a card, or of the host.
///
/// # Errors
/// The code of the fault, which stderr explains.
pub fn read(at: u64, bytes: &mut [u8]) -> Answer {
    match card_of(at) {
        Some(card) => card.memory.read(at, bytes).map_err(|fault| report("copy", &fault)),
        None => {
            // SAFETY: the client keeps its memory until the copy is done; it may write to it, so nothing refers to it.
            unsafe { std::ptr::copy(at as *const u8, bytes.as_mut_ptr(), bytes.len()) };
            Ok(())
        }
    }
}

/// Writes bytes to a card, or to the host.
///
/// # Errors
/// The code of the fault, which stderr explains.
pub fn write(at: u64, bytes: &[u8]) -> Answer {
    match card_of(at) {
        Some(card) => card.memory.write(at, bytes).map_err(|fault| report("copy", &fault)),
        None => {
            // SAFETY: as in `read`.
            unsafe { std::ptr::copy(bytes.as_ptr(), at as *mut u8, bytes.len()) };
            Ok(())
        }
    }
}

/// Fills `len` bytes with a pattern.
///
/// # Errors
/// The code of the fault, which stderr explains.
pub fn fill(at: u64, len: u64, pattern: &[u8]) -> Answer {
    match card_of(at) {
        Some(card) => card.memory.fill(at, len, pattern).map_err(|fault| report("memset", &fault)),
        None => write(at, &pattern.repeat(len as usize / pattern.len())),
    }
}

/// Copies a row from one address to another; of which bytes are written, a copy from card to card keeps the record.
fn row(to: u64, from: u64, len: usize) -> Answer {
    /// Bytes that pass through the host at once.
    const PIECE: usize = 1 << 20;
    if let (Some(target), Some(source)) = (card_of(to), card_of(from)) {
        return target.memory.copy_from(to, &source.memory, from, len as u64).map_err(|fault| report("copy", &fault));
    }
    let mut piece = vec![0; len.min(PIECE)];
    for start in (0..len).step_by(PIECE) {
        let piece = &mut piece[..PIECE.min(len - start)];
        read(from + start as u64, piece)?;
        write(to + start as u64, piece)?;
    }
    Ok(())
}

impl Copy {
    /// Refuses what a driver refuses at the call.
    ///
    /// # Errors
    /// An invalid value, which stderr explains.
    pub fn check(&self) -> Answer {
        let Some((from, to)) = self.shape.extent() else {
            return refuse(Code::INVALID_VALUE, "a copy has more bytes than there are addresses");
        };
        self.from.check(from)?;
        self.to.check(to)
    }

    /// Takes the bytes of the host now.
    pub fn stage(&mut self) {
        if let Side::Host(address) = self.from {
            let mut bytes = vec![0; self.shape.bytes()];
            for (number, (from, _)) in self.shape.rows().enumerate() {
                let start = number * self.shape.width;
                // SAFETY: the client vouches for its memory during the call.
                let source = unsafe { std::slice::from_raw_parts((address + from) as *const u8, self.shape.width) };
                bytes[start..start + self.shape.width].copy_from_slice(source);
            }
            self.from = Side::Staged(Arc::new(bytes));
            self.shape.pitch.0 = self.shape.width;
            self.shape.plane.0 = self.shape.width * self.shape.height;
        }
    }

    /// Copies.
    ///
    /// # Errors
    /// The code of a fault, which stderr explains.
    pub fn run(&self) -> Answer {
        crate::profile::copied(self.from.is_host(), self.to.is_host(), self.shape.bytes());
        let to = match self.to {
            Side::Device(address) => address,
            Side::Host(address) => address as u64,
            Side::Staged(_) => return Err(Code::INVALID_VALUE),
        };
        if self.shape.width == 0 {
            return Ok(());
        }
        self.shape.rows().try_for_each(|(source, target)| match &self.from {
            Side::Device(from) => row(to + target as u64, from + source as u64, self.shape.width),
            Side::Host(from) => row(to + target as u64, (from + source) as u64, self.shape.width),
            Side::Staged(bytes) => write(to + target as u64, &bytes[source..source + self.shape.width]),
        })
    }
}
