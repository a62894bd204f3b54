//! Arithmetic on all 32 lanes of a warp at once, as loops that the compiler vectorises.
//!
//! A register of up to 32 bits is one [`Row`], one of 64 bits two rows that hold 32 `u64`. Registers of 16 bits have zeros above.
//! Every function here computes all lanes, also inactive ones; who calls it keeps the results of the active lanes.

pub(crate) mod approx;
pub(crate) mod bits;
pub(crate) mod compare;
pub(crate) mod convert;
pub(crate) mod double;
mod exact;
pub(crate) mod float;
pub(crate) mod half;
pub(crate) mod int;
pub(crate) mod round;
pub(crate) mod single;

/// Threads of a warp.
pub(crate) const LANES: usize = 32;

/// One register of 32 bits for all lanes.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row(pub [u32; LANES]);

impl Row {
    pub const ZERO: Self = Self([0; LANES]);
}

/// A function of up to three operands and an immediate value on all lanes. `out` is no operand's row.
///
/// # Safety
///
/// Each pointer is to one row, or to two where the type has 64 bits, unless the function does not use the operand.
pub(crate) type Map = unsafe fn(out: *mut Row, a: *const Row, b: *const Row, c: *const Row, imm: u32);

/// A comparison on all lanes; bit `i` of the result is lane `i`'s. Safety as for [`Map`].
pub(crate) type Test = unsafe fn(a: *const Row, b: *const Row) -> u32;

/// A type of values in lanes.
pub(crate) trait Lane: Copy {
    /// `u32` or `u64`.
    type Slot: Copy;
    fn get(slot: Self::Slot) -> Self;
    fn put(self) -> Self::Slot;
}

macro_rules! lane {
    ($($type:ty, $slot:ty, |$slot_:ident| $get:expr, |$value:ident| $put:expr;)+) => {$(
        impl Lane for $type {
            type Slot = $slot;
            #[inline(always)]
            fn get($slot_: $slot) -> Self {
                $get
            }
            #[inline(always)]
            fn put(self) -> $slot {
                let $value = self;
                $put
            }
        }
    )+};
}

lane! {
    u8, u32, |slot| slot as u8, |value| u32::from(value);
    i8, u32, |slot| slot as i8, |value| u32::from(value as i16 as u16);
    u16, u32, |slot| slot as u16, |value| u32::from(value);
    i16, u32, |slot| slot as i16, |value| u32::from(value as u16);
    u32, u32, |slot| slot, |value| value;
    i32, u32, |slot| slot as i32, |value| value as u32;
    f32, u32, |slot| f32::from_bits(slot), |value| value.to_bits();
    u64, u64, |slot| slot, |value| value;
    i64, u64, |slot| slot as i64, |value| value as u64;
    f64, u64, |slot| f64::from_bits(slot), |value| value.to_bits();
    [u16; 2], u32, |slot| [slot as u16, (slot >> 16) as u16], |value| u32::from(value[0]) | u32::from(value[1]) << 16;
}

/// Makes a [`Map`]: `lanes!(a: f32, b: f32 => f32: a + b)`, with `imm;` in front if it has an immediate.
macro_rules! lanes {
    ($a:ident: $A:ty => $R:ty: $body:expr) => { lanes!(_imm; $a: $A => $R: $body) };
    ($a:ident: $A:ty, $b:ident: $B:ty => $R:ty: $body:expr) => { lanes!(_imm; $a: $A, $b: $B => $R: $body) };
    ($a:ident: $A:ty, $b:ident: $B:ty, $c:ident: $C:ty => $R:ty: $body:expr) => {
        lanes!(_imm; $a: $A, $b: $B, $c: $C => $R: $body)
    };
    ($imm:ident; $a:ident: $A:ty => $R:ty: $body:expr) => { lanes!(@ $imm; $a: $A, _b: u8, _c: u8 => $R: $body; 1) };
    ($imm:ident; $a:ident: $A:ty, $b:ident: $B:ty => $R:ty: $body:expr) => {
        lanes!(@ $imm; $a: $A, $b: $B, _c: u8 => $R: $body; 2)
    };
    ($imm:ident; $a:ident: $A:ty, $b:ident: $B:ty, $c:ident: $C:ty => $R:ty: $body:expr) => {
        lanes!(@ $imm; $a: $A, $b: $B, $c: $C => $R: $body; 3)
    };
    (@ $imm:ident; $a:ident: $A:ty, $b:ident: $B:ty, $c:ident: $C:ty => $R:ty: $body:expr; $arity:literal) => {{
        #[allow(unused_imports)]
        use $crate::lanes::{Lane, LANES, Map, Row};
        #[inline(always)]
        fn each($imm: u32, $a: $A, $b: $B, $c: $C) -> $R {
            $body
        }
        #[inline(always)]
        unsafe fn all(out: *mut Row, a: *const Row, b: *const Row, c: *const Row, imm: u32) {
            // SAFETY: as `Map` demands.
            unsafe {
                let out = &mut *out.cast::<[<$R as Lane>::Slot; LANES]>();
                let a = &*a.cast::<[<$A as Lane>::Slot; LANES]>();
                let b = if $arity > 1 { b } else { Row::ZERO_ROWS.as_ptr() };
                let c = if $arity > 2 { c } else { Row::ZERO_ROWS.as_ptr() };
                let b = &*b.cast::<[<$B as Lane>::Slot; LANES]>();
                let c = &*c.cast::<[<$C as Lane>::Slot; LANES]>();
                for i in 0..LANES {
                    out[i] = each(imm, Lane::get(a[i]), Lane::get(b[i]), Lane::get(c[i])).put();
                }
            }
        }
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
        unsafe fn wide(out: *mut Row, a: *const Row, b: *const Row, c: *const Row, imm: u32) {
            // SAFETY: as `Map` demands.
            unsafe { all(out, a, b, c, imm) }
        }
        unsafe fn plain(out: *mut Row, a: *const Row, b: *const Row, c: *const Row, imm: u32) {
            // SAFETY: as `Map` demands.
            unsafe { all(out, a, b, c, imm) }
        }
        #[cfg(target_arch = "x86_64")]
        let chosen: Map = if $crate::lanes::has_avx2() { wide } else { plain };
        #[cfg(not(target_arch = "x86_64"))]
        let chosen: Map = plain;
        chosen
    }};
}

/// Makes a [`Test`]: `test!(a: f32, b: f32: a < b)`.
macro_rules! test {
    ($a:ident: $A:ty, $b:ident: $B:ty: $body:expr) => {{
        use $crate::lanes::{LANES, Lane, Row, Test};
        #[inline(always)]
        fn each($a: $A, $b: $B) -> bool {
            $body
        }
        #[inline(always)]
        unsafe fn all(a: *const Row, b: *const Row) -> u32 {
            // SAFETY: as `Test` demands.
            unsafe {
                let a = &*a.cast::<[<$A as Lane>::Slot; LANES]>();
                let b = &*b.cast::<[<$B as Lane>::Slot; LANES]>();
                let mut flags = [0u8; LANES];
                for i in 0..LANES {
                    flags[i] = u8::from(each(Lane::get(a[i]), Lane::get(b[i])));
                }
                let mut mask = 0;
                for (i, eight) in flags.as_chunks::<8>().0.iter().enumerate() {
                    // Byte k's lowest bit becomes bit k of the highest byte.
                    let bits = u64::from_le_bytes(*eight).wrapping_mul(0x0102_0408_1020_4080) >> 56;
                    mask |= (bits as u32) << (8 * i);
                }
                mask
            }
        }
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
        unsafe fn wide(a: *const Row, b: *const Row) -> u32 {
            // SAFETY: as `Test` demands.
            unsafe { all(a, b) }
        }
        unsafe fn plain(a: *const Row, b: *const Row) -> u32 {
            // SAFETY: as `Test` demands.
            unsafe { all(a, b) }
        }
        #[cfg(target_arch = "x86_64")]
        let chosen: Test = if $crate::lanes::has_avx2() { wide } else { plain };
        #[cfg(not(target_arch = "x86_64"))]
        let chosen: Test = plain;
        chosen
    }};
}

pub(crate) use lanes;
pub(crate) use test;

impl Row {
    /// What an operand that is not used points to.
    pub const ZERO_ROWS: &'static [Self; 2] = &[Self::ZERO; 2];
}

#[cfg(target_arch = "x86_64")]
pub(crate) fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("bmi2")
}

#[cfg(test)]
mod tests;
