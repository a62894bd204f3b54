//! Boxes of tensors.

use serde::{Deserialize, Serialize};
use std::ops::Range;

/// A box of a tensor: its start and size in each dimension. A rank's experts, columns or rows form such a box.
///
/// ```text
/// shape [4, 5], start [1, 2], size [2, 3]     . . . . .
///                                             . . a b c      its elements 1..5, flat, are b c d e:
///                                             . . d e f      elements 8..10 and 12..14 of the tensor
///                                             . . . . .
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Region {
    /// A shape with the same number of elements in which the tensor is viewed, such as `[8, 3, 4]` for `[8, 12]` to
    /// select some columns of each of three blocks. None: the tensor's own shape.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub view: Option<Vec<usize>>,
    /// The first index in each dimension.
    pub start: Vec<usize>,
    /// The number of indices in each dimension.
    pub size: Vec<usize>,
}

impl Region {
    /// The box that covers a whole tensor.
    pub fn whole(shape: &[usize]) -> Self {
        Self { view: None, start: vec![0; shape.len()], size: shape.to_vec() }
    }

    pub(crate) fn seen<'a>(&'a self, shape: &'a [usize]) -> &'a [usize] {
        self.view.as_deref().unwrap_or(shape)
    }

    /// Whether the box is within a tensor of this shape and the tensor's number of elements does not overflow.
    pub fn fits(&self, shape: &[usize]) -> bool {
        let (own, shape) = (shape, self.seen(shape));
        let inside =
            |(start, (size, all)): (&usize, (&usize, &usize))| start.checked_add(*size).is_some_and(|end| end <= *all);
        (self.start.len(), self.size.len()) == (shape.len(), shape.len())
            && elements(own).is_some_and(|all| elements(shape) == Some(all))
            && self.start.iter().zip(self.size.iter().zip(shape)).all(inside)
    }

    /// Number of elements in the box.
    pub fn len(&self) -> usize {
        self.size.iter().product()
    }

    /// Whether the box has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Elements `range` of the flattened box, as ranges of the flattened tensor's elements, in order. The ranges are
    /// computed lazily, so a box of any size takes no memory.
    ///
    /// # Panics
    /// If the box does not [fit](Self::fits) the shape.
    pub fn runs(&self, shape: &[usize], range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        assert!(self.fits(shape), "{self:?} of a tensor of shape {shape:?}");
        let shape = self.seen(shape);
        let (cut, together) = together(&self.size, shape);
        let strides = strides(shape);
        let first: usize = self.start.iter().zip(&strides).map(|(start, stride)| start * stride).sum();
        let mut at = range.start;
        std::iter::from_fn(move || {
            if at >= range.end {
                return None;
            }
            let (mut row, within) = (at / together, at % together);
            let mut begin = first + within;
            for d in (0..cut).rev() {
                begin += row % self.size[d] * strides[d];
                row /= self.size[d];
            }
            let len = (together - within).min(range.end - at);
            at += len;
            Some(begin..begin + len)
        })
    }
}

/// The last dimension that is cut, and how many elements of a box of this size are contiguous in a tensor of this
/// shape: the box's size along that dimension times all later dimensions.
pub(crate) fn together(size: &[usize], shape: &[usize]) -> (usize, usize) {
    let cut = size.iter().zip(shape).rposition(|(size, all)| size != all).unwrap_or(0);
    (cut, size.get(cut..).map_or(1, |sizes| sizes.iter().product()))
}

/// The number of elements of a tensor of this shape. None if the product of its nonzero dimensions overflows.
pub(crate) fn elements(shape: &[usize]) -> Option<usize> {
    let at_most = shape.iter().try_fold(1usize, |len, width| len.checked_mul((*width).max(1)))?;
    Some(if shape.contains(&0) { 0 } else { at_most })
}

/// The number of elements between neighbors, for each dimension.
pub(crate) fn strides(shape: &[usize]) -> Vec<usize> {
    (0..shape.len()).map(|d| shape[d + 1..].iter().product()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_picture() {
        let region = Region { view: None, start: vec![1, 2], size: vec![2, 3] };
        assert_eq!(region.runs(&[4, 5], 1..5).collect::<Vec<_>>(), [8..10, 12..14]);
        let one = |region: &Region, shape: &[usize], range| {
            region.runs(shape, range).map(|run| (run.start, run.end)).collect::<Vec<_>>()
        };
        assert_eq!(one(&Region::whole(&[4, 5]), &[4, 5], 3..17), [(3, 17)]);
        let rows = Region { view: None, start: vec![1, 0], size: vec![2, 5] };
        assert_eq!(one(&rows, &[4, 5], 0..10), [(5, 15)], "rows that follow each other lie together");
        let of_blocks = Region { view: Some(vec![2, 2, 3]), start: vec![0, 0, 1], size: vec![2, 2, 1] };
        assert_eq!(
            one(&of_blocks, &[2, 6], 0..4),
            [(1, 2), (4, 5), (7, 8), (10, 11)],
            "a column of each of two blocks"
        );
        assert!(!Region { view: Some(vec![2, 5]), ..Region::whole(&[2, 6]) }.fits(&[2, 6]));
        assert!(!Region { view: None, start: vec![3], size: vec![2] }.fits(&[4]) && !Region::whole(&[4]).fits(&[4, 1]));
    }

    proptest! {
        /// Compares the runs with every index of the box, one by one.
        #[test]
        fn runs_are_the_elements_of_the_box_in_order(
            dims in prop::collection::vec((1usize..5, 0usize..4, 1usize..5), 1..4),
            cut in any::<[prop::sample::Index; 2]>(),
        ) {
            let shape: Vec<usize> = dims.iter().map(|(size, before, after)| size + before + after - 1).collect();
            let region = Region {
                view: None,
                start: dims.iter().map(|(_, before, _)| *before).collect(),
                size: dims.iter().map(|(size, ..)| *size).collect(),
            };
            let mut all = vec![];
            for flat in 0..shape.iter().product::<usize>() {
                let mut rest = flat;
                let index: Vec<usize> = shape.iter().rev().map(|width| { let at = rest % width; rest /= width; at }).collect();
                let inside = index.iter().rev().zip(region.start.iter().zip(&region.size));
                if inside.into_iter().all(|(at, (start, size))| (*start..start + size).contains(at)) {
                    all.push(flat);
                }
            }
            let [a, b] = cut.map(|index| index.index(all.len() + 1));
            let (from, to) = (a.min(b), a.max(b));
            let found: Vec<usize> = region.runs(&shape, from..to).flatten().collect();
            prop_assert_eq!(found, all[from..to].to_vec());
        }
    }
}
