//! Parts of a parameter with which different ranks compute: some experts of a stack, some columns of a matrix.

use crate::api::inspect::NamedShape;
use crate::shard::layout::Layout;
use checkpoint::Region;
use comm::TensorShard;

/// A parameter and how it is split; without that, every rank computes with the whole parameter.
#[derive(Debug, Clone)]
pub(crate) struct Sliced {
    pub name: String,
    /// The shape of the whole parameter.
    pub shape: Vec<usize>,
    pub tensor_shard: Option<TensorShard>,
}

impl Sliced {
    /// Returns the region of part `part` of `parts`: the whole parameter if it is not split.
    pub fn region(&self, [part, parts]: [usize; 2]) -> Region {
        let Some(TensorShard { dim, blocks }) = self.tensor_shard else { return Region::whole(&self.shape) };
        let (mut view, mut axis) = (self.shape.clone(), dim);
        if blocks > 1 {
            view.splice(dim..=dim, [blocks, self.shape[dim] / blocks]);
            axis += 1;
        }
        let (mut start, mut size) = (vec![0; view.len()], view.clone());
        let range = comm::part(view[axis], part, parts);
        (start[axis], size[axis]) = (range.start, range.len());
        Region { view: (blocks > 1).then_some(view), start, size }
    }

    /// Returns the widths of a part before, in and after the dimension that is split.
    pub fn around(&self, place: [usize; 2]) -> [usize; 3] {
        let (size, axis) =
            (self.region(place).size, self.tensor_shard.map_or(0, |shard| shard.dim + usize::from(shard.blocks > 1)));
        let (before, of) = size.split_at(axis.min(size.len()));
        [before.iter().product(), of.first().copied().unwrap_or(1), of.iter().skip(1).product()]
    }

    /// Returns the name and shape of a part.
    pub fn part(&self, place: [usize; 2]) -> NamedShape {
        let mut shape = self.shape.clone();
        if let Some(TensorShard { dim, blocks }) = self.tensor_shard {
            shape[dim] = self.region(place).size[dim + usize::from(blocks > 1)] * blocks;
        }
        (self.name.clone(), shape)
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
            let param = Sliced { name: "p".into(), shape: shape.clone(), tensor_shard: Some(TensorShard { dim, blocks }) };
            let len: usize = shape.iter().product();
            let inner: usize = shape[dim + 1..].iter().product();
            for part in 0..parts {
                let columns = comm::part(width, part, parts);
                let expected: Vec<usize> =
                    (0..len).filter(|at| columns.contains(&(at / inner % shape[dim] % width))).collect();
                let region = param.region([part, parts]);
                let found: Vec<usize> = region.runs(&shape, 0..expected.len()).flatten().collect();
                prop_assert_eq!(&found, &expected);
                prop_assert_eq!(param.part([part, parts]).1.iter().product::<usize>(), expected.len());
                prop_assert_eq!(param.around([part, parts]).iter().product::<usize>(), expected.len());
                let (from, to) = (expected.len() / 3, expected.len() - expected.len() / 4);
                let found: Vec<usize> = region.runs(&shape, from..to).flatten().collect();
                prop_assert_eq!(&found, &expected[from..to]);
            }
        }
    }
}
