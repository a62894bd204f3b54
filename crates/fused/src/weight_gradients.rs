//! Where a backward on a device writes the gradients of weights: straight into a buffer that the caller gives.
//!
//! ```text
//! otherwise        x^T dy ─> a tensor of its own ─> copied to its place by `flatten`
//! written_into     x^T dy ─> its place in the buffer, which `flatten_into` leaves alone
//! ```
//!
//! A copy of every gradient costs two passes over the memory of all parameters a micro-batch, and while it runs the
//! gradients of a unit exist twice.

use burn::backend::autodiff::NodeId;
use burn::tensor::{Device, Tensor};
use std::any::Any;
use std::cell::RefCell;

/// A weight's place in a flat buffer.
pub struct Place {
    leaf: NodeId,
    /// The buffer as a tensor of the backend under autodiff.
    flat: Box<dyn Any>,
    start: usize,
}

thread_local! {
    /// The places of weights whose gradients the backward of this thread has not made yet.
    static PLACES: RefCell<Vec<Place>> = const { RefCell::new(vec![]) };
}

impl Place {
    /// The place of the gradient of `leaf`, from element `start` of `flat`; `None` on the CPU, and for a tensor that no
    /// graph tracks.
    pub fn new<const D: usize>(leaf: &Tensor<D>, flat: &Tensor<1>, start: usize) -> Option<Self> {
        #[cfg(feature = "cubecl")]
        {
            use burn::backend::autodiff::Autodiff;
            use burn_cubecl::Cube;

            let leaf = leaf.clone().try_into_primitive::<Autodiff<Cube>>().ok()?.id();
            let flat = Box::new(flat.clone().try_into_primitive::<Cube>().ok()?);
            Some(Self { leaf, flat, start })
        }
        #[cfg(not(feature = "cubecl"))]
        {
            let _ = (leaf, flat, start);
            None
        }
    }
}

/// Whether gradients can be [`written_into`] a buffer on this device. On the CPU they cannot.
pub fn are_written_into(device: &Device) -> bool {
    cfg!(feature = "cubecl") && *device != Device::flex()
}

/// Runs a backward whose gradients of these weights go to their places, as far as an operation can write there: the
/// products of [`linear`](crate::linear) and its kin and those of experts can. Of a weight that is used twice the first
/// gradient goes there.
pub fn written_into<R>(places: Vec<Place>, backward: impl FnOnce() -> R) -> R {
    // Also if the backward panics.
    struct Clear;
    impl Drop for Clear {
        fn drop(&mut self) {
            PLACES.take();
        }
    }
    let _clear = Clear;
    PLACES.set(places);
    backward()
}

/// The buffer and the first element of the place of a leaf's gradient, once.
pub(crate) fn take<F: Clone + 'static>(leaf: NodeId) -> Option<(F, usize)> {
    PLACES.with_borrow_mut(|places| {
        let found = places.iter().position(|place| place.leaf == leaf)?;
        let Place { flat, start, .. } = places.swap_remove(found);
        Some((*flat.downcast::<F>().ok()?, start))
    })
}
