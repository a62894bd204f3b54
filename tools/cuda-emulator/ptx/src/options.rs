//! What a launch is given besides its kernel, and what it reports.

use crate::tensor::Type;

/// Sizes and parameters of a launch.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y, z.
    pub block: [u32; 3],
    /// Blocks of a cluster in x, y, z; all 1 without clusters.
    pub cluster: [u32; 3],
    /// Bytes of dynamic shared memory of a block.
    pub dynamic_shared: u32,
    /// The kernel's parameters, each at the offset that [`crate::Param`] has.
    pub params: &'a [u8],
}

impl Default for Launch<'_> {
    fn default() -> Self {
        Self { grid: [1; 3], block: [1; 3], cluster: [1; 3], dynamic_shared: 0, params: &[] }
    }
}

/// Checks and limits of a launch.
#[derive(Clone, Debug)]
pub struct Options {
    /// Reads of bytes that nothing has written, in global and shared memory.
    pub uninitialised: bool,
    /// Races between warps in shared memory, of one block or of the blocks of a cluster.
    pub races: bool,
    /// Races in global memory between warps of a launch, of one block or of several: the same word, one plain write, and no order of
    /// the two. Blocks are ordered by a fence and a strong write in the one, and a strong read in the other.
    pub global_races: bool,
    /// A barrier for a whole block that some of its threads never reach because they have exited. Cards let such a
    /// barrier pass, and the programming guide allows it, so this is off by default.
    pub exited_barriers: bool,
    /// A warp that reaches `bar.sync` at different places of the code.
    pub divergent_barriers: bool,
    /// `wmma.store` by a part of a warp, which the manual leaves undefined. Where it is not checked, the lanes that are
    /// there store their elements.
    pub partial_stores: bool,
    /// Accesses of shared memory behind the bytes that the block asked for. Where it is not checked, a block has whole
    /// units of 128 bytes, as cards give it out.
    pub shared_bounds: bool,
    /// Order in which diverged groups of threads and the warps of a block run. `None`: lowest line first, which lets
    /// them meet again as soon as possible. A seed: an order made from it, which may keep them apart as a card may.
    pub seed: Option<u64>,
    /// Host threads; 0 for as many as the machine has.
    pub threads: usize,
    /// Warp instructions a launch may execute before it ends in a fault; 0 for no limit.
    pub limit: u64,
    /// Number of multiprocessors that `%nsmid` tells.
    pub multiprocessors: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            uninitialised: true,
            races: true,
            global_races: true,
            exited_barriers: false,
            divergent_barriers: true,
            partial_stores: true,
            shared_bounds: true,
            seed: None,
            threads: 0,
            limit: 0,
            multiprocessors: 132,
        }
    }
}

/// Classes of instructions that [`Counts`] tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Class {
    /// Integer arithmetic, logic, moves, conversions and comparisons.
    Integer,
    /// Arithmetic on `f16`, `bf16`, `f32` and `f64`.
    Float,
    /// `ex2`, `lg2`, `sin`, `cos`, `tanh`, `rcp`, `sqrt`, `rsqrt`, divisions.
    Special,
    /// Loads and stores of global memory.
    Global,
    /// Loads and stores of shared memory.
    Shared,
    /// Loads and stores of local memory and parameters.
    Local,
    /// `atom` and `red`.
    Atomic,
    /// Shuffles, votes and other exchanges within a warp.
    Warp,
    /// Barriers, fences and waits.
    Sync,
    /// Branches, calls and exits.
    Control,
    /// Tensor core instructions.
    Tensor,
    /// Asynchronous copies.
    Copy,
}

impl Class {
    /// All classes, in the order of [`Counts::instructions`].
    pub const ALL: [Self; 12] = [
        Self::Integer,
        Self::Float,
        Self::Special,
        Self::Global,
        Self::Shared,
        Self::Local,
        Self::Atomic,
        Self::Warp,
        Self::Sync,
        Self::Control,
        Self::Tensor,
        Self::Copy,
    ];
}

/// Types of matrices' elements that tensor cores multiply equally fast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Rate {
    /// `f64`.
    F64,
    /// `tf32`.
    Tf32,
    /// `f16` and `bf16`.
    Half,
    /// 8 bits: `e4m3`, `e5m2` and integers.
    Byte,
    /// Integers of 4 bits.
    Nibble,
}

impl Rate {
    /// All rates, in the order of [`Counts::tensor_flops`].
    pub const ALL: [Self; 5] = [Self::F64, Self::Tf32, Self::Half, Self::Byte, Self::Nibble];

    /// The rate of products of this type.
    pub fn of(factor: Type) -> Self {
        match factor {
            Type::F64 => Self::F64,
            Type::F32 | Type::Tf32 | Type::S32 => Self::Tf32,
            Type::F16 | Type::Bf16 => Self::Half,
            Type::E4m3 | Type::E5m2 | Type::S8 | Type::U8 => Self::Byte,
            Type::S4 | Type::U4 => Self::Nibble,
        }
    }
}

/// What a launch did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Warp instructions by [`Class`].
    pub instructions: [u64; Class::ALL.len()],
    /// Operations (2 for a multiply-add) of tensor core instructions by [`Rate`].
    pub tensor_flops: [u64; Rate::ALL.len()],
    /// Bytes that threads read from global memory.
    pub global_read: u64,
    /// Bytes that threads wrote to global memory.
    pub global_written: u64,
    /// Sectors of 32 bytes that warp accesses to global memory touched.
    pub sectors: u64,
    /// Accesses to shared memory by warps.
    pub shared_accesses: u64,
    /// Additional cycles of these because threads used different words of one bank.
    pub bank_conflicts: u64,
    /// Warp instructions that ran with some of the warp's threads inactive.
    pub diverged: u64,
}

impl Counts {
    /// Warp instructions of all classes.
    pub fn total(&self) -> u64 {
        self.instructions.iter().sum()
    }

    /// Operations of tensor core instructions at all rates.
    pub fn total_tensor_flops(&self) -> u64 {
        self.tensor_flops.iter().sum()
    }

    /// Adds another launch's or block's counts.
    pub fn add(&mut self, other: &Self) {
        self.instructions.iter_mut().zip(other.instructions).for_each(|(sum, count)| *sum += count);
        self.tensor_flops.iter_mut().zip(other.tensor_flops).for_each(|(sum, flops)| *sum += flops);
        self.global_read += other.global_read;
        self.global_written += other.global_written;
        self.sectors += other.sectors;
        self.shared_accesses += other.shared_accesses;
        self.bank_conflicts += other.bank_conflicts;
        self.diverged += other.diverged;
    }
}
