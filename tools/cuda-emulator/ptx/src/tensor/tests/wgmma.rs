//! `wgmma` against sums of whole numbers, with operands laid out by the canonical layouts of CuTe.

use super::mma::{bits, get, number, put};
use super::*;

/// Everything that says where an operand lies.
#[derive(Debug, Clone, Copy)]
struct Placing {
    swizzle: Swizzle,
    /// Whether it is MN-major.
    transposed: bool,
    /// Bytes of an element.
    size: usize,
    leading: usize,
    stride: usize,
}

/// Number of chunks of 16 bytes in the swizzle's width, and `B` of CuTe's `Swizzle<B, 4, 3>`.
fn chunks_and_bits(swizzle: Swizzle) -> (usize, u32) {
    match swizzle {
        Swizzle::None => (1, 0),
        Swizzle::B32 => (2, 1),
        Swizzle::B64 => (4, 2),
        Swizzle::B128 => (8, 3),
    }
}

impl Placing {
    /// With offsets that leave gaps, for `rows` rows.
    fn new(swizzle: Swizzle, transposed: bool, size: usize, rows: usize) -> Self {
        let (w, _) = chunks_and_bits(swizzle);
        let (leading, stride) = match (transposed, swizzle) {
            // Core matrices of 128 bytes: those along `k` side by side, or those along the rows.
            (false, Swizzle::None) => (128, 1024 + 128),
            (true, Swizzle::None) => (rows / 8 * 128, 128),
            (false, _) => (16, 2 * 128 * w),
            // Atoms of 8 `k` by `8 w` rows.
            (true, _) => (2 * 2 * 128 * w, 2 * 128 * w),
        };
        Self { swizzle, transposed, size, leading, stride }
    }

    /// `k` that one row of atoms holds, at least that of an instruction.
    fn depth(&self) -> usize {
        let (w, _) = chunks_and_bits(self.swizzle);
        if self.transposed { 16 } else { 16 * w.max(2) / self.size }
    }

    /// CuTe's `Swizzle<B, 4, 3> o ((8, m), (T, 2 k)):((1 T, SBO), (1, LBO))` and so on, in bytes.
    fn offset(&self, row: usize, k: usize) -> usize {
        let t = 16 / self.size;
        let (w, b) = chunks_and_bits(self.swizzle);
        let offset = match (self.transposed, self.swizzle) {
            (false, Swizzle::None) => row % 8 * 16 + row / 8 * self.stride + k % t * self.size + k / t * self.leading,
            (false, _) => row % 8 * 16 * w + row / 8 * self.stride + k * self.size,
            (true, Swizzle::None) => row % t * self.size + row / t * self.stride + k % 8 * 16 + k / 8 * self.leading,
            (true, _) => {
                row % (t * w) * self.size + row / (t * w) * self.leading + k % 8 * 16 * w + k / 8 * self.stride
            }
        };
        let mask = ((1 << b) - 1) << 7;
        offset ^ (offset & mask) >> 3
    }

    /// The operand's bytes from `start` on.
    fn store(&self, of: &str, values: &[i64], depth: usize, memory: &mut [u8]) {
        for (i, value) in values.iter().enumerate() {
            let bytes = bits(of, *value).0.to_le_bytes();
            memory[self.offset(i / depth, i % depth)..][..self.size].copy_from_slice(&bytes[..self.size]);
        }
    }

    /// The descriptor of the instruction that starts at `k`, through its bits.
    fn descriptor(&self, start: usize, k: usize) -> Descriptor {
        let t = 16 / self.size;
        let step = match (self.transposed, self.swizzle) {
            (false, Swizzle::None) => k / t * self.leading,
            (false, _) => k * self.size,
            (true, Swizzle::None) => k / 8 * self.leading,
            (true, _) => k / 8 * self.stride,
        };
        let encode = |bytes: usize| (bytes as u64 & 0x3_ffff) >> 4;
        let mode = [0, 3, 2, 1][chunks_and_bits(self.swizzle).1 as usize];
        let bits = encode(start + step) | encode(self.leading) << 16 | encode(self.stride) << 32 | mode << 62;
        let descriptor = Descriptor::decode(bits);
        assert_eq!(descriptor.encode(), bits);
        descriptor
    }
}

/// Row of `d` and column of entry `i` of a lane: `((4, 8, 4), (2, 2, n)):((128, 1, 16), (64, 8, 512))`.
fn place_d(warp: usize, lane: usize, i: usize) -> (usize, usize) {
    let index = lane % 4 * 128 + lane / 4 + warp * 16 + i % 2 * 64 + i / 2 % 2 * 8 + i / 4 * 512;
    (index % 64, index / 64)
}

fn parse(words: &str) -> Wgmma {
    Wgmma::parse(&words.split('.').collect::<Vec<_>>()).unwrap()
}

const SWIZZLES: [Swizzle; 4] = [Swizzle::None, Swizzle::B32, Swizzle::B64, Swizzle::B128];
const PLUS: Scale = Scale { d: true, negate_a: false, negate_b: false };

/// Multiplies 64 rows by `n` columns over `depth`, in steps of the instruction's `k`; returns the values of `d`.
fn run(wgmma: &Wgmma, d: &str, depth: usize, mut step: impl FnMut(usize, usize) -> (Left, Right)) -> Vec<u64> {
    let mut values = vec![0u64; 64 * wgmma.n];
    for warp in 0..4 {
        let mut words = vec![[0xdead_beefu32; 32]; wgmma.words()[1]];
        for k in (0..depth).step_by(wgmma.k) {
            let (left, right) = step(warp, k);
            wgmma.multiply(&left, &right, Scale { d: k > 0, ..PLUS }, &mut words);
        }
        let size = bits(d, 0).1;
        for lane in 0..32 {
            for i in 0..wgmma.n / 2 {
                let (row, column) = place_d(warp, lane, i);
                values[row * wgmma.n + column] = get(&words, i, lane, size);
            }
        }
    }
    values
}

#[test]
fn operands_in_shared_memory_multiply_with_every_swizzle_type_and_majorness() {
    let mut numbers = Numbers(5);
    for (d, a, b, k) in [
        ("f32", "f16", "f16", 16),
        ("f16", "f16", "f16", 16),
        ("f32", "bf16", "bf16", 16),
        ("f32", "tf32", "tf32", 8),
        ("f32", "e4m3", "e5m2", 32),
        ("f16", "e5m2", "e4m3", 32),
        ("s32", "s8", "u8", 32),
        ("s32", "u8", "s8", 32),
    ] {
        let size = bits(a, 0).1 / 8;
        let majorness: &[(bool, bool)] =
            if size == 2 { &[(false, false), (false, true), (true, false), (true, true)] } else { &[(false, false)] };
        for (&(transpose_a, transpose_b), (i, swizzle)) in
            majorness.iter().flat_map(|both| SWIZZLES.into_iter().enumerate().map(move |swizzle| (both, swizzle)))
        {
            // An MN-major atom of 128 bytes is 64 columns wide; other operands take any number.
            let n = [24, 32, 96, 128][i];
            let wgmma = parse(&format!("mma_async.sync.aligned.m64n{n}k{k}.{d}.{a}.{b}"));
            assert_eq!(wgmma.has_transposes(), size == 2);
            let of_a = Placing::new(swizzle, transpose_a, size, 64);
            let of_b = Placing::new(swizzle, transpose_b, size, n);
            let depth = of_a.depth().min(of_b.depth());
            let left: Vec<i64> = (0..64 * depth).map(|_| number(a, &mut numbers)).collect();
            let right: Vec<i64> = (0..n * depth).map(|_| number(b, &mut numbers)).collect();
            let (start_a, start_b) = (1024, 1 << 16);
            let mut memory = Bytes(vec![0x55; 1 << 18]);
            of_a.store(a, &left, depth, &mut memory.0[start_a..]);
            of_b.store(b, &right, depth, &mut memory.0[start_b..]);
            let found = run(&wgmma, d, depth, |warp, k| {
                let left = of_a.descriptor(start_a, k);
                let right = of_b.descriptor(start_b, k);
                (
                    wgmma.left_in_shared(left, transpose_a, warp, &mut memory).unwrap(),
                    wgmma.right(right, transpose_b, &mut memory).unwrap(),
                )
            });
            for (i, found) in found.into_iter().enumerate() {
                let (row, column) = (i / n, i % n);
                let sum = (0..depth).map(|k| left[row * depth + k] * right[column * depth + k]).sum();
                assert_eq!(found, bits(d, sum).0, "{wgmma:?} {of_a:?} {of_b:?} row {row}, column {column}");
            }
        }
    }
}

#[test]
fn the_left_operand_in_registers_has_the_layout_of_cute() {
    let mut numbers = Numbers(6);
    // Entry `i` of a lane: rows of 16-bit, 32-bit and 8-bit elements.
    type Place = fn(usize, usize) -> (usize, usize);
    let cases: [(&str, &str, usize, Place); 3] = [
        ("f32", "bf16", 16, |lane, i| (lane / 4 + i / 2 % 2 * 8, lane % 4 * 2 + i % 2 + i / 4 * 8)),
        ("f32", "tf32", 8, |lane, i| (lane / 4 + i % 2 * 8, lane % 4 + i / 2 * 4)),
        ("s32", "s8", 32, |lane, i| (lane / 4 + i / 4 % 2 * 8, lane % 4 * 4 + i % 4 + i / 8 * 16)),
    ];
    for (d, a, k, place) in cases {
        let (n, (_, size)) = (16, bits(a, 0));
        let wgmma = parse(&format!("mma_async.sync.aligned.m64n{n}k{k}.{d}.{a}.{a}"));
        let left: Vec<i64> = (0..64 * k).map(|_| number(a, &mut numbers)).collect();
        let right: Vec<i64> = (0..n * k).map(|_| number(a, &mut numbers)).collect();
        let of_b = Placing::new(Swizzle::B32, false, size / 8, n);
        let mut memory = Bytes(vec![0; 1 << 16]);
        of_b.store(a, &right, k, &mut memory.0);
        let found = run(&wgmma, d, k, |warp, k| {
            let mut words = vec![[0u32; 32]; wgmma.words()[0]];
            for lane in 0..32 {
                for i in 0..16 * wgmma.k / 32 {
                    let (row, column) = place(lane, i);
                    let value = left[(16 * warp + row) * wgmma.k + column];
                    put(&mut words, i, lane, bits(a, value));
                }
            }
            (wgmma.left_in_registers(&words), wgmma.right(of_b.descriptor(0, k), false, &mut memory).unwrap())
        });
        for (i, found) in found.into_iter().enumerate() {
            let sum = (0..k).map(|j| left[i / n * k + j] * right[i % n * k + j]).sum();
            assert_eq!(found, bits(d, sum).0, "{a}");
        }
    }
}

#[test]
fn negated_operands_and_a_pattern_that_starts_elsewhere() {
    let wgmma = parse("mma_async.sync.aligned.m64n8k16.f32.f16.f16");
    let left = wgmma.left_in_registers(&[[0x4000_3c00; 32]; 4]);
    let of_b = Placing::new(Swizzle::B128, false, 2, 8);
    let mut memory = Bytes(vec![0; 1 << 12]);
    let ones: Vec<i64> = (0..8 * 64).map(|i| i64::from(i % 64 < 16)).collect();
    // Stored as from 0 on, and moved by three rows of 128 bytes with its base offset.
    of_b.store("f16", &ones, 64, &mut memory.0[..1024]);
    memory.0.copy_within(0..1024, 384);
    let descriptor = Descriptor::decode(of_b.descriptor(384, 0).encode() | 3 << 49);
    let right = wgmma.right(descriptor, false, &mut memory).unwrap();
    for (negate_a, negate_b, wanted) in
        [(false, false, 24f32), (true, false, -24.0), (false, true, -24.0), (true, true, 24.0)]
    {
        let mut d = [[1f32.to_bits(); 32]; 4];
        wgmma.multiply(&left, &right, Scale { d: true, negate_a, negate_b }, &mut d);
        assert_eq!(d, [[(wanted + 1.0).to_bits(); 32]; 4]);
        wgmma.multiply(&left, &right, Scale { d: false, negate_a, negate_b }, &mut d);
        assert_eq!(d, [[wanted.to_bits(); 32]; 4]);
    }
}

#[test]
fn shapes_and_types_are_those_of_the_manual() {
    let known = |words: &str| Wgmma::parse(&format!("mma_async.sync.aligned.{words}").split('.').collect::<Vec<_>>());
    for words in ["m64n256k16.f32.bf16.bf16", "m64n40k16.f16.f16.f16", "m64n48k32.s32.satfinite.s8.s8"] {
        assert!(known(words).is_ok(), "{words}");
    }
    for words in [
        "m64n264k16.f32.bf16.bf16",
        "m64n12k16.f32.bf16.bf16",
        "m64n40k32.s32.s8.s8",
        "m64n8k16.f16.bf16.bf16",
        "m64n8k8.f32.f16.f16",
        "m64n8k256.s32.b1.b1",
        "m64n8k16.satfinite.f32.f16.f16",
    ] {
        assert!(known(words).is_err(), "{words}");
    }
}
