//! Parts of a parameter with which different ranks compute: some experts of a stack, some columns of a matrix.

use crate::shard::layout::{Layout, NamedShape};
use comm::Cut;
use std::ops::Range;

/// A parameter and its cut; without a cut every rank computes with the whole parameter.
#[derive(Debug, Clone)]
pub(crate) struct Sliced {
    pub name: String,
    /// The shape of the whole parameter.
    pub shape: Vec<usize>,
    pub cut: Option<Cut>,
}

/// A box of a parameter that is reshaped to `view`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Slice {
    pub view: Vec<usize>,
    pub start: Vec<usize>,
    pub size: Vec<usize>,
}

impl Sliced {
    /// Returns part `part` of `parts`.
    pub fn slice(&self, [part, parts]: [usize; 2]) -> Slice {
        let (mut view, mut start) = (self.shape.clone(), vec![0; self.shape.len()]);
        let Some(Cut { dim, blocks }) = self.cut else { return Slice { size: view.clone(), view, start } };
        let mut axis = dim;
        if blocks > 1 {
            view.splice(dim..=dim, [blocks, self.shape[dim] / blocks]);
            start.push(0);
            axis += 1;
        }
        let mut size = view.clone();
        let range = comm::part(view[axis], part, parts);
        (start[axis], size[axis]) = (range.start, range.len());
        Slice { view, start, size }
    }

    /// Returns the name and shape of a part.
    pub fn part(&self, place: [usize; 2]) -> NamedShape {
        let mut shape = self.shape.clone();
        if let Some(Cut { dim, blocks }) = self.cut {
            shape[dim] = self.slice(place).size[dim + usize::from(blocks > 1)] * blocks;
        }
        (self.name.clone(), shape)
    }
}

impl Slice {
    /// Returns flat elements `range` of the box as ranges of the parameter's flat elements, in order.
    pub fn runs(&self, range: Range<usize>) -> Vec<Range<usize>> {
        let [wide, all] = [&self.size, &self.view];
        let axis = wide.iter().zip(all).position(|(size, all)| size != all).unwrap_or(0);
        let inner = all.iter().skip(axis + 1).product::<usize>();
        let [row, whole] = [wide, all].map(|sizes| sizes.get(axis).map_or(1, |size| size * inner));
        let first = self.start.get(axis).map_or(0, |start| start * inner);
        let mut runs: Vec<Range<usize>> = vec![];
        let mut at = range.start;
        while at < range.end {
            let begin = at / row * whole + first + at % row;
            let len = (row - at % row).min(range.end - at);
            match runs.last_mut() {
                Some(last) if last.end == begin => last.end += len,
                _ => runs.push(begin..begin + len),
            }
            at += len;
        }
        runs
    }

    /// Returns the box's widths before, in and after the dimension that is cut.
    pub fn around(&self) -> [usize; 3] {
        let axis = self.size.iter().zip(&self.view).position(|(size, all)| size != all).unwrap_or(0);
        let (before, of) = self.size.split_at(axis.min(self.size.len()));
        [before.iter().product(), of.first().copied().unwrap_or(1), of.iter().skip(1).product()]
    }
}

/// Returns the layout of one part of each parameter.
pub(crate) fn layout(params: &[Sliced], place: [usize; 2], shards: usize) -> Layout {
    Layout::new(params.iter().map(|param| param.part(place)), shards)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Compares with the indices of all elements, one by one.
        #[test]
        fn parts_are_all_elements_once_each_in_the_order_of_its_box(
            shape in prop::collection::vec(1usize..5, 1..4),
            dim in 0usize..3,
            blocks in 1usize..4,
            width in 3usize..8,
            parts in 1usize..4,
        ) {
            let (mut shape, dim) = (shape.clone(), dim % shape.len());
            shape[dim] = blocks * width;
            let param = Sliced { name: "p".into(), shape: shape.clone(), cut: Some(Cut { dim, blocks }) };
            let len: usize = shape.iter().product();
            let inner: usize = shape[dim + 1..].iter().product();
            for part in 0..parts {
                let columns = comm::part(width, part, parts);
                let expected: Vec<usize> =
                    (0..len).filter(|at| columns.contains(&(at / inner % shape[dim] % width))).collect();
                let slice = param.slice([part, parts]);
                let found: Vec<usize> = slice.runs(0..expected.len()).into_iter().flatten().collect();
                prop_assert_eq!(&found, &expected);
                prop_assert_eq!(param.part([part, parts]).1.iter().product::<usize>(), expected.len());
                prop_assert_eq!(slice.around().iter().product::<usize>(), expected.len());
                let (from, to) = (expected.len() / 3, expected.len() - expected.len() / 4);
                let found: Vec<usize> = slice.runs(from..to).into_iter().flatten().collect();
                prop_assert_eq!(&found, &expected[from..to]);
            }
        }
    }
}
