//! `wmma` through memory: what a program sees of it.

use super::mma::{bits, number};
use super::*;

/// Stores a matrix of `lines` lines, each `stride` elements behind the last one, and returns the bytes.
fn matrix(of: &str, values: &[i64], (rows, columns): (usize, usize), layout: &str, stride: usize) -> Vec<u8> {
    let size = bits(of, 0).1 / 8;
    let mut bytes = vec![0xa5u8; 64 * stride * size];
    for row in 0..rows {
        for column in 0..columns {
            let index = if layout == "row" { row * stride + column } else { column * stride + row };
            let bits = bits(of, values[row * columns + column]).0.to_le_bytes();
            bytes[index * size..][..size].copy_from_slice(&bits[..size]);
        }
    }
    bytes
}

fn split(words: &str) -> Vec<&str> {
    words.split('.').collect()
}

#[test]
fn loads_products_and_stores_of_every_shape_type_and_layout_are_a_product() {
    let mut numbers = Numbers(4);
    let large: &[&str] = &["m16n16k16", "m32n8k16", "m8n32k16"];
    let cases: [(&[&str], &str, &str, &str); 9] = [
        (large, "f16", "f32", "f32"),
        (large, "f16", "f16", "f16"),
        (large, "f16", "f16", "f32"),
        (large, "f16", "f32", "f16"),
        (large, "bf16", "f32", "f32"),
        (large, "s8", "s32", "s32"),
        (large, "u8", "s32", "s32"),
        (&["m16n16k8"], "tf32", "f32", "f32"),
        (&["m8n8k4"], "f64", "f64", "f64"),
    ];
    for (shapes, input, c, d) in cases {
        for shape in shapes {
            for (layout_a, layout_b, layout_c) in [("row", "col", "row"), ("col", "row", "col")] {
                let size: Vec<usize> = shape.split(['m', 'n', 'k']).skip(1).map(|size| size.parse().unwrap()).collect();
                let [m, n, k] = size[..] else { unreachable!() };
                let types = match input {
                    "f16" => format!("{d}.{c}"),
                    _ => format!("{d}.{input}.{input}.{c}"),
                };
                let name = format!("mma.sync.aligned.{layout_a}.{layout_b}.{shape}.{types}");
                let mma = WmmaMma::parse(&split(&name)).unwrap();
                let mut of = |of, count| (0..count).map(|_| number(of, &mut numbers)).collect::<Vec<i64>>();
                let (left, right, before) = (of(input, m * k), of(input, k * n), of(c, m * n));
                let stride = 48;
                let load = |letter, of, values: &[i64], size, layout| {
                    let words = format!("load.{letter}.sync.aligned.{layout}.{shape}.shared.{of}");
                    let load = WmmaLoad::parse(&split(&words)).unwrap();
                    let mut words = vec![[0u32; 32]; load.words()];
                    let mut memory = Bytes(matrix(of, values, size, layout, stride));
                    load.execute(0, Some(stride as u64), &mut memory, &mut words).unwrap();
                    words
                };
                let a = load("a", input, &left, (m, k), layout_a);
                let b = load("b", input, &right, (k, n), layout_b);
                let of_c = load("c", c, &before, (m, n), layout_c);
                let mut of_d = vec![[0u32; 32]; mma.words()[3]];
                mma.execute(&a, &b, &of_c, &mut of_d);

                let words = format!("store.d.sync.aligned.{layout_c}.{shape}.global.{d}");
                let store = WmmaStore::parse(&split(&words)).unwrap();
                assert_eq!(store.words(), of_d.len());
                let product: Vec<i64> = (0..m * n)
                    .map(|i| before[i] + (0..k).map(|j| left[i / n * k + j] * right[j * n + i % n]).sum::<i64>())
                    .collect();
                let wanted = matrix(d, &product, (m, n), layout_c, stride);
                let mut memory = Bytes(vec![0xa5; wanted.len()]);
                store.execute(0, Some(stride as u64), &of_d, u32::MAX, &mut memory).unwrap();
                assert!(memory.0 == wanted, "{name}");
                // Lanes apart store their elements.
                let mut memory = Bytes(vec![0xa5; wanted.len()]);
                for lanes in [0x5555_5555, 0xaaaa_aaaa] {
                    store.execute(0, Some(stride as u64), &of_d, lanes, &mut memory).unwrap();
                }
                assert!(memory.0 == wanted, "{name}");
            }
        }
    }
}

#[test]
fn registers_are_as_many_as_the_manual_says() {
    for (words, count) in [
        ("a.sync.aligned.row.m16n16k16.f16", 8),
        ("b.sync.aligned.col.m32n8k16.f16", 8),
        ("a.sync.aligned.row.m16n16k16.bf16", 4),
        ("b.sync.aligned.row.m32n8k16.bf16", 2),
        ("a.sync.aligned.row.m32n8k16.bf16", 8),
        ("a.sync.aligned.row.m8n32k16.s8", 1),
        ("b.sync.aligned.row.m8n32k16.u8", 4),
        ("a.sync.aligned.row.m16n16k8.tf32", 4),
        ("c.sync.aligned.row.m16n16k16.f16", 4),
        ("c.sync.aligned.row.m8n32k16.f32", 8),
        ("c.sync.aligned.row.m8n8k4.f64", 4),
    ] {
        let words = format!("load.{words}");
        assert_eq!(WmmaLoad::parse(&split(&words)).unwrap().words(), count, "{words}");
    }
    for words in ["load.a.sync.aligned.row.m8n8k32.s4", "load.a.sync.aligned.row.m16n16k16.f32"] {
        assert!(WmmaLoad::parse(&split(words)).is_err());
    }
}
