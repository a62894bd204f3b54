//! `wmma`: matrices of a warp whose layout the program does not know.
//!
//! A fragment is here the fragments of `mma.sync` one after another: `a` by 16 rows (or all 8), `b` by 8 columns, `c` and `d` by both,
//! rows first. It depends on no layout in memory, and an accumulator of f16 has its elements in the order of one of f32, as programs that
//! convert one to the other element by element assume. Of f16, `a` and `b` have 8 registers whatever their shape; those behind the
//! first ones repeat them.

use super::fragment::{self, finish, gather_a, gather_b};
use super::modifiers::{Layout, Modifiers, Refused, Shape};
use super::product::tile;
use super::{Space, Type, Words, f64};

/// Which matrix a fragment is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WmmaOperand {
    /// The left one, `m` by `k`.
    A,
    /// The right one, `k` by `n`.
    B,
    /// An accumulator, `m` by `n`.
    C,
}

/// A matrix in registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Fragment {
    operand: WmmaOperand,
    shape: Shape,
    of: Type,
}

impl Fragment {
    fn is_known(self) -> bool {
        use Type::{Bf16, F16, F32, F64, S8, S32, Tf32, U8};
        let input = self.operand != WmmaOperand::C;
        match self.shape {
            (16, 16, 16) | (32, 8, 16) | (8, 32, 16) if input => matches!(self.of, F16 | Bf16 | S8 | U8),
            (16, 16, 16) | (32, 8, 16) | (8, 32, 16) => matches!(self.of, F16 | F32 | S32),
            (16, 16, 8) => self.of == if input { Tf32 } else { F32 },
            (8, 8, 4) => self.of == F64,
            _ => false,
        }
    }

    fn size(self) -> (usize, usize) {
        let (m, n, k) = self.shape;
        match self.operand {
            WmmaOperand::A => (m, k),
            WmmaOperand::B => (k, n),
            WmmaOperand::C => (m, n),
        }
    }

    /// 32-bit words that hold every element once.
    fn distinct(self) -> usize {
        let (rows, columns) = self.size();
        fragment::words(self.of, rows * columns)
    }

    fn words(self) -> usize {
        if self.of == Type::F16 && self.operand != WmmaOperand::C { 8 } else { self.distinct() }
    }

    /// Row and column of element `i` of a lane's register, of 64 bits for f64.
    fn place(self, register: usize, i: usize, lane: usize) -> (usize, usize) {
        let (m, n, k) = self.shape;
        let height = m.min(16);
        let of_block = |elements: usize| {
            let each = fragment::registers(self.of, elements);
            (register / each, register % each)
        };
        match self.operand {
            WmmaOperand::A => {
                let (block, register) = of_block(height * k);
                let (row, column) = fragment::place_a(self.of, height, register, i, lane);
                (block * height + row, column)
            }
            WmmaOperand::B => {
                let (block, register) = of_block(k * 8);
                let (row, column) = fragment::place_b(self.of, register, i, lane);
                (row, block * 8 + column)
            }
            WmmaOperand::C => {
                let (block, register) = of_block(height * 8);
                let (row, column) = fragment::place_c(self.of, register, i, lane);
                let across = n / 8;
                (block / across * height + row, block % across * 8 + column)
            }
        }
    }

    /// Calls `each` with word, first byte, and first byte in memory of every element; the bytes are `of`'s.
    fn elements(self, layout: Layout, mut each: impl FnMut(usize, usize, usize, usize)) {
        let (rows, columns) = self.size();
        let size = self.of.bits() / 8;
        let step = size.div_ceil(4);
        for register in 0..self.distinct() / step {
            for i in 0..self.of.packed() {
                for lane in 0..32 {
                    let (row, column) = self.place(register, i, lane);
                    let index = if layout == Layout::Row { row * columns + column } else { column * rows + row };
                    each(register * step, lane, i * size, index * size);
                }
            }
        }
    }

    /// Calls `each` with the address and the place in `LARGEST` bytes of every piece of a row or column of the matrix.
    fn pieces<E>(
        self,
        layout: Layout,
        address: u64,
        stride: Option<u64>,
        mut each: impl FnMut(u64, std::ops::Range<usize>) -> Result<(), E>,
    ) -> Result<(), E> {
        let (rows, columns) = self.size();
        let (lines, length) = if layout == Layout::Row { (rows, columns) } else { (columns, rows) };
        let size = self.of.bits() / 8;
        let stride = stride.unwrap_or(length as u64).wrapping_mul(size as u64);
        let bytes = length * size;
        for line in 0..lines {
            let first = address.wrapping_add(stride.wrapping_mul(line as u64));
            for at in (0..bytes).step_by(16) {
                each(first.wrapping_add(at as u64), line * bytes + at..line * bytes + bytes.min(at + 16))?;
            }
        }
        Ok(())
    }
}

/// Bytes of the largest matrix.
const LARGEST: usize = 1024;
const SPACES: [&str; 3] = ["global", "shared", "shared::cta"];

/// Parses `load.a` or `store.d` and what follows.
fn transfer(words: &[&str], names: &[(&str, WmmaOperand)], verb: &str) -> Result<(Fragment, Layout), Refused> {
    let letters: Vec<&str> = names.iter().map(|(name, _)| *name).collect();
    let known = [&[verb, "sync", "aligned"][..], &SPACES, &letters].concat();
    let modifiers = Modifiers::sort("wmma", words, &known)?;
    modifiers.require(&[verb, "sync", "aligned"])?;
    let shape = modifiers.shape()?;
    let Some(&(_, operand)) = names.iter().find(|(name, _)| modifiers.has(name)) else {
        return Err(modifiers.refuse("which matrix it is, is missing"));
    };
    let (&[of], &[layout]) = (modifiers.types.as_slice(), modifiers.layouts.as_slice()) else {
        return Err(modifiers.refuse("one type and one layout are expected"));
    };
    let fragment = Fragment { operand, shape, of };
    if !fragment.is_known() {
        return Err(modifiers.refuse("this type does not go with this shape, or is not known here"));
    }
    Ok((fragment, layout))
}

/// `wmma.load.{a, b, c}.sync.aligned`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WmmaLoad {
    fragment: Fragment,
    /// How the matrix lies in memory.
    pub layout: Layout,
}

impl WmmaLoad {
    /// Parses the words behind `wmma`, from `load` on.
    pub fn parse(words: &[&str]) -> Result<Self, Refused> {
        let names = [("a", WmmaOperand::A), ("b", WmmaOperand::B), ("c", WmmaOperand::C)];
        transfer(words, &names, "load").map(|(fragment, layout)| Self { fragment, layout })
    }

    /// Elements of the matrix.
    pub fn of(&self) -> Type {
        self.fragment.of
    }

    /// 32-bit words a lane.
    pub fn words(&self) -> usize {
        self.fragment.words()
    }

    /// Loads the matrix at `address`, with `stride` elements from one row (column) to the next if it is given.
    pub fn execute<M: Space>(
        &self,
        address: u64,
        stride: Option<u64>,
        memory: &mut M,
        into: &mut [Words],
    ) -> Result<(), M::Error> {
        let mut bytes = [0u8; LARGEST];
        self.fragment.pieces(self.layout, address, stride, |address, at| memory.read(address, &mut bytes[at]))?;
        let mut words = [[0u32; 32]; 16];
        self.fragment.elements(self.layout, |word, lane, byte, at| match self.fragment.of.bits() {
            64 => {
                words[word][lane] = u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
                words[word + 1][lane] = u32::from_le_bytes(std::array::from_fn(|i| bytes[at + 4 + i]));
            }
            32 => words[word][lane] = u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i])),
            16 => words[word][lane] |= u32::from(u16::from_le_bytes([bytes[at], bytes[at + 1]])) << (8 * byte),
            _ => words[word][lane] |= u32::from(bytes[at]) << (8 * byte),
        });
        let distinct = self.fragment.distinct();
        for (word, into) in into.iter_mut().enumerate() {
            *into = words[word % distinct];
        }
        Ok(())
    }
}

/// `wmma.store.d.sync.aligned`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WmmaStore {
    fragment: Fragment,
    /// How the matrix is to lie in memory.
    pub layout: Layout,
}

impl WmmaStore {
    /// Parses the words behind `wmma`, from `store` on.
    pub fn parse(words: &[&str]) -> Result<Self, Refused> {
        transfer(words, &[("d", WmmaOperand::C)], "store").map(|(fragment, layout)| Self { fragment, layout })
    }

    /// Elements of the matrix.
    pub fn of(&self) -> Type {
        self.fragment.of
    }

    /// 32-bit words a lane.
    pub fn words(&self) -> usize {
        self.fragment.words()
    }

    /// Stores the elements of these lanes to `address`, with `stride` elements from one row (column) to the next if it is
    /// given.
    pub fn execute<M: Space>(
        &self,
        address: u64,
        stride: Option<u64>,
        from: &[Words],
        lanes: u32,
        memory: &mut M,
    ) -> Result<(), M::Error> {
        let mut bytes = [0u8; LARGEST];
        let mut stored = [false; LARGEST];
        let size = self.fragment.of.bits() / 8;
        self.fragment.elements(self.layout, |word, lane, byte, at| {
            stored[at] = lanes >> lane & 1 != 0;
            let high = if size == 8 { from[word + 1][lane] } else { 0 };
            let bits = (u64::from(high) << 32 | u64::from(from[word][lane])) >> (8 * byte);
            bytes[at..at + size].copy_from_slice(&bits.to_le_bytes()[..size]);
        });
        self.fragment.pieces(self.layout, address, stride, |address, piece| {
            if lanes == u32::MAX {
                return memory.write(address, &bytes[piece]);
            }
            let start = piece.start;
            let mut elements = piece.step_by(size).filter(|&at| stored[at]);
            elements.try_for_each(|at| memory.write(address + (at - start) as u64, &bytes[at..at + size]))
        })
    }
}

/// `wmma.mma.sync.aligned`: `d = a b + c`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WmmaMma {
    a: Fragment,
    b: Fragment,
    c: Fragment,
    d: Fragment,
    /// Whether integer sums stop at the ends of their range.
    pub saturate: bool,
}

impl WmmaMma {
    /// Parses the words behind `wmma`, from `mma` on.
    pub fn parse(words: &[&str]) -> Result<Self, Refused> {
        use Type::{Bf16, F16, F32, F64, S32, Tf32};
        let modifiers = Modifiers::sort("wmma", words, &["mma", "sync", "aligned", "satfinite", "rn"])?;
        modifiers.require(&["mma", "sync", "aligned"])?;
        let shape = modifiers.shape()?;
        let (d, a, b, c) = match *modifiers.types.as_slice() {
            [d, c] => (d, F16, F16, c),
            [d, a, b, c] => (d, a, b, c),
            _ => return Err(modifiers.refuse("the types of d and c, or of d, a, b and c are expected")),
        };
        if modifiers.layouts.len() != 2 {
            return Err(modifiers.refuse("the layouts of a and b are expected"));
        }
        let goes = match (a, b) {
            (F16, F16) => matches!((c, d), (F16 | F32, F16 | F32)),
            (Bf16, Bf16) | (Tf32, Tf32) => (c, d) == (F32, F32),
            (F64, F64) => (c, d) == (F64, F64),
            _ => a.is_int8() && a == b && (c, d) == (S32, S32),
        };
        let of = |operand, of| Fragment { operand, shape, of };
        let (a, b) = (of(WmmaOperand::A, a), of(WmmaOperand::B, b));
        let (c, d) = (of(WmmaOperand::C, c), of(WmmaOperand::C, d));
        if !goes || !a.is_known() || !c.is_known() || !d.is_known() {
            return Err(modifiers.refuse("these types do not go with this shape, or are not known here"));
        }
        let saturate = modifiers.has("satfinite");
        if saturate && d.of != S32 || modifiers.has("rn") && d.of != F64 {
            return Err(modifiers.refuse("\".satfinite\" is for integers, \".rn\" for f64"));
        }
        Ok(Self { a, b, c, d, saturate })
    }

    /// 32-bit words a lane of `a`, `b`, `c` and `d`.
    pub fn words(&self) -> [usize; 4] {
        [self.a, self.b, self.c, self.d].map(Fragment::words)
    }

    /// Types of `a`, `b`, `c` and `d`.
    pub fn types(&self) -> [Type; 4] {
        [self.a, self.b, self.c, self.d].map(|fragment| fragment.of)
    }

    /// Multiplications and additions of one execution.
    pub fn flops(&self) -> u64 {
        let (m, n, k) = self.a.shape;
        2 * (m * n * k) as u64
    }

    /// `d = a b + c`, each of as many entries as [`words`](Self::words) says.
    pub fn execute(&self, a: &[Words], b: &[Words], c: &[Words], d: &mut [Words]) {
        debug_assert_eq!(self.words(), [a.len(), b.len(), c.len(), d.len()]);
        let (m, n, k) = self.a.shape;
        if self.d.of == Type::F64 {
            return f64::multiply(m, k, a, b, c, d);
        }
        let height = m.min(16);
        let mut right = [[[0f32; 8]; 16]; 4];
        let of_b = fragment::words(self.b.of, k * 8);
        for (tile, words) in right.iter_mut().zip(b.chunks(of_b)).take(n / 8) {
            gather_b(self.b.of, words, &mut tile[..k]);
        }
        let [of_a, of_c, of_d] =
            [(self.a.of, k), (self.c.of, 8), (self.d.of, 8)].map(|(of, n)| fragment::words(of, height * n));
        for (block, a) in a.chunks(of_a).enumerate().take(m / height) {
            let mut left = [0f32; 16 * 16];
            gather_a(self.a.of, height, k, a, &mut left);
            for (column, right) in right.iter().enumerate().take(n / 8) {
                let mut sums = [[0f32; 8]; 16];
                tile(&left[..height * k], &right[..k], height, &mut sums);
                let at = block * (n / 8) + column;
                let (c, d) = (&c[at * of_c..][..of_c], &mut d[at * of_d..][..of_d]);
                finish(Some((self.c.of, c)), self.saturate, &sums, self.d.of, d);
            }
        }
    }
}
