//! The check of global memory for races: between warps of a block without a barrier, and between blocks of a launch;
//! and that of shared memory for races between the blocks of a cluster.
//!
//! Each access leaves a trace for each 32 bytes that it touches, after a look at the traces that are there. All traces
//! are true, and what is ordered behind an access is ordered behind those before it, so which traces are kept decides
//! what is found, but never invents a race. For this reason host threads need no locks.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::access::{Kind, Role, Suspect};
use super::clock::Clock;
use super::machine::Machine;
use super::releases::Races;
use super::span::{Addresses, Span, each};
use super::trace::{TIMES, Trace, UNIT};
use crate::fault::Fault;
use crate::memory::Region;

/// A warp that accesses memory.
struct Visit<'a> {
    races: &'a Races,
    clock: &'a Clock,
    trace: Trace,
    oldest: u64,
    /// Whether it leaves a trace.
    leaves: bool,
    /// Whether only other blocks are looked at.
    apart: bool,
}

impl Visit<'_> {
    /// Whether a trace is of this launch and of another warp, or block.
    #[inline(always)]
    fn foreign(&self, other: Trace) -> bool {
        let same = if self.apart { other.same_block(self.trace) } else { other.same_warp(self.trace) };
        other.0 >= self.oldest && !same
    }

    /// Whether an access of another warp is before this one.
    #[inline(always)]
    fn knows(&self, other: Trace) -> bool {
        if other.same_block(self.trace) {
            return self.clock.seen[other.warp()] >= other.time();
        }
        self.races.ordered(other, self.clock)
    }

    /// The access in whose way this one is: the other one, and whether it was a write.
    ///
    /// Plain reads do not race with strong writes: loops around `atom.cas` begin with one.
    #[inline(always)]
    fn visit<const WRITES: bool, const STRONG: bool>(
        &self,
        [writes, reads]: [&AtomicU64; 2],
        words: u64,
    ) -> Option<(Trace, bool)> {
        let (write, read) = (Trace(writes.load(Relaxed)), Trace(reads.load(Relaxed)));
        let mut found = None;
        let races = WRITES && !STRONG || !write.strong();
        if races && write.words() & words != 0 && self.foreign(write) && !self.knows(write) {
            found = Some((write, true));
        }
        if WRITES {
            if !STRONG && found.is_none() && read.words() & words != 0 && self.foreign(read) && !self.knows(read) {
                found = Some((read, false));
            }
            // A strong write leaves the plain one of the same warp, with which more can race.
            let hides = STRONG && !write.strong() && write.same_warp(self.trace) && words & !write.words() == 0;
            if self.leaves && !hides {
                writes.store(self.trace.over(write, words), Relaxed);
            }
        } else if !STRONG && self.leaves {
            let trace = self.trace.over(read, words);
            if trace != read.0 && !self.keeps(read) {
                reads.store(trace, Relaxed);
            }
        }
        found
    }

    /// Whether an earlier read stays although this one comes: if nothing orders the two, either may be in the way of a
    /// write.
    #[inline(always)]
    fn keeps(&self, read: Trace) -> bool {
        self.foreign(read)
            && if read.same_block(self.trace) {
                self.clock.seen[read.warp()] < read.time()
            } else {
                self.clock.acquired == 0 && self.races.block(read).is_some()
            }
    }
}

impl Machine<'_, '_> {
    /// Looks at an access to global memory, before it happens. A plain write in whose way others are becomes a suspect.
    #[inline(always)]
    pub fn watch(
        &mut self,
        region: &Region,
        at: &Addresses,
        mask: u32,
        size: u32,
        (kind, strong): (Kind, bool),
        span: Option<Span>,
    ) -> Result<(), Fault> {
        if self.env.races.is_none() || !self.env.options.global_races || !region.is_traced() || self.role == Role::None
        {
            return Ok(());
        }
        let strong = strong || kind == Kind::Update || self.role == Role::Strong;
        let found = self.walk((kind.writes(), strong), |at| region.traces(at), false, at, mask, size, span);
        if kind.writes() && strong {
            self.release();
        }
        if found.is_empty() { Ok(()) } else { self.suspect(&found, at, mask, size, kind, strong) }
    }

    /// Looks at an access to shared memory of the block `cta` of the cluster, for races with other blocks, and, in
    /// memory of another block, of warps of this one.
    pub fn watch_shared(
        &mut self,
        cta: usize,
        at: &Addresses,
        mask: u32,
        size: u32,
        (kind, strong): (Kind, bool),
        span: Option<Span>,
    ) -> Result<(), Fault> {
        if self.env.races.is_none() || self.cluster.ctas.len() < 2 {
            return Ok(());
        }
        let strong = strong || kind == Kind::Update;
        let shared = &self.cluster.ctas[cta].shared;
        let found = if self.env.options.races && self.role != Role::None {
            // In their own memory, what warps know of each other says more than traces.
            let apart = cta == self.cta;
            self.walk((kind.writes(), strong), |at| shared.traces(at), apart, at, mask, size, span)
        } else {
            Vec::new()
        };
        if kind.writes() && strong {
            self.release();
        }
        match found.first() {
            None => Ok(()),
            Some(found) => Err(self.race(*found, at, mask, size, kind, Some(cta))),
        }
    }

    /// Looks at the traces of an access, and leaves those of this one; what is in its way.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    fn walk<'a>(
        &'a self,
        (writes, strong): (bool, bool),
        traces: impl Fn(u64) -> [&'a AtomicU64; 2],
        apart: bool,
        at: &Addresses,
        mask: u32,
        size: u32,
        span: Option<Span>,
    ) -> Vec<Suspect> {
        match (writes, strong) {
            (false, false) => self.walk_as::<false, false>(traces, apart, at, mask, size, span),
            (false, true) => self.walk_as::<false, true>(traces, apart, at, mask, size, span),
            (true, false) => self.walk_as::<true, false>(traces, apart, at, mask, size, span),
            (true, true) => self.walk_as::<true, true>(traces, apart, at, mask, size, span),
        }
    }

    #[inline(always)]
    fn walk_as<'a, const WRITES: bool, const STRONG: bool>(
        &'a self,
        traces: impl Fn(u64) -> [&'a AtomicU64; 2],
        apart: bool,
        at: &Addresses,
        mask: u32,
        size: u32,
        span: Option<Span>,
    ) -> Vec<Suspect> {
        let Some(races) = &self.env.races else { return Vec::new() };
        let block = &self.cluster.ctas[self.cta];
        let time = block.shared.time;
        let visit = Visit {
            races,
            clock: &self.warp.clock,
            trace: Trace::new(block.serial, time, self.warp.number, STRONG, self.pc),
            oldest: races.oldest(),
            leaves: time < TIMES,
            apart,
        };
        let mut found = Vec::new();
        let mut visit = |address: u64, words: u64| {
            if let Some((other, wrote)) = visit.visit::<WRITES, STRONG>(traces(address), words) {
                found.push(Suspect { address, other, wrote, words: words & other.words() });
            }
        };
        match span {
            Some(span) if span.dense || span.least == span.most => {
                range(span.least, span.most - span.least + u64::from(size), &mut visit);
            }
            _ => {
                // Lanes side by side, or at the same place, are one range.
                let (mut first, mut end) = (0, 0);
                each(mask, |lane| {
                    if at[lane] < first || at[lane] > end {
                        range(first, end - first, &mut visit);
                        (first, end) = (at[lane], at[lane]);
                    }
                    end = end.max(at[lane] + u64::from(size));
                });
                range(first, end - first, &mut visit);
            }
        }
        found
    }
}

/// Calls for each grain of a range, with the words there that lie wholly in the range.
#[inline(always)]
fn range(first: u64, len: u64, visit: &mut impl FnMut(u64, u64)) {
    let mut word = first.div_ceil(UNIT);
    let end = (first + len) / UNIT;
    while word < end {
        let next = (word & !7) + 8;
        visit((word & !7) * UNIT, (0xff << (word & 7)) & (0xff >> next.saturating_sub(end)));
        word = next;
    }
}
