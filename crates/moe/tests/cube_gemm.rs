//! Compares the grouped products in CubeCL with sums in f64, on CubeCL's CPU runtime.
#![cfg(any(feature = "cpu-jit", feature = "cuda", feature = "vulkan"))]

use burn::tensor::{DType, Device};
use fused::cube::launch::{CpuUnits, set_cpu_units};
use fused::cube::testing;
use moe::kernels::grouped_gemm::{Tier, force_tier, grouped_gemm};
use test_kit::{eighths, float, floats, int};

struct Case {
    r: usize,
    p: usize,
    q: usize,
    expert_offsets: Vec<i32>,
}

struct Products {
    y: Vec<f32>,
    d_x: Vec<f32>,
    d_weight: Vec<f32>,
}

fn reference(case: &Case, x: &[f32], weight: &[f32], d_y: &[f32]) -> Products {
    let Case { r, p, q, expert_offsets } = case;
    let (r, p, q) = (*r, *p, *q);
    let mut y = vec![0f64; r * q];
    let mut d_x = vec![0f64; r * p];
    let mut d_weight = vec![0f64; weight.len()];
    for (e, borders) in expert_offsets.windows(2).enumerate() {
        for row in borders[0] as usize..borders[1] as usize {
            for i in 0..p {
                for j in 0..q {
                    let w = (e * p + i) * q + j;
                    y[row * q + j] += x[row * p + i] as f64 * weight[w] as f64;
                    d_x[row * p + i] += d_y[row * q + j] as f64 * weight[w] as f64;
                    d_weight[w] += x[row * p + i] as f64 * d_y[row * q + j] as f64;
                }
            }
        }
    }
    let f32s = |values: Vec<f64>| values.into_iter().map(|value| value as f32).collect();
    Products { y: f32s(y), d_x: f32s(d_x), d_weight: f32s(d_weight) }
}

fn run(case: &Case, x: &[f32], weight: &[f32], d_y: &[f32], dtype: DType) -> Products {
    let device = testing::device().autodiff();
    let e = case.expert_offsets.len() - 1;
    let x = float(x, [case.r, case.p], dtype, &device).require_grad();
    let weight = float(weight, [e, case.p, case.q], dtype, &device).require_grad();
    let expert_offsets = int(&case.expert_offsets, [e + 1], &device);
    let y = grouped_gemm(x.clone(), weight.clone(), &expert_offsets);
    let gradients = match dtype {
        DType::F32 => (y.clone() * float(d_y, [case.r, case.q], dtype, &device)).backward(),
        // Burn's bf16 product does not compile on every CPU, so the gradient of `y` is 1.
        _ => y.clone().backward(),
    };
    Products {
        y: floats(y),
        d_x: floats(x.grad(&gradients).unwrap()),
        d_weight: floats(weight.grad(&gradients).unwrap()),
    }
}

fn check(case: &Case, dtype: DType) {
    let e = case.expert_offsets.len() - 1;
    let (x, weight) = (eighths(1, case.r * case.p), eighths(2, e * case.p * case.q));
    let d_y = if dtype == DType::F32 { eighths(3, case.r * case.q) } else { vec![1.0; case.r * case.q] };
    let (got, want) = (run(case, &x, &weight, &d_y, dtype), reference(case, &x, &weight, &d_y));
    // Half a unit in the last of 8, 11 or 24 bits; for f32 also the rounding errors of the sum.
    let tolerance = match dtype {
        DType::BF16 => 1.0 / 256.0,
        DType::F16 => 1.0 / 2048.0,
        _ => 1e-6,
    };
    for (name, got, want) in [("y", got.y, want.y), ("dx", got.d_x, want.d_x), ("dW", got.d_weight, want.d_weight)] {
        assert_eq!(got.len(), want.len());
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            assert!((got - want).abs() <= tolerance * want.abs().max(1.0), "{name}[{i}] is {got}, not {want}");
        }
    }
}

/// Segments of these lengths, followed by `tail` rows.
fn case(lengths: &[usize], tail: usize, p: usize, q: usize) -> Case {
    let mut expert_offsets = vec![0];
    expert_offsets.extend(lengths.iter().scan(0, |end, length| {
        *end += *length as i32;
        Some(*end)
    }));
    Case { r: lengths.iter().sum::<usize>() + tail, p, q, expert_offsets }
}

/// Names and cases; widths are multiples of 4 or not, and more or less than a tile.
fn cases() -> Vec<(&'static str, Case)> {
    let few_of_many: Vec<usize> = (0..256).map(|e| if e % 50 == 7 { e % 3 + 1 } else { 0 }).collect();
    vec![
        ("an expert without rows between others, rows behind the last", case(&[6, 0, 4], 3, 20, 12)),
        ("the first and the last expert without rows", case(&[0, 33, 0], 0, 36, 68)),
        ("widths of odd numbers", case(&[9, 1, 17], 5, 5, 7)),
        ("all rows at one expert", case(&[0, 0, 150, 0], 0, 16, 8)),
        ("one expert", case(&[40], 2, 8, 24)),
        ("no rows", case(&[0, 0], 0, 8, 4)),
        ("no rows in any segment", case(&[0, 0], 9, 8, 4)),
        ("256 experts with few rows", case(&few_of_many, 6, 8, 12)),
        ("segments of whole tiles", case(&[128, 0, 256], 128, 16, 32)),
    ]
}

/// Resets units and tier when dropped, even if a test fails.
struct Forced(#[allow(dead_code)] CpuUnits);

impl Forced {
    fn new(tier: Option<Tier>, units: usize) -> Self {
        let alone = set_cpu_units(units);
        force_tier(tier);
        Self(alone)
    }
}

impl Drop for Forced {
    fn drop(&mut self) {
        force_tier(None);
    }
}

fn check_simt(units: usize, dtype: DType) {
    let _forced = Forced::new(Some(Tier::Simt), units);
    if !testing::units().contains(&units) || !testing::computes_in(dtype, "sums without tensor cores") {
        return;
    }
    for (name, case) in cases() {
        println!("{name}");
        check(&case, dtype);
    }
}

#[test]
fn simt_with_one_unit_sums_as_f64() {
    check_simt(1, DType::F32);
}

#[test]
fn simt_with_two_units_sums_as_f64() {
    check_simt(2, DType::F32);
}

#[test]
fn simt_rounds_sums_of_bf16_once() {
    check_simt(1, DType::BF16);
    check_simt(2, DType::BF16);
}

/// Only two cases: cubek's kernels have barriers between several units, which spin on a CPU, and each width takes
/// seconds to compile.
#[test]
fn multi_level_sums_as_f64() {
    let _forced = Forced::new(Some(Tier::MultiLevel), 1);
    check(&case(&[6, 0, 34], 3, 20, 12), DType::F32);
    check(&case(&[9, 0], 5, 5, 7), DType::F32);
}

/// Needs a device with tensor cores, which CubeCL's CPU runtime and lavapipe do not have.
#[test]
fn tensor_cores_sum_as_f64() {
    for (tier, dtypes) in [(Tier::MultiLevel, &[DType::BF16, DType::F16][..]), (Tier::Wgmma, &[DType::BF16])] {
        let _forced = Forced::new(Some(tier), 1);
        if let Err(why) = if testing::has_tensor_cores() { can_run(tier) } else { Err("no tensor cores".into()) } {
            eprintln!("skipped: {tier}: {why}");
            continue;
        }
        for &dtype in dtypes {
            for (name, case) in cases() {
                // Copies by hardware need whole vectors of 8.
                let whole = case.p % 8 == 0 && case.q % 8 == 0;
                if tier == Tier::Wgmma && !whole {
                    continue;
                }
                println!("{tier}, {dtype:?}: {name}");
                check(&case, dtype);
            }
            check(&case(&[200, 1, 0, 131], 20, 136, 264), dtype);
        }
    }
}

/// Whether the forced tier runs; if not, the message of its panic.
fn can_run(tier: Tier) -> Result<(), String> {
    let device = testing::device();
    let x = float(&[1.0; 64], [8, 8], DType::BF16, &device);
    let weight = float(&[1.0; 64], [1, 8, 8], DType::BF16, &device);
    let expert_offsets = int(&[0, 8], [2], &device);
    let run = || grouped_gemm(x, weight, &expert_offsets).into_data();
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)) {
        Ok(_) => Ok(()),
        Err(panic) => {
            let message = panic.downcast_ref::<String>().expect("a message").clone();
            assert!(message.contains(&format!("tier {tier} cannot run here")), "{message}");
            Err(message)
        }
    }
}

#[test]
fn kernels_and_plain_rust_agree() {
    let _forced = Forced::new(None, 1);
    let case = case(&[70, 3, 0, 29], 26, 48, 40);
    let (x, weight) = (eighths(1, case.r * case.p), eighths(2, 4 * case.p * case.q));
    let on = |device: &Device| {
        let x = float(&x, [case.r, case.p], DType::F32, device);
        let weight = float(&weight, [4, case.p, case.q], DType::F32, device);
        let expert_offsets = int(&case.expert_offsets, [5], device);
        floats(grouped_gemm(x, weight, &expert_offsets))
    };
    let (kernels, plain) = (on(&testing::device()), on(&Device::flex()));
    for (kernel, plain) in kernels.iter().zip(&plain) {
        assert!((kernel - plain).abs() <= 1e-5, "{kernel} and {plain}");
    }
}

/// The CPU rejects borders of rows that do not exist. A device does not see them on the host, but it must stay within
/// the existing rows.
#[test]
fn borders_that_are_none_write_no_row_that_is_not_there() {
    for (r, expert_offsets) in [(256, vec![0, -5]), (16, vec![0, 1_000]), (16, vec![0, -9, 4]), (8, vec![-3, 5])] {
        let case = Case { r, p: 8, q: 4, expert_offsets };
        let experts = case.expert_offsets.len() - 1;
        let _forced = Forced::new(Some(Tier::Simt), 2);
        let (x, weight) = (eighths(1, r * 8), eighths(2, experts * 32));
        let got = run(&case, &x, &weight, &eighths(3, r * 4), DType::F32);
        assert_eq!([got.y.len(), got.d_x.len(), got.d_weight.len()], [r * 4, r * 8, experts * 32]);
    }
}

#[test]
fn a_tier_that_cannot_run_says_why() {
    let _forced = Forced::new(Some(Tier::Wgmma), 1);
    let device = testing::device();
    let x = float(&[1.0; 8], [1, 8], DType::F32, &device);
    let weight = float(&[1.0; 64], [1, 8, 8], DType::F32, &device);
    let expert_offsets = int(&[0, 1], [2], &device);
    let read = || grouped_gemm(x, weight, &expert_offsets).into_data();
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(read)).unwrap_err();
    let message = panic.downcast_ref::<String>().expect("a message");
    let reasons: &[_] = match cfg!(feature = "cuda-cpp") {
        true => &["needs a GPU of compute capability 9.0", "takes bf16, not F32"],
        false => &["needs the feature `cuda-cpp`"],
    };
    let told = |why: &&str| message.contains(&format!("tier wgmma cannot run here: {why}"));
    assert!(reasons.iter().any(told), "{message}");
}

#[test]
fn tiers_have_names() {
    for tier in Tier::ALL {
        assert_eq!(tier.to_string().parse(), Ok(tier));
    }
    assert_eq!("cmma".parse::<Tier>(), Err("no tier \"cmma\": there are simt, multi_level, wgmma".into()));
}
