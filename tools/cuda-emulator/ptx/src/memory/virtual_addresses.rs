//! Addresses and bytes that are made apart, and ranges that span several mappings.

use super::region::Region;
use super::table::{OutOfMemory, Table};
use super::{GENERATION, Memory};
use crate::fault::{Fault, FaultKind};
use std::sync::atomic::Ordering;

/// The bytes of a range that lie in one allocation or mapping.
pub(super) struct Part {
    pub start: u64,
    pub len: u64,
    pub region: Region,
}

impl Memory {
    /// Reserves `size` addresses at a multiple of `align`, without bytes.
    pub fn reserve_addresses(&self, size: u64, align: u64) -> Option<u64> {
        self.table.write().unwrap().take(size, align)
    }

    /// Takes back [`Memory::reserve_addresses`], of a range in which nothing is mapped.
    pub fn release_addresses(&self, address: u64, size: u64) {
        self.table.write().unwrap().give(address, size);
    }

    /// Makes `size` bytes that have no address until they are [mapped](Memory::map); answers what names them.
    pub fn make_backing(&self, size: u64, align: u64) -> Result<u64, OutOfMemory> {
        self.table.write().unwrap().back(size, align)
    }

    /// Takes back [`Memory::make_backing`], of bytes that are mapped nowhere.
    pub fn drop_backing(&self, backing: u64, size: u64) {
        let mut table = self.table.write().unwrap();
        let offset = (backing - self.base()) as usize;
        self.data.discard(offset, size as usize);
        self.written.discard(offset / 8, (size as usize).next_multiple_of(256) / 8);
        table.drop_back(backing, size);
    }

    /// Lets `size` reserved addresses from `address` on be those of the bytes at `backing`.
    pub fn map(&self, address: u64, size: u64, backing: u64, origin: &str) {
        self.table.write().unwrap().map(address, size, backing, origin);
        GENERATION.fetch_add(1, Ordering::AcqRel);
    }

    /// Takes back [`Memory::map`] of the mapping that starts at `address`; the bytes stay.
    pub fn unmap(&self, address: u64) -> Result<(), Fault> {
        let was = self.table.write().unwrap().unmap(address);
        GENERATION.fetch_add(1, Ordering::AcqRel);
        let what = || format!("nothing is mapped at {address:#x}");
        if was { Ok(()) } else { Err(Fault::new(FaultKind::InvalidValue, what())) }
    }

    /// Whether all of a range can be used: in one allocation, or in mappings side by side.
    pub fn holds(&self, address: u64, len: u64) -> bool {
        self.parts(&self.table.read().unwrap(), address, len, "access").is_ok()
    }

    /// Where the bytes of a range are: in one allocation, or in mappings side by side.
    pub(super) fn parts(&self, table: &Table, address: u64, len: u64, verb: &str) -> Result<Vec<Part>, Fault> {
        let (mut parts, mut start, mut left) = (Vec::with_capacity(1), address, len);
        loop {
            let found = table.find(start).ok_or_else(|| table.explain(address, len, verb))?;
            let here = left.min(found.address + found.size - start);
            if here < left && found.backing.is_none() {
                return Err(table.explain(address, len, verb));
            }
            parts.push(Part { start, len: here, region: self.region_of(found) });
            (start, left) = (start + here, left - here);
            if left == 0 {
                return Ok(parts);
            }
        }
    }
}

/// Copies a range of bytes part by part, in the order that keeps those that overlap.
pub(super) fn copy(targets: &[Part], sources: &[Part]) {
    let (mut target, mut source) = (targets.iter(), sources.iter());
    let (mut pieces, mut to_part, mut from_part) = (Vec::new(), target.next(), source.next());
    let (mut to_done, mut from_done) = (0, 0);
    while let (Some(to), Some(from)) = (to_part, from_part) {
        let len = (to.len - to_done).min(from.len - from_done);
        pieces.push((to, to.start + to_done, from, from.start + from_done, len));
        (to_done, from_done) = (to_done + len, from_done + len);
        if to_done == to.len {
            (to_part, to_done) = (target.next(), 0);
        }
        if from_done == from.len {
            (from_part, from_done) = (source.next(), 0);
        }
    }
    if targets[0].start > sources[0].start {
        pieces.reverse();
    }
    for (to, to_start, from, from_start, len) in pieces {
        to.region.copy(to_start, &from.region, from_start, len);
    }
}
