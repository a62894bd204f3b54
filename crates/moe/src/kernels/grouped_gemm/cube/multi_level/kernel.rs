//! The kernel: a cube whose tile has no rows exits; cubek multiplies every other tile.

use super::super::tiles::ENTRY;
use cubecl::prelude::*;
use cubek::matmul::definition::{MatmulElems, MatmulVectorSizes};
use cubek::matmul::multi_level::args::{MatmulArgs, TensorArgs, TensorInputs, TensorOutput};
use cubek::matmul::multi_level::components::batch::{
    BatchMatmul, BatchMatmulFamily, PartitionedBatchMatmulFamily, RowMajorGlobalPartitionMatmul,
};
use cubek::matmul::multi_level::components::global::{GlobalConfig, GlobalMatmulFamily};
use cubek::matmul::multi_level::definition::{BatchMatmulBlueprint, Blueprint, CubeMapping};

/// cubek's batched product, built from its matrix product `G`.
type Batches<G> = PartitionedBatchMatmulFamily<(), G, RowMajorGlobalPartitionMatmul>;
type Multiply<G, T> = <Batches<G> as BatchMatmulFamily<()>>::Matmul<T>;

/// Does what cubek's entry point does, after a lookup in the table of tiles. cubek maps cubes to batches in several
/// ways, chosen by device and problem. The kernel asks the mapping in use, so that cubes of empty tiles exit with each
/// of them.
#[allow(clippy::collapsible_if, clippy::type_complexity)]
#[cube(launch_unchecked, create_dummy_kernel, address_type = "dynamic")]
pub(super) fn grouped_gemm_product<F: Numeric, L: Size, R: Size, O: Size, G: GlobalMatmulFamily<()>>(
    inputs: &TensorInputs<Vector<F, L>, Vector<F, R>, Vector<F, O>>,
    output: &mut TensorOutput<Vector<F, O>>,
    tiles: &[i32],
    mapping: CubeMapping,
    #[comptime] blueprint: BatchMatmulBlueprint,
    #[comptime] dtypes: MatmulElems,
    #[define(F)] _dtype: ElemType,
) {
    if mapping.can_yield_extra_cubes {
        if CUBE_POS >= mapping.num_valid_cubes() {
            terminate!();
        }
    }
    let (_, _, tile) = mapping.cube_pos_to_xyz();
    let entry = tile as usize * ENTRY;
    if tiles[entry + 1] >= tiles[entry + 2] {
        terminate!();
    }

    let state = TensorArgs::<()>::init_state::<Vector<F, L>, Vector<F, R>, Vector<F, O>>(
        inputs,
        output,
        (),
        blueprint.lhs_global_layout_config(),
        blueprint.rhs_global_layout_config(),
        blueprint.out_global_layout_config(),
    );
    let lhs = TensorArgs::<()>::view_lhs(&state).vector_size();
    let rhs = TensorArgs::<()>::view_rhs(&state).vector_size();
    let out = TensorArgs::<()>::view_out(&state).vector_size();
    let sizes = comptime!(MatmulVectorSizes { lhs, rhs, out });
    let device = comptime::device_properties();
    let config = comptime!(Batches::<G>::expand_config(&device, &blueprint, &dtypes, &sizes));
    if comptime!(config.is_err()) {
        push_validation_error(config.err().unwrap().to_string());
        comptime!(return);
    }
    let config = comptime!(config.unwrap());
    let (left, right, sums) = comptime!({
        let stage = config.global_config.stage_config();
        (stage.lhs_smem_config(), stage.rhs_smem_config(), stage.acc_smem_config())
    });
    let define!(LeftStage) = left.dtype;
    let size!(LeftSize) = comptime!(left.vector_size as usize);
    let define!(LeftRegister) = dtypes.lhs_register;
    let define!(RightStage) = right.dtype;
    let size!(RightSize) = comptime!(right.vector_size as usize);
    let define!(RightRegister) = dtypes.rhs_register;
    let define!(SumStage) = sums.dtype;
    let size!(SumSize) = comptime!(sums.vector_size as usize);
    let define!(SumRegister) = dtypes.acc_register;

    Multiply::<
        G,
        (
            (F, L, LeftStage, LeftSize, LeftRegister, LeftSize),
            (F, R, RightStage, RightSize, RightRegister, RightSize),
            (F, O, SumStage, SumSize, SumRegister, SumSize),
        ),
    >::execute::<TensorArgs<()>>(&state, mapping, config);
}
