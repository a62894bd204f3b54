//! Compares matrix products with their documented order of summation, and with f64.

use cpu::Element;
use cpu::gemm::{Epilogue, Matrix, Product, product_here, products, products_with};
use cpu::simd::{Simd, multiplies_bf16, simd};
use half::{bf16, f16};
use proptest::prelude::*;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Numbers in -0.5 .. 0.5 (xorshift).
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u32 << 24) as f32 - 0.5
    };
    (0..count).map(|_| next()).collect()
}

#[derive(Clone, Copy, Debug)]
struct Case {
    m: usize,
    n: usize,
    k: usize,
    a_by_columns: bool,
    b_by_columns: bool,
}

impl Case {
    fn a<'a, T>(&self, data: &'a [T]) -> Matrix<'a, T> {
        let (row_stride, col_stride) = if self.a_by_columns { (1, self.m) } else { (self.k, 1) };
        Matrix { data, row_stride, col_stride }
    }

    fn b<'a, T>(&self, data: &'a [T]) -> Matrix<'a, T> {
        let (row_stride, col_stride) = if self.b_by_columns { (1, self.k) } else { (self.n, 1) };
        Matrix { data, row_stride, col_stride }
    }

    fn multiply<T: Element>(&self, a: &[T], b: &[T], fill: T) -> Vec<T> {
        let mut c = vec![fill; self.m * self.n];
        products(vec![Product { m: self.m, n: self.n, k: self.k, a: self.a(a), b: self.b(b), c: over(&mut c) }]);
        c
    }
}

/// Returns `c` as memory to write.
fn over<T: Copy>(c: &mut [T]) -> &mut [MaybeUninit<T>] {
    // SAFETY: `products` sets every element.
    unsafe { cpu::overwritten(c) }
}

fn at<T: Copy>(x: &Matrix<'_, T>, i: usize, j: usize) -> T {
    x.data[i * x.row_stride + j * x.col_stride]
}

#[test]
fn the_environment_says_which_vectors_are_taken() {
    let asked = std::env::var("KILN_SIMD").ok().filter(|name| !name.is_empty());
    assert_eq!(simd().name(), asked.as_deref().unwrap_or(Simd::of_processor().name()));
}

/// The documented order: blocks of 256, a chain of multiply-adds in each, fused if the processor can.
fn reference(k: usize, a: impl Fn(usize) -> f32, b: impl Fn(usize) -> f32) -> f32 {
    let fused = simd() >= Simd::Avx2;
    let step = |sum: f32, p: usize| {
        if fused { a(p).mul_add(b(p), sum) } else { a(p) * b(p) + sum }
    };
    let block = |start: usize| (start..k.min(start + 256)).fold(0.0, step);
    (0..k).step_by(256).map(block).reduce(|c, s| c + s).unwrap_or(0.0)
}

fn cases() -> Vec<Case> {
    let sizes = [
        (1, 1, 1),
        (1, 1, 300),
        (1, 64, 37),
        (2, 33, 256),
        (3, 31, 257),
        (5, 8, 512),
        (13, 32, 70),
        (14, 32, 255),
        (15, 96, 33),
        (28, 47, 3),
        (29, 100, 600),
        (64, 65, 5),
        (95, 40, 544),
        (96, 40, 64),
        (113, 129, 300),
        (70, 40, 544),
        (600, 40, 20),
        (40, 1100, 20),
        (530, 530, 70),
        (7, 3, 0),
        (0, 3, 7),
        (3, 0, 7),
    ];
    let mut list = Vec::new();
    for (m, n, k) in sizes {
        for form in 0..4 {
            list.push(Case { m, n, k, a_by_columns: form & 1 > 0, b_by_columns: form & 2 > 0 });
        }
    }
    list
}

fn pool<R: Send>(threads: usize, f: impl FnOnce() -> R + Send) -> R {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(f)
}

#[test]
fn follows_the_law_bit_for_bit() {
    for case in cases() {
        let (a, b) = (numbers(case.m * case.k, 1), numbers(case.k * case.n, 2));
        let c = case.multiply(&a, &b, f32::NAN);
        let (a, b) = (case.a(&a), case.b(&b));
        for i in 0..case.m {
            for j in 0..case.n {
                let want = reference(case.k, |p| at(&a, i, p), |p| at(&b, p, j));
                assert_eq!(c[i * case.n + j].to_bits(), want.to_bits(), "{case:?} at {i} {j}");
            }
        }
    }
}

#[test]
fn is_close_to_double_precision() {
    for case in cases() {
        let (a, b) = (numbers(case.m * case.k, 3), numbers(case.k * case.n, 4));
        let c = case.multiply(&a, &b, f32::NAN);
        let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
        let (wide_a, wide_b) = (wide(&a), wide(&b));
        let (a, b) = (case.a(&wide_a), case.b(&wide_b));
        for i in 0..case.m {
            for j in 0..case.n {
                let naive: f64 = (0..case.k).map(|p| at(&a, i, p) * at(&b, p, j)).sum();
                let at = i * case.n + j;
                assert!((f64::from(c[at]) - naive).abs() < 1e-6 * (1.0 + (case.k as f64).sqrt()), "{case:?}");
            }
        }
    }
}

#[test]
fn half_types_sum_in_f32_and_round_once() {
    fn check<T: Element + PartialEq + std::fmt::Debug>(from: fn(f32) -> T, to: fn(T) -> f32) {
        for case in cases() {
            let a: Vec<T> = numbers(case.m * case.k, 5).into_iter().map(from).collect();
            let b: Vec<T> = numbers(case.k * case.n, 6).into_iter().map(from).collect();
            let wide = |x: &[T]| x.iter().map(|&x| to(x)).collect::<Vec<_>>();
            let want: Vec<T> = case.multiply(&wide(&a), &wide(&b), f32::NAN).into_iter().map(from).collect();
            assert_eq!(case.multiply(&a, &b, from(f32::NAN)), want, "{case:?}");
        }
    }
    check(f16::from_f32, f16::to_f32);
    if !multiplies_bf16() {
        check(bf16::from_f32, bf16::to_f32);
    }
}

/// Tolerates half a unit in the last of 8 places, 2^-8, plus the rounding errors of sums in f32.
#[test]
fn bf16_is_the_rounded_sum_in_double_precision() {
    for case in cases() {
        let of = |count, seed| numbers(count, seed).into_iter().map(bf16::from_f32).collect::<Vec<_>>();
        let (a, b) = (of(case.m * case.k, 5), of(case.k * case.n, 6));
        let c = case.multiply(&a, &b, bf16::NAN);
        let (a, b) = (case.a(&a), case.b(&b));
        for i in 0..case.m {
            for j in 0..case.n {
                let naive: f64 = (0..case.k).map(|p| at(&a, i, p).to_f64() * at(&b, p, j).to_f64()).sum();
                let off = (c[i * case.n + j].to_f64() - naive).abs();
                let allowed = naive.abs() / 256.0 + 1e-6 * (1.0 + (case.k as f64).sqrt());
                assert!(off <= allowed, "{case:?} at {i} {j}: {off}");
            }
        }
    }
}

/// Applies the formula of the epilogue in f32 to the bare product, pass by pass; 16-bit types round each output once.
#[test]
fn an_epilogue_is_its_formula_on_the_bare_product() {
    fn gelu(x: f32) -> f32 {
        let x = f64::from(x);
        let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
        (0.5 * x * (1.0 + u.tanh())) as f32
    }
    /// `ulp` is the relative distance of adjacent numbers.
    fn check<T: Element + PartialEq + std::fmt::Debug>(ulp: f32) {
        let of = |count, seed| numbers(count, seed).into_iter().map(T::from_f32).collect::<Vec<T>>();
        for (number, case) in cases().into_iter().enumerate() {
            let (m, n, k) = (case.m, case.n, case.k);
            // Integers make the product exact.
            let whole =
                |count, seed| numbers(count, seed).into_iter().map(|x| T::from_f32((4.0 * x).round())).collect();
            let (a, b): (Vec<T>, Vec<T>) = (whole(m * k, 15), whole(k * n, 16));
            let (bias, residual) = (of(n, 17), of(m * n, 18));
            let (with_bias, with_gelu, with_residual) = (number & 1 > 0, number & 2 > 0, number & 4 > 0);
            let mut c = of(m * n, 19);
            let mut kept = of(m * n, 20);
            let product = Product { m, n, k, a: case.a(&a), b: case.b(&b), c: over(&mut c) };
            let epilogue = Epilogue {
                bias: with_bias.then_some(&bias[..]),
                pre_activation: Some(over(&mut kept)),
                gelu: with_gelu,
                residual: with_residual.then_some(&residual[..]),
            };
            products_with(vec![(product, epilogue)]);
            let (a, b) = (case.a(&a), case.b(&b));
            for i in 0..m {
                for j in 0..n {
                    let sum: f32 = (0..k).map(|p| at(&a, i, p).to_f32() * at(&b, p, j).to_f32()).sum();
                    let x = if with_bias { sum + bias[j].to_f32() } else { sum };
                    assert_eq!(kept[i * n + j], T::from_f32(x), "{case:?} at {i} {j}");
                    let y = if with_gelu { gelu(x) } else { x };
                    let y = if with_residual { y + residual[i * n + j].to_f32() } else { y };
                    let off = (c[i * n + j].to_f32() - y).abs();
                    assert!(off <= ulp * y.abs() + 1e-6 * (1.0 + x.abs()), "{case:?} at {i} {j}: off by {off} of {y}");
                }
            }
        }
    }
    check::<f32>(0.0);
    check::<f16>(1.0 / 2048.0);
    check::<bf16>(1.0 / 256.0);
}

/// The documented order of AMX: blocks of 512, and in each of them groups of 32, whose even and odd values are two
/// chains.
#[test]
fn bf16_on_amx_follows_its_law_bit_for_bit() {
    if simd() < Simd::Amx {
        return;
    }
    for case in cases().into_iter().filter(|case| case.k > 0) {
        let of = |count, seed| numbers(count, seed).into_iter().map(bf16::from_f32).collect::<Vec<_>>();
        let (a, b) = (of(case.m * case.k, 25), of(case.k * case.n, 26));
        let (a, b) = (case.a(&a), case.b(&b));
        let mut c = vec![f32::NAN; case.m * case.n];
        // SAFETY: `c` is all of `C`.
        unsafe { product_here([case.m, case.n, case.k], a, b, c.as_mut_ptr(), case.n, false) };
        for (i, j) in (0..case.m).flat_map(|i| (0..case.n).map(move |j| (i, j))) {
            let step = |sum: f32, p: usize| at(&a, i, p).to_f32().mul_add(at(&b, p, j).to_f32(), sum);
            let group = |start: usize| {
                let chain = |first: usize| (first..case.k.min(start + 32)).step_by(2).fold(0.0, step);
                chain(start) + chain(start + 1)
            };
            let block = |start: usize| (start..case.k.min(start + 512)).step_by(32).map(group).fold(0.0, |s, x| s + x);
            let want = (0..case.k).step_by(512).map(block).reduce(|c, s| c + s).unwrap_or(0.0);
            assert_eq!(c[i * case.n + j].to_bits(), want.to_bits(), "{case:?} at {i} {j}");
        }
    }
}

/// In bf16, because pairs take a separate path; with an epilogue, because its bits must not depend on the position in a
/// row either.
#[test]
fn rows_of_bf16_with_an_epilogue_do_not_depend_on_the_batch_or_threads() {
    let of = |count, seed| numbers(count, seed).into_iter().map(bf16::from_f32).collect::<Vec<_>>();
    for form in 0..4 {
        let case = Case { m: 300, n: 530, k: 1111, a_by_columns: form & 1 > 0, b_by_columns: form & 2 > 0 };
        let (a, b, bias, residual) =
            (of(case.m * case.k, 21), of(case.k * case.n, 22), of(case.n, 23), of(case.m * case.n, 24));
        let run = |first: usize, m: usize| {
            let (mut c, mut kept) = (vec![bf16::NAN; m * case.n], vec![bf16::NAN; m * case.n]);
            let whole = case.a(&a);
            let rows = Matrix { data: &a[first * whole.row_stride..], ..whole };
            let product = Product { m, n: case.n, k: case.k, a: rows, b: case.b(&b), c: over(&mut c) };
            let epilogue = Epilogue {
                bias: Some(&bias),
                pre_activation: Some(over(&mut kept)),
                gelu: true,
                residual: Some(&residual[first * case.n..][..m * case.n]),
            };
            products_with(vec![(product, epilogue)]);
            (c, kept)
        };
        let (c, kept) = pool(1, || run(0, case.m));
        assert!(pool(3, || run(0, case.m)) == (c.clone(), kept.clone()));
        for (first, m) in [(0, 1), (7, 2), (299, 1), (100, 33)] {
            let part = first * case.n..(first + m) * case.n;
            assert!(run(first, m) == (c[part.clone()].to_vec(), kept[part].to_vec()), "rows {first} + {m}");
        }
    }
}

#[test]
fn a_row_alone_is_the_row_in_a_batch() {
    for case in cases() {
        let (a, b) = (numbers(case.m * case.k, 7), numbers(case.k * case.n, 8));
        let c = case.multiply(&a, &b, f32::NAN);
        for i in (0..case.m).step_by(11) {
            let mut row = vec![f32::NAN; case.n];
            let whole = case.a(&a);
            let alone = Matrix { data: a.get(i * whole.row_stride..).unwrap_or(&[]), ..whole };
            products(vec![Product { m: 1, n: case.n, k: case.k, a: alone, b: case.b(&b), c: over(&mut row) }]);
            assert_eq!(row, c[i * case.n..][..case.n], "{case:?} row {i}");
        }
    }
}

#[test]
fn a_list_on_any_number_of_threads_is_each_product_alone() {
    let cases = cases();
    let inputs: Vec<_> = cases.iter().map(|case| (numbers(case.m * case.k, 9), numbers(case.k * case.n, 10))).collect();
    let alone: Vec<_> = cases.iter().zip(&inputs).map(|(case, (a, b))| case.multiply(a, b, f32::NAN)).collect();
    for threads in [1, 2, 3] {
        let mut outputs: Vec<_> = cases.iter().map(|case| vec![f32::NAN; case.m * case.n]).collect();
        let list = cases
            .iter()
            .zip(&inputs)
            .zip(&mut outputs)
            .map(|((case, (a, b)), c)| Product {
                m: case.m,
                n: case.n,
                k: case.k,
                a: case.a(a),
                b: case.b(b),
                c: over(c),
            })
            .collect();
        pool(threads, || products(list));
        assert!(outputs == alone, "{threads} threads");
    }
}

#[test]
fn large_products_do_not_depend_on_threads() {
    for (a_by_columns, b_by_columns) in [(false, false), (false, true), (true, false), (true, true)] {
        let case = Case { m: 700, n: 1100, k: 600, a_by_columns, b_by_columns };
        let (a, b) = (numbers(case.m * case.k, 11), numbers(case.k * case.n, 12));
        let one = pool(1, || case.multiply(&a, &b, f32::NAN));
        assert!(pool(2, || case.multiply(&a, &b, f32::NAN)) == one);
        assert!(pool(5, || case.multiply(&a, &b, f32::NAN)) == one);
    }
}

#[test]
fn takes_any_strides() {
    let (m, n, k) = (30, 40, 50);
    let (a, b) = (numbers(m * k * 6, 13), numbers(k * n * 6, 14));
    let a = Matrix { data: &a, row_stride: 3 * k, col_stride: 2 };
    let b = Matrix { data: &b, row_stride: 2, col_stride: 3 * k };
    let mut c = vec![f32::NAN; m * n];
    products(vec![Product { m, n, k, a, b, c: over(&mut c) }]);
    for i in 0..m {
        for j in 0..n {
            assert_eq!(c[i * n + j], reference(k, |p| at(&a, i, p), |p| at(&b, p, j)));
        }
    }
}

#[test]
fn takes_any_strides_of_bf16() {
    let (m, n, k) = (30, 40, 51);
    let of = |count, seed| numbers(count, seed).into_iter().map(bf16::from_f32).collect::<Vec<_>>();
    let (a, b) = (of(m * k * 6, 13), of(k * n * 6, 14));
    let a = Matrix { data: &a, row_stride: 3 * k, col_stride: 2 };
    let b = Matrix { data: &b, row_stride: 2, col_stride: 3 * k };
    let dense_a: Vec<_> = (0..m * k).map(|i| at(&a, i / k, i % k)).collect();
    let dense_b: Vec<_> = (0..k * n).map(|i| at(&b, i / n, i % n)).collect();
    let run = |a, b| {
        let mut c = vec![bf16::NAN; m * n];
        products(vec![Product { m, n, k, a, b, c: over(&mut c) }]);
        c
    };
    assert_eq!(run(a, b), run(Matrix::new(&dense_a, k), Matrix::new(&dense_b, n)));
}

/// Sums of 16-bit products are not rounded, and are added to a part of a larger `C`.
#[test]
fn a_product_here_adds_its_sums_to_a_part_of_c() {
    fn check<T: Element>() {
        let (m, n, k, stride) = (37, 45, 1100, 50);
        // Integers, whose sums are exact.
        let whole = |count, seed| numbers(count, seed).into_iter().map(|x| (8.0 * x).round()).collect::<Vec<f32>>();
        let (a, b) = (whole(m * k, 27), whole(k * n, 28));
        let of = |values: &[f32]| values.iter().copied().map(T::from_f32).collect::<Vec<_>>();
        let (narrow_a, narrow_b) = (of(&a), of(&b));
        for add in [false, true] {
            let mut c = vec![0.5; m * stride];
            // SAFETY: rows of `n` elements, `stride` apart, are inside `c`.
            unsafe {
                product_here(
                    [m, n, k],
                    Matrix::new(&narrow_a, k),
                    Matrix::new(&narrow_b, n),
                    c.as_mut_ptr(),
                    stride,
                    add,
                )
            };
            for (i, j) in (0..m).flat_map(|i| (0..stride).map(move |j| (i, j))) {
                let sum = || (0..k).map(|p| a[i * k + p] * b[p * n + j]).sum::<f32>();
                let want = if j < n { sum() + if add { 0.5 } else { 0.0 } } else { 0.5 };
                assert_eq!(c[i * stride + j], want, "{i} {j} {add}");
            }
        }
    }
    check::<f32>();
    check::<f16>();
    check::<bf16>();
}

#[test]
#[should_panic(expected = "larger than its data")]
fn refuses_short_data() {
    let matrix = Matrix { data: &[0.0f32; 5][..], row_stride: 3, col_stride: 1 };
    products(vec![Product { m: 2, n: 2, k: 3, a: matrix, b: matrix, c: over(&mut [0.0; 4]) }]);
}

proptest! {
    /// Every length of one drawn product may be wrong. Then the call names what is wrong, or the result is complete.
    #[test]
    fn lengths_that_do_not_fit_are_refused_or_all_of_c_is_written(
        [m, n, k] in [0usize..9, 0usize..40, 0usize..9],
        wrong in 0usize..8,
        by in prop_oneof![Just(-1isize), Just(1), Just(-7), Just(1000)],
        gelu: bool,
    ) {
        let len = |number: usize, right: usize| if number == wrong { right.saturating_add_signed(by) } else { right };
        let [a, b, c] = [len(0, m * k), len(1, k * n), len(2, m * n)];
        let (a, b, bias, residual) = (vec![1.0; a], vec![1.0; b], vec![1.0; len(3, n)], vec![1.0; len(4, c)]);
        let mut c = vec![f32::NAN; c];
        let call = || {
            let product = Product { m, n, k, a: Matrix::new(&a, k), b: Matrix::new(&b, n), c: over(&mut c) };
            products_with(vec![(product, Epilogue { bias: Some(&bias), residual: Some(&residual), gelu, ..Epilogue::default() })]);
        };
        match catch_unwind(AssertUnwindSafe(call)) {
            Ok(()) => prop_assert!(c.len() == m * n && c.iter().all(|value| value.is_finite())),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
                prop_assert!(wrong < 5 && text.starts_with("products: "), "{text}");
            }
        }
    }
}
