//! Warp instructions a second on one host thread, for kernels of different kinds.
//!
//! ```text
//! cargo run --release -p ptx --example speed [KERNEL]
//! ```

use std::time::Instant;

use ptx::tensor::Request;
use ptx::{Launch, Memory, Module, Options};

const TEXT: &str = include_str!("../tests/ptx/basic.ptx");

/// Launches of each kernel, of which the shortest counts.
const ROUNDS: usize = 8;

const MMA: &str = include_str!("../tests/data/gemm_mma.ptx");
const WMMA: &str = include_str!("../tests/data/gemm_wmma.ptx");
const WGMMA: &str = include_str!("../tests/data/gemm_wgmma.ptx");

const ARITHMETIC: &str = "
.version 8.3
.target sm_80
.address_size 64
.visible .entry loop_of(.param .u64 p, .param .u32 n) {
.reg .pred %p<2>; .reg .b32 %r<8>; .reg .b64 %rd<4>; .reg .f32 %f<8>;
mov.u32 %r1, %tid.x; cvt.rn.f32.u32 %f1, %r1; mov.f32 %f2, 0f3F800001; mov.f32 %f3, 0f3F000000;
mov.u32 %r2, 0; ld.param.u32 %r3, [n];
L:
fma.rn.f32 %f4, %f1, %f2, %f3;
mul.f32 %f5, %f4, %f2;
add.f32 %f1, %f5, %f3;
add.s32 %r4, %r2, %r1;
xor.b32 %r5, %r4, 77;
mad.lo.s32 %r1, %r5, 3, %r4;
add.s32 %r2, %r2, 1;
setp.lt.s32 %p1, %r2, %r3;
@%p1 bra L;
ld.param.u64 %rd1, [p];
mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; shl.b32 %r2, %r2, 7; add.s32 %r1, %r1, %r2;
mul.wide.u32 %rd2, %r1, 4; add.s64 %rd1, %rd1, %rd2;
st.global.f32 [%rd1], %f1;
ret;
}";

/// Kernel, module, grid, block, dynamic shared memory, parameters.
type Case<'a> = (&'a str, &'a Module, [u32; 3], [u32; 3], u32, Vec<Vec<u8>>);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let memory = Memory::new(256 << 20)?;
    let floats = memory.alloc(64 << 20, 256, "speed")?;
    memory.fill(floats, 64 << 20, &1f32.to_le_bytes())?;
    let (mma, wgmma) = (Module::load(MMA, &memory)?, Module::load(WGMMA, &memory)?);
    let wmma = Module::load(WMMA, &memory)?;
    let (basic, arithmetic) = (Module::load(TEXT, &memory)?, Module::load(ARITHMETIC, &memory)?);
    let n = 1 << 20;
    let pointer = |offset: u64| (floats + offset).to_le_bytes().to_vec();
    let int = |value: u32| value.to_le_bytes().to_vec();
    let mut cases: Vec<Case<'_>> = vec![
        ("loop_of", &arithmetic, [8, 1, 1], [128, 1, 1], 0, vec![pointer(0), int(20_000)]),
        (
            "saxpy",
            &basic,
            [64, 1, 1],
            [256, 1, 1],
            0,
            vec![int(0x3f80_0000), int(0), pointer(0), pointer(8 << 20), int(n)],
        ),
        (
            "saxpy",
            &basic,
            [4096, 1, 1],
            [256, 1, 1],
            0,
            vec![int(0x3f80_0000), int(0), pointer(0), pointer(8 << 20), int(n)],
        ),
        (
            "matmul",
            &basic,
            [16, 16, 1],
            [16, 16, 1],
            0,
            vec![pointer(0), pointer(8 << 20), pointer(16 << 20), int(256), int(256), int(256)],
        ),
        (
            "gemm_mma",
            &mma,
            [8, 8, 1],
            [128, 1, 1],
            0,
            vec![pointer(0), pointer(8 << 20), pointer(16 << 20), int(512), int(512), int(512)],
        ),
        (
            "gemm_wmma",
            &wmma,
            [16, 16, 1],
            [64, 1, 1],
            0,
            vec![pointer(0), pointer(8 << 20), pointer(16 << 20), int(512), int(512), int(512)],
        ),
        ("softmax", &basic, [256, 1, 1], [256, 1, 1], 1024, vec![pointer(0), pointer(8 << 20), int(1024)]),
        ("reduce_sum", &basic, [64, 1, 1], [256, 1, 1], 0, vec![pointer(0), pointer(32 << 20), int(n)]),
    ];
    let size = 512;
    let mut maps = Vec::new();
    for (data_type, bytes, swizzle, counts) in [(9, 2, 3, [64, 64]), (9, 2, 3, [64, 128]), (7, 4, 0, [128, 64])] {
        let (sizes, strides) = ([size; 2], [size * bytes]);
        let request = Request {
            data_type,
            address: floats,
            sizes: &sizes,
            strides: &strides,
            steps: &[1, 1],
            interleave: 0,
            swizzle,
            promotion: 0,
            fill: 0,
        };
        maps.push(request.tiled(&counts)?.encode().to_vec());
    }
    maps.push(int(size as u32));
    let stages = 3 * (64 + 128) * 64 * 2;
    cases.push(("gemm_wgmma", &wgmma, [4, 8, 1], [160, 1, 1], stages + 64 * 128 * 4 + 64 + 2048, maps));
    let unchecked = Options { uninitialised: false, races: false, global_races: false, ..Options::default() };
    let only = std::env::args().nth(1);
    for (name, module, grid, block, dynamic_shared, params) in cases {
        if only.as_ref().is_some_and(|only| only != name) {
            continue;
        }
        let kernel = module.kernel(name).ok_or("no such kernel")?;
        let params = params.concat();
        let some = Options { global_races: false, ..Options::default() };
        let sets = [("checked", Options::default()), ("no global races", some), ("unchecked", unchecked.clone())];
        let mut best = [0; 3].map(|_| (f64::MAX, ptx::Counts::default()));
        // In turn, as the machine may be busy; the first launch touches memory.
        for _ in 0..ROUNDS {
            for ((_, options), best) in sets.iter().zip(&mut best) {
                let options = Options { threads: 1, ..options.clone() };
                let launch = Launch { grid, block, dynamic_shared, params: &params, ..Launch::default() };
                let start = Instant::now();
                let counts = ptx::launch(kernel, launch, &memory, &options)?;
                let seconds = start.elapsed().as_secs_f64();
                if seconds < best.0 {
                    *best = (seconds, counts);
                }
            }
        }
        for ((checks, _), (seconds, counts)) in sets.iter().zip(best) {
            let millions = counts.total() as f64 / 1e6;
            let flops = counts.total_tensor_flops() as f64 / seconds / 1e9;
            println!(
                "{name:>12} {checks:>15}: {millions:8.2} million in {:7.1} ms: {:6.1} million/s, {flops:5.1} GFLOP/s of tensor cores",
                seconds * 1e3,
                millions / seconds
            );
        }
    }
    Ok(())
}
