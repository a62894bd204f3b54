//! Kernels that NVRTC has compiled, compared with plain Rust. The sources lie beside the texts in `tests/ptx`.

mod common;

use common::{Card, random};

const BASIC: &str = include_str!("ptx/basic.ptx");
const NUMBERS: &str = include_str!("ptx/numbers.ptx");
const ATOMICS: &str = include_str!("ptx/atomics.ptx");

fn close(found: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(found.len(), expected.len());
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!((found - expected).abs() <= tolerance * expected.abs().max(1e-3), "{i}: {found}, not {expected}");
    }
}

#[test]
fn saxpy_and_sum_are_those_of_rust() {
    let card = Card::new(BASIC);
    let (x, y) = (random(10_000), random(10_000));
    let (dx, dy, sum) = (card.buffer(&x), card.buffer(&y), card.buffer(&[0f32]));
    card.launch("saxpy", 7, 128, 0, &[2f32.into(), dx.into(), dy.into(), 10_000.into()]).unwrap();
    let expected: Vec<f32> = x.iter().zip(&y).map(|(x, y)| 2f32.mul_add(*x, *y)).collect();
    assert_eq!(card.read::<f32>(dy, 10_000), expected);
    card.launch("reduce_sum", 9, 96, 0, &[dx.into(), sum.into(), 10_000.into()]).unwrap();
    close(&card.read(sum, 1), &[x.iter().sum()], 1e-4);
}

#[test]
fn scan_of_a_block_with_lanes_that_stay_out() {
    let card = Card::new(BASIC);
    let x: Vec<i32> = (0..1000).map(|i| i * 7 % 31 - 11).collect();
    let (dx, dy) = (card.buffer(&x), card.buffer(&[0i32; 1000]));
    card.launch("scan", 1, 1024, 0, &[dx.into(), dy.into(), 1000.into()]).unwrap();
    let mut sum = 0;
    let expected: Vec<i32> = x
        .iter()
        .map(|x| {
            sum += x;
            sum
        })
        .collect();
    assert_eq!(card.read::<i32>(dy, 1000), expected);
}

#[test]
fn transpose_and_matmul_in_two_dimensions() {
    let card = Card::new(BASIC);
    let (m, n, k) = (50, 70, 33);
    let (a, b) = (random(m * k), random(k * n));
    let (da, db, dc) = (card.buffer(&a), card.buffer(&b), card.buffer(&vec![0f32; m * n]));
    let args = [da.into(), db.into(), dc.into(), 50.into(), 70.into(), 33.into()];
    let counts = card.launch_3d("matmul", [5, 4, 1], [16, 16, 1], 0, &args).unwrap();
    assert!(counts.global_read > 0 && counts.shared_accesses > 0);
    let product: Vec<f32> = (0..m * n).map(|i| (0..k).map(|j| a[i / n * k + j] * b[j * n + i % n]).sum()).collect();
    close(&card.read(dc, m * n), &product, 1e-5);
    let dt = card.buffer(&vec![0f32; m * n]);
    card.launch_3d("transpose", [3, 2, 1], [32, 8, 1], 0, &[dc.into(), dt.into(), 50.into(), 70.into()]).unwrap();
    let (c, t) = (card.read::<f32>(dc, m * n), card.read::<f32>(dt, m * n));
    assert!((0..m * n).all(|i| c[i] == t[i % n * m + i / n]));
}

#[test]
fn softmax_with_dynamic_shared_memory_and_a_histogram() {
    let card = Card::new(BASIC);
    let x: Vec<f32> = random(4 * 300).iter().map(|x| x * 10.0).collect();
    let (dx, dy) = (card.buffer(&x), card.buffer(&vec![0f32; 1200]));
    card.launch("softmax", 4, 128, 512, &[dx.into(), dy.into(), 300.into()]).unwrap();
    let expected: Vec<f32> = x
        .chunks(300)
        .flat_map(|row| {
            let top = row.iter().copied().fold(f32::MIN, f32::max);
            let sum: f32 = row.iter().map(|x| (x - top).exp()).sum();
            row.iter().map(move |x| (x - top).exp() / sum).collect::<Vec<_>>()
        })
        .collect();
    close(&card.read(dy, 1200), &expected, 1e-5);
    let bytes: Vec<u8> = random(5000).iter().map(|x| (x * 256.0) as u8).collect();
    let (db, dh) = (card.buffer(&bytes), card.buffer(&[0u32; 256]));
    card.launch("histogram", 3, 256, 0, &[db.into(), dh.into(), 5000.into()]).unwrap();
    let mut counts = [0u32; 256];
    bytes.iter().for_each(|byte| counts[usize::from(*byte)] += 1);
    assert_eq!(card.read::<u32>(dh, 256), counts);
}

#[test]
fn integer_arithmetic_is_that_of_rust() {
    let card = Card::new(NUMBERS);
    let n = 200;
    let a: Vec<i32> = (0..n).map(|i: i32| i.wrapping_mul(0x9e37_79b9_u32 as i32) >> (i % 20)).collect();
    let b: Vec<i32> = (0..n).map(|i: i32| (i - 100).wrapping_mul(0x7f4a_7c15) >> (i % 27)).collect();
    let (da, db, out) = (card.buffer(&a), card.buffer(&b), card.buffer(&vec![0i64; 24 * n as usize]));
    card.launch("ints", 2, 128, 0, &[da.into(), db.into(), out.into(), n.into()]).unwrap();
    for (i, found) in card.read::<i64>(out, 24 * n as usize).chunks(24).enumerate() {
        let (x, y) = (a[i], b[i]);
        let (ux, uy) = (x as u32, y as u32);
        let (d, ud) = (if y == 0 { 1 } else { y }, if uy == 0 { 1 } else { uy });
        let wide = u64::from(ux) << 32 | u64::from(uy);
        let (xl, yl) = (i64::from(x) << 21, i64::from(y) << 17);
        let bytes = u64::from(uy) << 32 | u64::from(ux);
        let picked =
            (0..4).fold(0u32, |sum, k| sum | ((bytes >> (8 * (0x3715 >> (4 * k) & 7))) as u32 & 255) << (8 * k));
        let expected = [
            x.wrapping_div(d).into(),
            x.wrapping_rem(d).into(),
            (ux / ud).into(),
            (ux % ud).into(),
            i64::from(x) * i64::from(y),
            (u64::from(ux) * u64::from(uy)) as i64,
            (i64::from(x) * i64::from(y)) >> 32,
            ((u64::from(ux) * u64::from(uy)) >> 32) as i64,
            x.count_ones().into(),
            x.leading_zeros().into(),
            if x == 0 { 0 } else { i64::from(x.trailing_zeros()) + 1 },
            ux.reverse_bits().into(),
            picked.into(),
            i64::from((wide.rotate_left(32) << 13 >> 32) as u32),
            i64::from(x.abs_diff(y).wrapping_add(7)),
            x.min(y).into(),
            ((x << 3) ^ (y >> 5)).into(),
            x.wrapping_abs().into(),
            (i32::from(x as i16) + i32::from(y as i8)).into(),
            ((i64::from(x) << 32) | i64::from(uy)).leading_zeros().into(),
            (i64::from(x) << 20) / i64::from(y | 1),
            ((u64::from(ux) << 20) % u64::from(uy | 1)) as i64,
            ux.max(uy).into(),
            ((i128::from(xl) * i128::from(yl)) >> 64) as i64,
        ];
        for (k, (found, expected)) in found.iter().zip(expected).enumerate() {
            let fine = *found == expected || *found as u32 == expected as u32 && [9, 10, 11, 12, 13].contains(&k);
            assert!(fine, "{i}, o[{k}] of {x} and {y}: {found:#x}, not {expected:#x}");
        }
    }
}

#[test]
fn floating_point_functions_are_those_of_rust() {
    let card = Card::new(NUMBERS);
    let n = 256;
    let a: Vec<f32> = random(n).iter().enumerate().map(|(i, x)| (x - 0.5) * [1.0, 8.0, 0.01, 30.0][i % 4]).collect();
    let b: Vec<f32> = random(2 * n)[n..].iter().map(|x| (x - 0.4) * 4.0).collect();
    let (da, db, out) = (card.buffer(&a), card.buffer(&b), card.buffer(&vec![0f32; 24 * n]));
    card.launch("floats", 2, 128, 0, &[da.into(), db.into(), out.into(), (n as i32).into()]).unwrap();
    for (i, o) in card.read::<f32>(out, 24 * n).chunks(24).enumerate() {
        let (x, y) = (a[i], b[i]);
        let exact = [x / y, x.abs().sqrt()];
        assert_eq!(o[..2], exact, "{x} {y}");
        let near = [1.0 / x.abs().sqrt(), x.exp(), x.abs().ln(), x.sin(), x.cos(), x.tanh(), x.abs().powf(y)];
        for (k, expected) in near.into_iter().enumerate() {
            assert!(
                (o[k + 2] - expected).abs() <= 3e-6 * expected.abs().max(1e-1),
                "o[{}] of {x} {y}: {} {expected}",
                k + 2,
                o[k + 2]
            );
        }
        assert_eq!(o[10..12], [x.floor(), x.round_ties_even()]);
        assert_eq!(o[9], x % y, "fmod {x} {y}");
        assert!((o[13] - x / y).abs() <= 1e-6 * (x / y).abs());
        assert_eq!(o[14..18], [x as i32 as f32, x as u32 as f32, x.min(y), x.max(y)]);
        let sum = f64::from(x) + f64::from(y);
        assert!(f64::from(o[18]).abs() <= sum.abs() && (f64::from(o[18]) - sum).abs() <= sum.abs() * 1.2e-7);
        let product = f64::from(x) * f64::from(y);
        assert!(f64::from(o[19]) >= product && f64::from(o[19].next_down()) < product);
        assert!(
            f64::from(o[20]) <= product + f64::from(x) && f64::from(o[21]).abs() <= (f64::from(x) / f64::from(y)).abs()
        );
        assert_eq!(o[22], x.clamp(0.0, 1.0));
        assert_eq!(o[23], ((x * 1000.0) as i64 as f32) + (y.abs() as u64 as f32));
    }
    let (ad, bd): (Vec<f64>, Vec<f64>) =
        (a.iter().map(|x| f64::from(*x)).collect(), b.iter().map(|x| f64::from(*x)).collect());
    let (da, db, out) = (card.buffer(&ad), card.buffer(&bd), card.buffer(&vec![0f64; 12 * n]));
    card.launch("doubles", 2, 128, 0, &[da.into(), db.into(), out.into(), (n as i32).into()]).unwrap();
    for (i, o) in card.read::<f64>(out, 12 * n).chunks(12).enumerate() {
        let (x, y) = (ad[i], bd[i]);
        let near = [x / y, x.abs().sqrt(), x.exp(), x.abs().ln(), x.sin(), x.abs().powf(y), x.mul_add(y, 1.0)];
        for (k, expected) in near.into_iter().enumerate() {
            assert!(
                (o[k] - expected).abs() <= 1e-14 * expected.abs().max(1e-2),
                "o[{k}] of {x} {y}: {} {expected}",
                o[k]
            );
        }
        assert_eq!([o[7], o[8], o[9], o[11]], [f64::from(x as f32), x as i64 as f64, x.floor(), x.min(y)]);
    }
}

#[test]
fn halves_are_rounded_after_each_operation() {
    use half::{bf16, f16};
    let card = Card::new(NUMBERS);
    let n = 128;
    let (a, b) = (random(n), random(2 * n)[n..].to_vec());
    let (da, db, out) = (card.buffer(&a), card.buffer(&b), card.buffer(&vec![0f32; 12 * n]));
    card.launch("halves", 1, 128, 0, &[da.into(), db.into(), out.into(), (n as i32).into()]).unwrap();
    for (i, o) in card.read::<f32>(out, 12 * n).chunks(12).enumerate() {
        let (x, y) = (f16::from_f32(a[i]).to_f32(), f16::from_f32(b[i]).to_f32());
        let (bx, by) = (bf16::from_f32(a[i]).to_f32(), bf16::from_f32(b[i]).to_f32());
        let round = |x: f32| f16::from_f32(x).to_f32();
        let expected = [
            round(x + y),
            round(x * y),
            f16::from_f64(f64::from(x).mul_add(y.into(), x.into())).to_f32(),
            f32::from(x < y),
            bx,
            bf16::from_f64(f64::from(bx).mul_add(by.into(), bx.into())).to_f32(),
            round(x.exp2()),
            round(x * y) + round(y * y),
            bx.max(by),
            x.round_ties_even(),
            bx,
        ];
        assert_eq!(o[..11], expected, "{x} {y}");
        assert!((o[11] - round(x / y)).abs() <= 2e-3 * o[11].abs());
    }
}

#[test]
fn calls_local_memory_switches_and_module_variables() {
    let card = Card::new(NUMBERS);
    let n = 100usize;
    let a: Vec<f32> = random(n).iter().map(|x| x * 12.0).collect();
    let (da, out) = (card.buffer(&a), card.buffer(&vec![0f32; n]));
    card.launch("calls", 2, 64, 0, &[da.into(), out.into(), (n as i32).into()]).unwrap();
    let series = |terms: &[f32], x: f32| terms.iter().rev().fold(0f32, |sum, term| sum.mul_add(x, *term));
    let expected: Vec<f32> = (0..n)
        .map(|i| {
            let mut terms: Vec<f32> = (0..8).map(|k| a[(i + k) % n]).collect();
            terms[a[i].abs() as usize & 7] = 1.0;
            let x = series(&terms, a[i] * 0.1) + series(&[1.0, 0.5, 0.25, 0.125], a[i]);
            match i % 7 {
                0 => x + 1.0,
                1 => x * 2.0,
                2 => -x,
                3 => x.abs().sqrt(),
                4 => x + 3.0,
                5 => 5.0,
                _ => x - 3.0,
            }
        })
        .collect();
    close(&card.read(out, n), &expected, 1e-5);
}

#[test]
fn atomics_of_all_types_and_a_lock() {
    let card = Card::new(ATOMICS);
    let n = 96 * 3;
    let ints = card.buffer(&[0i32, 0, 0, -1, 0, 0, 0, 0, 0, 0]);
    let longs = card.buffer(&[0u64; 3]);
    let (floats, doubles) = (card.buffer(&[0f32]), card.buffer(&[0f64]));
    let (halves, brain) = (card.buffer(&[0u16; 2]), card.buffer(&[0u16; 2]));
    let args = [ints.into(), longs.into(), floats.into(), doubles.into(), halves.into(), brain.into()];
    card.launch("atomics", 3, 96, 0, &args).unwrap();
    let found = card.read::<i32>(ints, 10);
    let xor = (0..n).fold(0, |xor, i| xor ^ i);
    assert_eq!(found[..6], [n * (n - 1) / 2, -50, n - 1, 0, -1, xor]);
    assert_eq!((found[6], found[8], found[9]), (n % 10, 0, n));
    assert_eq!(card.read::<u64>(longs, 3), [(n * (n - 1) / 2) as u64 * (1 << 30), n as u64 - 1, 77]);
    assert_eq!((card.read::<f32>(floats, 1)[0], card.read::<f64>(doubles, 1)[0]), (144.0, 72.0));
    assert_eq!(
        card.read::<u16>(halves, 2),
        [half::f16::from_f32(288.0).to_bits(), half::f16::from_f32(576.0).to_bits()]
    );
    assert_eq!(card.read::<u16>(brain, 1), [half::bf16::from_f32(256.0).to_bits()]);
}

#[test]
fn votes_matches_and_reductions_of_a_warp() {
    let card = Card::new(ATOMICS);
    let x: Vec<i32> = (0..32).map(|i| (i * 5 % 7) - 3).collect();
    let (dx, out) = (card.buffer(&x), card.buffer(&[0u32; 32 * 12]));
    card.launch("warps", 1, 32, 0, &[dx.into(), out.into()]).unwrap();
    let mask = |f: &dyn Fn(usize) -> bool| (0..32).fold(0u32, |mask, i| mask | u32::from(f(i)) << i);
    for (i, o) in card.read::<u32>(out, 32 * 12).chunks(12).enumerate() {
        let positive = mask(&|k| x[k] > 0);
        let odd = mask(&|k| x[k] & 1 != 0);
        let or = x.iter().fold(0, |or, x| or | x) as u32;
        let from = i & !7 | (x[i] & 7) as usize;
        let expected = [
            positive,
            0,
            1,
            mask(&|k| x[k] == x[i]),
            x.iter().sum::<i32>() as u32,
            3,
            0,
            0,
            x[from] as u32,
            if x[i] & 1 != 0 { odd } else { 0 },
            positive.count_ones(),
            or,
        ];
        assert_eq!(o, expected, "lane {i}");
    }
}

#[test]
fn no_order_of_warps_and_lanes_changes_results() {
    let (x, n) = (random(64 * 64), 64);
    let run = |seed: Option<u64>| {
        let mut card = Card::new(BASIC);
        card.options.seed = seed;
        let (dx, dy) = (card.buffer(&x), card.buffer(&vec![0f32; x.len()]));
        card.launch("softmax", 64, 64, 256, &[dx.into(), dy.into(), n.into()]).unwrap();
        card.launch_3d(
            "matmul",
            [4, 4, 1],
            [16, 16, 1],
            0,
            &[dy.into(), dy.into(), dx.into(), n.into(), n.into(), n.into()],
        )
        .unwrap();
        card.launch_3d("transpose", [2, 2, 1], [32, 8, 1], 0, &[dx.into(), dy.into(), n.into(), n.into()]).unwrap();
        let lock = Card::new(ATOMICS);
        let ints = lock.buffer(&[0i32; 10]);
        let (longs, rest) = (lock.buffer(&[0u64; 3]), lock.buffer(&[0u64; 4]));
        let args = [ints.into(), longs.into(), rest.into(), rest.into(), rest.into(), rest.into()];
        lock.launch("atomics", 2, 64, 0, &args).unwrap();
        (card.read::<f32>(dy, x.len()), lock.read::<i32>(ints, 10)[9])
    };
    let expected = run(None);
    assert_eq!(expected.1, 128);
    for seed in 0..6 {
        assert!(run(Some(seed)) == expected, "seed {seed}");
    }
}

#[test]
fn what_the_backend_of_llvm_makes_runs_too() {
    let card = Card::new(include_str!("ptx/llvm.ptx"));
    let kernel = card.module.kernel("k").expect("the kernel");
    let out = card.buffer(&[0i32; 64]);
    let mut params = vec![0; kernel.param_bytes() as usize];
    params[..8].copy_from_slice(&out.to_le_bytes());
    params[16 + 8..16 + 12].copy_from_slice(&7f32.to_le_bytes());
    (params[32], params[33]) = (-5i8 as u8, 1);
    let launch = ptx::Launch { block: [64, 1, 1], params: &params, ..Default::default() };
    // It also adds 0 to words that threads of the other warp write.
    let options = ptx::Options { global_races: false, ..card.options.clone() };
    ptx::launch(kernel, launch, &card.memory, &options).unwrap_or_else(|fault| panic!("{fault}"));
    let sum = |tid: i32| tid * 3 + 100 + tid;
    let expected: Vec<i32> = (0..64)
        .map(|tid| {
            let from = if tid % 32 == 31 { tid } else { tid + 1 };
            let offset = [10, 20, 30, 40, 0, 0, 0, 0][tid as usize % 8];
            sum(from ^ 33) + offset + 7 - 5 + 1000
        })
        .collect();
    assert_eq!(card.read::<i32>(out, 64), expected);
}

/// As two texts have it that are linked: the caller of one says that a function returns a value, and the definition in the other says
/// nothing of it, or the other way round.
#[test]
fn a_call_passes_its_parameters_whether_or_not_caller_and_callee_agree_on_a_result() {
    let head = ".version 8.3\n.target sm_80\n.address_size 64\n";
    let callee = |result: &str| {
        format!(
            ".visible .func {result} consume(.param .b64 to, .param .b32 value) {{ .reg .b64 %rd<2>; .reg .b32 %r<2>;
             ld.param.u64 %rd1, [to]; ld.param.u32 %r1, [value]; st.global.u32 [%rd1], %r1; ret; }}\n"
        )
    };
    let caller = |results: &str| {
        format!(
            ".visible .entry k(.param .u64 p) {{ .reg .b64 %rd<2>; ld.param.u64 %rd1, [p];
             {{ .param .b64 r0; .param .b64 p0; .param .b32 p1; st.param.b64 [p0], %rd1; st.param.b32 [p1], 7;
             call.uni {results} consume, (p0, p1); }} ret; }}"
        )
    };
    let declared = ".extern .func (.param .b64 r) consume(.param .b64 p_0, .param .b32 p_1);\n";
    for (result, results) in [("", "(r0),"), ("(.param .b64 r)", ""), ("", ""), ("(.param .b64 r)", "(r0),")] {
        let card = Card::new(&format!("{head}{declared}{}{}", callee(result), caller(results)));
        let out = card.buffer(&[0u32]);
        card.launch("k", 1, 1, 0, &[out.into()]).unwrap();
        assert_eq!(card.read::<u32>(out, 1), [7], "defined with '{result}', called with '{results}'");
    }
}
