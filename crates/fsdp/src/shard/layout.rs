//! The layout of a unit's parameters in its flat buffer.

use crate::api::inspect::{self, ModuleParam, NamedShape};
use burn::module::Module;

/// Alignment of a parameter in its unit's buffer, in elements. CubeCL's slices alias their buffer only at multiples of
/// 512 bytes, which are 256 elements of the narrowest type in which parameters are gathered, bf16.
const ALIGN: usize = 512 / 2;

/// The position of each parameter in a unit's flat buffer. All numbers count elements.
///
/// Matrices come first, then vectors (norm gains, biases), so weight decay, which applies to matrices, covers one
/// range:
///
/// ```text
/// | matrix 0 | pad | matrix 1 | pad || vector 0 | pad | ... | pad to a multiple of N x 256 |
/// '------ rank 0's shard ------'------ rank 1's shard ------'------ rank 2's shard -------'
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    params: Vec<ParamLayout>,
    /// Indices of `params` in the order of their offsets.
    by_offset: Vec<usize>,
    matrices_end: usize,
    padded_len: usize,
}

/// One parameter of a [`Layout`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParamLayout {
    /// Path of fields from the unit's module, such as `attn.c_attn.weight`.
    pub name: String,
    /// The parameter's shape.
    pub shape: Vec<usize>,
    /// The parameter's start in the buffer.
    pub offset: usize,
}

impl ParamLayout {
    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Layout {
    /// Lays out a module's parameters.
    pub fn of<M: Module>(module: &M, shards: usize) -> Self {
        Self::new(inspect::params(module).into_iter().map(ModuleParam::named_shape), shards)
    }

    /// Lays out parameters for `shards` equal shards; names and shapes are given in visiting order.
    pub fn new(params: impl IntoIterator<Item = NamedShape>, shards: usize) -> Self {
        let mut params: Vec<_> =
            params.into_iter().map(|(name, shape)| ParamLayout { name, shape, offset: 0 }).collect();
        let mut by_offset: Vec<usize> = (0..params.len()).collect();
        by_offset.sort_by_key(|i| params[*i].shape.len() < 2);

        let (mut end, mut matrices_end) = (0, 0);
        for i in &by_offset {
            params[*i].offset = end;
            end += params[*i].len().next_multiple_of(ALIGN);
            if params[*i].shape.len() >= 2 {
                matrices_end = end;
            }
        }
        Self { params, by_offset, matrices_end, padded_len: end.max(1).next_multiple_of(shards * ALIGN) }
    }

    /// Returns the parameters in visiting order.
    pub fn params(&self) -> &[ParamLayout] {
        &self.params
    }

    /// Returns the indices of [`params`](Self::params) in the order of the buffer.
    pub fn by_offset(&self) -> &[usize] {
        &self.by_offset
    }

    /// Returns the end of the matrices, where vectors start.
    pub fn matrices_end(&self) -> usize {
        self.matrices_end
    }

    /// Returns the length of the buffer, a multiple of the number of shards.
    pub fn padded_len(&self) -> usize {
        self.padded_len
    }

    /// Returns the number of parameter elements, without padding.
    pub fn len(&self) -> usize {
        self.params.iter().map(ParamLayout::len).sum()
    }

    /// Returns whether there are no parameters.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parameters_are_aligned_and_disjoint_and_matrices_come_first(
            shapes in prop::collection::vec(prop::collection::vec(1usize..40, 1..4), 0..12),
            shards in 1usize..9,
        ) {
            let layout = Layout::new(shapes.iter().map(|shape| ("p".to_string(), shape.clone())), shards);
            prop_assert_eq!(layout.params().iter().map(|p| p.shape.clone()).collect::<Vec<_>>(), shapes);
            let mut end = 0;
            for param in layout.by_offset().iter().map(|i| &layout.params()[*i]) {
                prop_assert!(param.offset >= end && param.offset - end < ALIGN && param.offset.is_multiple_of(ALIGN));
                prop_assert_eq!(param.offset < layout.matrices_end(), param.shape.len() >= 2);
                end = param.offset + param.len();
            }
            prop_assert!(layout.padded_len() >= end && layout.padded_len().is_multiple_of(shards * ALIGN));
            prop_assert!(layout.padded_len() - end < (shards + 1) * ALIGN);
        }
    }
}
