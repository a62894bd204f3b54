//! What each kind of card has.

use crate::settings::{Arch, settings};
use std::ffi::c_int;

/// What a kind of card has.
pub struct Spec {
    /// Name, which says that the card is emulated.
    pub name: &'static str,
    /// Compute capability.
    pub capability: (c_int, c_int),
    /// Number of streaming multiprocessors.
    pub multiprocessors: c_int,
    /// Bytes of shared memory of a multiprocessor.
    pub shared_per_sm: c_int,
    /// Bytes of shared memory that a block may ask for.
    pub shared_optin: c_int,
    /// Bytes of second-level cache.
    pub l2: c_int,
    /// Clock in kHz, of memory in kHz, width of the memory's bus in bits.
    pub clocks: (c_int, c_int, c_int),
}

const A100: Spec = Spec {
    name: "NVIDIA A100-SXM4-80GB (emulated)",
    capability: (8, 0),
    multiprocessors: 108,
    shared_per_sm: 167_936,
    shared_optin: 166_912,
    l2: 40 << 20,
    clocks: (1_410_000, 1_593_000, 5120),
};

const H100: Spec = Spec {
    name: "NVIDIA H100 80GB HBM3 (emulated)",
    capability: (9, 0),
    multiprocessors: 132,
    shared_per_sm: 233_472,
    shared_optin: 232_448,
    l2: 50 << 20,
    clocks: (1_980_000, 2_619_000, 5120),
};

/// Bytes of shared memory of a block without asking for more.
pub const SHARED_DEFAULT: u32 = 48 << 10;
/// Bytes of shared memory that the system keeps of each block.
pub const SHARED_RESERVED: u32 = 1 << 10;
/// Largest block in x, y, z.
pub const MAX_BLOCK: [u32; 3] = [1024, 1024, 64];
/// Largest grid in x, y, z.
pub const MAX_GRID: [u32; 3] = [0x7fff_ffff, 65_535, 65_535];
/// Threads of a multiprocessor.
pub const THREADS_PER_SM: u32 = 2048;
/// Blocks of a multiprocessor.
pub const BLOCKS_PER_SM: u32 = 32;

/// The kind that the settings ask for.
pub fn spec() -> &'static Spec {
    match settings().arch {
        Arch::Sm80 => &A100,
        Arch::Sm90a => &H100,
    }
}
