//! Launch parameters of kernels: units per cube, cubes, vector sizes, and new tensors.
//!
//! Kernels work with any number of units and cubes, because units take work in strides. On a GPU a cube has hundreds of
//! units. On CubeCL's CPU runtime a unit is a thread that spins at barriers, so a cube has one unit there and barriers
//! compile away.

use burn::backend::cubecl::dtype_to_elem_type;
use burn::tensor::{DType, Shape};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use cubecl::client::Client;
use cubecl::features::Plane;
use cubecl::ir::DeviceProperties;
use cubecl::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Maximum number of units of a cube on a GPU; less work takes fewer units.
pub const UNITS: usize = 256;

/// Maximum number of cubes of a launch; strided loops cover the rest of the work.
const CUBES: usize = 1 << 16;

static CPU_UNITS: AtomicUsize = AtomicUsize::new(1);

/// Keeps the units that [`set_cpu_units`] has set until it is dropped. Meanwhile, other calls of [`set_cpu_units`]
/// wait.
pub struct CpuUnits(#[allow(dead_code)] MutexGuard<'static, ()>);

impl Drop for CpuUnits {
    fn drop(&mut self) {
        CPU_UNITS.store(1, Ordering::Relaxed);
    }
}

/// Sets the units of a cube on CubeCL's CPU runtime for the whole process: the default is 1, and 2 tests for races.
///
/// # Panics
/// If it is not a power of two.
#[must_use = "they are set for as long as this is held"]
pub fn set_cpu_units(units: usize) -> CpuUnits {
    static SET: Mutex<()> = Mutex::new(());
    assert!(units.is_power_of_two(), "set_cpu_units: {units} is no power of two");
    let held = SET.lock().unwrap_or_else(PoisonError::into_inner);
    CPU_UNITS.store(units, Ordering::Relaxed);
    CpuUnits(held)
}

/// Units of a cube that has `work` for this many of them: a power of two.
pub fn units(client: &Client, work: usize) -> usize {
    let hardware = &client.properties().hardware;
    if on_cpu(client) {
        return CPU_UNITS.load(Ordering::Relaxed).min(hardware.max_units_per_cube as usize);
    }
    let most = UNITS.min(hardware.max_units_per_cube as usize);
    work.next_power_of_two().clamp(hardware.plane_size_min as usize, most)
}

/// Units of a plane (warp, subgroup) if all planes have the same number of units and operate together, otherwise 1.
pub fn plane_units(client: &Client) -> usize {
    let properties = client.properties();
    let (least, most) = (properties.hardware.plane_size_min, properties.hardware.plane_size_max);
    if least == most && has_planes(properties) { most as usize } else { 1 }
}

/// Units of every plane of the device, or 0 if planes differ.
pub(super) fn fixed_plane(properties: &DeviceProperties) -> usize {
    let (least, most) = (properties.hardware.plane_size_min, properties.hardware.plane_size_max);
    if least == most { most as usize } else { 0 }
}

/// Whether the units of a plane can operate together. They cannot on CubeCL's CPU runtime.
///
/// CubeCL reports that they cannot on a software Vulkan driver either, but on Mesa's llvmpipe they can.
pub(super) fn has_planes(properties: &DeviceProperties) -> bool {
    properties.hardware.num_cpu_cores.is_none()
        && (properties.features.plane.contains(Plane::Ops) || is_llvmpipe(properties))
}

/// Whether the device is lavapipe, Mesa's Vulkan driver that computes on the CPU.
pub(super) fn is_llvmpipe(properties: &DeviceProperties) -> bool {
    properties.identity.name.starts_with("llvmpipe")
}

/// Whether the device is CubeCL's CPU runtime.
pub fn on_cpu(client: &Client) -> bool {
    client.properties().hardware.num_cpu_cores.is_some()
}

/// Cubes and units for `items` items, each the work of one unit.
pub fn over_items(client: &Client, items: usize) -> (CubeCount, CubeDim) {
    let units = units(client, items);
    (cubes(client, items.div_ceil(units)), CubeDim::new_1d(units as u32))
}

/// Cubes and units for `rows` rows, each the work of one cube with `lines` units.
pub fn over_rows(client: &Client, rows: usize, lines: usize) -> (CubeCount, CubeDim) {
    (cubes(client, rows), CubeDim::new_1d(units(client, lines) as u32))
}

fn cubes(client: &Client, count: usize) -> CubeCount {
    let most = CUBES.min(client.properties().hardware.max_cube_count.0 as usize);
    CubeCount::Static(count.clamp(1, most) as u32, 1, 1)
}

/// The widest vector that divides rows of `d` elements and that the device loads at once.
pub fn vector_size(client: &Client, d: usize, dtype: DType) -> usize {
    client.io_optimized_vector_sizes(dtype.size()).find(|size| d.is_multiple_of(*size)).unwrap_or(1)
}

/// Whether the elements of these tensors need 32-bit or 64-bit indices.
pub fn address_type<const N: usize>(tensors: [&CubeTensor; N]) -> AddressType {
    tensors.map(CubeTensor::required_address_type).into_iter().max().unwrap_or_default()
}

/// How an elementwise kernel is launched: each unit takes vectors in a grid-stride loop.
pub(crate) struct Elementwise {
    pub client: Client,
    pub count: CubeCount,
    pub dim: CubeDim,
    pub address: AddressType,
    /// Elements of a vector.
    pub vector: usize,
    /// Number of vectors of each tensor.
    pub vectors: usize,
    pub dtype: ElemType,
}

/// Computes tensors of the shape and dtype of the first input, element by element, from inputs of that shape. No vector
/// crosses a border of rows of `width` elements. `launch` launches the kernel with the inputs and the outputs, unless
/// there are no elements.
///
/// Kernels with inputs of another shape (`rope` with its table) or that write their inputs in place (`adamw`) launch
/// themselves.
pub(crate) fn elementwise<const N: usize, const M: usize>(
    inputs: [CubeTensor; N],
    width: usize,
    launch: impl FnOnce(Elementwise, [BufferArg; N], [BufferArg; M]),
) -> [CubeTensor; M] {
    let inputs = inputs.map(into_contiguous);
    let first = &inputs[0];
    let (len, client, address) = (first.meta.num_elements(), first.client.clone(), address_type([first]));
    let (dtype, outputs) = (first.dtype, [(); M].map(|()| empty_like(first)));
    if len > 0 {
        let vector = vector_size(&client, width, dtype);
        let (vectors, dtype) = (len / vector, dtype_to_elem_type(dtype));
        let (count, dim) = over_items(&client, vectors);
        let how = Elementwise { client, count, dim, address, vector, vectors, dtype };
        launch(how, inputs.map(Elements::elements), outputs.clone().map(Elements::elements));
    }
    outputs
}

/// A tensor as a kernel argument.
pub trait Elements {
    /// The memory from the first element to the last. `len()` in a kernel is then the number of elements of a
    /// contiguous tensor.
    ///
    /// CubeCL would take `len()` from the size of the allocation, which CUDA rounds up to whole rows of 16 bytes or
    /// more.
    fn elements(self) -> BufferArg;
}

impl Elements for CubeTensor {
    fn elements(mut self) -> BufferArg {
        let (shape, strides) = (self.meta.shape(), self.meta.strides());
        let last: usize = shape.iter().zip(strides.iter()).map(|(size, stride)| size.saturating_sub(1) * stride).sum();
        let len = if shape.num_elements() == 0 { 0 } else { last + 1 };
        let behind = self.handle.size_in_used() - (len * self.dtype.size()) as u64;
        self.handle = self.handle.offset_end(behind);
        self.into_buffer_arg()
    }
}

/// Returns the tensor of this dtype, contiguous.
///
/// # Panics
/// If it has another dtype.
pub fn contiguous(tensor: CubeTensor, dtype: DType) -> CubeTensor {
    assert_eq!(tensor.dtype, dtype, "indices are i32; scores, gates and statistics are f32");
    into_contiguous(tensor)
}

/// Allocates a contiguous tensor of the shape and dtype of `like`; its elements are not set.
pub fn empty_like(like: &CubeTensor) -> CubeTensor {
    empty_device_contiguous_dtype(like.client.clone(), like.device.clone(), like.meta.shape().clone(), like.dtype)
}

/// Returns the elements of the contiguous `flat` from `start` on as a tensor of this shape. Allocates a new tensor if
/// `flat` has another dtype, or if the device cannot bind memory at that offset.
pub fn part_or_empty<const D: usize>(flat: &CubeTensor, start: usize, shape: [usize; D], dtype: DType) -> CubeTensor {
    let (first, bytes) = ((start * dtype.size()) as u64, (shape.iter().product::<usize>() * dtype.size()) as u64);
    let handle = flat.handle.clone().offset_start(first);
    let alignment = flat.client.properties().memory.alignment;
    if flat.dtype != dtype || !handle.offset_start.unwrap_or(0).is_multiple_of(alignment) {
        return empty(flat, shape, dtype);
    }
    let behind = handle.size_in_used() - bytes;
    let (client, device) = (flat.client.clone(), flat.device.clone());
    CubeTensor::new_contiguous(client, device, Shape::from(shape), handle.offset_end(behind), dtype)
}

/// Whether a contiguous tensor is the elements of `flat` from `start` on, in the same memory.
pub(crate) fn is_part(part: &CubeTensor, flat: &CubeTensor, start: usize) -> bool {
    let first = |tensor: &CubeTensor| tensor.handle.offset_start.unwrap_or(0);
    let memory = |tensor: &CubeTensor| tensor.handle.memory.descriptor().id;
    part.dtype == flat.dtype
        && part.is_contiguous()
        && memory(part) == memory(flat)
        && first(part) == first(flat) + (start * flat.dtype.size()) as u64
}

/// A new contiguous tensor on the device of `like`, whose elements are not set.
pub fn empty<const D: usize>(like: &CubeTensor, shape: [usize; D], dtype: DType) -> CubeTensor {
    empty_device_contiguous_dtype(like.client.clone(), like.device.clone(), Shape::from(shape), dtype)
}
