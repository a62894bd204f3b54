//! What orders the blocks of a launch behind each other: releases, which have numbers, and reads that may have observed
//! them.
//!
//! A strong write behind a fence releases what came before the fence. A strong read acquires all releases up to now, at
//! whatever address: more than it does on a card, so a race may be missed and none is invented.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use super::clock::Clock;
use super::trace::{SERIALS, Trace};
use crate::memory::Memory;

/// Entries of a list of releases before it is thinned.
const MOST: usize = 64;

/// Times of a warp and the releases that cover what it did until then; both rise.
#[derive(Debug, Default)]
struct Covered(Vec<(u32, u64)>);

impl Covered {
    fn push(&mut self, time: u32, release: u64) {
        if time == 0 || self.0.last().is_some_and(|last| last.0 >= time) {
            return;
        }
        self.0.push((time, release));
        if self.0.len() == MOST {
            // A later time with an earlier release: as if more had been released.
            self.0 = self.0.chunks(2).map(|pair| (pair[pair.len() - 1].0, pair[0].1)).collect();
        }
    }

    fn covers(&self, time: u32, acquired: u64) -> bool {
        let first = self.0.partition_point(|(until, _)| *until < time);
        self.0.get(first).is_some_and(|(_, release)| *release <= acquired)
    }
}

/// The releases of one block.
#[derive(Debug, Default)]
pub(super) struct Releases {
    /// Of each warp's accesses before a fence, and of its own strong writes.
    fenced: [Covered; 32],
    strong: [Covered; 32],
}

/// Serial numbers of blocks, so that traces of earlier launches need not be erased.
#[derive(Debug)]
struct Serials {
    next: u64,
    era: u64,
    running: usize,
}

static SERIAL: Mutex<Serials> = Mutex::new(Serials { next: 1, era: 0, running: 0 });

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The blocks of one launch and what orders them.
#[derive(Debug)]
pub(super) struct Races {
    first: u64,
    blocks: u64,
    /// Number of the last release.
    last: AtomicU64,
    releases: RwLock<HashMap<u64, Arc<Mutex<Releases>>>>,
}

impl Races {
    /// Starts to watch a launch of as many blocks; `None` if there are no numbers for so many.
    pub fn begin(blocks: u64, memory: &Memory, peers: &[Arc<Memory>]) -> Option<Self> {
        let mut serials = lock(&SERIAL);
        if serials.next + blocks > SERIALS {
            if serials.running > 0 || blocks >= SERIALS {
                return None;
            }
            (serials.next, serials.era) = (1, serials.era + 1);
        }
        let era = serials.era;
        memory.forget_traces(era);
        peers.iter().for_each(|peer| peer.forget_traces(era));
        let first = serials.next;
        serials.next += blocks;
        serials.running += 1;
        Some(Self { first, blocks, last: AtomicU64::new(0), releases: RwLock::default() })
    }

    /// Whether there is another block to be ordered with.
    pub fn several(&self) -> bool {
        self.blocks > 1
    }

    /// The serial number of a block.
    pub fn serial(&self, block: u64) -> u64 {
        self.first + block
    }

    /// The block of a trace, if it is of this launch.
    pub fn block(&self, trace: Trace) -> Option<u64> {
        trace.serial().checked_sub(self.first).filter(|block| *block < self.blocks)
    }

    /// The least that a trace of this launch can be.
    pub fn oldest(&self) -> u64 {
        Trace::first_of(self.first)
    }

    /// The list for the releases of a block, of which there is one.
    pub fn list(&self, serial: u64) -> Arc<Mutex<Releases>> {
        let mut releases = self.releases.write().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(releases.entry(serial).or_default())
    }

    /// A strong write of the warp `number` of a block, before it happens.
    pub fn release(&self, releases: &Mutex<Releases>, number: usize, clock: &Clock) {
        let mut releases = lock(releases);
        let release = self.last.fetch_add(1, Ordering::AcqRel) + 1;
        for (covered, fenced) in releases.fenced.iter_mut().zip(clock.fenced) {
            covered.push(fenced, release);
        }
        releases.strong[number].push(clock.seen[number], release);
        fence(Ordering::Release);
    }

    /// The last release that a strong read may have observed, after it has happened.
    pub fn acquired(&self) -> u64 {
        fence(Ordering::Acquire);
        self.last.load(Ordering::Acquire)
    }

    /// Whether an access of another block is before what a warp with this clock does.
    #[cold]
    pub fn ordered(&self, trace: Trace, clock: &Clock) -> bool {
        if self.block(trace).is_none() {
            return true;
        }
        let releases = self.releases.read().unwrap_or_else(PoisonError::into_inner);
        let Some(releases) = releases.get(&trace.serial()) else { return false };
        let releases = lock(releases);
        let (time, warp) = (trace.time(), trace.warp());
        releases.fenced[warp].covers(time, clock.acquired)
            || trace.strong() && releases.strong[warp].covers(time, clock.acquired)
    }
}

impl Drop for Races {
    fn drop(&mut self) {
        lock(&SERIAL).running -= 1;
    }
}
