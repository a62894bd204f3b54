//! The kernels of [`dispatch`](super): a counting sort in four launches.
//!
//! The assignments of a group, in order, are divided into chunks of `units * items`; no chunk spans two groups.
//!
//! ```text
//! histogram   a cube per chunk    counts[chunk, e]: assignments to e in the chunk, in shared memory;
//!                                 assignment_of = -1
//! scan        a cube for some     counts[chunk, e] becomes the number before the chunk in its group; totals[group, e]
//!             experts of a group
//! place       a unit per expert   kept, expert_offsets, and begins[group, e], the group's first row of the expert
//! assign      a cube per chunk    position = counts[chunk, e] + those of earlier units + those of this unit so far
//! ```
//!
//! In `assign` a unit takes `items` consecutive assignments, so positions do not depend on the order in which units
//! run. Its table of counts takes `4 * units * e` bytes of shared memory, which limits the units.
//!
//! In `scan` a unit sums one strip of the chunks of an expert, then passes over it again with the sum of the strips
//! before it. 256 chunks make 8 strips of 32 counts that are loaded in parallel, where a single unit would load 256 one
//! after another.

use super::{DispatchOps, DispatchRule, Order, RowLayout};
use burn::backend::TensorMetadata;
use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;
use fused::cube::launch::{Elements, UNITS, contiguous, empty, units};
#[cfg(feature = "offline")]
use fused::cube::offline::{KernelCase, buffer};

/// Bytes of shared memory that NVIDIA GPUs provide without opting in to more; others may have less.
const SHARED_MEMORY: usize = 48 * 1024;
/// Target number of chunks for the scan, unless there is too little work.
const CHUNKS: usize = 256;
/// Minimum number of assignments per unit.
const ITEMS: usize = 8;
/// Number of strips into which the scan divides an expert's chunks, if a cube has enough units.
const STRIPS: usize = 8;

impl DispatchOps for CubeBackend {
    fn moe_dispatch(experts: CubeTensor, rule: DispatchRule) -> (CubeTensor, CubeTensor, CubeTensor, CubeTensor) {
        let ([k, n], e, groups) = (experts.shape().dims(), rule.experts, rule.groups);
        let experts = contiguous(experts, DType::I32);
        let (client, rows) = (experts.client.clone(), rule.rows(n, k));
        let ints = |len| empty(&experts, [len], DType::I32);

        // The size of shared memory is fixed at compile time: the next power of two, so that few kernels are compiled.
        let table = e.next_power_of_two();
        let shared_memory = SHARED_MEMORY.min(client.properties().hardware.max_shared_memory_size);
        // A column has an odd stride, one more than the units. From 512 experts on, there is room for less than a
        // plane.
        let units_fit = ((shared_memory / (4 * table)).next_power_of_two() / 2).max(1);
        let chunk_units = units(&client, UNITS.min(units_fit)).min(units_fit);
        let items = (n * k).div_ceil(chunk_units * CHUNKS).max(ITEMS);
        let chunks = (n / groups * k).div_ceil(chunk_units * items).max(1);
        let size = || SizesLaunch::new(n, k, e, groups, chunks, items);

        let (row_of, kept, expert_offsets) = (empty(&experts, [k, n], DType::I32), ints(e), ints(e + 1));
        // Kernels cannot take empty buffers: without rows they get one row that stays -1.
        let assignment_of = ints(rows.max(1));
        let (counts, totals, begins) = (ints(groups * chunks * e), ints(groups * e), ints(groups * e));
        let capacity = rule.capacity.unwrap_or(usize::MAX).min(i32::MAX as usize) as i32;
        let (sorted, tile) = match rule.layout {
            RowLayout::Capacity => (false, 1),
            RowLayout::Sorted { tile } => (true, tile as i32),
        };
        let choice_major = rule.order == Order::Choice;
        let (count, dim) = (CubeCount::Static((groups * chunks) as u32, 1, 1), CubeDim::new_1d(chunk_units as u32));

        dispatch_histogram_kernel::launch(
            &client,
            count.clone(),
            dim,
            experts.clone().elements(),
            counts.clone().elements(),
            assignment_of.clone().elements(),
            rows.max(1),
            size(),
            table,
            chunk_units,
            choice_major,
        );
        let lanes = (units(&client, chunks * e) / STRIPS).max(1);
        let strips = units(&client, chunks * e) / lanes;
        dispatch_scan_kernel::launch(
            &client,
            CubeCount::Static((groups * e.div_ceil(lanes)) as u32, 1, 1),
            CubeDim::new_1d((lanes * strips) as u32),
            counts.clone().elements(),
            totals.clone().elements(),
            size(),
            lanes,
            strips,
        );
        let place_units = units(&client, e);
        dispatch_place_kernel::launch(
            &client,
            CubeCount::new_single(),
            CubeDim::new_1d(place_units as u32),
            totals.elements(),
            begins.clone().elements(),
            expert_offsets.clone().elements(),
            kept.clone().elements(),
            capacity,
            tile,
            e,
            groups,
            table,
            place_units,
            sorted,
        );
        if n * k > 0 {
            dispatch_assign_kernel::launch(
                &client,
                count,
                dim,
                experts.clone().elements(),
                counts.elements(),
                begins.elements(),
                expert_offsets.clone().elements(),
                row_of.clone().elements(),
                assignment_of.clone().elements(),
                capacity,
                size(),
                table,
                chunk_units,
                choice_major,
            );
        }
        let assignment_of = if rows == 0 { ints(0) } else { assignment_of };
        (row_of, assignment_of, expert_offsets, kept)
    }
}

/// Sizes that the kernels of assignments share.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
struct Sizes {
    n: usize,
    k: usize,
    e: usize,
    groups: usize,
    /// Chunks per group.
    chunks: usize,
    /// Assignments per unit of a chunk.
    items: usize,
}

/// The number `p` of the `i`-th assignment of a group in its order.
#[cube]
pub(in crate::kernels) fn assignment(
    i: usize,
    group: usize,
    tokens: usize,
    n: usize,
    k: usize,
    #[comptime] choice_major: bool,
) -> usize {
    let first = group * tokens;
    if comptime!(choice_major) { i / tokens * n + first + i % tokens } else { i % k * n + first + i / k }
}

#[cube(launch)]
fn dispatch_histogram_kernel(
    experts: &[i32],
    counts: &mut [i32],
    assignment_of: &mut [i32],
    rows: usize,
    size: Sizes,
    #[comptime] table: usize,
    #[comptime] units: usize,
    #[comptime] choice_major: bool,
) {
    let unit = UNIT_POS as usize;
    let mut row = ABSOLUTE_POS;
    while row < rows {
        assignment_of[row] = -1i32;
        row += CUBE_COUNT * units;
    }

    let count = Shared::<[Atomic<i32>]>::new_slice(table);
    let mut expert = unit;
    while expert < size.e {
        count[expert].store(0i32);
        expert += units;
    }
    sync_cube();
    let tokens = size.n / size.groups;
    let (group, chunk) = (CUBE_POS / size.chunks, CUBE_POS % size.chunks);
    let end = min((chunk + 1usize) * size.items * units, tokens * size.k);
    let mut i = chunk * size.items * units + unit;
    while i < end {
        let expert = experts[assignment(i, group, tokens, size.n, size.k, choice_major)];
        // Checked here: a launch checks bounds in global memory but not in shared memory.
        if expert >= 0i32 && expert < size.e as i32 {
            count[expert as usize].fetch_add(1i32);
        }
        i += units;
    }
    sync_cube();
    let mut expert = unit;
    while expert < size.e {
        counts[CUBE_POS * size.e + expert] = count[expert].load();
        expert += units;
    }
}

/// A cube takes `lanes` experts of one group, whose counts are adjacent, and one unit per strip for each of them.
#[cube(launch)]
fn dispatch_scan_kernel(
    counts: &mut [i32],
    totals: &mut [i32],
    size: Sizes,
    #[comptime] lanes: usize,
    #[comptime] strips: usize,
) {
    let (lane, strip) = (UNIT_POS as usize % lanes, UNIT_POS as usize / lanes);
    let cubes = size.e.div_ceil(lanes);
    let (group, expert) = (CUBE_POS / cubes, CUBE_POS % cubes * lanes + lane);
    let length = size.chunks.div_ceil(strips);
    let first = min(strip * length, size.chunks);
    let end = select(expert < size.e, min(first + length, size.chunks), first);
    let at = group * size.chunks * size.e + expert;

    let mut sums = Shared::<[i32]>::new_slice(comptime!(lanes * strips));
    let mut sum = 0i32;
    for chunk in first..end {
        sum += counts[at + chunk * size.e];
    }
    sums[UNIT_POS as usize] = sum;
    sync_cube();
    let mut before = 0i32;
    for other in 0..strip {
        before += sums[other * lanes + lane];
    }
    for chunk in first..end {
        let count = counts[at + chunk * size.e];
        counts[at + chunk * size.e] = before;
        before += count;
    }
    if strip == comptime!(strips - 1) && expert < size.e {
        totals[group * size.e + expert] = before;
    }
}

/// `sorted` selects [`RowLayout::Sorted`].
#[cube(launch)]
fn dispatch_place_kernel(
    totals: &[i32],
    begins: &mut [i32],
    expert_offsets: &mut [i32],
    kept: &mut [i32],
    capacity: i32,
    tile: i32,
    e: usize,
    groups: usize,
    #[comptime] table: usize,
    #[comptime] units: usize,
    #[comptime] sorted: bool,
) {
    let mut lengths = Shared::<[i32]>::new_slice(table);
    let mut expert = UNIT_POS as usize;
    while expert < e {
        let mut total = 0i32;
        for group in 0..groups {
            if comptime!(sorted) {
                begins[group * e + expert] = total;
            } else {
                begins[group * e + expert] = group as i32 * capacity;
            }
            total += min(totals[group * e + expert], capacity);
        }
        kept[expert] = total;
        if comptime!(sorted) {
            lengths[expert] = (total + tile - 1i32) / tile * tile;
        } else {
            lengths[expert] = groups as i32 * capacity;
        }
        expert += units;
    }
    sync_cube();
    let mut expert = UNIT_POS as usize;
    while expert < e {
        let mut start = 0i32;
        for before in 0..expert {
            start += lengths[before];
        }
        expert_offsets[expert] = start;
        if expert == e - 1 {
            expert_offsets[e] = start + lengths[expert];
        }
        expert += units;
    }
}

#[cube(launch)]
fn dispatch_assign_kernel(
    experts: &[i32],
    counts: &[i32],
    begins: &[i32],
    expert_offsets: &[i32],
    row_of: &mut [i32],
    assignment_of: &mut [i32],
    capacity: i32,
    size: Sizes,
    #[comptime] table: usize,
    #[comptime] units: usize,
    #[comptime] choice_major: bool,
) {
    let unit = UNIT_POS as usize;
    // Each unit has a column of next positions. With an odd stride, neither a row nor a column falls into one bank.
    let stride = comptime!(units | 1);
    let mut next = Shared::<[i32]>::new_slice(comptime!((units | 1) * table));
    for expert in 0..size.e {
        next[expert * stride + unit] = 0i32;
    }
    let tokens = size.n / size.groups;
    let (group, chunk) = (CUBE_POS / size.chunks, CUBE_POS % size.chunks);
    let start = min((chunk * units + unit) * size.items, tokens * size.k);
    let end = min(start + size.items, tokens * size.k);
    for i in start..end {
        let expert = experts[assignment(i, group, tokens, size.n, size.k, choice_major)];
        if expert >= 0i32 && expert < size.e as i32 {
            next[expert as usize * stride + unit] += 1i32;
        }
    }
    sync_cube();
    let mut expert = unit;
    while expert < size.e {
        let mut position = counts[CUBE_POS * size.e + expert];
        for other in 0..units {
            let count = next[expert * stride + other];
            next[expert * stride + other] = position;
            position += count;
        }
        expert += units;
    }
    sync_cube();
    for i in start..end {
        let p = assignment(i, group, tokens, size.n, size.k, choice_major);
        let expert = experts[p];
        let mut row = (-1i32).runtime();
        if expert >= 0i32 && expert < size.e as i32 {
            let expert = expert as usize;
            let position = next[expert * stride + unit];
            next[expert * stride + unit] = position + 1i32;
            if position < capacity {
                row = expert_offsets[expert] + begins[group * size.e + expert] + position;
                assignment_of[row as usize] = p as i32;
            }
        }
        row_of[p] = row;
    }
}

/// Lists the kernels with typical compile-time values.
#[cfg(feature = "offline")]
pub(crate) fn cases() -> Vec<KernelCase> {
    use dispatch_assign_kernel::DispatchAssignKernel;
    use dispatch_histogram_kernel::DispatchHistogramKernel;
    use dispatch_place_kernel::DispatchPlaceKernel;
    use dispatch_scan_kernel::DispatchScanKernel;

    let sizes = || SizesCompilationArg { n: (), k: (), e: (), groups: (), chunks: (), items: () };
    let mut cases = vec![];
    for (table, units) in [(8, 256), (256, 32)] {
        let dim = move || CubeDim::new_1d(units as u32);
        for on in [false, true] {
            cases.push(KernelCase::new(format!("dispatch histogram e={table} choice_major={on}"), move |gpu| {
                let (b, s, d, t) = (buffer, gpu.settings(dim()), gpu.device(), gpu.target());
                DispatchHistogramKernel::new(s, d, t, b(), b(), b(), (), sizes(), table, units, on)
            }));
            cases.push(KernelCase::new(format!("dispatch place e={table} sorted={on}"), move |gpu| {
                let (b, s, d, t) = (buffer, gpu.settings(CubeDim::new_1d(table as u32)), gpu.device(), gpu.target());
                DispatchPlaceKernel::new(s, d, t, b(), b(), b(), b(), (), (), (), (), table, table, on)
            }));
            cases.push(KernelCase::new(format!("dispatch assign e={table} choice_major={on}"), move |gpu| {
                let (b, s, d, t) = (buffer, gpu.settings(dim()), gpu.device(), gpu.target());
                DispatchAssignKernel::new(s, d, t, b(), b(), b(), b(), b(), b(), (), sizes(), table, units, on)
            }));
        }
    }
    cases.push(KernelCase::new("dispatch scan", move |gpu| {
        let (b, s, d, t) = (buffer, gpu.settings(CubeDim::new_1d(256)), gpu.device(), gpu.target());
        DispatchScanKernel::new(s, d, t, b(), b(), sizes(), 32, STRIPS)
    }));
    cases
}
