//! The kernel of Intel's AMX, for bf16.
//!
//! A tile register holds 16 rows of 64 bytes. One instruction multiplies 16 rows of 16 pairs of bf16 by 16 pairs of 16
//! columns, and adds to 16 × 16 sums in `f32`: 8,192 multiply-adds in 16 cycles, eight times what AVX512-BF16 does. The
//! kernel has four tiles of sums, so above 16 rows each tile that it loads is multiplied twice:
//!
//! ```text
//!                     B: 16 pairs x 32 columns
//!                        tmm6     tmm7
//! A: 32 rows   tmm4      tmm0     tmm1
//! x 16 pairs   tmm5      tmm2     tmm3
//! ```
//!
//! Four loads of 16 cache lines take 32 cycles and four products 64, so the products are the limit.

use super::kernel::{Kernel, Panels, Tile, Vector};
use super::x86::Pairs;
use std::arch::asm;
use std::arch::x86_64::__m512;

/// The rows of a tile register, and the units in a row.
const TILE: usize = 16;

/// Kernels for these numbers of rows. Tiles of `A` always have 16 rows; unused ones affect only sums that are not
/// stored.
macro_rules! of_rows {
    ($($rows:literal)*) => { &[$(kernel::<$rows>,)*] };
}

/// Panels of pairs of bf16 for tile registers.
pub enum Tiled {}

// SAFETY: the kernels keep to what `Tile` describes. They are used only after AMX was detected, while `Tiles` exists.
unsafe impl Panels for Tiled {
    type Vector = Pairs;
    const DEPTH: usize = 2;
    const STEP: usize = TILE;
    const MR: usize = 2 * TILE;
    const KERNELS: [&'static [Kernel]; 2] = [
        of_rows!(1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32),
        &[], // rows of `A` are rows of a tile
    ];
}

/// The configuration that `LDTILECFG` reads: the shapes of the eight tile registers.
#[repr(C, align(64))]
struct Shapes {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// The tile registers of this thread, in use until this value is dropped.
pub struct Tiles(());

impl Tiles {
    /// Sets all tile registers to 16 rows of 64 bytes.
    ///
    /// # Safety
    /// The processor must have AMX, and the process the permission to use it.
    pub unsafe fn take() -> Self {
        let (mut row_bytes, mut rows) = ([0; 16], [0; 16]);
        row_bytes[..8].fill(64);
        rows[..8].fill(TILE as u8);
        let shapes = Shapes { palette: 1, start_row: 0, reserved: [0; 14], row_bytes, rows };
        // SAFETY: the caller guarantees the instruction, which reads the 64 bytes.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &shapes, options(nostack, readonly, preserves_flags)) };
        Self(())
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: `take` has used the instructions already. Nothing is read from the registers afterwards.
        unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) };
    }
}

/// Memory for the sums of a kernel, in whole cache lines.
#[repr(align(64))]
struct Sums([std::mem::MaybeUninit<f32>; 4 * TILE * TILE]);

#[target_feature(enable = "avx512f")]
unsafe fn kernel<const M: usize>(t: &Tile) {
    const WIDTH: usize = 2 * TILE;
    let mut sums = Sums([const { std::mem::MaybeUninit::uninit() }; 4 * TILE * TILE]);
    let to = sums.0.as_mut_ptr().cast::<f32>();
    // SAFETY: the caller guarantees the panels that `Tile` describes, and has taken the tiles. `sums` has room for all.
    unsafe {
        macro_rules! products {
            ($clear:literal, $second:literal, $store:literal) => {
                asm!(
                    "tilezero tmm0",
                    "tilezero tmm1",
                    $clear,
                    "test {steps}, {steps}",
                    "jz 3f",
                    "2:",
                    "tileloadd tmm6, [{b} + {b_stride}]",
                    "tileloadd tmm4, [{a} + {a_stride}]",
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "tileloadd tmm7, [{b} + {b_stride} + 64]",
                    "tdpbf16ps tmm1, tmm4, tmm7",
                    $second,
                    "add {a}, 64",
                    "add {lower}, 64",
                    "add {b}, {b_step}",
                    "dec {steps}",
                    "jnz 2b",
                    "3:",
                    "tilestored [{to} + {to_stride}], tmm0",
                    "tilestored [{to} + {to_stride} + 64], tmm1",
                    $store,
                    a = inout(reg) t.a => _,
                    lower = inout(reg) t.a.add(TILE * t.a_stride) => _,
                    a_stride = in(reg) size_of::<f32>() * t.a_stride,
                    b = inout(reg) t.b => _,
                    b_stride = in(reg) size_of::<f32>() * t.b_stride,
                    b_step = in(reg) size_of::<f32>() * TILE * t.b_stride,
                    steps = inout(reg) t.k.div_ceil(TILE) => _,
                    to = in(reg) to,
                    to_stride = in(reg) size_of::<f32>() * WIDTH,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack)
                )
            };
        }
        if M > TILE {
            products!(
                "tilezero tmm2
                tilezero tmm3",
                "tileloadd tmm5, [{lower} + {a_stride}]
                tdpbf16ps tmm2, tmm5, tmm6
                tdpbf16ps tmm3, tmm5, tmm7",
                "tilestored [{to} + {to_stride} + 2048], tmm2
                tilestored [{to} + {to_stride} + 2112], tmm3"
            );
        } else {
            products!("", "", "");
        }
        for i in 0..M {
            let (from, c) = (to.add(i * WIDTH), t.c.add(i * t.c_stride));
            __m512::load(from).store(c, t.cols, t.add);
            if t.cols > TILE {
                __m512::load(from.add(TILE)).store(c.add(TILE), t.cols - TILE, t.add);
            }
        }
    }
}
