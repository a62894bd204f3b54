//! Virtual memory: addresses that are reserved, bytes that are made, and mappings of one to the other.
//!
//! A range can be used once `cuMemSetAccess` has given its card access. Addresses belong to the card that was current
//! when they were reserved, and only bytes of that card can be mapped there.

use crate::abi::{CUdeviceptr, CUmemAccessDesc, CUmemAllocationProp, CUmemGenericAllocationHandle, CUmemLocation};
use crate::call::{api, out, refuse, unsupported, values};
use crate::card::{card, cards};
use crate::contexts::current;
use crate::errors::{Answer, Code};
use crate::handles::fresh;
use crate::say::say;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::sync::{Mutex, MutexGuard};

/// Multiple of sizes and addresses: that of cards.
const GRANULARITY: usize = 2 << 20;
/// Access to read and write.
const READ_WRITE: c_uint = 3;

struct Physical {
    card: usize,
    size: usize,
    backing: u64,
    kind: c_uint,
    /// Handles that clients hold, and mappings.
    handles: usize,
    mappings: usize,
}

struct Mapping {
    size: usize,
    handle: CUmemGenericAllocationHandle,
    offset: usize,
    access: c_uint,
}

#[derive(Default)]
struct State {
    /// Card and size of reserved ranges.
    reserved: BTreeMap<CUdeviceptr, (usize, usize)>,
    mapped: BTreeMap<CUdeviceptr, Mapping>,
    physical: BTreeMap<CUmemGenericAllocationHandle, Physical>,
}

fn state() -> MutexGuard<'static, State> {
    static STATE: Mutex<State> =
        Mutex::new(State { reserved: BTreeMap::new(), mapped: BTreeMap::new(), physical: BTreeMap::new() });
    STATE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn whole(size: usize) -> Answer {
    if size == 0 || !size.is_multiple_of(GRANULARITY) {
        return refuse(Code::INVALID_VALUE, &format!("{size} bytes are no multiple of the granularity, {GRANULARITY}"));
    }
    Ok(())
}

impl State {
    /// The card whose reserved range holds all of a range.
    fn card_of(&self, start: CUdeviceptr, size: usize) -> Answer<usize> {
        let found = self.reserved.range(..=start).next_back();
        match found {
            Some((first, &(card, len)))
                if (start - first).checked_add(size as u64).is_some_and(|end| end <= len as u64) =>
            {
                Ok(card)
            }
            _ => refuse(Code::INVALID_VALUE, &format!("{size} bytes at {start:#x} are not all reserved")),
        }
    }

    /// The mappings that make up a range.
    fn within(&self, start: CUdeviceptr, size: usize) -> Answer<Vec<CUdeviceptr>> {
        let mut next = start;
        let Some(end) = start.checked_add(size as u64) else {
            return refuse(Code::INVALID_VALUE, &format!("{size} bytes at {start:#x} reach beyond all addresses"));
        };
        let mut found = Vec::new();
        for (&at, mapping) in self.mapped.range(start..end).take_while(|(at, _)| **at < end) {
            if at != next {
                break;
            }
            found.push(at);
            next = at + mapping.size as u64;
        }
        if next == end && !found.is_empty() {
            return Ok(found);
        }
        refuse(Code::INVALID_VALUE, &format!("{size} bytes at {start:#x} are no whole mappings side by side"))
    }

    /// Lets go of bytes that have neither a handle nor a mapping.
    fn settle(&mut self, handle: CUmemGenericAllocationHandle) {
        if self.physical.get(&handle).is_some_and(|one| one.handles == 0 && one.mappings == 0)
            && let Some(one) = self.physical.remove(&handle)
        {
            cards()[one.card].memory.drop_backing(one.backing, one.size as u64);
        }
    }

    fn held(&mut self, handle: CUmemGenericAllocationHandle) -> Answer<&mut Physical> {
        self.physical.get_mut(&handle).filter(|one| one.handles > 0).ok_or(Code::INVALID_VALUE)
    }

    /// Gives or takes access to a mapping.
    fn set_access(&mut self, at: CUdeviceptr, access: c_uint) -> Answer {
        let (mapped, physical) = (&mut self.mapped, &self.physical);
        let mapping = mapped.get_mut(&at).ok_or(Code::INVALID_VALUE)?;
        let one = physical.get(&mapping.handle).ok_or(Code::INVALID_VALUE)?;
        let memory = &cards()[one.card].memory;
        match (mapping.access != 0, access != 0) {
            (false, true) => memory.map(at, mapping.size as u64, one.backing + mapping.offset as u64, "cuMemMap"),
            (true, false) => memory.unmap(at).map_err(|_| Code::INVALID_VALUE)?,
            _ => {}
        }
        mapping.access = access;
        Ok(())
    }
}

api! {
    fn cuMemGetAllocationGranularity(to: *mut usize, prop: *const CUmemAllocationProp, _option: c_uint) {
        card(values(prop, 1)?[0].location.id)?;
        out(to, GRANULARITY)
    }
    fn cuMemCreate(
        to: *mut CUmemGenericAllocationHandle, size: usize, prop: *const CUmemAllocationProp, flags: c_ulonglong,
    ) {
        let prop = values(prop, 1)?[0];
        if prop.alloc_type != 1 || flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        if prop.location.kind != 1 {
            return unsupported("cuMemCreate of memory of the host");
        }
        whole(size)?;
        let card = card(prop.location.id)?;
        let backing = card.memory.make_backing(size as u64, GRANULARITY as u64).map_err(|error| {
            say(&format!("cuMemCreate: {size} bytes do not fit on card {}: {error}", card.ordinal));
            Code::OUT_OF_MEMORY
        })?;
        let handle = fresh() as CUmemGenericAllocationHandle;
        let kind = prop.handle_types;
        let made = Physical { card: card.ordinal, size, backing, kind, handles: 1, mappings: 0 };
        state().physical.insert(handle, made);
        out(to, handle)
    }
    fn cuMemRelease(handle: CUmemGenericAllocationHandle) {
        let mut state = state();
        state.held(handle)?.handles -= 1;
        state.settle(handle);
        Ok(())
    }
    fn cuMemRetainAllocationHandle(to: *mut CUmemGenericAllocationHandle, address: *mut c_void) {
        let (mut state, address) = (state(), address as CUdeviceptr);
        let found = state.mapped.range(..=address).next_back();
        let inside = found.filter(|(start, mapping)| address - **start < mapping.size as u64);
        let handle = inside.map(|(_, mapping)| mapping.handle).ok_or(Code::INVALID_VALUE)?;
        state.physical.get_mut(&handle).ok_or(Code::INVALID_VALUE)?.handles += 1;
        out(to, handle)
    }
    fn cuMemGetAllocationPropertiesFromHandle(to: *mut CUmemAllocationProp, handle: CUmemGenericAllocationHandle) {
        let mut state = state();
        let one = state.held(handle)?;
        let location = CUmemLocation { kind: 1, id: one.card as c_int };
        let (alloc_type, handle_types, win32) = (1, one.kind, std::ptr::null_mut());
        out(to, CUmemAllocationProp { alloc_type, handle_types, location, win32, flags: [0; 8] })
    }
    fn cuMemExportToShareableHandle(
        _to: *mut c_void, _handle: CUmemGenericAllocationHandle, _kind: c_uint, _flags: c_ulonglong,
    ) {
        unsupported("memory that processes share (cuMemExportToShareableHandle)")
    }
    fn cuMemImportFromShareableHandle(_to: *mut CUmemGenericAllocationHandle, _from: *mut c_void, _kind: c_uint) {
        unsupported("memory that processes share (cuMemImportFromShareableHandle)")
    }
    fn cuMemAddressReserve(
        to: *mut CUdeviceptr, size: usize, align: usize, _hint: CUdeviceptr, flags: c_ulonglong,
    ) {
        whole(size)?;
        if flags != 0 || align != 0 && !align.is_power_of_two() {
            return Err(Code::INVALID_VALUE);
        }
        let card = current()?.card();
        let start = card.memory.reserve_addresses(size as u64, align.max(GRANULARITY) as u64).ok_or(Code::OUT_OF_MEMORY)?;
        state().reserved.insert(start, (card.ordinal, size));
        out(to, start)
    }
    fn cuMemAddressFree(start: CUdeviceptr, size: usize) {
        let mut state = state();
        let known = state.reserved.get(&start).copied().filter(|(_, len)| *len == size);
        let (card, _) = known.ok_or(Code::INVALID_VALUE)?;
        if state.mapped.range(start..start + size as u64).next().is_some() {
            return refuse(Code::INVALID_VALUE, "cuMemAddressFree of a range in which something is mapped");
        }
        state.reserved.remove(&start);
        cards()[card].memory.release_addresses(start, size as u64);
        Ok(())
    }
    fn cuMemMap(
        start: CUdeviceptr, size: usize, offset: usize, handle: CUmemGenericAllocationHandle, flags: c_ulonglong,
    ) {
        whole(size)?;
        let mut state = state();
        let card = state.card_of(start, size)?;
        let overlaps = state.mapped.range(..start + size as u64).next_back();
        let overlaps = overlaps.is_some_and(|(at, mapping)| at + mapping.size as u64 > start);
        let one = state.held(handle)?;
        let fits = offset.is_multiple_of(GRANULARITY) && offset.checked_add(size).is_some_and(|end| end <= one.size);
        if flags != 0 || overlaps || !fits || !start.is_multiple_of(GRANULARITY as u64) {
            return refuse(Code::INVALID_VALUE, &format!("cuMemMap of {size} bytes to {start:#x} does not fit there"));
        }
        if one.card != card {
            return unsupported("cuMemMap of memory of one card to addresses that were reserved with another current");
        }
        one.mappings += 1;
        state.mapped.insert(start, Mapping { size, handle, offset, access: 0 });
        Ok(())
    }
    fn cuMemUnmap(start: CUdeviceptr, size: usize) {
        let mut state = state();
        for at in state.within(start, size)? {
            state.set_access(at, 0)?;
            if let Some(mapping) = state.mapped.remove(&at) {
                state.physical.get_mut(&mapping.handle).ok_or(Code::INVALID_VALUE)?.mappings -= 1;
                state.settle(mapping.handle);
            }
        }
        Ok(())
    }
    fn cuMemSetAccess(start: CUdeviceptr, size: usize, access: *const CUmemAccessDesc, count: usize) {
        let mut state = state();
        let owner = state.card_of(start, size)?;
        let mappings = state.within(start, size)?;
        for access in values(access, count)? {
            let other = card(access.location.id)?;
            if access.location.kind != 1 || ![0, 1, READ_WRITE].contains(&access.flags) {
                return Err(Code::INVALID_VALUE);
            }
            if access.flags == 1 {
                return unsupported("cuMemSetAccess to read only");
            }
            if other.ordinal == owner {
                mappings.iter().try_for_each(|at| state.set_access(*at, access.flags))?;
            } else if access.flags != 0 {
                other.memory.enable_peer(&cards()[owner].memory);
            }
        }
        Ok(())
    }
    fn cuMemGetAccess(flags: *mut c_ulonglong, location: *const CUmemLocation, address: CUdeviceptr) {
        let state = state();
        let found = state.mapped.range(..=address).next_back();
        let (start, mapping) = found.filter(|(at, one)| address - **at < one.size as u64).ok_or(Code::INVALID_VALUE)?;
        let own = state.card_of(*start, mapping.size)? as c_int == values(location, 1)?[0].id;
        out(flags, c_ulonglong::from(if own { mapping.access } else { 0 }))
    }
}
