//! Shared memory of a block, and what its checks know of each word.
//!
//! Time counts events that order warps. Each word remembers who wrote it last and when, and who has read it since. Each warp knows up to
//! which time it is ordered behind each other warp: barriers, `mbarrier` objects and strong accesses tell it.

use crate::fault::{Fault, FaultKind};
use std::collections::HashMap;
use std::sync::atomic::AtomicU64;

use super::cells::{Cell, Cells, Visitor};
use super::clock::Clock;
use super::trace::GRAIN;
use super::warp::Warp;

#[derive(Debug, Default)]
pub(super) struct Shared {
    bytes: Vec<u64>,
    cells: Cells,
    pub time: u32,
    /// What strong writes of an address have published.
    pub strong: HashMap<u32, Clock>,
    /// What warps that have exited have published.
    pub exited: Clock,
    /// What warps have published that arrived at the cluster's barrier.
    pub at_cluster: Clock,
    /// What strong writes of global memory have published.
    pub at_global: Clock,
    /// Traces of writes and of reads, for the other blocks of a cluster; empty without one.
    traces: [Vec<AtomicU64>; 2],
    pub warps: usize,
}

/// Addresses of the lanes of an access.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lanes {
    pub least: u32,
    pub most: u32,
    /// One behind the other.
    pub dense: bool,
    /// First words of the lanes, counted from the least; 0 if they are too far apart.
    pub words: u64,
}

/// Checks that are on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Checks {
    pub uninitialised: bool,
    pub races: bool,
    /// Whether strong accesses order others: races are looked for in some memory.
    pub orders: bool,
}

impl Shared {
    /// Shared memory of so many bytes, with or without other blocks in the cluster.
    pub fn new(len: u32, warps: usize, alone: bool) -> Self {
        let cells = Cells::new(len.div_ceil(4) as usize);
        // 1024 bytes to spare, so that the start can lie at a multiple of it.
        let bytes = vec![0; (len as usize).div_ceil(8) + 128];
        let count = if alone { 0 } else { len.div_ceil(GRAIN as u32) };
        let traces = [(); 2].map(|()| (0..count).map(|_| AtomicU64::new(0)).collect());
        Self { bytes, cells, time: 1, warps, traces, ..Self::default() }
    }

    pub fn reset(&mut self) {
        self.cells.clear();
        self.time = 1;
        self.strong.clear();
        (self.exited, self.at_cluster, self.at_global) = Default::default();
        self.traces.iter_mut().flatten().for_each(|trace| *trace.get_mut() = 0);
    }

    /// The traces of the write and the read around an address, in a cluster.
    pub fn traces(&self, at: u64) -> [&AtomicU64; 2] {
        [0, 1].map(|which: usize| &self.traces[which][(at / GRAIN) as usize])
    }

    /// Host address of byte 0.
    pub fn start(&mut self) -> u64 {
        (self.bytes.as_mut_ptr() as u64).next_multiple_of(1024)
    }

    /// All that this warp has done is before what those do that learn of the clock.
    pub fn publish(&mut self, warp: &Warp) -> Clock {
        let mut clock = warp.clock;
        clock.seen[warp.number] = self.time;
        self.time += 1;
        clock
    }

    /// This warp is behind what the clock says.
    pub fn learn(&self, warp: &mut Warp, clock: &Clock) {
        warp.clock.join(clock);
        let others = (0..self.warps).filter(|other| *other != warp.number);
        warp.floor = others.map(|other| warp.clock.seen[other]).min().unwrap_or(u32::MAX);
    }

    /// A volatile, relaxed or atomic access at an address: it learns what earlier ones have published, and publishes.
    pub fn order(&mut self, warp: &mut Warp, at: u32, writes: bool) {
        if self.warps < 2 {
            return;
        }
        if let Some(clock) = self.strong.get(&at).copied() {
            self.learn(warp, &clock);
        }
        if writes {
            let clock = self.publish(warp);
            self.strong.entry(at).or_default().join(&clock);
        }
    }

    /// Visits the words of a range with the bytes in each.
    #[inline(always)]
    fn words(&mut self, at: u32, size: u32, mut visit: impl FnMut(&mut Cell, u8) -> bool) -> bool {
        let end = at + size;
        let mut from = at;
        while from < end {
            let to = (from / 4 * 4 + 4).min(end);
            let bytes = ((1u32 << (to - from)) - 1) << (from % 4);
            let number = (from / 4) as usize;
            let mut cell = self.cells.get(number);
            if !visit(&mut cell, bytes as u8) {
                return false;
            }
            self.cells.put(number, cell);
            from = to;
        }
        true
    }

    fn visitor(&self, warp: &Warp, checks: Checks) -> Visitor {
        Visitor {
            warp: warp.number,
            time: self.time,
            floor: warp.floor,
            races: checks.races,
            uninitialised: checks.uninitialised,
            leaves: true,
        }
    }

    /// Reads or writes of `size` bytes, a multiple of 4, at the addresses of a mask's lanes, between `least` and `most`; false if they
    /// have to be looked at one by one.
    pub fn visit(&mut self, warp: &Warp, lanes: Lanes, size: u32, writes: bool, checks: Checks) -> bool {
        let by = self.visitor(warp, checks);
        let first = lanes.least / 4;
        let words = (lanes.most - lanes.least + size) / 4;
        let mut visit = |first: u32, count: u32| {
            let (first, count) = (first as usize, count as usize);
            if writes { self.cells.write(first, count, by) } else { self.cells.read(first, count, by) }
        };
        if lanes.dense || lanes.least == lanes.most {
            return visit(first, words);
        }
        if lanes.words == 0 {
            return false;
        }
        // The words that are accessed, and runs of these.
        let bits = (0..size / 4).fold(0, |bits, word| bits | u128::from(lanes.words) << word);
        let mut at = 0;
        while at < 128 && bits >> at != 0 {
            at += (bits >> at).trailing_zeros();
            let run = (bits >> at).trailing_ones();
            if !visit(first + at, run) {
                return false;
            }
            at += run;
        }
        true
    }

    /// A read by a warp.
    #[inline(always)]
    pub fn read(&mut self, warp: &Warp, at: u32, size: u32, checks: Checks) -> Result<(), Fault> {
        self.read_as(warp, at, size, checks, true)
    }

    /// A read on behalf of a warp that is not noted.
    #[inline(always)]
    pub fn look(&mut self, warp: &Warp, at: u32, size: u32, checks: Checks) -> Result<(), Fault> {
        self.read_as(warp, at, size, checks, false)
    }

    #[inline(always)]
    fn read_as(&mut self, warp: &Warp, at: u32, size: u32, checks: Checks, leaves: bool) -> Result<(), Fault> {
        let by = Visitor { leaves, ..self.visitor(warp, checks) };
        if (at | size).is_multiple_of(4) && self.cells.read((at / 4) as usize, (size / 4) as usize, by) {
            return Ok(());
        }
        let (time, me) = (self.time, warp.number);
        let fine = self.words(at, size, |cell, bytes| {
            let written = cell.state & bytes == bytes || !checks.uninitialised;
            if !written || cell.state >> 4 & bytes != 0 {
                return false;
            }
            if !checks.races {
                return true;
            }
            if cell.write_time > warp.floor && conflicts(cell, warp) && cell.bytes & bytes != 0 {
                return false;
            }
            if !leaves {
                return true;
            }
            let others = cell.read_time > warp.floor && cell.readers & !(1 << me) != 0;
            if others || cell.read_time == time {
                cell.readers |= 1 << me;
                cell.bytes |= bytes << 4;
            } else {
                cell.read_time = time;
                cell.readers = 1 << me;
                cell.bytes = cell.bytes & 15 | bytes << 4;
            }
            true
        });
        if fine { Ok(()) } else { Err(self.why_not_read(warp, at, size, checks)) }
    }

    /// A write by a warp.
    #[inline(always)]
    pub fn write(&mut self, warp: &Warp, at: u32, size: u32, checks: Checks) -> Result<(), Fault> {
        if (at | size).is_multiple_of(4)
            && self.cells.write((at / 4) as usize, (size / 4) as usize, self.visitor(warp, checks))
        {
            return Ok(());
        }
        let (time, me) = (self.time, warp.number);
        let fine = self.words(at, size, |cell, bytes| {
            if cell.state >> 4 & bytes != 0 {
                return false;
            }
            if checks.races {
                if cell.write_time > warp.floor && conflicts(cell, warp) && cell.bytes & bytes != 0 {
                    return false;
                }
                if cell.read_time > warp.floor && cell.bytes >> 4 & bytes != 0 && reader(cell, warp).is_some() {
                    return false;
                }
                let before = if cell.write_time == time && cell.writer == me as u8 { cell.bytes & 15 } else { 0 };
                cell.bytes = cell.bytes & 0xf0 | before | bytes;
                cell.write_time = time;
                cell.writer = me as u8;
            }
            cell.state |= bytes;
            true
        });
        if fine { Ok(()) } else { Err(self.why_not_write(warp, at, size)) }
    }

    /// A strong or remote access: only whether its bytes are written.
    pub fn touch(&mut self, at: u32, size: u32, reads: bool, writes: bool, checks: Checks) -> Result<(), Fault> {
        let fine = self.words(at, size, |cell, bytes| {
            if reads && checks.uninitialised && cell.state & bytes != bytes || cell.state >> 4 & bytes != 0 {
                return false;
            }
            if writes {
                cell.state |= bytes;
                // What was written before is no longer there.
                if cell.bytes & 15 & !bytes == 0 {
                    cell.write_time = 0;
                }
            }
            true
        });
        if fine { Ok(()) } else { Err(self.why_not(at, size, if reads { "read" } else { "write" })) }
    }

    /// Marks bytes that a copy fills later; copies are of whole words.
    pub fn set_pending(&mut self, at: u32, size: u32) {
        self.cells.set_pending((at / 4) as usize, (size / 4) as usize);
        for traces in self.traces.iter_mut().filter(|traces| !traces.is_empty()) {
            let (first, end) = (at as usize / GRAIN as usize, (at + size).div_ceil(GRAIN as u32) as usize);
            traces[first..end].iter_mut().for_each(|trace| *trace.get_mut() = 0);
        }
    }

    /// Marks bytes that a copy has filled: by this warp now, or, of copies that a barrier completes, by nobody.
    pub fn set_filled(&mut self, at: u32, size: u32, writer: Option<usize>) {
        let time = writer.map_or(0, |_| self.time);
        self.cells.set_filled((at / 4) as usize, (size / 4) as usize, writer.unwrap_or(0), time);
    }

    /// Whether a byte has been written.
    pub fn is_written(&mut self, at: u32) -> bool {
        self.words(at, 1, |cell, bytes| cell.state & bytes == bytes)
    }

    /// Takes back that a byte has been written.
    pub fn unwrite(&mut self, at: u32) {
        self.words(at, 1, |cell, bytes| {
            cell.state &= !bytes;
            true
        });
    }

    /// Whether a copy still fills one of these bytes.
    pub fn is_pending(&mut self, at: u32, size: u32) -> bool {
        !self.words(at, size, |cell, bytes| cell.state >> 4 & bytes == 0)
    }

    fn why_not(&mut self, at: u32, size: u32, verb: &str) -> Fault {
        if self.is_pending(at, size) {
            let what = format!(
                "{verb} of {size} bytes at {at:#x} of shared memory, which an asynchronous copy is still filling"
            );
            return Fault::new(FaultKind::MissingWait, what)
                .advice("wait for the copy with cp.async.wait_group, cp.async.wait_all or its mbarrier before");
        }
        Fault::new(
            FaultKind::Uninitialised,
            format!("{verb} of {size} bytes at {at:#x} of shared memory, which nothing has written"),
        )
    }

    fn why_not_read(&mut self, warp: &Warp, at: u32, size: u32, checks: Checks) -> Fault {
        let mut other = None;
        self.words(at, size, |cell, bytes| {
            let fine = cell.state >> 4 & bytes == 0 && (cell.state & bytes == bytes || !checks.uninitialised);
            if fine && conflicts(cell, warp) {
                other = Some(cell.writer);
            }
            other.is_none()
        });
        match other {
            Some(other) => race("reads", "wrote", warp.number, other.into(), at, size),
            None => self.why_not(at, size, "read"),
        }
    }

    fn why_not_write(&mut self, warp: &Warp, at: u32, size: u32) -> Fault {
        let mut found = None;
        self.words(at, size, |cell, bytes| {
            if cell.state >> 4 & bytes != 0 {
                return true;
            }
            if conflicts(cell, warp) {
                found = Some(("wrote", usize::from(cell.writer)));
            } else if let Some(other) = reader(cell, warp) {
                found = Some(("read", other));
            }
            found.is_none()
        });
        match found {
            Some((did, other)) if !self.is_pending(at, size) => race("writes", did, warp.number, other, at, size),
            _ => self.why_not(at, size, "write"),
        }
    }
}

/// Whether the last write is by another warp and not ordered before.
#[inline(always)]
fn conflicts(cell: &Cell, warp: &Warp) -> bool {
    let writer = usize::from(cell.writer) & 31;
    writer != warp.number && cell.write_time > warp.clock.seen[writer]
}

/// Another warp that has read since and is not ordered before.
fn reader(cell: &Cell, warp: &Warp) -> Option<usize> {
    (0..32).find(|other| {
        cell.readers >> other & 1 != 0 && *other != warp.number && cell.read_time > warp.clock.seen[*other]
    })
}

#[cold]
fn race(does: &str, did: &str, me: usize, other: usize, at: u32, size: u32) -> Fault {
    let what = format!(
        "warp {me} {does} {size} bytes at {at:#x} of shared memory that warp {other} {did} without a barrier between"
    );
    Fault::new(FaultKind::Race, what).advice("put a barrier for both warps between the two accesses")
}
