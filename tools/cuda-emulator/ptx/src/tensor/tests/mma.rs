//! `mma.sync` against sums of whole numbers.

use super::*;
use half::{bf16, f16};

/// Row and column of element `i` of lane `lane`, in the manual's words.
type Place = fn(i: usize, lane: usize) -> (usize, usize);

/// A shape of the manual: its types of elements, and where those of `a` and `b` are.
struct Shape {
    size: (usize, usize, usize),
    types: &'static [(&'static str, &'static str, &'static str)],
    a: Place,
    b: Place,
}

const fn group(lane: usize) -> usize {
    lane >> 2
}

const fn thread(lane: usize) -> usize {
    lane % 4
}

/// The shapes in the manual's order, by "Matrix Fragments for mma.m16n8k8" and so on.
const SHAPES: &[Shape] = &[
    Shape {
        size: (8, 8, 4),
        types: &[("f64", "f64", "f64")],
        a: |_, lane| (group(lane), thread(lane)),
        b: |_, lane| (thread(lane), group(lane)),
    },
    Shape {
        size: (8, 8, 16),
        types: &[("s32", "s8", "s8"), ("s32", "s8", "u8"), ("s32", "u8", "s8"), ("s32", "u8", "u8")],
        a: |i, lane| (group(lane), thread(lane) * 4 + i),
        b: |i, lane| (thread(lane) * 4 + i, group(lane)),
    },
    Shape {
        size: (8, 8, 32),
        types: &[("s32", "s4", "s4"), ("s32", "u4", "s4")],
        a: |i, lane| (group(lane), thread(lane) * 8 + i),
        b: |i, lane| (thread(lane) * 8 + i, group(lane)),
    },
    Shape {
        size: (16, 8, 4),
        types: &[("f32", "tf32", "tf32"), ("f64", "f64", "f64")],
        a: |i, lane| (if i == 0 { group(lane) } else { group(lane) + 8 }, thread(lane)),
        b: |_, lane| (thread(lane), group(lane)),
    },
    Shape {
        size: (16, 8, 8),
        types: &[("f16", "f16", "f16"), ("f32", "f16", "f16"), ("f32", "bf16", "bf16")],
        a: |i, lane| (if i < 2 { group(lane) } else { group(lane) + 8 }, thread(lane) * 2 + (i & 1)),
        b: |i, lane| (thread(lane) * 2 + i, group(lane)),
    },
    Shape {
        size: (16, 8, 8),
        types: &[("f32", "tf32", "tf32"), ("f64", "f64", "f64")],
        a: |i, lane| {
            let row = if i == 0 || i == 2 { group(lane) } else { group(lane) + 8 };
            (row, if i < 2 { thread(lane) } else { thread(lane) + 4 })
        },
        b: |i, lane| (if i == 0 { thread(lane) } else { thread(lane) + 4 }, group(lane)),
    },
    Shape {
        size: (16, 8, 16),
        types: &[("f16", "f16", "f16"), ("f32", "f16", "f16"), ("f32", "bf16", "bf16")],
        a: |i, lane| {
            let row = if i < 2 || (4..6).contains(&i) { group(lane) } else { group(lane) + 8 };
            (row, thread(lane) * 2 + (i & 1) + if i < 4 { 0 } else { 8 })
        },
        b: |i, lane| (thread(lane) * 2 + (i & 1) + if i < 2 { 0 } else { 8 }, group(lane)),
    },
    Shape {
        size: (16, 8, 16),
        types: &[("f64", "f64", "f64")],
        a: |i, lane| {
            if i % 2 == 0 { (group(lane), i * 2 + thread(lane)) } else { (group(lane) + 8, i * 2 - 2 + thread(lane)) }
        },
        b: |i, lane| (thread(lane) + i * 4, group(lane)),
    },
    Shape {
        size: (16, 8, 16),
        types: &[("s32", "s8", "s8"), ("s32", "u8", "s8"), ("f32", "e4m3", "e5m2"), ("f16", "e5m2", "e4m3")],
        a: |i, lane| (if i < 4 { group(lane) } else { group(lane) + 8 }, thread(lane) * 4 + (i & 3)),
        b: |i, lane| (thread(lane) * 4 + i, group(lane)),
    },
    Shape {
        size: (16, 8, 32),
        types: &[("s32", "s8", "u8"), ("s32", "s8", "s8"), ("f32", "e4m3", "e4m3"), ("f32", "e5m2", "e4m3")],
        a: |i, lane| {
            let row = if i < 4 || (8..12).contains(&i) { group(lane) } else { group(lane) + 8 };
            (row, thread(lane) * 4 + (i & 3) + if i < 8 { 0 } else { 16 })
        },
        b: |i, lane| (thread(lane) * 4 + (i & 3) + if i < 4 { 0 } else { 16 }, group(lane)),
    },
    Shape {
        size: (16, 8, 32),
        types: &[("s32", "u4", "s4"), ("s32", "s4", "s4")],
        a: |i, lane| (if i < 8 { group(lane) } else { group(lane) + 8 }, thread(lane) * 8 + (i & 7)),
        b: |i, lane| (thread(lane) * 8 + (i & 7), group(lane)),
    },
    Shape {
        size: (16, 8, 64),
        types: &[("s32", "s4", "u4"), ("s32", "u4", "u4")],
        a: |i, lane| {
            let row = if i < 8 || (16..24).contains(&i) { group(lane) } else { group(lane) + 8 };
            (row, thread(lane) * 8 + (i & 7) + if i < 16 { 0 } else { 32 })
        },
        b: |i, lane| (thread(lane) * 8 + (i & 7) + if i < 8 { 0 } else { 32 }, group(lane)),
    },
];

/// Where the accumulators of every shape are.
fn place_c(i: usize, lane: usize) -> (usize, usize) {
    (if i < 2 { group(lane) } else { group(lane) + 8 }, thread(lane) * 2 + (i & 1))
}

/// The bits of a whole number, and how many they are.
pub fn bits(of: &str, value: i64) -> (u64, usize) {
    let float = value as f32;
    match of {
        "f64" => ((value as f64).to_bits(), 64),
        "f32" | "tf32" => (u64::from(float.to_bits()), 32),
        "f16" => (u64::from(f16::from_f32(float).to_bits()), 16),
        "bf16" => (u64::from(bf16::from_f32(float).to_bits()), 16),
        // 5 and 4 bits of exponent, found among the positive numbers.
        "e5m2" => (u64::from(f16::from_f32(float).to_bits() >> 8), 8),
        "e4m3" => {
            let found = (0..0x7fu64).find(|bits| {
                let (exponent, fraction) = (*bits as i32 >> 3, (bits & 7) as f32 / 8.0);
                let power = 2f32.powi(exponent.max(1) - 7);
                float.abs() == power * (fraction + if exponent == 0 { 0.0 } else { 1.0 })
            });
            (found.unwrap() | if value < 0 { 0x80 } else { 0 }, 8)
        }
        "s32" => (value as u64 & 0xffff_ffff, 32),
        "s8" | "u8" => (value as u64 & 0xff, 8),
        "s4" | "u4" => (value as u64 & 0xf, 4),
        _ => unreachable!("{of}"),
    }
}

/// A whole number that the type has exactly.
pub fn number(of: &str, numbers: &mut Numbers) -> i64 {
    match of {
        "s8" => numbers.below(256) as i64 - 128,
        "u8" => numbers.below(256) as i64,
        "s4" => numbers.below(16) as i64 - 8,
        "u4" => numbers.below(16) as i64,
        "e5m2" => numbers.whole(4),
        "s32" => numbers.whole(1 << 20),
        "f64" => numbers.whole(1 << 20),
        _ => numbers.whole(8),
    }
}

/// Sets element `i` of lane `lane`.
pub fn put(words: &mut [Words], i: usize, lane: usize, (bits, size): (u64, usize)) {
    if size == 64 {
        (words[2 * i][lane], words[2 * i + 1][lane]) = (bits as u32, (bits >> 32) as u32);
    } else {
        words[i * size / 32][lane] |= (bits as u32) << (i * size % 32);
    }
}

/// Element `i` of lane `lane`.
pub fn get(words: &[Words], i: usize, lane: usize, size: usize) -> u64 {
    if size == 64 {
        u64::from(words[2 * i][lane]) | u64::from(words[2 * i + 1][lane]) << 32
    } else {
        u64::from(words[i * size / 32][lane] >> (i * size % 32)) & ((1 << size) - 1)
    }
}

fn parse(words: &str) -> Result<Mma, Refused> {
    Mma::parse(&words.split('.').collect::<Vec<_>>())
}

#[test]
fn every_shape_and_type_multiplies_where_the_manual_puts_elements() {
    let mut numbers = Numbers(1);
    for shape in SHAPES {
        let (m, n, k) = shape.size;
        for (d, a, b) in shape.types {
            let name = format!("sync.aligned.m{m}n{n}k{k}.row.col.{d}.{a}.{b}.{d}");
            let mma = parse(&name).unwrap();
            let left: Vec<i64> = (0..m * k).map(|_| number(a, &mut numbers)).collect();
            let right: Vec<i64> = (0..k * n).map(|_| number(b, &mut numbers)).collect();
            let before: Vec<i64> = (0..m * n).map(|_| number(d, &mut numbers)).collect();

            let [mut of_a, mut of_b, mut of_c, mut of_d] = mma.words().map(|words| vec![[0u32; 32]; words]);
            for lane in 0..32 {
                for i in 0..m * k / 32 {
                    let (row, column) = (shape.a)(i, lane);
                    put(&mut of_a, i, lane, bits(a, left[row * k + column]));
                }
                for i in 0..k * n / 32 {
                    let (row, column) = (shape.b)(i, lane);
                    put(&mut of_b, i, lane, bits(b, right[row * n + column]));
                }
                for i in 0..m * n / 32 {
                    let (row, column) = place_c(i, lane);
                    put(&mut of_c, i, lane, bits(d, before[row * n + column]));
                }
            }
            mma.execute(&of_a, &of_b, &of_c, &mut of_d);
            for lane in 0..32 {
                for i in 0..m * n / 32 {
                    let (row, column) = place_c(i, lane);
                    let sum: i64 = (0..k).map(|j| left[row * k + j] * right[j * n + column]).sum();
                    let (wanted, size) = bits(d, sum + before[row * n + column]);
                    assert_eq!(get(&of_d, i, lane, size), wanted, "{name}, row {row}, column {column}");
                }
            }
            assert_eq!(mma.flops(), 2 * (m * n * k) as u64);
        }
    }
}

#[test]
fn integers_wrap_or_saturate_and_nan_is_canonical() {
    let name = "sync.aligned.m16n8k32.row.col.s32.s8.s8.s32";
    let (ones, mut d) = ([[0x0101_0101u32; 32]; 4], [[0u32; 32]; 4]);
    let c = [[i32::MAX as u32; 32]; 4];
    parse(name).unwrap().execute(&ones, &ones[..2], &c, &mut d);
    assert_eq!(d, [[(i32::MIN + 31) as u32; 32]; 4]);
    parse(&name.replace("col", "col.satfinite")).unwrap().execute(&ones, &ones[..2], &c, &mut d);
    assert_eq!(d, c);

    let infinities = [[0xff80_7f80u32; 32]; 4];
    let mma = parse("sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32").unwrap();
    mma.execute(&infinities, &infinities[..2], &[[0; 32]; 4], &mut d);
    assert_eq!(d, [[0x7f80_0000; 32]; 4]);
    mma.execute(&infinities, &[[0x3f80_3f80; 32]; 2], &[[0; 32]; 4], &mut d);
    assert_eq!(d, [[0x7fff_ffff; 32]; 4]);
}

#[test]
fn what_is_not_known_is_refused_by_name() {
    for name in [
        "sync.aligned.m8n8k4.row.col.f32.f16.f16.f32",
        "sync.aligned.m16n8k16.row.col.f32.f16.f16.f16",
        "sync.aligned.m16n8k16.col.col.f32.f16.f16.f32",
        "sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.xor.popc",
        "sp.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32",
        "sync.aligned.m16n8k16.row.col.satfinite.f32.f16.f16.f32",
    ] {
        let Refused(message) = parse(name).unwrap_err();
        assert!(message.starts_with(&format!("mma.{name}: ")), "{message}");
    }
    assert_eq!(parse("sync.aligned.m16n8k16.row.col.f64.f64.f64.f64").unwrap().minimum_sm(), Some(90));
}
