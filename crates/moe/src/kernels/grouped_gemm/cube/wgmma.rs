//! The product on Hopper's asynchronous tensor cores (`wgmma`), fed by its copy engine (TMA); bf16.
//!
//! **Nobody has run this kernel yet.** It is checked by its machine code alone: it assembles for sm_90a without spills, with
//! `HGMMA` and `UTMALDG` in it. It is never chosen, only forced: [`force_tier`](super::force_tier).
//!
//! ```text
//!  cube: 128 x 128 of y, 384 units                       ring of 4 stages in shared memory, 4 x (16 + 16) KiB
//!
//!  warpgroup 0   one unit asks TMA for the next     full[s]   +-----------------+-----------------+
//!                128 x 64 of x and 128 x 64 of   ----------->  | a  128 x 64     | b  128 x 64     |  stage s
//!                the matrix, K-major            <-----------   +-----------------+-----------------+
//!                                                empty[s]         |          |        |
//!  warpgroup 1   rows  0 ..  64 of y   <--------------------------+ 64 rows  |        | all 128 columns
//!  warpgroup 2   rows 64 .. 128 of y   <-------------------------------------+--------+
//! ```
//!
//! `full[s]` opens when the 32,768 bytes of a stage are there, `empty[s]` when the 256 units of both consumers have used them. Both
//! flip their parity each time around the ring. Registers: a consumer's 64 x 128 sums are 64 numbers a unit, 92 in all: with 384 units and
//! 128 KiB one cube fits on a multiprocessor. Both operands lie in shared memory in rows of 64 bf16 = 128 bytes whose eight 16-byte parts are
//! swapped by the row's number modulo 8 (the 128-byte swizzle), which TMA writes and `wgmma` reads without bank conflicts.
//!
//! TMA fills 0 behind the tensor's rows and behind `p`. Rows of the next expert are multiplied and not written. The matrices must lie
//! `[e, q, p]`: those of `dx` do; for the forward product a transposed copy is made in each call, `e p q` numbers read and written
//! against `2 r p q` operations: a few percent of the time where experts have some hundreds of rows. Matrices stored `[e, q, p]` would only
//! move the copy from `y` to `dx`, which sums over `q`: each product wants the side that it sums over in one piece, and they sum over two.

use super::tiles::{self, Tile};
use burn::backend::cubecl::dtype_to_elem_type;
use burn::tensor::DType;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::features::Tma;
use cubecl::prelude::barrier::Barrier;
use cubecl::prelude::*;
use fused::cube::launch::address_type;
use half::bf16;

/// Rows and columns of a cube's tile.
pub(super) const TILE: usize = 128;
/// Steps of the sum in a stage: 128 bytes.
const DEPTH: usize = 64;
/// Numbers of an operand in a stage.
const OPERAND: usize = TILE * DEPTH;
const STAGES: usize = 4;
pub(super) const UNITS: usize = 384;

/// `sums + a b^T` for `[64, 64]` of a and `[128, 64]` of b in shared memory, by the units of a warpgroup.
///
/// A descriptor holds an address / 16 in its low 14 bits, 1024 / 16 bytes from 8 rows to the next 8 (bits 32 to 45), and the 128-byte
/// swizzle (1 in bits 62 and 63). The four steps of 16 are 32 bytes apart: 2 in the descriptor.
#[cube]
fn multiply(sums: Vector<f32, Const<64>>, a: &bf16, b: &bf16) -> Vector<f32, Const<64>> {
    let next: Vector<f32, Const<64>>;
    gpu_asm!(
        "{{
        .reg .b64 da, db, t0;
        .reg .b32 t1;
        cvta.to.shared.u64 t0, {2};
        cvt.u32.u64 t1, t0;
        and.b32 t1, t1, 0x3FFFF;
        shr.u32 t1, t1, 4;
        cvt.u64.u32 da, t1;
        or.b64 da, da, 0x4000004000010000;
        cvta.to.shared.u64 t0, {3};
        cvt.u32.u64 t1, t0;
        and.b32 t1, t1, 0x3FFFF;
        shr.u32 t1, t1, 4;
        cvt.u64.u32 db, t1;
        or.b64 db, db, 0x4000004000010000;
        {4}
        wgmma.fence.sync.aligned;
        wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {0}, da, db, 1, 1, 1, 0, 0;
        add.u64 da, da, 2; add.u64 db, db, 2;
        wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {0}, da, db, 1, 1, 1, 0, 0;
        add.u64 da, da, 2; add.u64 db, db, 2;
        wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {0}, da, db, 1, 1, 1, 0, 0;
        add.u64 da, da, 2; add.u64 db, db, 2;
        wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {0}, da, db, 1, 1, 1, 0, 0;
        wgmma.commit_group.sync.aligned;
        wgmma.wait_group.sync.aligned 0;
        // {1}
        }}",
        out(_) next,
        in(_) sums,
        mem_in(_) a,
        mem_in(_) b,
        const copies(64),
        options(explicit_mem)
    );
    next
}

/// PTX that copies the incoming sums (operands n to 2n) to the outgoing ones: the assembler makes them the same registers.
fn copies(n: usize) -> String {
    (0..n).map(|i| format!("mov.f32 %{i}, %{};", i + n)).collect::<Vec<_>>().join("\n")
}

#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn product(
    x: &TensorMap<bf16, Tiled>,
    weight: &TensorMap<bf16, Tiled>,
    tiles: &[i32],
    y: &mut [Vector<bf16, Const<2>>],
    p: usize,
    q: usize,
) {
    let tile = Tile::read(tiles, CUBE_POS_X as usize);
    if tile.first >= tile.end {
        terminate!();
    }
    let column = CUBE_POS_Y as usize * TILE;
    let steps = p.div_ceil(DEPTH);
    let mut a = Shared::<[bf16]>::new_aligned_slice(comptime!(STAGES * OPERAND), 1024usize);
    let mut b = Shared::<[bf16]>::new_aligned_slice(comptime!(STAGES * OPERAND), 1024usize);
    let mut full = Sequence::<Shared<Barrier>>::new();
    let mut empty = Sequence::<Shared<Barrier>>::new();
    #[unroll]
    for _ in 0..STAGES {
        full.push(Barrier::shared(1u32, UNIT_POS == 0u32));
        empty.push(Barrier::shared(256u32, UNIT_POS == 0u32));
    }
    sync_async_proxy_shared();
    sync_cube();

    let warpgroup = UNIT_POS / 128u32;
    if warpgroup == 0u32 {
        if UNIT_POS == 0u32 {
            let x_row = tile.first as i32;
            let weight_row = (tile.expert * q + column) as i32;
            for round in 0..steps.div_ceil(STAGES) {
                #[unroll]
                for s in 0..STAGES {
                    let step = round * STAGES + s;
                    if step < steps {
                        // Of a fresh barrier the phase before the first one counts as over.
                        empty[s].wait_parity((round as u32 + 1u32) % 2u32);
                        let k = (step * DEPTH) as i32;
                        let part = comptime!(s * OPERAND..(s + 1) * OPERAND);
                        full[s].tma_load_2d(x, &mut a[part.start..part.end], x_row, k);
                        full[s].tma_load_2d(weight, &mut b[part.start..part.end], weight_row, k);
                        full[s].arrive_and_expect_tx(1u32, comptime!((2 * OPERAND * 2) as u32));
                    }
                }
            }
        }
    } else {
        let half = (warpgroup as usize - 1) * comptime!(OPERAND / 2);
        let mut sums = Vector::<f32, Const<64>>::new(0.0f32);
        for round in 0..steps.div_ceil(STAGES) {
            #[unroll]
            for s in 0..STAGES {
                if round * STAGES + s < steps {
                    full[s].wait_parity(round as u32 % 2u32);
                    let at = comptime!(s * OPERAND);
                    sums = multiply(Vector::cast_from(sums), &a[at + half], &b[at]);
                    empty[s].arrive();
                }
            }
        }

        // Unit u of a warpgroup has rows u / 32 * 16 + u % 32 / 4 and 8 below, columns u % 4 * 2 and 1 on, and so every 8 columns.
        let unit = UNIT_POS as usize % 128;
        let row = tile.first + (warpgroup as usize - 1) * 64 + unit / 32 * 16 + unit % 32 / 4;
        let column = column + unit % 4 * 2;
        #[unroll]
        for j in 0..16usize {
            #[unroll]
            for below in 0..2usize {
                let mut values = Vector::<bf16, Const<2>>::empty();
                values.insert(0usize, bf16::cast_from(sums.extract(comptime!(4 * j + 2 * below))));
                values.insert(1usize, bf16::cast_from(sums.extract(comptime!(4 * j + 2 * below + 1))));
                let to_row = row + comptime!(below * 8);
                let to_column = column + comptime!(j * 8);
                if to_row < tile.end && to_column < q {
                    y[(to_row * q + to_column) / 2] = values;
                }
            }
        }
    }
}

/// `y_rq`, or why it cannot be had; all tensors are contiguous.
pub(super) fn launch(
    x: &CubeTensor,
    weight: &CubeTensor,
    segments: &CubeTensor,
    y: &CubeTensor,
    transposed: bool,
) -> Result<(), String> {
    let properties = x.client.properties();
    let ([r, p], [_, q], e) = (x.meta.shape().dims(), y.meta.shape().dims(), weight.meta.shape()[0]);
    if !cfg!(feature = "cuda-cpp") {
        return Err("needs the feature `cuda-cpp`".into());
    }
    if !properties.features.tma.contains(Tma::Base) || properties.identity.fingerprint != "ptx_sm90" {
        return Err(format!("needs a GPU of compute capability 9.0, not {}", properties.identity.name));
    }
    if x.dtype != DType::BF16 {
        return Err(format!("takes bf16, not {:?}", x.dtype));
    }
    if !p.is_multiple_of(8) || !q.is_multiple_of(8) {
        return Err(format!("widths {p} and {q} are not multiples of 8"));
    }

    let weight = if transposed {
        weight.clone()
    } else {
        let mut turned = weight.clone();
        turned.meta.swap(1, 2);
        into_contiguous(turned)
    };
    let map = |tensor: &CubeTensor, rows: usize| {
        let binding = TensorBinding {
            handle: tensor.handle.clone().binding(),
            shape: [rows, p].into(),
            strides: [p, 1].into(),
            tiling: Default::default(),
        };
        let part = TiledArgs { tile_size: [TILE, DEPTH].into() };
        TensorMapArg::new(part, binding.into_tensor_arg(), dtype_to_elem_type(tensor.dtype))
            .with_swizzle(TensorMapSwizzle::B128)
    };
    let table = tiles::launch(segments, y, TILE);
    unsafe {
        product::launch_unchecked(
            &x.client,
            CubeCount::Static(tiles::count(r, e, TILE) as u32, q.div_ceil(TILE) as u32, 1),
            CubeDim::new_1d(UNITS as u32),
            address_type([x, &weight, y]),
            map(x, r),
            map(&weight, e * q),
            table.into_buffer_arg(),
            y.clone().into_buffer_arg(),
            p,
            q,
        );
    }
    Ok(())
}
