//! Checks that the dropout mask is a function of the key and the element's position in the global batch, fair, and
//! independent of other masks.

use burn::tensor::{DType, Device, Tensor};
use fused::{DropoutKey, dropout};
use proptest::prelude::*;

/// Returns the mask of `rows` rows of `width` elements from the key's first row on: 0 or `1 / (1 - p)`.
fn mask(rows: usize, width: usize, p: f64, key: DropoutKey, dtype: DType) -> Vec<f64> {
    let ones = Tensor::<2>::ones([rows, width], (&Device::flex(), dtype));
    dropout(ones, p, key).into_data().iter::<f64>().collect()
}

fn kept(mask: &[f64]) -> Vec<bool> {
    mask.iter().map(|value| *value != 0.0).collect()
}

/// Whether a count of `n` draws of probability `p` is within 6 standard deviations; one in 5e8 fair counts is not.
fn is_fair(count: usize, n: usize, p: f64) -> bool {
    let n = n as f64;
    (count as f64 - n * p).abs() <= 6.0 * (n * p * (1.0 - p)).sqrt()
}

fn agreements(a: &[bool], b: &[bool]) -> usize {
    a.iter().zip(b).filter(|(a, b)| a == b).count()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    // Widths exceed the elements of one task (16 Ki).
    #[test]
    fn a_row_has_the_same_mask_in_any_part_of_the_batch(
        (rows, split) in (2usize..6).prop_flat_map(|rows| (Just(rows), 1..rows)),
        width in prop_oneof![1usize..50, 8000usize..20000],
        p in 0.05f64..0.95,
        seed: u64,
        first_row in 0u64..1 << 40,
    ) {
        let key = DropoutKey::derive(seed, 3, 1, 2).at_row(first_row);
        let whole = mask(rows, width, p, key, DType::F32);
        let first = mask(split, width, p, key, DType::F32);
        let second = mask(rows - split, width, p, key.at_row(first_row + split as u64), DType::F32);
        prop_assert_eq!(&whole[..split * width], &first[..]);
        prop_assert_eq!(&whole[split * width..], &second[..]);
    }

    #[test]
    fn values_and_gradients_are_those_of_the_mask(
        rows in 1usize..4, width in 1usize..30, p in 0.0f64..0.95, seed: u64,
    ) {
        let key = DropoutKey { key: seed, first_row: seed >> 32, first_index: 0 };
        let expected = mask(rows, width, p, key, DType::F32);
        let scale = 1.0 / (1.0 - p);
        prop_assert!(expected.iter().all(|value| *value == 0.0 || (value - scale).abs() < 1e-6 * scale));
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let tolerance = if dtype == DType::F32 { 1e-6 } else { 8e-3 };
            let x = Tensor::<2>::ones([rows, width], (&Device::flex(), dtype)).autodiff().require_grad();
            let y = dropout(x.clone() * 3.0, p, key);
            prop_assert_eq!(y.dtype(), dtype);
            let gradient = x.grad(&y.clone().sum().backward()).unwrap();
            for found in [y, gradient] {
                for (found, expected) in found.into_data().iter::<f64>().zip(&expected) {
                    prop_assert!((found - 3.0 * expected).abs() <= tolerance * 3.0 * expected, "{} {}", found, expected);
                }
            }
        }
    }

    #[test]
    fn about_p_of_the_elements_are_dropped(p in 0.01f64..0.99, seed: u64) {
        let (rows, width) = (8, 4096);
        let dropped = mask(rows, width, p, DropoutKey { key: seed, first_row: 0, first_index: 0 }, DType::F32).iter().filter(|x| **x == 0.0).count();
        prop_assert!(is_fair(dropped, rows * width, p), "{} of {} at p = {}", dropped, rows * width, p);
    }

    #[test]
    fn masks_of_other_keys_rows_and_shifts_are_uncorrelated(seed in 0u64..1000, step in 0u64..1000, layer in 0u64..100, place in 0u64..8) {
        const N: usize = 16 * 1024;
        let of = |seed, step, layer, place, row| {
            kept(&mask(1, N, 0.5, DropoutKey::derive(seed, step, layer, place).at_row(row), DType::F32))
        };
        let mask = of(seed, step, layer, place, 0);
        let others = [
            of(seed + 1, step, layer, place, 0),
            of(seed, step + 1, layer, place, 0),
            of(seed, step, layer + 1, place, 0),
            of(seed, step, layer, place + 1, 0),
            of(seed, step, layer, place, 1),
        ];
        for (i, other) in others.iter().enumerate() {
            prop_assert!(is_fair(agreements(&mask, other), N, 0.5), "other mask {}", i);
        }
        for shift in [1, 2, 64] {
            prop_assert!(is_fair(agreements(&mask[shift..], &mask), N - shift, 0.5), "neighbours at {}", shift);
        }
    }
}

#[test]
#[should_panic(expected = "dropout: p is 1, not in 0..1")]
fn all_elements_cannot_be_dropped() {
    mask(1, 1, 1.0, DropoutKey { key: 0, first_row: 0, first_index: 0 }, DType::F32);
}
