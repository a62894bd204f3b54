//! What tensor cores and their loads do, on fragments.
//!
//! Nothing here knows of warps, registers or modules. An instruction is a description, parsed from the dotted words after its opcode,
//! with a method that maps fragments and memory to fragments and memory:
//!
//! | instruction | description |
//! |---|---|
//! | `mma.sync` | [`Mma`] |
//! | `ldmatrix`, `stmatrix`, `movmatrix` | [`Ldmatrix`], [`Stmatrix`], [`movmatrix`] |
//! | `wmma.load`, `wmma.mma`, `wmma.store` | [`WmmaLoad`], [`WmmaMma`], [`WmmaStore`] |
//! | `wgmma.mma_async` | [`Wgmma`], [`Descriptor`] |
//! | `cp.async.bulk.tensor`, `cp.reduce.async.bulk.tensor` | [`BulkTensor`], [`TensorMap`] |
//! | `cp.async.bulk`, `cp.reduce.async.bulk` | [`check_bulk`], [`Reduction`] |
//! | `mbarrier` | [`Mbarrier`] |
//!
//! A fragment is a slice of [`Words`]: one entry for each 32-bit register of the operand, in the order of the operand's list, with the
//! values of the 32 lanes. A 64-bit register is two entries, the low half first. Layouts are those of the PTX manual's figures.
//!
//! # Rounding
//!
//! The hardware does not specify the order or the precision of its sums. Here the products of a fragment are exact in f32 (but for
//! products of bf16 or tf32 outside of f32's range), they are added in f32 in the order of `k`, starting from zero, the accumulator `c`
//! is added last, and the sum is rounded to the type of `d`. Integers are exact. `f64` is a chain of fused multiply-adds in the order of
//! `k`, starting from `c`. A NaN in a result is the canonical one, all bits but the sign.

mod convert;
mod f64;
mod fragment;
mod ldmatrix;
mod mbarrier;
mod mma;
mod modifiers;
mod product;
mod swizzle;
mod tma;
mod types;
mod vector;
mod wgmma;
mod wmma;

#[cfg(test)]
mod tests;

pub use ldmatrix::{Ldmatrix, Stmatrix, movmatrix};
pub use mbarrier::{BadBarrier, Mbarrier};
pub use mma::Mma;
pub use modifiers::{Layout, Refused};
pub use swizzle::Swizzle;
pub use tma::{
    BulkTensor, Direction, Element, Fill, Load, Mode, Offsets, Operation, Reduction, Request, Run, Source, TensorMap,
    check_bulk,
};
pub use types::Type;
pub use wgmma::{Descriptor, Left, Right, Scale, Wgmma};
pub use wmma::{WmmaLoad, WmmaMma, WmmaOperand, WmmaStore};

/// One 32-bit register of the 32 lanes of a warp.
pub type Words = [u32; 32];

/// A state space as an instruction sees it: shared memory by its offset, or any other space by its address.
///
/// Every access of this module is of 4, 8 or 16 bytes and has to be aligned to its size: an implementation checks that, bounds and
/// whatever else it checks.
pub trait Space {
    /// What a refused access returns.
    type Error;

    /// Fills `into` with the bytes from `address` on.
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Self::Error>;

    /// Fills each chunk with the 16 bytes from its address on. Operands of `wgmma` are read in this way, hundreds of chunks at a time.
    fn read_chunks(&mut self, addresses: &[u64], into: &mut [[u8; 16]]) -> Result<(), Self::Error> {
        addresses.iter().zip(into).try_for_each(|(address, chunk)| self.read(*address, chunk))
    }

    /// Writes `from` to `address` on.
    fn write(&mut self, address: u64, from: &[u8]) -> Result<(), Self::Error>;
}
