//! A warp: its registers, where its lanes are, which of them run next, and which values are undefined.
//!
//! Lanes at the same step of the same frame run together. Of several groups the one deepest in calls runs first, then
//! the one with the lowest step, up to the step where another group waits: so lanes that a branch has parted meet again
//! where its sides join.

use super::clock::Clock;
use crate::code::{Frame, HEADER};
use crate::lanes::{LANES, Row};
use std::collections::HashMap;

/// Rows that frames of a warp may take in all.
const MOST_ROWS: usize = 1 << 20;
/// Bytes of local memory of a lane in all.
pub(super) const MOST_LOCAL: usize = 1 << 19;

#[derive(Debug)]
pub(super) struct Warp {
    /// Number in the block.
    pub number: usize,
    pub rows: Vec<Row>,
    pub predicates: Vec<u32>,
    /// Lanes that have not exited.
    pub live: u32,
    /// Lanes that can run.
    pub ready: u32,
    /// Lanes at a `.sync` instruction whose other members have not come.
    pub waiting: u32,
    pub pc: [u32; LANES],
    /// First row of each lane's frame.
    pub base: [u32; LANES],
    /// Member masks of the lanes that wait.
    pub members: [u32; LANES],
    /// Lanes that ran last and are to give way.
    pub tired: u32,
    /// Local memory, lane after lane, in words of 8 bytes.
    local: Vec<u64>,
    /// Bytes of local memory of a lane.
    pub stride: usize,
    /// What the warp knows of others, and the least time up to which it knows another warp of its block.
    pub clock: Clock,
    pub floor: u32,
    /// The phase of the cluster's barrier in which each lane has arrived, and lanes that wait for its end.
    pub cluster_phase: [u64; LANES],
    pub cluster_waiting: u32,
    /// Lanes that wait until the other warps of their warpgroup have issued their parts of a product.
    pub group_waiting: u32,
    pub undefined: Undefined,
}

/// What a warp knows of undefined values.
#[derive(Debug, Default)]
pub(super) struct Undefined {
    /// Whether there may be any.
    pub any: bool,
    /// Undefined lanes of each row (of the first of two), and of each predicate.
    pub rows: Vec<u32>,
    pub predicates: Vec<u32>,
    /// Lanes of which a byte of local memory is undefined, by its place.
    pub locals: HashMap<u64, u32>,
    /// The last read of such memory, for messages, and the step that did it.
    pub origin: (String, u32),
}

fn set(list: &mut Vec<u32>, at: usize, mask: u32, lanes: u32) {
    if at >= list.len() {
        if lanes & mask == 0 {
            return;
        }
        list.resize(at + 64, 0);
    }
    list[at] = list[at] & !mask | lanes & mask;
}

impl Undefined {
    /// Forgets all.
    pub fn clear(&mut self) {
        if self.any {
            self.any = false;
            self.rows.fill(0);
            self.predicates.fill(0);
            self.locals.clear();
        }
    }

    pub fn local(&self, at: u64) -> u32 {
        self.locals.get(&at).copied().unwrap_or(0)
    }

    pub fn set_local(&mut self, at: u64, lane: usize, undefined: bool) {
        let lanes = self.local(at) & !(1 << lane) | u32::from(undefined) << lane;
        if lanes == 0 {
            self.locals.remove(&at);
        } else {
            self.locals.insert(at, lanes);
        }
    }

    /// What a lane copies within its local memory is as undefined as before.
    pub fn copy_local(&mut self, lane: usize, from: u64, to: u64, bytes: u32) {
        if !self.locals.is_empty() {
            let found: Vec<bool> = (0..bytes.into()).map(|at| self.local(from + at) >> lane & 1 != 0).collect();
            found.into_iter().zip(to..).for_each(|(undefined, at)| self.set_local(at, lane, undefined));
        }
    }

    pub fn set_row(&mut self, at: usize, mask: u32, lanes: u32) {
        set(&mut self.rows, at, mask, lanes);
    }

    pub fn set_predicate(&mut self, at: usize, mask: u32, lanes: u32) {
        set(&mut self.predicates, at, mask, lanes);
    }

    pub fn row(&self, at: usize) -> u32 {
        self.rows.get(at).copied().unwrap_or(0)
    }

    pub fn predicate(&self, at: usize) -> u32 {
        self.predicates.get(at).copied().unwrap_or(0)
    }
}

/// Lanes that run together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    pub mask: u32,
    pub pc: u32,
    pub base: u32,
    /// The step at which others wait.
    pub limit: u32,
    /// Whether other lanes could run instead.
    pub alone: bool,
}

impl Warp {
    pub fn new(number: usize, threads: u32, frame: &Frame) -> Self {
        let mut warp = Self {
            number,
            rows: Vec::new(),
            predicates: Vec::new(),
            live: 0,
            ready: 0,
            waiting: 0,
            pc: [0; LANES],
            base: [0; LANES],
            members: [0; LANES],
            tired: 0,
            local: Vec::new(),
            stride: 0,
            clock: Clock::default(),
            floor: 0,
            cluster_phase: [0; LANES],
            cluster_waiting: 0,
            group_waiting: 0,
            undefined: Undefined::default(),
        };
        warp.restart(threads, frame);
        warp
    }

    /// Starts over with `threads` threads at the entry of a kernel. Registers are zero.
    pub fn restart(&mut self, threads: u32, frame: &Frame) {
        let rows = frame.rows.max(HEADER) as usize;
        self.rows.clear();
        self.rows.resize(rows, Row::ZERO);
        self.predicates.clear();
        self.predicates.resize(rows, 0);
        self.live = if threads >= 32 { u32::MAX } else { (1 << threads) - 1 };
        (self.ready, self.waiting, self.tired, self.cluster_waiting) = (self.live, 0, 0, 0);
        self.group_waiting = 0;
        (self.pc, self.base) = ([frame.entry; LANES], [0; LANES]);
        (self.clock, self.floor, self.cluster_phase) = (Clock::default(), 0, [0; LANES]);
        self.undefined.clear();
        self.local.fill(0);
        self.need_local(frame.local as usize);
        self.rows[crate::code::LOCAL_TOP as usize] = Row([frame.local; LANES]);
    }

    /// Makes room for frames up to `rows`; false if that is too much.
    pub fn need_rows(&mut self, rows: usize) -> bool {
        if rows > self.rows.len() {
            self.rows.resize(rows.next_multiple_of(64), Row::ZERO);
            self.predicates.resize(rows.next_multiple_of(64), 0);
        }
        rows <= MOST_ROWS
    }

    /// Makes local memory of `bytes` bytes a lane; false if that is too much.
    pub fn need_local(&mut self, bytes: usize) -> bool {
        let bytes = bytes.next_multiple_of(16);
        if bytes > MOST_LOCAL {
            return false;
        }
        if bytes > self.stride {
            let (old, new) = (self.stride / 8, bytes / 8);
            let mut grown = vec![0; new * LANES];
            for lane in 0..LANES {
                grown[lane * new..][..old].copy_from_slice(&self.local[lane * old..][..old]);
            }
            self.local = grown;
            self.stride = bytes;
        }
        true
    }

    /// Host address of the start of a lane's local memory.
    pub fn local_at(&mut self, lane: usize) -> u64 {
        self.local.as_mut_ptr() as u64 + (lane * self.stride) as u64
    }

    /// Notes where lanes are.
    pub fn place(&mut self, mask: u32, pc: u32) {
        for lane in 0..LANES {
            self.pc[lane] = if mask >> lane & 1 != 0 { pc } else { self.pc[lane] };
        }
    }

    /// The group to run next, if any lane can. `choose` picks one of so many.
    pub fn select(&mut self, choose: Option<impl FnOnce(u32) -> u32>) -> Option<Group> {
        let mut ready = self.ready;
        if ready == 0 {
            return None;
        }
        if ready & !self.tired != 0 {
            ready &= !self.tired;
        }
        self.tired = 0;
        let key = |lane: usize| u64::from(u32::MAX - self.base[lane]) << 32 | u64::from(self.pc[lane]);
        let lanes = |mask: u32| (0..LANES).filter(move |lane| mask >> lane & 1 != 0);
        let best = match choose {
            None => lanes(ready).map(key).min()?,
            Some(choose) => {
                let mut keys: [u64; LANES] = [0; LANES];
                let mut count = 0;
                for lane in lanes(ready) {
                    if !keys[..count].contains(&key(lane)) {
                        keys[count] = key(lane);
                        count += 1;
                    }
                }
                keys[choose(count as u32) as usize]
            }
        };
        let mask = lanes(self.ready).filter(|lane| key(*lane) == best).fold(0u32, |mask, lane| mask | 1 << lane);
        let first = mask.trailing_zeros() as usize;
        let (pc, base) = (self.pc[first], self.base[first]);
        let limit = lanes(self.ready & !mask)
            .filter(|lane| self.base[*lane] == base && self.pc[*lane] > pc)
            .map(|lane| self.pc[lane])
            .min()
            .unwrap_or(u32::MAX);
        Some(Group { mask, pc, base, limit, alone: mask == self.ready })
    }

    /// Lanes that wait at the same step as `lane` with the same members.
    pub fn together(&self, lane: usize) -> u32 {
        (0..LANES)
            .filter(|other| self.waiting >> other & 1 != 0)
            .filter(|other| self.pc[*other] == self.pc[lane] && self.base[*other] == self.base[lane])
            .filter(|other| self.members[*other] == self.members[lane])
            .fold(0, |mask, other| mask | 1 << other)
    }

    /// Lets lanes go on whose missing members have exited.
    pub fn wake(&mut self) {
        for lane in 0..LANES {
            if self.waiting >> lane & 1 != 0 {
                let here = self.together(lane);
                if self.members[lane] & self.live & !here == 0 {
                    self.waiting &= !here;
                    self.ready |= here;
                }
            }
        }
    }
}
