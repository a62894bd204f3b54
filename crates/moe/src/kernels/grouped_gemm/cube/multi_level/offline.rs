//! cubek's multiplication as it plans it on a GPU, to compile without one.

use super::super::TILE;
use super::{LaunchShape, OnPlanes, arguments, cube_mapping_launch, grouped_gemm_product};
use cubecl::prelude::*;
use cubecl::server::Handle;
use cubecl_common::device::{DeviceId, ServiceId};
use cubecl_environment::stream::StreamId;
use cubek::matmul::definition::{MatmulElems, MatmulVectorSizes};
use cubek::matmul::multi_level::components::stage::PartitionBuffering;
use cubek::matmul::multi_level::components::tile::TileMatmulKind;
use cubek::matmul::multi_level::definition::{BatchMatmulBlueprint, TilingScheme};
use cubek::matmul::multi_level::{PartitionSize, StageSize};
use cubek::std::cube_count::{CubeCountPlan, CubeCountStrategy, GlobalOrder, HypercubeBlueprint, SmAllocation};
use fused::cube::offline::KernelCase;
use half::{bf16, f16};
use std::sync::Arc;

pub(in super::super) fn cases() -> Vec<KernelCase> {
    let (brain, half) = (bf16::elem_type_native(), f16::elem_type_native());
    // The widths of DeepSeek-V2-Lite's experts, and widths that load two numbers at once and need bounds checks.
    let widths = [("", 2048, 1408, 8), (" odd widths", 2050, 1402, 2)];
    let kinds = [("bf16", brain, false), ("bf16 transposed", brain, true), ("f16", half, false)];
    let mut cases = vec![];
    for (kind, element, transposed) in kinds {
        for (widths, p, q, vector) in widths {
            let case = KernelCase::new(format!("grouped_gemm multi_level {kind}{widths}"), move |gpu| {
                let shape = LaunchShape { r: 4096, p, q, e: 64, rows: TILE, transposed };
                compile(&shape, element, vector, gpu.device(), gpu.target())
            });
            cases.push(case.instructions(&["HMMA"]));
        }
    }
    cases
}

/// The kernel with the blueprint that cubek makes if `cmma` multiplies 16 x 16 x 16 and a cube has up to 32 planes: 8
/// planes of 16 x 128, 32 deep, in two stages.
fn compile(
    shape: &LaunchShape,
    element: ElemType,
    vector: usize,
    device: Arc<DeviceProperties>,
    target: Arc<TargetProperties>,
) -> impl CubeKernel + use<> {
    let problem = shape.problem(element, AddressType::U32).expect("a problem");
    let scheme = TilingScheme::builder()
        .with_tile_size((16, 16, 16).into())
        .with_partition_size(PartitionSize::new(1, 8, 2))
        .with_stage_size(StageSize::new(8, 1, 1))
        .build()
        .expect("all sizes are given");
    let sms = device.hardware.num_streaming_multiprocessors.expect("a GPU has multiprocessors");
    let strategy = CubeCountStrategy::Sm { cubes_first: true, num_sms: sms, sm_usage: SmAllocation::Exact };
    let cubes = HypercubeBlueprint::builder().global_order(GlobalOrder::SwizzleRow(4)).cube_count_strategy(strategy);
    let blueprint = BatchMatmulBlueprint::builder(TileMatmulKind::Cmma, scheme, 32, &problem)
        .partition_buffering(PartitionBuffering::Double)
        .stage_buffering(2)
        .hypercube_blueprint(cubes.build())
        .build();
    let count = (1, shape.q.div_ceil(128) as u32, problem.num_batches() as u32);
    let plan =
        CubeCountPlan::from_blueprint(&blueprint.hypercube_blueprint, count.into(), &device.hardware.max_cube_count);

    // Nothing is launched, so the buffers are never accessed.
    let service = ServiceId::of::<LaunchShape>(DeviceId::new(0, 0));
    let buffer = || Handle::new(service, StreamId::current(), 1 << 30).binding();
    let table = || unsafe { BufferArg::from_raw_parts_binding(buffer(), 1 << 10) };
    let vectors = MatmulVectorSizes { lhs: vector, rhs: vector, out: vector };
    let (inputs, output) = arguments(shape, [(); 3].map(|()| buffer()), table, &blueprint, &vectors);
    grouped_gemm_product::create_dummy_kernel::<OnPlanes>(
        device,
        target,
        plan.resolve(),
        CubeDim::new_2d(32, 8),
        AddressType::U32,
        vector,
        vector,
        vector,
        inputs,
        output,
        table(),
        cube_mapping_launch(&plan),
        blueprint,
        MatmulElems::from_globals(&problem.global_dtypes),
        element,
    )
}
