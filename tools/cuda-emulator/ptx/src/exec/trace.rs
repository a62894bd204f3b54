//! One access as the checks of memory that blocks share remember it: who did it and when, in 64 bits.

/// Bytes that one trace is for.
pub(super) use crate::memory::GRAIN;

/// Bytes that one bit of a trace is for.
pub(super) const UNIT: u64 = GRAIN / 8;
/// Serial numbers of blocks are below this.
pub(super) const SERIALS: u64 = 1 << 22;
/// Later accesses of a block leave no traces.
pub(super) const TIMES: u32 = (1 << 16) - 1;

/// From the lowest bit: 8 bits for the words, 12 for the step, then whether it is strong, the warp, the block's time
/// and its serial number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Trace(pub u64);

const WORDS: u64 = 0xff;
const STEP: u32 = 8;
const STRONG: u64 = 1 << 20;
const WARP: u32 = 21;
const TIME: u32 = 26;
const SERIAL: u32 = 42;
/// The fields that name a warp of a block.
const OWNER: u64 = u64::MAX << SERIAL | 31 << WARP;

impl Trace {
    /// The trace of a warp's access; it names no words yet.
    #[inline(always)]
    pub fn new(serial: u64, time: u32, warp: usize, strong: bool, step: u32) -> Self {
        let place = serial << SERIAL | u64::from(time.min(TIMES)) << TIME | (warp as u64) << WARP;
        Self(place | u64::from(strong) << STRONG.trailing_zeros() | u64::from(step & 0xfff) << STEP)
    }

    /// The least that a trace of a block with this serial number, or a later one, can be.
    pub fn first_of(serial: u64) -> u64 {
        serial << SERIAL
    }

    pub fn serial(self) -> u64 {
        self.0 >> SERIAL
    }

    #[inline(always)]
    pub fn time(self) -> u32 {
        (self.0 >> TIME) as u32 & 0xffff
    }

    #[inline(always)]
    pub fn warp(self) -> usize {
        (self.0 >> WARP) as usize & 31
    }

    #[inline(always)]
    pub fn strong(self) -> bool {
        self.0 & STRONG != 0
    }

    #[inline(always)]
    pub fn words(self) -> u64 {
        self.0 & WORDS
    }

    /// The step, without the bits above its lowest 12.
    pub fn step(self) -> u32 {
        (self.0 >> STEP) as u32 & 0xfff
    }

    /// Whether both are of the same warp.
    #[inline(always)]
    pub fn same_warp(self, other: Self) -> bool {
        (self.0 ^ other.0) & OWNER == 0
    }

    /// Whether both are of the same warp at the same time, and as strong as each other.
    #[inline(always)]
    pub fn same_moment(self, other: Self) -> bool {
        (self.0 ^ other.0) & (u64::MAX << TIME | 31 << WARP | STRONG) == 0
    }

    /// Whether both are of the same block.
    #[inline(always)]
    pub fn same_block(self, other: Self) -> bool {
        self.0 >> SERIAL == other.0 >> SERIAL
    }

    /// The trace with words, and with those that the one before had if it is of the same moment.
    #[inline(always)]
    pub fn over(self, before: Self, words: u64) -> u64 {
        self.0 | words | if self.same_moment(before) { before.words() } else { 0 }
    }
}
