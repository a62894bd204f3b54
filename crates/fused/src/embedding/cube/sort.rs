//! Sorts places by their tokens on the device: a counting sort in four launches.

// Kernels have no iterators.
#![allow(clippy::needless_range_loop)]

use crate::cube::launch::{Elements, UNITS, address_type, empty, over_items, units};
#[cfg(feature = "offline")]
use crate::cube::offline::{KernelCase, buffer};
use burn::backend::TensorMetadata;
use burn::backend::cubecl::dtype_to_elem_type;
use burn::tensor::DType;
use burn_cubecl::ops::numeric::zeros_client;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

/// Minimum number of tokens of a chunk. Each token is compared with those before it in the chunk: with 256 units, 512
/// comparisons per unit.
const CHUNK: usize = 512;
/// Maximum number of chunks; larger inputs get longer chunks instead,
const CHUNKS: usize = 128;
/// as long as a chunk's tokens fit into 32 KB of shared memory.
const LONGEST: usize = 8192;

/// Places sorted by their tokens. Those of row `v` begin at `blocks[v / block] + starts[v]`; `v` may be the number of
/// rows.
pub(super) struct Sorted {
    pub places: CubeTensor,
    pub starts: CubeTensor,
    pub blocks: CubeTensor,
    pub block: usize,
}

/// Sorts places by token. Tokens beyond the table have no place.
pub(super) fn sort(tokens: CubeTensor, rows: usize) -> Sorted {
    let ([n], client) = (tokens.shape().dims(), tokens.client.clone());
    let ints = |len| empty(&tokens, [len], DType::I32);
    let chunk = n.div_ceil(CHUNKS).next_power_of_two().clamp(CHUNK, LONGEST);
    let chunks = n.div_ceil(chunk);
    let counts = zeros_client(client.clone(), tokens.device.clone(), [chunks * rows].into(), DType::I32);
    // One extra row, whose start is the end of all rows.
    let block = units(&client, UNITS);
    let (starts, blocks, places) = (ints(rows + 1), ints((rows + 1).div_ceil(block)), ints(n));
    let (address, int) = (address_type([&counts]), dtype_to_elem_type(tokens.dtype));

    let (count, dim) = over_items(&client, n);
    let (tokens_arg, counts_arg) = (tokens.clone().elements(), counts.clone().elements());
    embedding_count_kernel::launch(&client, count, dim, address, tokens_arg, counts_arg, n, rows, chunk, int);
    embedding_scan_kernel::launch(
        &client,
        CubeCount::Static((rows + 1).div_ceil(block) as u32, 1, 1),
        CubeDim::new_1d(block as u32),
        address,
        counts.clone().elements(),
        starts.clone().elements(),
        blocks.clone().elements(),
        rows,
        chunks,
        block,
    );
    let (blocks_arg, len) = (blocks.clone().elements(), (rows + 1).div_ceil(block));
    embedding_scan_blocks_kernel::launch(
        &client,
        CubeCount::new_single(),
        CubeDim::new_1d(block as u32),
        blocks_arg,
        len,
        block,
    );
    embedding_place_kernel::launch(
        &client,
        CubeCount::Static(chunks as u32, 1, 1),
        CubeDim::new_1d(block as u32),
        address,
        tokens.clone().elements(),
        counts.elements(),
        starts.clone().elements(),
        blocks.clone().elements(),
        places.clone().elements(),
        n,
        rows,
        block,
        chunk,
        int,
    );
    Sorted { places, starts, blocks, block }
}

#[cube(launch, address_type = "dynamic")]
fn embedding_count_kernel<I: Int>(
    tokens: &[I],
    counts: &[Atomic<i32>],
    n: usize,
    rows: usize,
    #[comptime] chunk: usize,
    #[define(I)] _int: ElemType,
) {
    let mut place = ABSOLUTE_POS;
    while place < n {
        let token = u32::cast_from(tokens[place]) as usize;
        if token < rows {
            counts[place / chunk * rows + token].fetch_add(1i32);
        }
        place += CUBE_COUNT * CUBE_DIM as usize;
    }
}

/// Returns the sum of `value` over the units before this one, and leaves the sum over all units in `shared[units]`.
#[cube]
fn before(value: i32, shared: &mut [i32], #[comptime] units: usize) -> i32 {
    let unit = UNIT_POS as usize;
    shared[unit] = value;
    sync_cube();
    if unit == 0usize {
        let mut sum = 0i32;
        for other in 0..units {
            let of_other = shared[other];
            shared[other] = sum;
            sum += of_other;
        }
        shared[units] = sum;
    }
    sync_cube();
    shared[unit]
}

#[cube(launch, address_type = "dynamic")]
fn embedding_scan_kernel(
    counts: &mut [i32],
    starts: &mut [i32],
    blocks: &mut [i32],
    rows: usize,
    chunks: usize,
    #[comptime] units: usize,
) {
    let row = CUBE_POS * units + UNIT_POS as usize;
    let mut total = 0i32;
    if row < rows {
        for chunk in 0..chunks {
            let count = counts[chunk * rows + row];
            counts[chunk * rows + row] = total;
            total += count;
        }
    }
    let mut shared = Shared::<[i32]>::new_slice(comptime!(units + 1));
    let start = before(total, &mut shared, units);
    if row <= rows {
        starts[row] = start;
    }
    if UNIT_POS == 0 {
        blocks[CUBE_POS] = shared[units];
    }
}

/// Each unit takes consecutive blocks.
#[cube(launch)]
fn embedding_scan_blocks_kernel(blocks: &mut [i32], len: usize, #[comptime] units: usize) {
    let share = len.div_ceil(units);
    let first = min(UNIT_POS as usize * share, len);
    let end = min(first + share, len);
    let mut total = 0i32;
    for block in first..end {
        total += blocks[block];
    }
    let mut shared = Shared::<[i32]>::new_slice(comptime!(units + 1));
    let mut start = before(total, &mut shared, units);
    for block in first..end {
        let count = blocks[block];
        blocks[block] = start;
        start += count;
    }
}

#[cube(launch, address_type = "dynamic")]
fn embedding_place_kernel<I: Int>(
    tokens: &[I],
    counts: &[i32],
    starts: &[i32],
    blocks: &[i32],
    places: &mut [i32],
    n: usize,
    rows: usize,
    #[comptime] units: usize,
    #[comptime] chunk: usize,
    #[define(I)] _int: ElemType,
) {
    let first = CUBE_POS * chunk;
    let len = min(n - first, chunk.runtime());
    let mut here = Shared::<[u32]>::new_slice(chunk);
    let mut i = UNIT_POS as usize;
    while i < len {
        here[i] = u32::cast_from(tokens[first + i]);
        i += units;
    }
    sync_cube();
    let mut i = UNIT_POS as usize;
    while i < len {
        let token = here[i];
        let row = token as usize;
        if row < rows {
            let mut at = blocks[row / units] + starts[row] + counts[CUBE_POS * rows + row];
            for other in 0..i {
                at += select(here[other] == token, 1i32, 0i32);
            }
            places[at as usize] = (first + i) as i32;
        }
        i += units;
    }
}

/// Lists the kernels with typical compile-time values.
#[cfg(feature = "offline")]
pub(super) fn cases() -> Vec<KernelCase> {
    use embedding_count_kernel::EmbeddingCountKernel;
    use embedding_place_kernel::EmbeddingPlaceKernel;
    use embedding_scan_blocks_kernel::EmbeddingScanBlocksKernel;
    use embedding_scan_kernel::EmbeddingScanKernel;

    let dim = || CubeDim::new_1d(256);
    let mut cases = vec![
        KernelCase::new("embedding scan", move |gpu| {
            let (b, s, d, t) = (buffer, gpu.settings(dim()), gpu.device(), gpu.target());
            EmbeddingScanKernel::new(s, d, t, b(), b(), b(), (), (), 256)
        }),
        KernelCase::new("embedding scan_blocks", move |gpu| {
            EmbeddingScanBlocksKernel::new(gpu.settings(dim()), gpu.device(), gpu.target(), buffer(), (), 256)
        }),
    ];
    for (name, int) in [("i32", i32::elem_type_native()), ("i64", i64::elem_type_native())] {
        cases.push(KernelCase::new(format!("embedding count {name}"), move |gpu| {
            let (b, s, d, t) = (buffer, gpu.settings(dim()), gpu.device(), gpu.target());
            EmbeddingCountKernel::new(s, d, t, b(), b(), (), (), CHUNK, int)
        }));
        cases.push(KernelCase::new(format!("embedding place {name}"), move |gpu| {
            let (b, s, d, t) = (buffer, gpu.settings(dim()), gpu.device(), gpu.target());
            EmbeddingPlaceKernel::new(s, d, t, b(), b(), b(), b(), b(), (), (), 256, CHUNK, int)
        }));
    }
    cases
}
