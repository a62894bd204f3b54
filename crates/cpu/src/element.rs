//! The float types of operations, and their conversion from and to f32.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use sealed::Sealed;
use std::any::TypeId;

/// A float type whose arithmetic runs in f32: f32, bf16 or f16. No other type can implement it, because matrix products
/// are compiled for these three.
pub trait Element: Sealed + bytemuck::Pod + Send + Sync + 'static {
    /// Whether the type is f32, so that its memory can be used directly.
    const IS_F32: bool = false;

    /// Converts to f32, exactly.
    fn to_f32(self) -> f32;

    /// Rounds an f32 to the nearest value.
    fn from_f32(value: f32) -> Self;

    /// Converts a slice to an f32 slice of the same length.
    #[inline(always)]
    fn widen(from: &[Self], to: &mut [f32]) {
        to.iter_mut().zip(from).for_each(|(to, from)| *to = from.to_f32());
    }

    /// Returns the slice itself if `E` is this type.
    #[inline]
    fn as_elements<E: Element>(values: &[Self]) -> Option<&[E]> {
        (TypeId::of::<Self>() == TypeId::of::<E>()).then(|| bytemuck::cast_slice(values))
    }

    /// Rounds an f32 slice into a slice of the same length.
    #[inline(always)]
    fn narrow(from: &[f32], to: &mut [Self]) {
        to.iter_mut().zip(from).for_each(|(to, from)| *to = Self::from_f32(*from));
    }
}

mod sealed {
    /// Restricts [`Element`](super::Element) to the types of this module.
    pub trait Sealed {}
}

impl Sealed for f32 {}
impl Sealed for bf16 {}
impl Sealed for f16 {}

impl Element for f32 {
    const IS_F32: bool = true;

    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }

    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        value
    }
}

impl Element for bf16 {
    /// A bf16 is the upper half of an f32.
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        bf16::from_f32(value)
    }
}

impl Element for f16 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f16::to_f32(self)
    }

    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        f16::from_f32(value)
    }

    #[inline(always)]
    fn widen(from: &[Self], to: &mut [f32]) {
        from.convert_to_f32_slice(to);
    }

    #[inline(always)]
    fn narrow(from: &[f32], to: &mut [Self]) {
        to.convert_from_f32_slice(from);
    }
}
