//! Gradients of weights that a backward on a device writes straight into a flat buffer.
//!
//! ```text
//! otherwise        x^T dy ─> its own tensor ─> copied to its place by `flatten`
//! written_into     x^T dy ─> its place in the buffer, which `flatten_into` leaves alone
//! ```
//!
//! Copying every gradient takes two passes over the memory of all parameters per micro-batch, and during the copy a
//! unit's gradients exist twice.

use burn::backend::autodiff::NodeId;
use burn::tensor::{DType, Device, Tensor};
use std::any::Any;
use std::cell::{OnceCell, RefCell};
use std::rc::Rc;

/// A buffer for the gradients of several weights, allocated when the first product writes into it.
pub struct GradientBuffer {
    len: usize,
    dtype: DType,
    device: Device,
    zeros: OnceCell<Tensor<1>>,
}

/// Where a weight's gradient goes in a [`GradientBuffer`].
pub struct Destination {
    leaf: NodeId,
    buffer: Rc<GradientBuffer>,
    start: usize,
}

thread_local! {
    /// The destinations of weights whose gradients this thread's backward has not computed yet.
    static DESTINATIONS: RefCell<Vec<Destination>> = const { RefCell::new(vec![]) };
}

impl GradientBuffer {
    /// A buffer of `len` zeros; `None` on the CPU, and with several CubeCL streams per device. With several streams,
    /// CubeCL orders a kernel after the allocation of the memory it reads, but not after other kernels that have
    /// written it since.
    pub fn new(len: usize, dtype: DType, device: &Device) -> Option<Rc<Self>> {
        let buffer = Self { len, dtype, device: device.clone(), zeros: OnceCell::new() };
        is_supported(device).then(|| Rc::new(buffer))
    }

    /// The buffer, if a gradient was written into it; elements that no gradient covers are zeros.
    pub fn written(&self) -> Option<Tensor<1>> {
        self.zeros.get().cloned()
    }

    fn tensor(&self) -> Tensor<1> {
        self.zeros.get_or_init(|| Tensor::zeros([self.len], (&self.device, self.dtype))).clone()
    }
}

#[cfg(feature = "cubecl")]
fn is_supported(device: &Device) -> bool {
    use cubecl::config::{CubeClRuntimeConfig, RuntimeConfig};

    *device != Device::flex() && CubeClRuntimeConfig::get().streaming.max_streams == 1
}

#[cfg(not(feature = "cubecl"))]
fn is_supported(_: &Device) -> bool {
    false
}

impl Destination {
    /// The destination of the gradient of `leaf` in `buffer`, from element `start` on; `None` for a tensor that no
    /// graph tracks.
    pub fn new<const D: usize>(leaf: &Tensor<D>, buffer: &Rc<GradientBuffer>, start: usize) -> Option<Self> {
        #[cfg(feature = "cubecl")]
        {
            use burn::backend::autodiff::Autodiff;
            use burn_cubecl::Cube;

            let leaf = leaf.clone().try_into_primitive::<Autodiff<Cube>>().ok()?.id();
            Some(Self { leaf, buffer: buffer.clone(), start })
        }
        #[cfg(not(feature = "cubecl"))]
        {
            let _ = (leaf, buffer, start);
            None
        }
    }

    /// The buffer, as a tensor of the backend under autodiff, and the offset in it.
    fn open<F: Clone + 'static>(self) -> Option<(F, usize)> {
        let flat = self.buffer.tensor();
        #[cfg(feature = "cubecl")]
        let flat = flat.try_into_primitive::<burn_cubecl::Cube>().ok()?;
        let flat: Box<dyn Any> = Box::new(flat);
        Some((*flat.downcast::<F>().ok()?, self.start))
    }
}

/// Runs a backward that writes the gradients of these weights to their destinations, if the operation can: the products
/// of [`linear`](crate::linear) and its variants and those of experts can. If a weight is used twice, only its first
/// gradient goes there.
pub fn written_into<R>(destinations: Vec<Destination>, backward: impl FnOnce() -> R) -> R {
    // Also if the backward panics.
    struct Clear;
    impl Drop for Clear {
        fn drop(&mut self) {
            DESTINATIONS.take();
        }
    }
    let _clear = Clear;
    DESTINATIONS.set(destinations);
    backward()
}

/// Takes the buffer and the offset for a leaf's gradient. A second call for the same leaf returns `None`.
pub(crate) fn take<F: Clone + 'static>(leaf: NodeId) -> Option<(F, usize)> {
    let destination = DESTINATIONS.with_borrow_mut(|destinations| {
        let found = destinations.iter().position(|destination| destination.leaf == leaf)?;
        Some(destinations.swap_remove(found))
    });
    destination?.open()
}
