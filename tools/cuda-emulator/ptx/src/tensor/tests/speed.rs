//! Speed of the products, on one core: `cargo test -p ptx --lib --release tensor::tests::speed -- --ignored --nocapture`.

use super::*;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Prints how many GFLOP `run` does in a second, if one call is `flops`.
fn measure(name: &str, flops: u64, mut run: impl FnMut()) {
    let mut best = 0f64;
    for _ in 0..5 {
        let (start, mut calls) = (Instant::now(), 0u64);
        while start.elapsed() < Duration::from_millis(60) {
            for _ in 0..64 {
                run();
            }
            calls += 64;
        }
        best = best.max((calls * flops) as f64 / start.elapsed().as_secs_f64() / 1e9);
    }
    println!("{name:60} {best:6.2} GFLOP/s");
}

#[test]
#[ignore = "prints times"]
fn products() {
    for name in [
        "m16n8k16.row.col.f32.bf16.bf16.f32",
        "m16n8k16.row.col.f32.f16.f16.f32",
        "m16n8k16.row.col.f16.f16.f16.f16",
        "m16n8k8.row.col.f32.tf32.tf32.f32",
        "m16n8k32.row.col.s32.s8.s8.s32",
        "m8n8k4.row.col.f64.f64.f64.f64",
    ] {
        let mma = Mma::parse(&format!("sync.aligned.{name}").split('.').collect::<Vec<_>>()).unwrap();
        let [a, b, c, d] = mma.words().map(|words| vec![[0x3f80_3f80u32; 32]; words]);
        let mut d = d;
        measure(&format!("mma.sync.aligned.{name}"), mma.flops(), || {
            mma.execute(black_box(&a), black_box(&b), black_box(&c), black_box(&mut d));
        });
    }
    for name in
        ["m64n128k16.f32.bf16.bf16", "m64n256k16.f32.f16.f16", "m64n64k16.f16.f16.f16", "m64n128k8.f32.tf32.tf32"]
    {
        let words = format!("mma_async.sync.aligned.{name}");
        let wgmma = Wgmma::parse(&words.split('.').collect::<Vec<_>>()).unwrap();
        let mut memory = Bytes(vec![0x3f; 1 << 16]);
        let a = Descriptor { start: 0, leading: 16, stride: 1024, base: 0, swizzle: Swizzle::B128 };
        let b = Descriptor { start: 8192, ..a };
        let scale = Scale { d: true, negate_a: false, negate_b: false };
        let mut d = vec![vec![[0u32; 32]; wgmma.words()[1]]; 4];
        for transposed in [false, true] {
            if transposed && !wgmma.has_transposes() {
                continue;
            }
            measure(
                &format!("wgmma.{words} {}", ["K-major", "MN-major"][usize::from(transposed)]),
                wgmma.flops(),
                || {
                    let right = wgmma.right(black_box(b), transposed, &mut memory).unwrap();
                    for (warp, d) in d.iter_mut().enumerate() {
                        let left = wgmma.left_in_shared(black_box(a), transposed, warp, &mut memory).unwrap();
                        wgmma.multiply(&left, &right, scale, black_box(d));
                    }
                },
            );
        }
    }
}
