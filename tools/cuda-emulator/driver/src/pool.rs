//! Allocation in stream order, and the pools that it takes from.
//!
//! An address can be used from the call on. A free happens when its turn in the stream comes, so that work of another
//! stream that should have come before meets freed memory.

use crate::abi::{CUdevice, CUdeviceptr, CUmemAccessDesc, CUmemLocation, CUmemPoolProps, CUmemoryPool, CUstream};
use crate::call::{api, out, values};
use crate::card::{Owner, card, card_of, cards};
use crate::engine::engine;
use crate::engine::work::Work;
use crate::errors::{Answer, Code};
use crate::handles::{Table, fresh};
use crate::say::say_once;
use crate::streams::{Stream, resolve};
use std::collections::HashMap;
use std::ffi::{c_uint, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// A pool of a card's memory.
pub struct Pool {
    handle: CUmemoryPool,
    card: usize,
    made: bool,
    attributes: Mutex<HashMap<c_uint, u64>>,
    /// Most bytes in use at once, since the client last set that to 0.
    most: AtomicU64,
}

/// All pools.
fn pools() -> &'static Table<Pool> {
    static POOLS: Table<Pool> = Table::new(Code::INVALID_VALUE);
    &POOLS
}

/// Pools that clients made.
pub fn made() -> usize {
    pools().all().iter().filter(|pool| pool.made).count()
}

/// The default pool of a card.
fn default_pool(card: usize) -> Arc<Pool> {
    static DEFAULTS: Mutex<Vec<CUmemoryPool>> = Mutex::new(Vec::new());
    let mut defaults = DEFAULTS.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    while defaults.len() < cards().len() {
        let card = defaults.len();
        let pool = |handle| Pool { handle, card, made: false, attributes: Mutex::default(), most: AtomicU64::new(0) };
        defaults.push(pools().add_at(fresh(), pool).handle);
    }
    pools().get(defaults[card]).unwrap_or_else(|_| unreachable!("default pools are never destroyed"))
}

/// The pool that allocations without one take from, by card; 0 is the default.
static CHOSEN: Mutex<[CUmemoryPool; 16]> = Mutex::new([0; 16]);

fn chosen(card: usize) -> Arc<Pool> {
    let chosen = CHOSEN.lock().unwrap_or_else(|poisoned| poisoned.into_inner())[card];
    pools().get(chosen).unwrap_or_else(|_| default_pool(card))
}

fn alloc(to: *mut CUdeviceptr, bytes: usize, pool: &Pool, stream: &Stream) -> Answer {
    if stream.is_capturing() {
        return crate::call::unsupported("an allocation in a captured stream");
    }
    if bytes == 0 {
        // No error, unlike that of `cuMemAlloc`: cards answer a null address.
        // SAFETY: checked for null.
        return unsafe { out(to, 0) };
    }
    let (card, origin) = (&cards()[pool.card], "cuMemAllocAsync");
    let owner = Owner { context: stream.context.handle, pool: pool.handle };
    let fit = || card.try_alloc(bytes, owner, origin).ok();
    // What the stream frees earlier is free for it. Before it gives up, a card waits for other streams' frees.
    let fit_after_frees = |of| {
        engine().wait(&engine().frees(card.ordinal, of));
        fit()
    };
    let address = fit().or_else(|| fit_after_frees(Some(stream.handle))).or_else(|| fit_after_frees(None));
    let address = address.map_or_else(|| card.alloc(bytes, owner, origin), Ok)?;
    pool.most.fetch_max(card.used_by(pool.handle), Ordering::Relaxed);
    stream.submit(&[], Work::Nothing)?;
    // SAFETY: checked for null.
    unsafe { out(to, address) }
}

api! {
    fn cuMemAllocAsync | cuMemAllocAsync_ptsz(default; to: *mut CUdeviceptr, bytes: usize, stream: CUstream) {
        let stream = resolve(stream, default)?;
        alloc(to, bytes, &chosen(stream.context.card), &stream)
    }
    fn cuMemAllocFromPoolAsync | cuMemAllocFromPoolAsync_ptsz(
        default; to: *mut CUdeviceptr, bytes: usize, pool: CUmemoryPool, stream: CUstream,
    ) {
        alloc(to, bytes, &*pools().get(pool)?, &*resolve(stream, default)?)
    }
    fn cuMemFreeAsync | cuMemFreeAsync_ptsz(default; address: CUdeviceptr, stream: CUstream) {
        let stream = resolve(stream, default)?;
        if address == 0 {
            return Ok(());
        }
        if card_of(address).and_then(|card| card.owner(address)).is_none() {
            return Err(Code::INVALID_VALUE);
        }
        stream.submit(&[], Work::Free(address)).map(|_| ())
    }
    fn cuDeviceGetDefaultMemPool(to: *mut CUmemoryPool, device: CUdevice) {
        out(to, default_pool(card(device)?.ordinal).handle)
    }
    fn cuDeviceGetMemPool(to: *mut CUmemoryPool, device: CUdevice) {
        out(to, chosen(card(device)?.ordinal).handle)
    }
    fn cuDeviceSetMemPool(device: CUdevice, pool: CUmemoryPool) {
        let (card, pool) = (card(device)?, pools().get(pool)?);
        if pool.card != card.ordinal {
            return Err(Code::INVALID_DEVICE);
        }
        CHOSEN.lock().unwrap_or_else(|poisoned| poisoned.into_inner())[card.ordinal] = pool.handle;
        Ok(())
    }
    fn cuMemPoolCreate(to: *mut CUmemoryPool, props: *const CUmemPoolProps) {
        let props = values(props, 1)?[0];
        if props.alloc_type != 1 || props.location.kind != 1 {
            return Err(Code::INVALID_VALUE);
        }
        if props.handle_types != 0 {
            return crate::call::unsupported("a pool that other processes share");
        }
        let card = card(props.location.id)?.ordinal;
        let pool = |handle| Pool { handle, card, made: true, attributes: Mutex::default(), most: AtomicU64::new(0) };
        out(to, pools().add(pool).handle)
    }
    fn cuMemPoolDestroy(pool: CUmemoryPool) {
        if !pools().get(pool)?.made {
            return Err(Code::INVALID_VALUE);
        }
        pools().remove(pool).map(|_| ())
    }
    fn cuMemPoolTrimTo(pool: CUmemoryPool, _keep: usize) {
        // Nothing is kept back.
        pools().get(pool).map(|_| ())
    }
    fn cuMemPoolSetAttribute(pool: CUmemoryPool, number: c_uint, value: *const c_void) {
        let pool = pools().get(pool)?;
        let value = match number {
            1..=3 => u64::from(values(value.cast::<u32>(), 1)?[0]),
            4 => values(value.cast::<u64>(), 1)?[0],
            // The most that was in use can only start over.
            6 | 8 if values(value.cast::<u64>(), 1)?[0] == 0 => {
                pool.most.store(cards()[pool.card].used_by(pool.handle), Ordering::Relaxed);
                return Ok(());
            }
            _ => return Err(Code::INVALID_VALUE),
        };
        pool.attributes.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).insert(number, value);
        Ok(())
    }
    fn cuMemPoolGetAttribute(pool: CUmemoryPool, number: c_uint, to: *mut c_void) {
        let pool = pools().get(pool)?;
        let set = pool.attributes.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).get(&number).copied();
        let used = cards()[pool.card].used_by(pool.handle);
        match number {
            1..=3 => out(to.cast::<u32>(), set.unwrap_or(1) as u32),
            4 => out(to.cast::<u64>(), set.unwrap_or(0)),
            // Reserved and used, now and at most.
            5 | 7 => out(to.cast::<u64>(), used),
            6 | 8 => out(to.cast::<u64>(), pool.most.load(Ordering::Relaxed)),
            _ => Err(Code::INVALID_VALUE),
        }
    }
    fn cuMemPoolSetAccess(pool: CUmemoryPool, access: *const CUmemAccessDesc, count: usize) {
        let pool = pools().get(pool)?;
        for access in values(access, count)? {
            let other = card(access.location.id)?;
            if access.flags != 0 && other.ordinal != pool.card {
                say_once("cuMemPoolSetAccess gives a card access to all memory of another, not to one pool");
                other.memory.enable_peer(&cards()[pool.card].memory);
            }
        }
        Ok(())
    }
    fn cuMemPoolGetAccess(flags: *mut c_uint, pool: CUmemoryPool, location: *const CUmemLocation) {
        let own = pools().get(pool)?.card as i32 == values(location, 1)?[0].id;
        out(flags, if own { 3 } else { 0 })
    }
}
