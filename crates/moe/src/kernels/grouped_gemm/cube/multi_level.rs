//! The product by cubek's multi-level matrix multiplication: tensor cores where the device has them.
//!
//! cubek multiplies batches of matrices. A tile of rows becomes a batch, and layouts say where a batch's matrices lie:
//!
//! ```text
//!  batch = tile      lhs [128, p]                 rhs [p, q]                 out [128, q]
//!    0  (e0)         x + first[0] * p             weight + 0                 y, rows first[0] .. end[0]
//!    1  (e0)         x + first[1] * p             weight + 0                 y, rows first[1] .. end[1]
//!    2  (e2)         x + first[2] * p             weight + 2 * p * q         ..
//!                    Lhs: rows behind the         strides (q, 1), or         Out: rows from `end` on belong to
//!                    tile's end are read,         (1, p) where transposed    the next tile and are not written
//!                    and are 0 behind r
//! ```
//!
//! A row of the result depends on its own row of lhs alone, so it does no harm that a tile's last rows are the next expert's. cubek chooses
//! the tiles of tensor cores, warps and cubes from shape and device. A cube of a tile without rows leaves before it has read anything.

use super::tiles::{self, ENTRY};
use burn::backend::cubecl::dtype_to_elem_type;
use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;
use cubecl::std::tensor::launch::ViewArg;
use cubecl::std::tensor::layout::{Coords1d, Layout, LayoutExpand, VirtualLayoutLaunch};
use cubecl::std::tensor::{View, ViewMut};
use cubek::matmul::definition::{AvailableVectorSizes, MatmulElems, MatmulProblem};
use cubek::matmul::multi_level::args::{
    BatchedCoords, MatmulArgs, TensorArgs, TensorInputs, TensorInputsLaunch, TensorOutput, TensorOutputLaunch,
};
use cubek::matmul::multi_level::components::global::memory::{
    GlobalLayout, GlobalLayoutConfig, GlobalLayoutLaunch, NoopLayout, NoopLayoutLaunch,
};
use cubek::matmul::multi_level::definition::{BatchMatmulBlueprint, Blueprint};
use cubek::matmul::multi_level::routines::batch::double_buffering::CyclicDoubleBufferingAlgorithm;
use cubek::matmul::multi_level::routines::batch::simple_unit::SimpleUnitAlgorithm;
use cubek::matmul::multi_level::{BatchMatmulRoutine, launch_kernel};
use cubek::std::cube_count::CubeCountPlanKind;
use fused::cube::launch::address_type;

/// Batch to a tile's number in the table, times `stride`: its first row or its expert.
#[derive(CubeType, CubeLaunch)]
struct Offset {
    tiles: Box<[i32]>,
    stride: usize,
    #[cube(comptime)]
    entry: usize,
}

#[cube]
impl Layout for Offset {
    type Coordinates = Coords1d;
    type SourceCoordinates = Coords1d;

    fn to_source_pos(&self, tile: Self::Coordinates) -> Self::SourceCoordinates {
        self.tiles[tile * ENTRY + self.entry] as usize * self.stride
    }

    fn shape(&self) -> Self::Coordinates {
        usize::MAX
    }

    fn is_in_bounds(&self, _tile: Self::Coordinates) -> bool {
        true.runtime()
    }

    fn to_source_pos_checked(&self, tile: Self::Coordinates) -> (Self::SourceCoordinates, bool) {
        (self.to_source_pos(tile), self.is_in_bounds(tile))
    }
}

/// (where the tile starts, row, column) in `[.., width]`.
#[derive(CubeType, CubeLaunch)]
struct Lhs {
    /// Numbers in the tensor.
    len: usize,
    width: usize,
    #[cube(comptime)]
    rows: u32,
    #[cube(comptime)]
    vector_size: usize,
}

#[cube]
impl Layout for Lhs {
    type Coordinates = BatchedCoords;
    type SourceCoordinates = Coords1d;

    fn to_source_pos(&self, at: Self::Coordinates) -> Self::SourceCoordinates {
        (at.0 + at.1 as usize * self.width + at.2 as usize) / self.vector_size
    }

    fn shape(&self) -> Self::Coordinates {
        (u32::MAX.runtime() as usize, self.rows.runtime(), self.width as u32)
    }

    fn is_in_bounds(&self, at: Self::Coordinates) -> bool {
        at.0 + at.1 as usize * self.width < self.len && (at.2 as usize) < self.width
    }

    fn to_source_pos_checked(&self, at: Self::Coordinates) -> (Self::SourceCoordinates, bool) {
        (self.to_source_pos(at), self.is_in_bounds(at))
    }
}

/// (tile, row, column) in `[.., width]`.
#[derive(CubeType, CubeLaunch)]
struct Out {
    tiles: Box<[i32]>,
    width: usize,
    #[cube(comptime)]
    rows: u32,
    #[cube(comptime)]
    vector_size: usize,
}

#[cube]
impl Layout for Out {
    type Coordinates = BatchedCoords;
    type SourceCoordinates = Coords1d;

    fn to_source_pos(&self, at: Self::Coordinates) -> Self::SourceCoordinates {
        let row = self.tiles[at.0 * ENTRY + 1] as usize + at.1 as usize;
        (row * self.width + at.2 as usize) / self.vector_size
    }

    fn shape(&self) -> Self::Coordinates {
        (u32::MAX.runtime() as usize, self.rows.runtime(), self.width as u32)
    }

    fn is_in_bounds(&self, at: Self::Coordinates) -> bool {
        let row = self.tiles[at.0 * ENTRY + 1] as u32 + at.1;
        at.1 < self.rows && row < self.tiles[at.0 * ENTRY + 2] as u32 && (at.2 as usize) < self.width
    }

    fn to_source_pos_checked(&self, at: Self::Coordinates) -> (Self::SourceCoordinates, bool) {
        (self.to_source_pos(at), self.is_in_bounds(at))
    }
}

/// cubek's arguments, and the tiles, so that cubes without work can leave.
#[derive(Clone)]
struct TileArgs;

#[derive(CubeType, CubeLaunch, Clone)]
#[expand(derive(Clone))]
struct TileInputs<L: CubePrimitive, R: CubePrimitive, A: CubePrimitive> {
    tensors: TensorInputs<L, R, A>,
    tiles: Box<[i32]>,
    /// Whether a cube's place in z is its tile.
    #[cube(comptime)]
    tile_is_z: bool,
}

#[cube]
impl MatmulArgs for TileArgs {
    type Output<O: CubePrimitive> = TensorOutput<O>;
    type Input<L: CubePrimitive, R: CubePrimitive, O: CubePrimitive> = TileInputs<L, R, O>;
    type Config = ();
    type State<L: CubePrimitive, R: CubePrimitive, O: CubePrimitive> = (TensorInputs<L, R, O>, TensorOutput<O>, ());

    fn init_state<L: CubePrimitive, R: CubePrimitive, O: CubePrimitive>(
        input: &Self::Input<L, R, O>,
        output: &mut Self::Output<O>,
        config: Self::Config,
        #[comptime] lhs: GlobalLayoutConfig,
        #[comptime] rhs: GlobalLayoutConfig,
        #[comptime] out: GlobalLayoutConfig,
    ) -> Self::State<L, R, O> {
        if input.tile_is_z.comptime() {
            let entry = CUBE_POS_Z as usize * ENTRY;
            if input.tiles[entry + 1] >= input.tiles[entry + 2] {
                terminate!();
            }
        }
        TensorArgs::<()>::init_state::<L, R, O>(&input.tensors, output, config, lhs, rhs, out)
    }

    fn view_lhs<L: CubePrimitive, R: CubePrimitive, O: CubePrimitive>(
        state: &Self::State<L, R, O>,
    ) -> View<'_, L, BatchedCoords> {
        TensorArgs::<()>::view_lhs::<L, R, O>(state)
    }

    fn batch_lhs<L: CubePrimitive, R: CubePrimitive, O: CubePrimitive>(
        state: &Self::State<L, R, O>,
        batch: usize,
    ) -> usize {
        TensorArgs::<()>::batch_lhs::<L, R, O>(state, batch)
    }

    fn view_rhs<L: CubePrimitive, R: CubePrimitive, O: CubePrimitive>(
        state: &Self::State<L, R, O>,
    ) -> View<'_, R, BatchedCoords> {
        TensorArgs::<()>::view_rhs::<L, R, O>(state)
    }

    fn batch_rhs<L: CubePrimitive, R: CubePrimitive, O: CubePrimitive>(
        state: &Self::State<L, R, O>,
        batch: usize,
    ) -> usize {
        TensorArgs::<()>::batch_rhs::<L, R, O>(state, batch)
    }

    fn view_acc<L: CubePrimitive, R: CubePrimitive, O: CubePrimitive>(
        state: &Self::State<L, R, O>,
    ) -> ComptimeOption<View<'_, O, BatchedCoords>> {
        TensorArgs::<()>::view_acc::<L, R, O>(state)
    }

    fn batch_acc<L: CubePrimitive, R: CubePrimitive, O: CubePrimitive>(
        state: &Self::State<L, R, O>,
        batch: usize,
    ) -> usize {
        TensorArgs::<()>::batch_acc::<L, R, O>(state, batch)
    }

    fn view_out<L: CubePrimitive, R: CubePrimitive, O: CubePrimitive>(
        state: &Self::State<L, R, O>,
    ) -> ViewMut<'_, O, BatchedCoords> {
        TensorArgs::<()>::view_out::<L, R, O>(state)
    }

    fn batch_out<L: CubePrimitive, R: CubePrimitive, O: CubePrimitive>(
        state: &Self::State<L, R, O>,
        batch: usize,
    ) -> usize {
        TensorArgs::<()>::batch_out::<L, R, O>(state, batch)
    }

    fn runtime_config<L: CubePrimitive, R: CubePrimitive, O: CubePrimitive>(_state: &Self::State<L, R, O>) {}
}

/// Whether this is faster than without tensor cores.
pub(super) fn is_fast(x: &CubeTensor) -> bool {
    x.dtype.size() == 2 && !x.client.properties().features.matmul.cmma.is_empty()
}

/// `y_rq`, or why it cannot be had; all tensors are contiguous.
pub(super) fn launch(
    x: &CubeTensor,
    weight: &CubeTensor,
    segments: &CubeTensor,
    y: &CubeTensor,
    transposed: bool,
) -> Result<(), String> {
    let tensors = (x, weight, segments, y);
    if x.client.properties().hardware.num_cpu_cores.is_some() {
        // cubek does not round as `kernels::round` does.
        if x.dtype == DType::BF16 {
            return Err("not every CPU has the conversion to bf16".into());
        }
        run::<SimpleUnitAlgorithm>(tensors, transposed, 32)
    } else {
        run::<CyclicDoubleBufferingAlgorithm>(tensors, transposed, super::TILE)
    }
}

fn run<R: BatchMatmulRoutine<(), Blueprint = BatchMatmulBlueprint>>(
    (x, weight, segments, y): (&CubeTensor, &CubeTensor, &CubeTensor, &CubeTensor),
    transposed: bool,
    rows: usize,
) -> Result<(), String> {
    let client = &x.client;
    let ([r, p], [_, q], e) = (x.meta.shape().dims(), y.meta.shape().dims(), weight.meta.shape()[0]);
    let count = tiles::count(r, e, rows);
    let element = dtype_to_elem_type(x.dtype);
    let binding = |tensor: &CubeTensor, shape: [usize; 3], strides: [usize; 3]| TensorBinding {
        handle: tensor.handle.clone().binding(),
        shape: shape.into(),
        strides: strides.into(),
        tiling: Default::default(),
    };
    let strides = if transposed { [p * q, 1, p] } else { [p * q, q, 1] };
    let lhs = binding(x, [count, rows, p], [rows * p, p, 1]);
    let rhs = binding(weight, [e, p, q], strides);
    let out = binding(y, [count, rows, q], [rows * q, q, 1]);

    let problem = MatmulProblem::from_shapes_and_strides(
        lhs.shape.clone(),
        [count, p, q].into(),
        out.shape.clone(),
        lhs.strides.clone(),
        rhs.strides.clone(),
        out.strides.clone(),
        MatmulElems::from_single_dtype(element).as_global_elems(),
        address_type([x, weight, y]),
        None,
        None,
    )
    .map_err(|error| format!("{error:?}"))?;
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

    let table = tiles::launch(segments, y, rows);
    let table = || table.clone().into_buffer_arg();
    let vectors = plan.vector_sizes;
    let inputs = TensorInputsLaunch::new(
        VirtualLayoutLaunch::new::<Offset>(OffsetLaunch::new(table(), p, 1)),
        ViewArg::new_tensor::<Lhs>(lhs.into_tensor_arg(), LhsLaunch::new(r * p, p, rows as u32, vectors.lhs)),
        VirtualLayoutLaunch::new::<Offset>(OffsetLaunch::new(table(), p * q, 0)),
        {
            let layout = GlobalLayoutLaunch::from_handle(&rhs, vectors.rhs, plan.blueprint.rhs_global_layout_config());
            ViewArg::new_tensor::<GlobalLayout>(rhs.into_tensor_arg(), layout)
        },
        ComptimeOptionArgs::None,
        ComptimeOptionArgs::None,
    );
    let output = TensorOutputLaunch::new(
        ViewArg::new_tensor::<Out>(out.into_tensor_arg(), OutLaunch::new(table(), q, rows as u32, vectors.out)),
        VirtualLayoutLaunch::new::<NoopLayout>(NoopLayoutLaunch::new()),
    );
    let tile_is_z = matches!(plan.cube_count_plan.kind, CubeCountPlanKind::FromProblem { .. })
        && plan.blueprint.tiling_scheme.global_partition_size.batches == 1;
    let inputs = TileInputsLaunch::new(inputs, table(), tile_is_z);
    launch_kernel::<TileArgs, R>(client, inputs, output, (), plan).map_err(|error| format!("{error:?}"))
}
