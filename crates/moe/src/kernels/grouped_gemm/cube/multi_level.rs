//! The product by cubek's multi-level matrix multiplication, on tensor cores if the device has them.
//!
//! cubek multiplies batches of matrices. A tile of rows becomes a batch, and layouts locate each batch's matrices:
//!
//! ```text
//!  batch = tile      lhs [128, p]                 rhs [p, q]                 out [128, q]
//!    0  (e0)         x + first[0] * p             weight + 0                 y, rows first[0] .. end[0]
//!    1  (e0)         x + first[1] * p             weight + 0                 y, rows first[1] .. end[1]
//!    2  (e2)         x + first[2] * p             weight + 2 * p * q         ..
//!                    Lhs: rows past the           strides (q, 1), or         Out: rows from `end` on belong to
//!                    tile's end are read,         (1, p) if transposed       the next tile and are not written
//!                    and are 0 past r
//! ```
//!
//! A row of the result depends only on its own row of lhs, so the next expert's rows at the end of a tile are harmless.
//! cubek chooses the tiles of tensor cores, warps and cubes from shape and device, and assigns tiles to cubes. The
//! [kernel] first asks it for a cube's tile; a cube whose tile has no rows exits after it has read where the tile
//! starts and ends. For 4,096 tokens, DeepSeek-V2-Lite has 319 tiles, about 224 of them with rows; V3 has 766, about
//! 384 of them with rows.

mod kernel;
mod layouts;
#[cfg(feature = "offline")]
pub(super) mod offline;

use super::tiles;
use burn::backend::cubecl::dtype_to_elem_type;
use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;
use cubecl::server::BufferBinding;
use cubecl::std::tensor::launch::ViewArg;
use cubecl::std::tensor::layout::VirtualLayoutLaunch;
use cubek::matmul::definition::{
    AvailableVectorSizes, MatmulElems, MatmulProblem, MatmulSetupError, MatmulVectorSizes,
};
use cubek::matmul::multi_level::BatchMatmulRoutine;
use cubek::matmul::multi_level::args::{TensorInputs, TensorInputsLaunch, TensorOutput, TensorOutputLaunch};
use cubek::matmul::multi_level::components::global::memory::{
    GlobalLayout, GlobalLayoutLaunch, NoopLayout, NoopLayoutLaunch,
};
use cubek::matmul::multi_level::components::global::multi_stage::double_buffering::DoubleBufferingMatmulFamily;
use cubek::matmul::multi_level::components::global::read::sync_full_cyclic::SyncFullCyclicLoading;
use cubek::matmul::multi_level::components::global::read::sync_partial_cyclic::SyncPartialCyclicLoading;
use cubek::matmul::multi_level::components::global::single_stage::simple::SimpleMatmulFamily;
use cubek::matmul::multi_level::components::global::{GlobalMatmulFamily, PlaneWriterFamily, UnitWriterFamily};
use cubek::matmul::multi_level::components::stage::{PlanePartitioner, UnitPartitioner};
use cubek::matmul::multi_level::definition::{BatchMatmulBlueprint, Blueprint, cube_mapping_launch};
use cubek::matmul::multi_level::routines::batch::double_buffering::CyclicDoubleBufferingAlgorithm;
use cubek::matmul::multi_level::routines::batch::simple_unit::SimpleUnitAlgorithm;
use cubek::matmul::multi_level::tile::{ColMajorTilingOrder, RowMajorTilingOrder};
use fused::cube::launch::{Elements, address_type};
use kernel::grouped_gemm_product;
use layouts::{Lhs, LhsLaunch, Offset, OffsetLaunch, Out, OutLaunch};

/// The multiplication that [`CyclicDoubleBufferingAlgorithm`] plans.
type OnPlanes = DoubleBufferingMatmulFamily<
    PlanePartitioner,
    (),
    SyncPartialCyclicLoading<RowMajorTilingOrder>,
    SyncPartialCyclicLoading<RowMajorTilingOrder>,
    SyncFullCyclicLoading<RowMajorTilingOrder>,
    PlaneWriterFamily,
>;
/// The multiplication that [`SimpleUnitAlgorithm`] plans.
type OnUnits = SimpleMatmulFamily<
    UnitPartitioner,
    (),
    SyncFullCyclicLoading<ColMajorTilingOrder>,
    SyncFullCyclicLoading<RowMajorTilingOrder>,
    SyncFullCyclicLoading<RowMajorTilingOrder>,
    UnitWriterFamily,
>;

/// Whether this is faster than the product without tensor cores.
pub(super) fn is_fast(x: &CubeTensor) -> bool {
    // Both kernels need the same hardware for their tiles.
    x.dtype.size() == 2 && super::weight_cmma::has_tensor_cores(x)
}

/// Computes `y_rq`, or says why it cannot; all tensors are contiguous.
pub(super) fn launch(
    x: &CubeTensor,
    weight: &CubeTensor,
    expert_offsets: &CubeTensor,
    y: &CubeTensor,
    transposed: bool,
) -> Result<(), String> {
    let tensors = (x, weight, expert_offsets, y);
    // On a CPU, cubek does not round as `kernels::round` does.
    if x.client.properties().hardware.num_cpu_cores.is_some() && x.dtype == DType::BF16 {
        return Err("not every CPU has the conversion to bf16".into());
    }
    if super::weight_cmma::has_tensor_cores(x) {
        run::<CyclicDoubleBufferingAlgorithm, OnPlanes>(tensors, transposed, super::TILE)
    } else {
        run::<SimpleUnitAlgorithm, OnUnits>(tensors, transposed, 32)
    }
}

fn run<R, G>(
    (x, weight, expert_offsets, y): (&CubeTensor, &CubeTensor, &CubeTensor, &CubeTensor),
    transposed: bool,
    rows: usize,
) -> Result<(), String>
where
    R: BatchMatmulRoutine<(), Blueprint = BatchMatmulBlueprint>,
    G: GlobalMatmulFamily<()>,
{
    let client = &x.client;
    let ([r, p], [_, q], e) = (x.meta.shape().dims(), y.meta.shape().dims(), weight.meta.shape()[0]);
    let shape = LaunchShape { r, p, q, e, rows, transposed };
    let element = dtype_to_elem_type(x.dtype);
    let problem = shape.problem(element, address_type([x, weight, y])).map_err(|error| format!("{error:?}"))?;
    let size = element.size();
    let vectors = AvailableVectorSizes::from_type_sizes(client, size, size, size)
        .filter_lhs_with_tensor(&problem.lhs_strides, &problem.lhs_shape, problem.lhs_layout)
        .filter_rhs_with_tensor(&problem.rhs_strides, &problem.rhs_shape, problem.rhs_layout)
        .filter_out_with_tensor(&problem.out_strides, &problem.out_shape)
        .pick_max()
        .map_err(|error| format!("{error:?}"))?;
    let settings = R::device_settings(client, vectors);
    let plan = R::expand_blueprint(&problem, &settings, &Default::default())
        .and_then(|blueprint| R::prepare(&problem, &settings, blueprint))
        .map_err(|error| format!("{error:?}"))?;
    if plan.blueprint.tiling_scheme.global_partition_size.batches != 1 {
        return Err("cubek gives a cube more than one tile".into());
    }

    let table = tiles::launch(expert_offsets, y, rows);
    let tensors = [x, weight, y].map(|tensor| tensor.handle.clone().binding());
    let table = || table.clone().elements();
    let (inputs, output) = arguments(&shape, tensors, table, &plan.blueprint, &plan.vector_sizes);
    // SAFETY: cubek checks bounds if its blueprint says that sizes do not divide, and the layouts have the bounds of
    // rows.
    unsafe {
        grouped_gemm_product::launch_unchecked::<G>(
            client,
            plan.cube_count_plan.resolve(),
            plan.cube_dim,
            plan.address_type,
            vectors.lhs,
            vectors.rhs,
            vectors.out,
            inputs,
            output,
            table(),
            cube_mapping_launch(&plan.cube_count_plan),
            plan.blueprint,
            plan.dtypes,
            element,
        );
    }
    Ok(())
}

/// The sizes of `x_rp`, `e` matrices and `y_rq`, in tiles of `rows` rows.
struct LaunchShape {
    r: usize,
    p: usize,
    q: usize,
    e: usize,
    rows: usize,
    transposed: bool,
}

impl LaunchShape {
    /// Shapes and strides of the left side, the right side and the result.
    fn operands(&self) -> [([usize; 3], [usize; 3]); 3] {
        let Self { r, p, q, e, rows, transposed } = *self;
        let count = tiles::count(r, e, rows);
        [
            ([count, rows, p], [rows * p, p, 1]),
            ([e, p, q], if transposed { [p * q, 1, p] } else { [p * q, q, 1] }),
            ([count, rows, q], [rows * q, q, 1]),
        ]
    }

    /// The batches as cubek plans them: one matrix each.
    fn problem(&self, element: ElemType, addresses: AddressType) -> Result<MatmulProblem, MatmulSetupError> {
        let [lhs, rhs, out] = self.operands();
        MatmulProblem::from_shapes_and_strides(
            lhs.0.into(),
            [lhs.0[0], self.p, self.q].into(),
            out.0.into(),
            lhs.1.into(),
            rhs.1.into(),
            out.1.into(),
            MatmulElems::from_single_dtype(element).as_global_elems(),
            addresses,
            None,
            None,
        )
    }
}

type Inputs<L, R, O> = <TensorInputs<L, R, O> as LaunchArg>::RuntimeArg;
type Output<O> = <TensorOutput<O> as LaunchArg>::RuntimeArg;

/// The tensors with the layouts by which a batch finds its part of them.
fn arguments<L: CubePrimitive, R: CubePrimitive, O: CubePrimitive>(
    shape: &LaunchShape,
    tensors: [BufferBinding; 3],
    table: impl Fn() -> BufferArg,
    blueprint: &BatchMatmulBlueprint,
    vectors: &MatmulVectorSizes,
) -> (Inputs<L, R, O>, Output<O>) {
    let LaunchShape { r, p, q, rows, .. } = *shape;
    let mut operands = tensors.into_iter().zip(shape.operands()).map(|(handle, (shape, strides))| TensorBinding {
        handle,
        shape: shape.into(),
        strides: strides.into(),
        tiling: Default::default(),
    });
    let [lhs, rhs, out] = std::array::from_fn(|_| operands.next().expect("three operands"));
    let inputs = TensorInputsLaunch::new(
        VirtualLayoutLaunch::new::<Offset>(OffsetLaunch::new(table(), p, 1)),
        ViewArg::new_tensor::<Lhs>(lhs.into_tensor_arg(), LhsLaunch::new(r * p, p, rows as u32, vectors.lhs)),
        VirtualLayoutLaunch::new::<Offset>(OffsetLaunch::new(table(), p * q, 0)),
        {
            let layout = GlobalLayoutLaunch::from_handle(&rhs, vectors.rhs, blueprint.rhs_global_layout_config());
            ViewArg::new_tensor::<GlobalLayout>(rhs.into_tensor_arg(), layout)
        },
        ComptimeOptionArgs::None,
        ComptimeOptionArgs::None,
    );
    let output = TensorOutputLaunch::new(
        ViewArg::new_tensor::<Out>(out.into_tensor_arg(), OutLaunch::new(table(), q, rows as u32, vectors.out)),
        VirtualLayoutLaunch::new::<NoopLayout>(NoopLayoutLaunch::new()),
    );
    (inputs, output)
}
