//! The vectors of x86-64, and a handwritten AVX2 kernel.

use super::kernel::{Kernel, Panels, Tile, Vector, kernels, tile};
use std::arch::asm;
use std::arch::x86_64::*;

// SAFETY: these kernels, and those below, keep to what `Tile` describes.
unsafe impl Panels for __m512 {
    type Vector = Self;
    const MR: usize = 14;
    const KERNELS: [&'static [Kernel]; 2] = kernels!(__m512, "avx512f", 1 2 3 4 5 6 7 8 9 10 11 12 13 14);
}

// SAFETY: it is used only after AVX-512F was detected.
unsafe impl Vector for __m512 {
    // In all functions below, the caller guarantees the instructions and the pointers.
    const LANES: usize = 16;

    #[inline(always)]
    unsafe fn zero() -> Self {
        unsafe { _mm512_setzero_ps() }
    }

    #[inline(always)]
    unsafe fn splat(from: *const f32) -> Self {
        unsafe { _mm512_set1_ps(*from) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        unsafe { _mm512_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn prefetch(at: *const f32) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }

    #[inline(always)]
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        unsafe { _mm512_fmadd_ps(self, b, c) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, count: usize, add: bool) {
        unsafe {
            let mask = if count < 16 { (1 << count) - 1 } else { !0 };
            let sum = if add { _mm512_add_ps(_mm512_maskz_loadu_ps(mask, to), self) } else { self };
            _mm512_mask_storeu_ps(to, mask, sum);
        }
    }

    /// Quarter `q` of vector `r` is loaded from row `4 q + r`. Transposing the 4 × 4 blocks in all quarters at once
    /// then leaves the 16 rows in order.
    #[inline(always)]
    unsafe fn columns(from: *const f32, stride: usize) -> [Self; 4] {
        unsafe {
            let quarter = |row: usize| _mm_loadu_ps(from.add(row * stride));
            let rows = |r: usize| {
                let v = _mm512_castps128_ps512(quarter(r));
                let v = _mm512_insertf32x4::<1>(v, quarter(r + 4));
                let v = _mm512_insertf32x4::<2>(v, quarter(r + 8));
                _mm512_insertf32x4::<3>(v, quarter(r + 12))
            };
            let (r0, r1, r2, r3) = (rows(0), rows(1), rows(2), rows(3));
            let (low01, low23) = (_mm512_unpacklo_ps(r0, r1), _mm512_unpacklo_ps(r2, r3));
            let (high01, high23) = (_mm512_unpackhi_ps(r0, r1), _mm512_unpackhi_ps(r2, r3));
            [
                _mm512_shuffle_ps::<0x44>(low01, low23),
                _mm512_shuffle_ps::<0xee>(low01, low23),
                _mm512_shuffle_ps::<0x44>(high01, high23),
                _mm512_shuffle_ps::<0xee>(high01, high23),
            ]
        }
    }
}

// SAFETY: as above.
unsafe impl Panels for __m256 {
    type Vector = Self;
    const MR: usize = 6;
    const KERNELS: [&'static [Kernel]; 2] = kernels!(__m256, "avx2,fma", 1 2 3 4 5, six_rows);
}

// SAFETY: it is used only after AVX2 and FMA were detected.
unsafe impl Vector for __m256 {
    // As above.
    const LANES: usize = 8;

    #[inline(always)]
    unsafe fn zero() -> Self {
        unsafe { _mm256_setzero_ps() }
    }

    #[inline(always)]
    unsafe fn splat(from: *const f32) -> Self {
        unsafe { _mm256_broadcast_ss(&*from) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        unsafe { _mm256_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn prefetch(at: *const f32) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }

    #[inline(always)]
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        unsafe { _mm256_fmadd_ps(self, b, c) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, count: usize, add: bool) {
        unsafe {
            let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            let mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(count.min(8) as i32), lanes);
            let sum = if add { _mm256_add_ps(_mm256_maskload_ps(to, mask), self) } else { self };
            if count >= 8 { _mm256_storeu_ps(to, sum) } else { _mm256_maskstore_ps(to, mask, sum) }
        }
    }

    /// Half `h` of vector `r` is loaded from row `4 h + r`; see the same function with 16 lanes.
    #[inline(always)]
    unsafe fn columns(from: *const f32, stride: usize) -> [Self; 4] {
        unsafe {
            let half = |row: usize| _mm_loadu_ps(from.add(row * stride));
            let rows = |r: usize| _mm256_set_m128(half(r + 4), half(r));
            let (r0, r1, r2, r3) = (rows(0), rows(1), rows(2), rows(3));
            let (low01, low23) = (_mm256_unpacklo_ps(r0, r1), _mm256_unpacklo_ps(r2, r3));
            let (high01, high23) = (_mm256_unpackhi_ps(r0, r1), _mm256_unpackhi_ps(r2, r3));
            [
                _mm256_shuffle_ps::<0x44>(low01, low23),
                _mm256_shuffle_ps::<0xee>(low01, low23),
                _mm256_shuffle_ps::<0x44>(high01, high23),
                _mm256_shuffle_ps::<0xee>(high01, high23),
            ]
        }
    }
}

/// One step of `six_rows`: a row of `B`, and these six elements of `A`.
macro_rules! step {
    ($a0:expr, $a1:expr, $a2:expr, $a3:expr, $a4:expr, $a5:expr) => {
        concat!(
            "vmovups {b0}, ymmword ptr [{b}]\n",
            "vmovups {b1}, ymmword ptr [{b} + 32]\n",
            "prefetcht0 byte ptr [{b} + {ahead}]\n",
            "add {b}, {b_stride}\n",
            "vbroadcastss {x}, dword ptr [",
            $a0,
            "]\n",
            "vbroadcastss {y}, dword ptr [",
            $a1,
            "]\n",
            "vfmadd231ps {s00}, {x}, {b0}\n",
            "vfmadd231ps {s01}, {x}, {b1}\n",
            "vbroadcastss {x}, dword ptr [",
            $a2,
            "]\n",
            "vfmadd231ps {s10}, {y}, {b0}\n",
            "vfmadd231ps {s11}, {y}, {b1}\n",
            "vbroadcastss {y}, dword ptr [",
            $a3,
            "]\n",
            "vfmadd231ps {s20}, {x}, {b0}\n",
            "vfmadd231ps {s21}, {x}, {b1}\n",
            "vbroadcastss {x}, dword ptr [",
            $a4,
            "]\n",
            "vfmadd231ps {s30}, {y}, {b0}\n",
            "vfmadd231ps {s31}, {y}, {b1}\n",
            "vbroadcastss {y}, dword ptr [",
            $a5,
            "]\n",
            "vfmadd231ps {s40}, {x}, {b0}\n",
            "vfmadd231ps {s41}, {x}, {b1}\n",
            "vfmadd231ps {s50}, {y}, {b0}\n",
            "vfmadd231ps {s51}, {y}, {b1}\n",
        )
    };
}

/// A step with the elements of `A` at `offset` bytes in its rows.
macro_rules! step_by_rows {
    ($offset:literal) => {
        step!(
            concat!("{a} + ", $offset),
            concat!("{a} + {row} + ", $offset),
            concat!("{a} + 2 * {row} + ", $offset),
            concat!("{a3} + ", $offset),
            concat!("{a3} + {row} + ", $offset),
            concat!("{a3} + 2 * {row} + ", $offset)
        )
    };
}

/// A step with the elements of `A` in the line at `offset` bytes.
macro_rules! step_by_columns {
    ($offset:literal) => {
        step!(
            concat!("{a} + ", $offset),
            concat!("{a} + 4 + ", $offset),
            concat!("{a} + 8 + ", $offset),
            concat!("{a} + 12 + ", $offset),
            concat!("{a} + 16 + ", $offset),
            concat!("{a} + 20 + ", $offset)
        )
    };
}

/// [`tile`](super::kernel::tile) of six rows with AVX2, by hand. A step has 6 cycles of multiply-adds, and the
/// processor issues 6 instructions per cycle. Compiled step by step, half of the 36 only count and compute addresses;
/// for several steps at once, the compiler loads more than it has registers for.
#[target_feature(enable = "avx2,fma")]
unsafe fn six_rows<const BY_COLUMNS: bool>(t: &Tile) {
    /// Steps between two checks of the loop counter.
    const STEPS: usize = 4;
    const FLOAT: usize = size_of::<f32>();
    // SAFETY: the caller guarantees the same as for `tile`.
    unsafe {
        let mut sums = [[__m256::zero(); 2]; 6];
        t.prefetch_c::<__m256, 6>();
        let ahead = t.ahead::<__m256, 6>();
        let whole = t.k - t.k % STEPS;
        for p in (0..whole).step_by(STEPS) {
            let [[s00, s01], [s10, s11], [s20, s21], [s30, s31], [s40, s41], [s50, s51]] = &mut sums;
            let a = t.a.add(p * if BY_COLUMNS { __m256::PITCH } else { 1 });
            macro_rules! steps {
                ($step:ident, [$($offset:literal)*], $($operand:tt)*) => {
                    asm!(
                        $($step!($offset),)*
                        a = in(reg) a,
                        $($operand)*
                        b = inout(reg) t.b.add(p * t.b_stride) => _,
                        b_stride = in(reg) FLOAT * t.b_stride,
                        ahead = in(reg) ahead.from(p).wrapping_mul(FLOAT),
                        b0 = out(ymm_reg) _,
                        b1 = out(ymm_reg) _,
                        x = out(ymm_reg) _,
                        y = out(ymm_reg) _,
                        s00 = inout(ymm_reg) *s00,
                        s01 = inout(ymm_reg) *s01,
                        s10 = inout(ymm_reg) *s10,
                        s11 = inout(ymm_reg) *s11,
                        s20 = inout(ymm_reg) *s20,
                        s21 = inout(ymm_reg) *s21,
                        s30 = inout(ymm_reg) *s30,
                        s31 = inout(ymm_reg) *s31,
                        s40 = inout(ymm_reg) *s40,
                        s41 = inout(ymm_reg) *s41,
                        s50 = inout(ymm_reg) *s50,
                        s51 = inout(ymm_reg) *s51,
                        options(nostack, readonly)
                    )
                };
            }
            match BY_COLUMNS {
                false => steps!(
                    step_by_rows, ["0" "4" "8" "12"],
                    a3 = in(reg) a.wrapping_add(3 * t.a_stride), row = in(reg) FLOAT * t.a_stride,
                ),
                true => steps!(step_by_columns, ["0" "32" "64" "96"],),
            }
        }
        for p in whole..t.k {
            t.add_step::<__m256, 6, BY_COLUMNS>(p, &mut sums);
        }
        t.store(&sums);
    }
}

/// Pairs of bf16, two consecutive values of `k` each. A multiply-add adds both products to an f32 lane.
#[derive(Clone, Copy)]
pub struct Pairs(__m512);

// SAFETY: as above.
unsafe impl Panels for Pairs {
    type Vector = Self;
    const MR: usize = 14;
    const DEPTH: usize = 2;
    const KERNELS: [&'static [Kernel]; 2] = kernels!(Pairs, "avx512f,avx512bf16", 1 2 3 4 5 6 7 8 9 10 11 12 13 14);
}

// SAFETY: it is used only after AVX-512F and AVX512-BF16 were detected.
unsafe impl Vector for Pairs {
    // As above.
    const LANES: usize = 16;

    #[inline(always)]
    unsafe fn zero() -> Self {
        unsafe { Self(__m512::zero()) }
    }

    #[inline(always)]
    unsafe fn splat(from: *const f32) -> Self {
        unsafe { Self(_mm512_castsi512_ps(_mm512_set1_epi32(*from.cast()))) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        unsafe { Self(__m512::load(from)) }
    }

    #[inline(always)]
    unsafe fn prefetch(at: *const f32) {
        unsafe { __m512::prefetch(at) }
    }

    #[inline(always)]
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        unsafe {
            let bf16s = |pairs: __m512| std::mem::transmute::<__m512, __m512bh>(pairs);
            Self(_mm512_dpbf16_ps(c.0, bf16s(self.0), bf16s(b.0)))
        }
    }

    #[inline(always)]
    unsafe fn interleave(first: *const u16, second: *const u16) -> Self {
        unsafe {
            let wide = |from: *const u16| _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            Self(_mm512_castsi512_ps(_mm512_or_si512(wide(first), _mm512_slli_epi32::<16>(wide(second)))))
        }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, count: usize, add: bool) {
        unsafe { self.0.store(to, count, add) }
    }

    #[inline(always)]
    unsafe fn columns(from: *const f32, stride: usize) -> [Self; 4] {
        unsafe { __m512::columns(from, stride).map(Self) }
    }
}
