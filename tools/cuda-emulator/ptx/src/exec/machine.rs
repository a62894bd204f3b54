//! A warp while it runs: its place, its registers and predicates.

use super::access::{Role, Suspect};
use super::cta::Cluster;
use super::env::Env;
use super::warp::Warp;
use super::worker::Worker;
use crate::code::{CONST, NONE, NOT, Src};
use crate::lanes::{LANES, Row};

/// Why a warp stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// No lane can run until something else happens.
    Blocked,
    /// All lanes have exited.
    Done,
    /// It has run for long, or waits in a loop.
    Slice,
}

/// What comes after a step.
pub(super) enum Flow {
    Next,
    Jump(u32),
    /// Lanes have been placed; the next group is to be chosen.
    Select,
    /// The same, after another warp had its turn.
    Yield,
}

/// A warp while it runs.
pub(super) struct Machine<'a, 'e> {
    pub env: &'a Env<'e>,
    pub worker: &'a mut Worker,
    pub cluster: &'a mut Cluster,
    /// Number of the block in the cluster.
    pub cta: usize,
    pub warp: &'a mut Warp,
    pub frame: *mut Row,
    pub predicates: *mut u32,
    pub mask: u32,
    pub pc: u32,
    pub base: u32,
    /// The lane that a fault is about.
    pub lane: usize,
    /// Reads of memory that nothing has written have been found and pass.
    pub lenient: bool,
    /// What the access is for the check of global memory.
    pub role: Role,
    /// Other accesses that stand in the way of a write, unless its values are there already.
    pub suspects: Vec<Suspect>,
}

impl Machine<'_, '_> {
    /// A row of the frame or of the constants.
    #[inline(always)]
    pub fn pointer(&self, source: Src) -> *const Row {
        let start = if source & CONST != 0 { self.env.constants } else { self.frame.cast_const() };
        start.wrapping_add((source & !CONST) as usize)
    }

    #[inline(always)]
    pub fn row(&self, source: Src) -> &[u32; LANES] {
        // SAFETY: decoded rows lie in the frame or among the constants.
        unsafe { &(*self.pointer(source)).0 }
    }

    /// A row's value of 64 bits a lane.
    #[inline(always)]
    pub fn wide(&self, source: Src) -> &[u64; LANES] {
        // SAFETY: as above; 64-bit values have two rows.
        unsafe { &*self.pointer(source).cast::<[u64; LANES]>() }
    }

    #[inline(always)]
    pub fn row_mut(&mut self, row: u32) -> *mut Row {
        self.frame.wrapping_add(row as usize)
    }

    /// Writes the lanes of a mask.
    pub fn set(&mut self, row: u32, mask: u32, values: &[u32; LANES]) {
        if row != NONE {
            let to = self.row_mut(row);
            // SAFETY: a row of the frame; arrays and rows have the same layout.
            super::span::each(mask, |lane| unsafe { (*to).0[lane] = values[lane] });
        }
    }

    pub fn set_wide(&mut self, row: u32, mask: u32, values: &[u64; LANES]) {
        if row != NONE {
            let to = self.row_mut(row).cast::<[u64; LANES]>();
            // SAFETY: two rows of the frame.
            super::span::each(mask, |lane| unsafe { (*to)[lane] = values[lane] });
        }
    }

    /// The lanes for which a predicate is true.
    #[inline(always)]
    pub fn predicate(&self, p: u32) -> u32 {
        if p | NOT == NONE {
            return if p == NONE { u32::MAX } else { 0 };
        }
        // SAFETY: decoded predicates lie in the frame.
        let value = unsafe { *self.predicates.add((p & !NOT) as usize) };
        value ^ 0u32.wrapping_sub(p >> 31)
    }

    #[inline(always)]
    pub fn set_predicate(&mut self, p: u32, mask: u32, value: u32) {
        if p != NONE {
            // SAFETY: decoded predicates lie in the frame.
            let to = unsafe { &mut *self.predicates.add(p as usize) };
            *to = *to & !mask | value & mask;
        }
    }

    /// Sends the lanes of `taken` to `target` and the group's others to the next step.
    #[inline(always)]
    pub fn part(&mut self, taken: u32, target: u32) -> Flow {
        if taken == self.mask {
            return Flow::Jump(target);
        }
        self.warp.place(taken, target);
        self.warp.place(self.mask & !taken, self.pc + 1);
        Flow::Select
    }
}
