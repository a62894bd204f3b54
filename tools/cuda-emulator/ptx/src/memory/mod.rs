//! The memory of one card: allocations, their bytes, and which bytes have been written.
//!
//! Device addresses lie above the addresses that a process can map, so a host that follows one crashes, as with a card.

#![allow(dead_code)]

mod map;
mod region;
mod table;
mod virtual_addresses;

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};

pub(crate) use region::Region;
pub use table::{Allocation, OutOfMemory};

use crate::fault::{Fault, FaultKind};
use map::Map;
use table::Table;

/// First device address of card 0.
pub const DEVICE_BASE: u64 = 0x9000_0000_0000;
/// Device addresses a card has: card `n` starts at `DEVICE_BASE + n * CARD_SPAN`.
pub const CARD_SPAN: u64 = 1 << 40;
/// Cards that have addresses of their own.
pub const MAX_CARDS: usize = 64;

/// Bytes for which one trace of an access is kept.
pub(crate) const GRAIN: u64 = 32;
/// Bytes of memory for a byte of traces.
const SHARE: usize = (GRAIN / 8) as usize;

/// Changes whenever any memory allocates or frees, so that copies of regions notice.
static GENERATION: AtomicU64 = AtomicU64::new(1);

pub(crate) fn generation() -> u64 {
    GENERATION.load(Ordering::Acquire)
}

/// The memory of one card.
///
/// All methods take `&self` and may be called from several threads, also while kernels run.
///
/// ```
/// let memory = ptx::Memory::new(1 << 20)?;
/// let address = memory.alloc(16, 256, "example")?;
/// memory.write(address, &[1, 2, 3, 4])?;
/// let mut bytes = [0; 4];
/// memory.read(address, &mut bytes)?;
/// assert_eq!(bytes, [1, 2, 3, 4]);
/// assert!(memory.read(address + 16, &mut bytes).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Memory {
    card: usize,
    total: u64,
    data: Map,
    written: Map,
    /// Traces of writes and of reads, 8 bytes each for [`GRAIN`] bytes of memory, and the era that they are of.
    traces: [Map; 2],
    era: AtomicU64,
    table: RwLock<Table>,
    peers: RwLock<Vec<Arc<Memory>>>,
}

impl Memory {
    /// Memory of card 0 with `bytes` bytes, which take host memory only when they are written.
    pub fn new(bytes: u64) -> io::Result<Self> {
        Self::for_card(0, bytes)
    }

    /// Memory of card number `card`, below [`MAX_CARDS`].
    pub fn for_card(card: usize, bytes: u64) -> io::Result<Self> {
        if card >= MAX_CARDS || bytes == 0 || bytes > CARD_SPAN / 2 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "card number or size of its memory out of range"));
        }
        // More addresses than bytes: freed ranges rest a while before they are used again.
        let span = (bytes * 4).clamp(1 << 24, CARD_SPAN).next_multiple_of(1 << 16);
        let base = DEVICE_BASE + card as u64 * CARD_SPAN;
        Ok(Self {
            card,
            total: bytes,
            data: Map::new(span as usize)?,
            written: Map::new((span / 8) as usize)?,
            traces: [Map::new(span as usize / SHARE)?, Map::new(span as usize / SHARE)?],
            era: AtomicU64::new(0),
            table: RwLock::new(Table::new(base, span, bytes)),
            peers: RwLock::default(),
        })
    }

    /// Number of the card.
    pub fn card(&self) -> usize {
        self.card
    }

    /// Number of the card whose range holds `address`, whether or not it is allocated.
    pub fn card_of(address: u64) -> Option<usize> {
        let card = address.checked_sub(DEVICE_BASE)? / CARD_SPAN;
        (card < MAX_CARDS as u64).then_some(card as usize)
    }

    /// Allocates `size` bytes at a multiple of `align`; `origin` names the caller in messages.
    pub fn alloc(&self, size: u64, align: u64, origin: &str) -> Result<u64, OutOfMemory> {
        let address = self.table.write().unwrap().alloc(size, align, origin)?;
        GENERATION.fetch_add(1, Ordering::AcqRel);
        Ok(address)
    }

    /// Frees the allocation that starts at `address`.
    pub fn free(&self, address: u64) -> Result<(), Fault> {
        let mut table = self.table.write().unwrap();
        let size = table.free(address)?;
        let offset = (address - self.base()) as usize;
        self.data.discard(offset, size as usize);
        // Whole words of the shadow: an allocation starts and ends at multiples of 256 bytes.
        let room = (size as usize).next_multiple_of(256);
        self.written.discard(offset / 8, room / 8);
        self.traces.iter().for_each(|map| map.discard(offset / SHARE, room / SHARE));
        GENERATION.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    /// Reads bytes for the host, written or not.
    pub fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), Fault> {
        let table = self.table.read().unwrap();
        for part in self.parts(&table, address, bytes.len() as u64, "read")? {
            let at = (part.start - address) as usize;
            part.region.read(part.start, &mut bytes[at..at + part.len as usize]);
        }
        Ok(())
    }

    /// Writes bytes for the host.
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Fault> {
        let table = self.table.read().unwrap();
        for part in self.parts(&table, address, bytes.len() as u64, "write")? {
            let at = (part.start - address) as usize;
            part.region.write(part.start, &bytes[at..at + part.len as usize]);
            part.region.mark(part.start, part.len);
        }
        Ok(())
    }

    /// Fills `len` bytes with repetitions of `pattern`, whose length divides `len`.
    pub fn fill(&self, address: u64, len: u64, pattern: &[u8]) -> Result<(), Fault> {
        if pattern.is_empty() || !len.is_multiple_of(pattern.len() as u64) {
            return Err(Fault::new(FaultKind::InvalidValue, "fill: the pattern's length does not divide the range"));
        }
        let table = self.table.read().unwrap();
        for part in self.parts(&table, address, len, "fill")? {
            let mut block = pattern.repeat((4096 / pattern.len()).max(1));
            block.rotate_left(((part.start - address) % pattern.len() as u64) as usize);
            let mut done = 0;
            while done < part.len {
                let bytes = &block[..block.len().min((part.len - done) as usize)];
                part.region.write(part.start + done, bytes);
                done += bytes.len() as u64;
            }
            part.region.mark(part.start, part.len);
        }
        Ok(())
    }

    /// Copies `len` bytes of this memory, and which of them are written. The ranges may overlap.
    pub fn copy(&self, to: u64, from: u64, len: u64) -> Result<(), Fault> {
        self.copy_from(to, self, from, len)
    }

    /// Copies `len` bytes of `source`'s memory at `from` to this memory at `to`, and which of them are written.
    pub fn copy_from(&self, to: u64, source: &Memory, from: u64, len: u64) -> Result<(), Fault> {
        let source_table = source.table.read().unwrap();
        let sources = source.parts(&source_table, from, len, "copy from")?;
        // Taken after the source's: a waiting writer must not come between two reads of one lock.
        let own_table = if std::ptr::eq(self, source) { None } else { Some(self.table.read().unwrap()) };
        let targets = self.parts(own_table.as_deref().unwrap_or(&source_table), to, len, "copy to")?;
        virtual_addresses::copy(&targets, &sources);
        Ok(())
    }

    /// Whether `len` bytes at `address` are in one allocation and have all been written.
    pub fn is_written(&self, address: u64, len: u64) -> bool {
        self.region(address, len).is_some_and(|region| region.written(address, len))
    }

    /// Bytes that are allocated.
    pub fn used(&self) -> u64 {
        self.table.read().unwrap().used()
    }

    /// Bytes that can be allocated in all.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The allocations that have not been freed, by address.
    pub fn live_allocations(&self) -> Vec<Allocation> {
        self.table.read().unwrap().live().cloned().collect()
    }

    /// The allocation that holds `address`.
    pub fn find(&self, address: u64) -> Option<Allocation> {
        self.table.read().unwrap().find(address).cloned()
    }

    /// Lets kernels and copies reach `len` bytes of host memory at `pointer` under their host address.
    ///
    /// # Safety
    ///
    /// The bytes stay valid until [`Memory::unregister_host`], and Rust code holds no reference to them while a kernel
    /// or copy uses them.
    pub unsafe fn register_host(&self, pointer: *mut u8, len: u64, origin: &str) {
        self.table.write().unwrap().register(pointer as u64, len, origin);
        GENERATION.fetch_add(1, Ordering::AcqRel);
    }

    /// Takes back [`Memory::register_host`].
    pub fn unregister_host(&self, pointer: *mut u8) -> Result<(), Fault> {
        let found = self.table.write().unwrap().unregister(pointer as u64);
        GENERATION.fetch_add(1, Ordering::AcqRel);
        found
    }

    /// Lets kernels of this card reach the memory of another card.
    pub fn enable_peer(&self, peer: &Arc<Memory>) {
        let mut peers = self.peers.write().unwrap();
        if peers.iter().all(|known| known.card != peer.card) {
            peers.push(Arc::clone(peer));
        }
        GENERATION.fetch_add(1, Ordering::AcqRel);
    }

    /// Takes back [`Memory::enable_peer`].
    pub fn disable_peer(&self, card: usize) {
        self.peers.write().unwrap().retain(|peer| peer.card != card);
        GENERATION.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn peers(&self) -> Vec<Arc<Memory>> {
        self.peers.read().unwrap().clone()
    }

    /// Forgets the traces that accesses have left before an era. Called with no launch running.
    pub(crate) fn forget_traces(&self, era: u64) {
        if self.era.swap(era, Ordering::AcqRel) != era {
            self.traces.iter().for_each(Map::discard_all);
        }
    }

    fn base(&self) -> u64 {
        DEVICE_BASE + self.card as u64 * CARD_SPAN
    }

    fn region_of(&self, allocation: &Allocation) -> Region {
        if allocation.host {
            return Region::of_host(allocation.address, allocation.size);
        }
        let offset = (allocation.backing.unwrap_or(allocation.address) - self.base()) as usize;
        let traces = [0, 1].map(|map: usize| self.traces[map].at(offset / SHARE));
        let (data, written) = (self.data.at(offset), self.written.at(offset / 8));
        Region::of_device(allocation.address, allocation.size, data, written, traces)
    }

    /// The region that holds all of `len` bytes at `address`, for kernels.
    pub(crate) fn region(&self, address: u64, len: u64) -> Option<Region> {
        let table = self.table.read().unwrap();
        let found = table.find(address)?;
        (address + len <= found.address + found.size).then(|| self.region_of(found))
    }

    /// Why `len` bytes at `address` can't be accessed.
    pub(crate) fn explain(&self, address: u64, len: u64, verb: &str) -> Fault {
        self.table.read().unwrap().explain(address, len, verb)
    }
}

#[cfg(test)]
mod tests;
