//! The product on Hopper's asynchronous tensor cores (`wgmma`), fed by its copy engine (TMA), in bf16.
//!
//! **This kernel has not been run yet.** Only its machine code is checked: it assembles for sm_90a without spills, and
//! contains `HGMMA` and `UTMALDG`. It is never chosen, only forced: [`force_tier`](super::force_tier).
//!
//! ```text
//!  cube: 128 x 128 of y, 384 units                       ring of 4 stages in shared memory, 4 x (16 + 16) KiB
//!
//!  warpgroup 0   one unit asks TMA for the next     full[s]   +-----------------+-----------------+
//!                128 x 64 of x and as much of    ----------->  | a  128 x 64     | b  128 x 64     |  stage s
//!                the matrix                     <-----------   +-----------------+-----------------+
//!                                                empty[s]         |          |        |
//!  warpgroup 1   rows  0 ..  64 of y   <--------------------------+ 64 rows  |        | all 128 columns
//!  warpgroup 2   rows 64 .. 128 of y   <-------------------------------------+--------+
//! ```
//!
//! `full[s]` opens when the 32,768 bytes of a stage have arrived, `empty[s]` when the 256 units of both consumers have
//! used them. Both flip their parity each time around the ring. Registers: a consumer's 64 x 128 sums are 64 numbers
//! per unit, 92 in total. With 384 units and 128 KiB, one cube fits on a multiprocessor. Both operands are in shared
//! memory in rows of 64 bf16 = 128 bytes. The eight 16-byte parts of a row are permuted by the row's number modulo 8
//! (the 128-byte swizzle), which TMA writes and `wgmma` reads without bank conflicts.
//!
//! TMA fills zeros past a tensor's ends. Rows of the next expert are multiplied but not written.
//!
//! Both products read the matrices, `[e, p, q]`, in place; `b` has one of two forms in shared memory:
//!
//! ```text
//! dx, which sums over q    b[column of y, k]    128 rows of 128 bytes                           "K-major"
//! y, which sums over p     b[k, column of y]    64 rows of 128 bytes, columns  0 ..  64 of y    "MN-major": wgmma's
//!                                               64 rows of 128 bytes, columns 64 .. 128 of y    last operand is 1
//! ```

use super::tiles::{self, Tile};
use burn::backend::cubecl::dtype_to_elem_type;
use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl::features::Tma;
use cubecl::prelude::barrier::Barrier;
use cubecl::prelude::*;
use fused::cube::launch::{Elements, address_type};
use half::bf16;

/// Rows and columns of a cube's tile.
pub(super) const TILE: usize = 128;
/// Steps of the sum per stage: 128 bytes.
const DEPTH: usize = 64;
/// Numbers of an operand per stage.
const OPERAND: usize = TILE * DEPTH;
const STAGES: usize = 4;
pub(super) const UNITS: usize = 384;

/// Computes `sums + a b^T` for `[64, 64]` of a and `[128, 64]` of b in shared memory, with the units of a warpgroup. If
/// not `transposed`, computes `sums + a b` for `[64, 128]` of b, in two halves of columns.
///
/// A descriptor holds an address / 16 in its low 14 bits, 1024 / 16 bytes from 8 rows to the next 8 (bits 32 to 45),
/// and the 128-byte swizzle (1 in bits 62 and 63). If k runs along a row, the four steps of 16 are 32 bytes apart: 2 in
/// the descriptor. If it runs down the rows, they are 16 rows of 128 bytes apart, 128 in the descriptor, and bits 16 to
/// 29 hold the 8192 / 16 bytes from one half of the columns to the other.
#[cube]
fn multiply(sums: Vector<f32, Const<64>>, a: &bf16, b: &bf16, #[comptime] transposed: bool) -> Vector<f32, Const<64>> {
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
        or.b64 db, db, {5};
        {4}
        wgmma.fence.sync.aligned;
        wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {0}, da, db, 1, 1, 1, 0, {6};
        add.u64 da, da, 2; add.u64 db, db, {7};
        wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {0}, da, db, 1, 1, 1, 0, {6};
        add.u64 da, da, 2; add.u64 db, db, {7};
        wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {0}, da, db, 1, 1, 1, 0, {6};
        add.u64 da, da, 2; add.u64 db, db, {7};
        wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {0}, da, db, 1, 1, 1, 0, {6};
        wgmma.commit_group.sync.aligned;
        wgmma.wait_group.sync.aligned 0;
        // {1}
        }}",
        out(_) next,
        in(_) sums,
        mem_in(_) a,
        mem_in(_) b,
        const copies(64),
        const of_b(transposed)[0],
        const of_b(transposed)[1],
        const of_b(transposed)[2],
        options(explicit_mem)
    );
    next
}

/// PTX that copies the incoming sums (operands n to 2n) to the outgoing ones; the assembler assigns them the same
/// registers.
fn copies(n: usize) -> String {
    (0..n).map(|i| format!("mov.f32 %{i}, %{};", i + n)).collect::<Vec<_>>().join("\n")
}

/// For `b`: the descriptor without its address, the operand that selects its layout, and the step to the next 16 of k.
fn of_b(transposed: bool) -> [&'static str; 3] {
    if transposed { ["0x4000004000010000", "0", "2"] } else { ["0x4000004002000000", "1", "128"] }
}

#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn grouped_gemm_product_wgmma(
    x: &TensorMap<bf16, Tiled>,
    weight: &TensorMap<bf16, Tiled>,
    tiles: &[i32],
    y: &mut [Vector<bf16, Const<2>>],
    p: usize,
    q: usize,
    #[comptime] transposed: bool,
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
            let (expert, column) = (tile.expert as i32, column as i32);
            for round in 0..steps.div_ceil(STAGES) {
                #[unroll]
                for s in 0..STAGES {
                    let step = round * STAGES + s;
                    if step < steps {
                        // In a fresh barrier the phase before the first one counts as completed.
                        empty[s].wait_parity((round as u32 + 1u32) % 2u32);
                        let k = (step * DEPTH) as i32;
                        let part = comptime!(s * OPERAND..(s + 1) * OPERAND);
                        full[s].tma_load_2d(x, &mut a[part.start..part.end], x_row, k);
                        if comptime!(transposed) {
                            full[s].tma_load_3d(weight, &mut b[part.start..part.end], expert, column, k);
                        } else {
                            let half = comptime!(part.start + OPERAND / 2);
                            full[s].tma_load_3d(weight, &mut b[part.start..half], expert, k, column);
                            full[s].tma_load_3d(weight, &mut b[half..part.end], expert, k, column + 64i32);
                        }
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
                    sums = multiply(Vector::cast_from(sums), &a[at + half], &b[at], transposed);
                    empty[s].arrive();
                }
            }
        }

        // Unit u of a warpgroup has rows u / 32 * 16 + u % 32 / 4 and 8 below, columns u % 4 * 2 and one to the right,
        // and so on every 8 columns.
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

/// Computes `y_rq`, or says why it cannot; all tensors are contiguous.
pub(super) fn launch(
    x: &CubeTensor,
    weight: &CubeTensor,
    expert_offsets: &CubeTensor,
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

    let map = |tensor: &CubeTensor, shape: &[usize], tile: &[usize]| {
        let strides: Vec<usize> = (1..=shape.len()).map(|dim| shape[dim..].iter().product()).collect();
        let binding = TensorBinding {
            handle: tensor.handle.clone().binding(),
            shape: shape.into(),
            strides: strides.as_slice().into(),
            tiling: Default::default(),
        };
        let part = TiledArgs { tile_size: tile.into() };
        TensorMapArg::new(part, binding.into_tensor_arg(), dtype_to_elem_type(tensor.dtype))
            .with_swizzle(TensorMapSwizzle::B128)
    };
    // In the memory order of the matrices.
    let (matrices, part) = if transposed { ([e, q, p], [1, TILE, DEPTH]) } else { ([e, p, q], [1, DEPTH, TILE / 2]) };
    let table = tiles::launch(expert_offsets, y, TILE);
    // SAFETY: TMA skips whatever is outside a tensor, and writes are checked against a tile's end, which is at most the
    // number of rows (`tiles`).
    unsafe {
        grouped_gemm_product_wgmma::launch_unchecked(
            &x.client,
            CubeCount::Static(tiles::count(r, e, TILE) as u32, q.div_ceil(TILE) as u32, 1),
            CubeDim::new_1d(UNITS as u32),
            address_type([x, weight, y]),
            map(x, &[r, p], &[TILE, DEPTH]),
            map(weight, &matrices, &part),
            table.elements(),
            y.clone().elements(),
            p,
            q,
            transposed,
        );
    }
    Ok(())
}
