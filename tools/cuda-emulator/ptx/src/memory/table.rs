//! Which addresses are allocated, and what was freed there before.

use std::collections::BTreeMap;
use std::fmt;

use crate::fault::{Fault, FaultKind};

/// Multiple of the addresses and of the room of allocations.
const GRAIN: u64 = 256;
/// Bytes that stay free behind an allocation, so that a small overrun meets no neighbour.
const GUARD: u64 = 256;

/// One allocation of a card's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Number in the order of allocation, from 1.
    pub id: u64,
    /// First address.
    pub address: u64,
    /// Size in bytes.
    pub size: u64,
    /// Who allocated.
    pub origin: String,
    /// Whether this is host memory that was registered.
    pub host: bool,
    /// Where its bytes are if it is a mapping of memory that was made apart.
    pub(super) backing: Option<u64>,
}

impl fmt::Display for Allocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match (self.host, self.backing) {
            (true, _) => "host memory",
            (_, Some(_)) => "mapping",
            _ => "allocation",
        };
        write!(f, "{kind} #{} of {} bytes at {:#x}, made by {}", self.id, self.size, self.address, self.origin)
    }
}

/// An allocation that does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// Bytes that were asked for.
    pub size: u64,
    /// Bytes that are free.
    pub free: u64,
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "out of device memory: {} bytes asked for, {} bytes free", self.size, self.free)
    }
}

impl std::error::Error for OutOfMemory {}

/// What an address stands for.
struct Place {
    size: u64,
    host: bool,
    backing: Option<u64>,
}

#[derive(Debug)]
pub(super) struct Table {
    live: BTreeMap<u64, Allocation>,
    freed: BTreeMap<u64, Allocation>,
    /// Free ranges: start, length.
    holes: BTreeMap<u64, u64>,
    /// Where the search for a hole starts: freed ranges are used again as late as possible.
    next: u64,
    used: u64,
    total: u64,
    ids: u64,
}

impl Table {
    pub fn new(base: u64, span: u64, total: u64) -> Self {
        let holes = BTreeMap::from([(base, span)]);
        Self { live: BTreeMap::new(), freed: BTreeMap::new(), holes, next: base, used: 0, total, ids: 0 }
    }

    pub fn used(&self) -> u64 {
        self.used
    }

    pub fn live(&self) -> impl Iterator<Item = &Allocation> {
        self.live.values().filter(|allocation| !allocation.host)
    }

    pub fn alloc(&mut self, size: u64, align: u64, origin: &str) -> Result<u64, OutOfMemory> {
        let address = self.back(size, align)?;
        self.insert(address, Place { size, host: false, backing: None }, origin);
        Ok(address)
    }

    /// Bytes at no address that anyone may use, until they are mapped.
    pub fn back(&mut self, size: u64, align: u64) -> Result<u64, OutOfMemory> {
        let none = OutOfMemory { size, free: self.total - self.used };
        if size > none.free {
            return Err(none);
        }
        let address = self.take(size, align).ok_or(none)?;
        self.used += size;
        Ok(address)
    }

    /// Takes back [`Table::back`].
    pub fn drop_back(&mut self, address: u64, size: u64) {
        self.used -= size;
        self.give(address, size);
    }

    /// Takes a range out of those that are free.
    pub fn take(&mut self, size: u64, align: u64) -> Option<u64> {
        let (align, room) = (align.next_power_of_two().max(GRAIN), Self::room(size));
        let fits = |(&start, &len): (&u64, &u64)| {
            let address = start.next_multiple_of(align);
            (address + room <= start + len).then_some((start, len, address))
        };
        // The hole that `next` lies in counts as one that starts there.
        let within = self.holes.range(..self.next).next_back().and_then(|(&start, &len)| {
            let address = self.next.next_multiple_of(align);
            (address + room <= start + len).then_some((start, len, address))
        });
        let (start, len, address) = within
            .or_else(|| self.holes.range(self.next..).find_map(fits))
            .or_else(|| self.holes.iter().find_map(fits))?;
        self.holes.remove(&start);
        if address > start {
            self.holes.insert(start, address - start);
        }
        let (end, hole_end) = (address + room, start + len);
        if end < hole_end {
            self.holes.insert(end, hole_end - end);
        }
        self.next = end;
        while let Some((&old, _)) =
            self.freed.range(..end).next_back().filter(|(_, old)| old.address + old.size > address)
        {
            self.freed.remove(&old);
        }
        Some(address)
    }

    fn insert(&mut self, address: u64, place: Place, origin: &str) {
        self.ids += 1;
        let Place { size, host, backing } = place;
        self.live.insert(address, Allocation { id: self.ids, address, size, origin: origin.to_owned(), host, backing });
    }

    /// Lets a range of addresses be that of bytes that [`Table::back`] made.
    pub fn map(&mut self, address: u64, size: u64, backing: u64, origin: &str) {
        self.insert(address, Place { size, host: false, backing: Some(backing) }, origin);
    }

    /// Takes back [`Table::map`]; whether there was a mapping.
    pub fn unmap(&mut self, address: u64) -> bool {
        let is = self.live.get(&address).is_some_and(|found| found.backing.is_some());
        if is && let Some(old) = self.live.remove(&address) {
            self.freed.insert(address, old);
        }
        is
    }

    fn room(size: u64) -> u64 {
        size.max(1).next_multiple_of(GRAIN) + GUARD
    }

    /// Frees, and returns the size.
    pub fn free(&mut self, address: u64) -> Result<u64, Fault> {
        let ours = |allocation: &&Allocation| !allocation.host && allocation.backing.is_none();
        let Some(allocation) = self.live.get(&address).filter(ours) else {
            let what = match (self.freed.get(&address), self.find(address)) {
                (Some(freed), _) => format!("{address:#x} was freed already: {freed}"),
                (None, Some(inside)) => format!("{address:#x} is not the start of {inside}"),
                (None, None) => format!("{address:#x} is no device allocation"),
            };
            return Err(Fault::new(FaultKind::InvalidValue, what));
        };
        let size = allocation.size;
        let allocation = self.live.remove(&address).expect("just found");
        self.freed.insert(address, allocation);
        self.drop_back(address, size);
        Ok(size)
    }

    /// Gives back what [`Table::take`] took.
    pub fn give(&mut self, address: u64, size: u64) {
        let (mut start, mut end) = (address, address + Self::room(size));
        if let Some((&before, &len)) = self.holes.range(..start).next_back()
            && before + len == start
        {
            self.holes.remove(&before);
            start = before;
        }
        if let Some(len) = self.holes.remove(&end) {
            end += len;
        }
        self.holes.insert(start, end - start);
    }

    pub fn register(&mut self, address: u64, size: u64, origin: &str) {
        self.insert(address, Place { size, host: true, backing: None }, origin);
    }

    pub fn unregister(&mut self, address: u64) -> Result<(), Fault> {
        if self.live.get(&address).is_some_and(|allocation| allocation.host) {
            self.live.remove(&address);
            return Ok(());
        }
        Err(Fault::new(FaultKind::InvalidValue, format!("{address:#x} is no registered host memory")))
    }

    pub fn find(&self, address: u64) -> Option<&Allocation> {
        let (_, found) = self.live.range(..=address).next_back()?;
        (address < found.address + found.size.max(1)).then_some(found)
    }

    /// Why a range can't be accessed.
    pub fn explain(&self, address: u64, len: u64, verb: &str) -> Fault {
        let start = format!("{verb} of {len} bytes at {address:#x}");
        if let Some(inside) = self.find(address) {
            let over = address.saturating_add(len) - (inside.address + inside.size);
            return Fault::new(FaultKind::OutOfBounds, format!("{start}: ends {over} bytes behind {inside}"));
        }
        if let Some((_, freed)) = self.freed.range(..=address).next_back()
            && address < freed.address + freed.size
        {
            let what = format!("{start}: {} bytes into freed {freed}", address - freed.address);
            return Fault::new(FaultKind::UseAfterFree, what);
        }
        if address < 1 << 16 {
            return Fault::new(FaultKind::OutOfBounds, format!("{start}: a null pointer, or a small offset from one"));
        }
        let before = self.live.range(..address).next_back().map(|(_, a)| (address - a.address - a.size, "behind", a));
        let after = self.live.range(address..).next().map(|(_, a)| (a.address - address, "before", a));
        let near = before.into_iter().chain(after).filter(|near| near.0 < 1 << 30).min_by_key(|near| near.0);
        let what = match near {
            Some((distance, side, near)) => format!("{start}: {distance} bytes {side} {near}"),
            None => format!("{start}: no allocation is near"),
        };
        Fault::new(FaultKind::OutOfBounds, what)
    }
}
