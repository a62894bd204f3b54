//! The rows that a product reads, and how to recompute them if its backward should not keep them.

use crate::check::Call;
use crate::rows::to_rows;
use burn::tensor::Tensor;
use std::fmt;
use std::sync::Arc;

/// Rows of a product, `[.., from]`, which its backward keeps or recomputes.
pub struct Rows<const D: usize> {
    pub(crate) x: Tensor<D>,
    pub(crate) again: Option<Again>,
}

/// Recomputes the same rows, outside any graph.
#[derive(Clone)]
pub struct Again(Arc<dyn Fn() -> Tensor<2> + Send + Sync>);

impl Again {
    pub(crate) fn rows(&self) -> Tensor<2> {
        (self.0)()
    }
}

impl fmt::Debug for Again {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Again")
    }
}

impl<const D: usize> From<Tensor<D>> for Rows<D> {
    fn from(x: Tensor<D>) -> Self {
        Self { x, again: None }
    }
}

impl<const D: usize> Rows<D> {
    /// Rows that are not kept. A backward that needs them for the gradient of a matrix calls `again`, once.
    ///
    /// # Panics
    /// In the backward, if `again` returns a tensor of another shape or dtype.
    pub fn not_kept(x: Tensor<D>, again: impl Fn() -> Tensor<D> + Send + Sync + 'static) -> Self {
        let (shape, dtype) = (x.dims(), x.dtype());
        let again = move || {
            let x = again();
            let call = Call("Rows::not_kept");
            call.shape("what `again` returns", x.dims(), shape);
            call.dtype("what `again` returns", x.dtype(), dtype);
            to_rows(x)
        };
        Self { x, again: Some(Again(Arc::new(again))) }
    }
}
