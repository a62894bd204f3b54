//! The kernel of [`flatten`](super): one launch copies up to eight parts of one dtype, with their vectors spread over
//! all units.
//!
//! An extension of Burn's backends takes a fixed number of tensors, so the operation is registered with fusion
//! directly.

use crate::cube::launch::{Elements, address_type, empty, is_part, over_items, vector_size};
#[cfg(feature = "offline")]
use crate::cube::offline::{KernelCase, buffer, float_cases};
use crate::cube::rounded;
use burn::backend::TensorMetadata;
use burn::backend::cubecl::dtype_to_elem_type;
use burn::backend::ops::FloatTensorOps;
use burn::tensor::{DType, Shape, Tensor};
use burn_cubecl::fusion::{CubeFusionHandle, FusionCubeRuntime};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{Cube, CubeBackend};
use burn_fusion::ExecutionError;
use burn_fusion::custom::{CustomOpIr, HandleContainer, Operation, OperationIr, StreamId, TensorIr};
use cubecl::prelude::*;

/// Parts per launch.
const PARTS: usize = 8;

/// Copies the parts into the memory of `into`, or into a new buffer. Returns the parts unchanged if they are not on a
/// device.
pub(super) fn flatten(
    parts: Vec<(usize, Tensor<1>)>,
    into: Option<Tensor<1>>,
    len: usize,
    dtype: DType,
) -> Result<Tensor<1>, Vec<(usize, Tensor<1>)>> {
    let primitive = |part: &Tensor<1>| part.clone().try_into_primitive::<Cube>().ok();
    let Some(first) = parts.first().and_then(|(_, part)| primitive(part)) else { return Err(parts) };
    let client = first.client.clone();
    drop(first);
    let on_cube = |(start, part): (usize, Tensor<1>)| {
        let part = part.try_into_primitive::<Cube>().expect("parts are on one device");
        (start, part.into_ir())
    };
    let parts: Vec<(usize, TensorIr)> = parts.into_iter().map(on_cube).collect();
    let out = TensorIr::uninit(client.create_empty_handle(), Shape::from([len]), dtype);
    let into = into.map(|flat| flat.try_into_primitive::<Cube>().expect("it is where the parts are").into_ir());
    let inputs: Vec<TensorIr> = parts.iter().map(|(_, part)| part).chain(&into).cloned().collect();
    let repr = OperationIr::Custom(CustomOpIr::new("flatten", &inputs, std::slice::from_ref(&out)));
    let flat = client.register(StreamId::current(), repr, Flatten { parts, into, out }).remove(0);
    Ok(Tensor::from_primitive::<Cube>(flat))
}

#[derive(Debug)]
struct Flatten {
    parts: Vec<(usize, TensorIr)>,
    into: Option<TensorIr>,
    out: TensorIr,
}

impl Operation<FusionCubeRuntime> for Flatten {
    fn execute(&self, handles: &mut HandleContainer<CubeFusionHandle>) -> Result<(), ExecutionError> {
        let part = |(start, part): &(usize, TensorIr)| (*start, handles.get_float_tensor::<CubeBackend>(part));
        let parts: Vec<_> = self.parts.iter().map(part).collect();
        let flat = match &self.into {
            Some(flat) => handles.get_float_tensor::<CubeBackend>(flat),
            None => new(&parts, self.out.shape.num_elements(), self.out.dtype),
        };
        launch(parts, &flat);
        handles.register_float_tensor::<CubeBackend>(&self.out.id, flat);
        Ok(())
    }
}

/// A buffer for these parts, with zeros in the elements that they do not cover.
fn new(parts: &[(usize, CubeTensor)], len: usize, dtype: DType) -> CubeTensor {
    let filled: usize = parts.iter().map(|(_, part)| part.shape().num_elements()).sum();
    let like = &parts[0].1;
    match filled == len {
        true => empty(like, [len], dtype),
        false => CubeBackend::float_zeros([len].into(), &like.device, dtype.into()),
    }
}

/// Copies the parts to their places, except those that are already there.
fn launch(mut parts: Vec<(usize, CubeTensor)>, flat: &CubeTensor) {
    parts.retain(|(start, part)| !is_part(part, flat, *start));
    let none = empty(flat, [0], flat.dtype);
    for from in [DType::F32, DType::BF16, DType::F16] {
        let of_type: Vec<_> =
            parts.iter().filter(|(_, part)| part.dtype == from && part.shape().num_elements() > 0).collect();
        for parts in of_type.chunks(PARTS) {
            let len_of = |(_, part): &&(usize, CubeTensor)| part.shape().num_elements();
            let fits = parts.iter().map(|part| vector_size(&flat.client, gcd(len_of(part), part.0), from));
            let vector = fits.min().expect("a chunk has a part");
            let longest = parts.iter().map(len_of).max().expect("a chunk has a part");
            let (count, dim) = over_items(&flat.client, longest / vector);
            let part = |i: usize| match parts.get(i) {
                Some((_, part)) => into_contiguous(part.clone()),
                None => CubeTensor { dtype: from, ..none.clone() },
            };
            let start = |i: usize| parts.get(i).map_or(0, |(start, _)| start / vector);
            flatten_kernel::launch(
                &flat.client,
                count,
                dim,
                address_type([flat]),
                vector,
                flat.clone().elements(),
                part(0).elements(),
                part(1).elements(),
                part(2).elements(),
                part(3).elements(),
                part(4).elements(),
                part(5).elements(),
                part(6).elements(),
                part(7).elements(),
                start(0),
                start(1),
                start(2),
                start(3),
                start(4),
                start(5),
                start(6),
                start(7),
                dtype_to_elem_type(from),
                dtype_to_elem_type(flat.dtype),
            );
        }
    }
}

/// The greatest common divisor; if one number is 0, the other one.
fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cube(launch, address_type = "dynamic")]
#[allow(clippy::too_many_arguments)]
fn flatten_kernel<F: Float, T: Float, V: Size>(
    flat: &mut [Vector<T, V>],
    part_0: &[Vector<F, V>],
    part_1: &[Vector<F, V>],
    part_2: &[Vector<F, V>],
    part_3: &[Vector<F, V>],
    part_4: &[Vector<F, V>],
    part_5: &[Vector<F, V>],
    part_6: &[Vector<F, V>],
    part_7: &[Vector<F, V>],
    start_0: usize,
    start_1: usize,
    start_2: usize,
    start_3: usize,
    start_4: usize,
    start_5: usize,
    start_6: usize,
    start_7: usize,
    #[define(F)] _from: ElemType,
    #[define(T)] _to: ElemType,
) {
    put(flat, part_0, start_0);
    put(flat, part_1, start_1);
    put(flat, part_2, start_2);
    put(flat, part_3, start_3);
    put(flat, part_4, start_4);
    put(flat, part_5, start_5);
    put(flat, part_6, start_6);
    put(flat, part_7, start_7);
}

#[cube]
fn put<F: Float, T: Float, V: Size>(flat: &mut [Vector<T, V>], part: &[Vector<F, V>], start: usize) {
    let mut i = ABSOLUTE_POS;
    while i < part.len() {
        flat[start + i] = rounded(Vector::<f32, V>::cast_from(part[i]));
        i += CUBE_COUNT * CUBE_DIM as usize;
    }
}

/// Lists the kernel with typical compile-time values.
#[cfg(feature = "offline")]
pub(crate) fn cases() -> Vec<KernelCase> {
    let case = |(name, dtype, vector)| {
        KernelCase::new(format!("flatten {name}"), move |gpu| {
            let (b, s, d, t) = (buffer, gpu.settings(CubeDim::new_1d(256)), gpu.device(), gpu.target());
            let n = ();
            flatten_kernel::FlattenKernel::new(
                s,
                d,
                t,
                b(),
                b(),
                b(),
                b(),
                b(),
                b(),
                b(),
                b(),
                b(),
                n,
                n,
                n,
                n,
                n,
                n,
                n,
                n,
                vector,
                dtype,
                dtype,
            )
        })
    };
    float_cases().map(case).into()
}
