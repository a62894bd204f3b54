//! Gradients of weights that a backward on a device writes straight into the caller's buffer.
//!
//! ```text
//! otherwise        x^T dy ─> its own tensor ─> copied to its place by `flatten`
//! written_into     x^T dy ─> its place in the buffer, which `flatten_into` leaves alone
//! ```
//!
//! Copying every gradient takes two passes over the memory of all parameters per micro-batch, and during the copy a
//! unit's gradients exist twice.

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
    /// The places of weights whose gradients this thread's backward has not computed yet.
    static PLACES: RefCell<Vec<Place>> = const { RefCell::new(vec![]) };
}

impl Place {
    /// The place of the gradient of `leaf` in `flat`, from element `start` on; `None` on the CPU, and for a tensor that
    /// no graph tracks.
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

/// Whether gradients can be [`written_into`] a buffer on this device; on the CPU they cannot.
pub fn are_written_into(device: &Device) -> bool {
    cfg!(feature = "cubecl") && *device != Device::flex()
}

/// Runs a backward that writes the gradients of these weights to their places, if the operation can: the products of
/// [`linear`](crate::linear) and its variants and those of experts can. If a weight is used twice, only its first
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

/// Takes the buffer and the offset for a leaf's gradient. A second call for the same leaf returns `None`.
pub(crate) fn take<F: Clone + 'static>(leaf: NodeId) -> Option<(F, usize)> {
    PLACES.with_borrow_mut(|places| {
        let found = places.iter().position(|place| place.leaf == leaf)?;
        let Place { flat, start, .. } = places.swap_remove(found);
        Some((*flat.downcast::<F>().ok()?, start))
    })
}
