//! The cards of this process: their memory, who allocated what, and pinned host memory.

use crate::abi::{CUcontext, CUdevice, CUdeviceptr, CUmemoryPool};
use crate::errors::{Answer, Code};
use crate::say::say;
use crate::settings::settings;
use ptx::{Allocation, Fault, FaultKind, Memory, OutOfMemory};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

/// Bytes of a page of a card's memory.
pub const PAGE: usize = 2 << 20;

/// A card.
pub struct Card {
    /// Its number.
    pub ordinal: usize,
    /// Its memory.
    pub memory: Arc<Memory>,
    /// State of its primary context.
    pub primary: Mutex<Primary>,
    owners: Mutex<BTreeMap<CUdeviceptr, Owner>>,
}

/// The primary context of a card: how often it is retained.
#[derive(Default)]
pub struct Primary {
    /// How often clients retain it.
    pub retained: u32,
    /// Its flags.
    pub flags: u32,
    /// Its handle, or 0 if it was never made.
    pub handle: CUcontext,
}

/// Who has an allocation.
#[derive(Clone, Copy)]
pub struct Owner {
    /// Context in which it was made.
    pub context: CUcontext,
    /// Pool that it is from, or 0.
    pub pool: CUmemoryPool,
}

/// Host memory that cards may use: made by the driver, or registered.
#[derive(Clone, Copy)]
pub struct Pinned {
    /// First byte.
    pub start: usize,
    /// Size in bytes.
    pub len: usize,
    /// Context in which it was made.
    pub context: CUcontext,
    /// Flags of `cuMemHostAlloc` or `cuMemHostRegister`.
    pub flags: u32,
    /// Whether the driver made it.
    pub ours: bool,
}

/// All cards; made at the first call.
pub fn cards() -> &'static [Card] {
    static CARDS: OnceLock<Vec<Card>> = OnceLock::new();
    CARDS.get_or_init(|| {
        let open = |ordinal| {
            let memory = Memory::for_card(ordinal, settings().memory)
                .unwrap_or_else(|error| panic!("the host refuses address space for card {ordinal}: {error}"));
            Card { ordinal, memory: Arc::new(memory), primary: Mutex::default(), owners: Mutex::default() }
        };
        (0..settings().cards.min(ptx::MAX_CARDS)).map(open).collect()
    })
}

/// The card of an ordinal.
///
/// # Errors
/// An invalid device.
pub fn card(device: CUdevice) -> Answer<&'static Card> {
    usize::try_from(device).ok().and_then(|number| cards().get(number)).ok_or(Code::INVALID_DEVICE)
}

/// The card whose memory has an address.
pub fn card_of(address: CUdeviceptr) -> Option<&'static Card> {
    Memory::card_of(address).and_then(|number| cards().get(number))
}

/// The allocation of a card that has an address.
pub fn allocation(address: CUdeviceptr) -> Option<(&'static Card, Allocation)> {
    let card = card_of(address)?;
    card.memory.find(address).map(|found| (card, found))
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Card {
    /// Bytes that it has.
    pub fn total(&self) -> u64 {
        self.memory.total()
    }

    /// Allocates at a multiple of 256 bytes, as `cuMemAlloc` promises, and what fills a page of a card at the start of
    /// a page: nobody promises that, but cards do it and programs, among them Taichi, rely on it.
    ///
    /// # Errors
    /// Out of memory, which stderr explains.
    pub fn alloc(&self, bytes: usize, owner: Owner, origin: &str) -> Answer<CUdeviceptr> {
        if bytes == 0 {
            return Err(Code::INVALID_VALUE);
        }
        self.try_alloc(bytes, owner, origin).map_err(|error| {
            say(&format!(
                "{origin}: {bytes} bytes do not fit on card {}: {error}; KILN_EMULATED_MEMORY sets its size",
                self.ordinal
            ));
            Code::OUT_OF_MEMORY
        })
    }

    /// Like [`Card::alloc`], of at least one byte and without a word on stderr.
    ///
    /// # Errors
    /// Out of memory.
    pub fn try_alloc(&self, bytes: usize, owner: Owner, origin: &str) -> Result<CUdeviceptr, OutOfMemory> {
        let align = if bytes >= PAGE { PAGE as u64 } else { 256 };
        // Holes between pages may have room where no whole page has.
        let address =
            self.memory.alloc(bytes as u64, align, origin).or_else(|_| self.memory.alloc(bytes as u64, 256, origin))?;
        locked(&self.owners).insert(address, owner);
        Ok(address)
    }

    /// Frees an allocation.
    ///
    /// # Errors
    /// An invalid value if no live allocation starts there.
    pub fn free(&self, address: CUdeviceptr) -> Answer {
        if locked(&self.owners).remove(&address).is_none() {
            let what = match self.memory.find(address) {
                Some(found) => format!("it lies {} bytes inside allocation #{}", address - found.address, found.id),
                None => "nothing is allocated there; it may have been freed before".to_owned(),
            };
            say(&format!("{address:#x} cannot be freed: {what}"));
            return Err(Code::INVALID_VALUE);
        }
        self.memory.free(address).map_err(|fault| code_of(&fault))
    }

    /// Who has the allocation that starts at `address`; none if a module has it.
    pub fn owner(&self, address: CUdeviceptr) -> Option<Owner> {
        locked(&self.owners).get(&address).copied()
    }

    /// What contexts have allocated, by address.
    pub fn owned(&self) -> Vec<(CUdeviceptr, Owner)> {
        locked(&self.owners).iter().map(|(&address, &owner)| (address, owner)).collect()
    }

    /// Bytes that a pool has given out.
    pub fn used_by(&self, pool: CUmemoryPool) -> u64 {
        let owned = self.owned().into_iter().filter(|(_, owner)| owner.pool == pool);
        owned.filter_map(|(address, _)| self.memory.find(address)).map(|found| found.size).sum()
    }

    /// Frees what belongs to a context.
    pub fn free_all(&self, context: CUcontext) {
        let own = self.owned().into_iter().filter(|(_, owner)| owner.context == context);
        own.for_each(|(address, _)| {
            let _ = self.free(address);
        });
    }
}

/// The code that a card answers for a fault.
pub fn code_of(fault: &Fault) -> Code {
    match fault.kind() {
        FaultKind::Misaligned => Code::MISALIGNED_ADDRESS,
        FaultKind::Unsupported => Code::ILLEGAL_INSTRUCTION,
        FaultKind::OutOfBounds | FaultKind::UseAfterFree | FaultKind::Uninitialised => Code::ILLEGAL_ADDRESS,
        FaultKind::Assertion => Code::ASSERT,
        FaultKind::InvalidLaunch | FaultKind::InvalidValue => Code::INVALID_VALUE,
        FaultKind::Limit => Code::LAUNCH_TIMEOUT,
        _ => Code::LAUNCH_FAILED,
    }
}

/// Prints a fault and returns its code.
pub fn report(what: &str, fault: &Fault) -> Code {
    say(&format!("{what}: {fault}"));
    code_of(fault)
}

fn pinned() -> MutexGuard<'static, BTreeMap<usize, Pinned>> {
    static PINNED: Mutex<BTreeMap<usize, Pinned>> = Mutex::new(BTreeMap::new());
    locked(&PINNED)
}

/// The pinned memory that has a host address.
pub fn pinned_at(address: usize) -> Option<Pinned> {
    pinned().range(..=address).next_back().map(|row| *row.1).filter(|row| address < row.start + row.len)
}

/// All pinned memory.
pub fn all_pinned() -> Vec<Pinned> {
    pinned().values().copied().collect()
}

/// Lets every card use host memory.
///
/// # Errors
/// Already registered if some of it is, and an invalid value if it reaches beyond all addresses.
pub fn pin(row: Pinned) -> Answer {
    let end = row.start.checked_add(row.len).ok_or(Code::INVALID_VALUE)?;
    let mut table = pinned();
    let before = table.range(..end).next_back().is_some_and(|(_, old)| old.start + old.len > row.start);
    if before {
        return Err(Code::HOST_MEMORY_ALREADY_REGISTERED);
    }
    for card in cards() {
        // SAFETY: the client keeps the memory until it unregisters it, as the API asks; nothing here refers to it.
        unsafe { card.memory.register_host(row.start as *mut u8, row.len as u64, "host memory") };
    }
    table.insert(row.start, row);
    Ok(())
}

/// Takes back [`pin`].
///
/// # Errors
/// `wrong` if `start` is not the first byte of such memory.
pub fn unpin(start: usize, ours: bool, wrong: Code) -> Answer<Pinned> {
    let mut table = pinned();
    let row = table.get(&start).copied().filter(|row| row.ours == ours).ok_or(wrong)?;
    table.remove(&start);
    for card in cards() {
        let _ = card.memory.unregister_host(start as *mut u8);
    }
    Ok(row)
}
