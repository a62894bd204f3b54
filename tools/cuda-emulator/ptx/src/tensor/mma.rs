//! `mma.sync`: one warp's product of matrices in registers.

use super::fragment::{finish, gather_a, gather_b, words};
use super::modifiers::{Layout, Modifiers, Refused};
use super::product::tile;
use super::{Type, Words, f64};

/// `mma.sync.aligned`: `d = a b + c`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mma {
    /// Rows of `a`, `c` and `d`: 8 or 16.
    pub m: usize,
    /// Columns of `b`, `c` and `d`: 8.
    pub n: usize,
    /// Columns of `a` and rows of `b`.
    pub k: usize,
    /// Elements of `a`.
    pub a: Type,
    /// Elements of `b`.
    pub b: Type,
    /// Elements of `c`.
    pub c: Type,
    /// Elements of `d`.
    pub d: Type,
    /// Whether integer sums stop at the ends of their range.
    pub saturate: bool,
}

impl Mma {
    /// Parses the words behind `mma`, from `sync` on.
    pub fn parse(words: &[&str]) -> Result<Self, Refused> {
        let modifiers = Modifiers::sort("mma", words, &["sync", "aligned", "satfinite"])?;
        modifiers.require(&["sync", "aligned"])?;
        let (m, n, k) = modifiers.shape()?;
        let &[d, a, b, c] = modifiers.types.as_slice() else {
            return Err(modifiers.refuse("four types are expected, of d, a, b and c"));
        };
        let saturate = modifiers.has("satfinite");
        let mma = Self { m, n, k, a, b, c, d, saturate };
        if mma.minimum_sm().is_none() {
            return Err(modifiers.refuse("these types do not go with this shape, or are not known here"));
        }
        if modifiers.layouts != [Layout::Row, Layout::Column] {
            return Err(modifiers.refuse("the layouts are not \".row.col\""));
        }
        if saturate && d != Type::S32 {
            return Err(modifiers.refuse("\".satfinite\" is for integers"));
        }
        Ok(mma)
    }

    /// The least compute capability that has the instruction, 80 for 8.0, or `None` if none has.
    pub fn minimum_sm(&self) -> Option<u32> {
        use Type::{Bf16, F16, F32, F64, S32, Tf32};
        let Self { m, n, k, a, b, c, d, .. } = *self;
        if n != 8 || c != d {
            return None;
        }
        match (m, k, a, b, d) {
            (8, 4, F64, F64, F64) => Some(80),
            (16, 4 | 8 | 16, F64, F64, F64) => Some(90),
            (16, 4 | 8, Tf32, Tf32, F32) => Some(80),
            (16, 8, F16, F16, F16 | F32) => Some(75),
            (16, 16, F16, F16, F16 | F32) | (16, 8 | 16, Bf16, Bf16, F32) => Some(80),
            (16, 16 | 32, _, _, F16 | F32) if a.is_fp8() && b.is_fp8() => Some(89),
            (8, 16, _, _, S32) if a.is_int8() && b.is_int8() => Some(75),
            (16, 16 | 32, _, _, S32) if a.is_int8() && b.is_int8() => Some(80),
            (8, 32, _, _, S32) if a.is_int4() && b.is_int4() => Some(75),
            (16, 32 | 64, _, _, S32) if a.is_int4() && b.is_int4() => Some(80),
            _ => None,
        }
    }

    /// 32-bit words a lane of `a`, `b`, `c` and `d`.
    pub fn words(&self) -> [usize; 4] {
        let Self { m, n, k, .. } = *self;
        [words(self.a, m * k), words(self.b, k * n), words(self.c, m * n), words(self.d, m * n)]
    }

    /// Multiplications and additions of one execution.
    pub fn flops(&self) -> u64 {
        2 * (self.m * self.n * self.k) as u64
    }

    /// `d = a b + c`, each of as many entries as [`words`](Self::words) says.
    pub fn execute(&self, a: &[Words], b: &[Words], c: &[Words], d: &mut [Words]) {
        debug_assert_eq!(self.words(), [a.len(), b.len(), c.len(), d.len()]);
        if self.d == Type::F64 {
            return f64::multiply(self.m, self.k, a, b, c, d);
        }
        let (mut left, mut right) = ([0f32; 16 * 64], [[0f32; 8]; 64]);
        let (left, right) = (&mut left[..self.m * self.k], &mut right[..self.k]);
        gather_a(self.a, self.m, self.k, a, left);
        gather_b(self.b, b, right);
        let mut sums = [[0f32; 8]; 16];
        tile(left, right, self.m, &mut sums);
        finish(Some((self.c, c)), self.saturate, &sums, self.d, d);
    }
}
