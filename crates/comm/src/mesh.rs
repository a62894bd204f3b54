//! Groups of ranks: rank arithmetic along the axes of a mesh, and the communicators of its groups.

use crate::{CommError, Communicator};
use std::fmt;

/// An axis of a [`Mesh`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Axis {
    /// Pipeline stages.
    Pp,
    /// Replicas of the shards.
    DpReplicate,
    /// Shards of parameters, gradients and optimizer state.
    DpShard,
    /// Parts of each sequence.
    Cp,
    /// Tensor-parallel parts of matrices.
    Tp,
    /// Ranks that hold the same experts. Together with [`Ep`](Self::Ep) it covers the ranks of the three axes before
    /// it.
    Efsdp,
    /// Ranks that hold different experts.
    Ep,
}

impl Axis {
    /// The axes whose sizes multiply to the world size, outermost first: neighbors on the first axis are farthest
    /// apart.
    pub const DENSE: [Self; 5] = [Self::Pp, Self::DpReplicate, Self::DpShard, Self::Cp, Self::Tp];

    /// The axes of the same ranks as seen by the experts, outermost first.
    pub const SPARSE: [Self; 4] = [Self::Pp, Self::DpReplicate, Self::Efsdp, Self::Ep];

    /// Returns the axis name that configurations use.
    pub fn name(self) -> &'static str {
        ["pp", "dp_replicate", "dp_shard", "cp", "tp", "efsdp", "ep"][self as usize]
    }
}

/// The numbering of ranks along the axes: row-major, so the innermost axis varies fastest. All rank arithmetic is here.
///
/// The ranks of `dp_shard x cp x tp` are also those of `efsdp x ep`: a rank computes its own tokens and holds some of
/// the experts for the tokens of all `ep` ranks (as in torchtitan's meshes).
///
/// ```text
/// dp_shard 4, ep 2     rank    0   1   2   3
///                      efsdp   0   0   1   1      ranks 0 and 2 hold the same experts, half of their parameters each
///                      ep      0   1   0   1      ranks 0 and 1 together hold all experts
/// ```
///
/// ```
/// use comm::{Axis, MeshShape};
///
/// let shape = MeshShape::new(&[(Axis::DpReplicate, 2), (Axis::DpShard, 4), (Axis::Ep, 2)]);
/// assert_eq!(shape.group(3, &[Axis::DpShard]), [0, 1, 2, 3]);
/// assert_eq!(shape.group(3, &[Axis::DpReplicate]), [3, 7]);
/// assert_eq!(shape.group(3, &[Axis::Ep]), [2, 3]);
/// assert_eq!(shape.group(3, &[Axis::DpReplicate, Axis::Efsdp]), [1, 3, 5, 7]);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MeshShape {
    sizes: [usize; 7],
}

impl MeshShape {
    /// Creates a mesh shape from axes and sizes. Missing axes have size 1, except `efsdp`, whose size is that of
    /// `dp_shard x cp x tp` divided by `ep`.
    ///
    /// # Panics
    /// Panics if a size is 0, `efsdp` is given, or `ep` does not divide `dp_shard x cp x tp`.
    pub fn new(axes: &[(Axis, usize)]) -> Self {
        let mut sizes = [1; 7];
        for (axis, size) in axes {
            assert!(*size > 0 && *axis != Axis::Efsdp, "the mesh axis {} is given as {size}", axis.name());
            sizes[*axis as usize] = *size;
        }
        let (shared, ep) = (sizes[2..5].iter().product::<usize>(), sizes[Axis::Ep as usize]);
        assert!(shared.is_multiple_of(ep), "ep {ep} does not divide dp_shard x cp x tp, which is {shared}");
        sizes[Axis::Efsdp as usize] = shared / ep;
        Self { sizes }
    }

    /// Returns the number of ranks along an axis.
    pub fn size(&self, axis: Axis) -> usize {
        self.sizes[axis as usize]
    }

    /// Returns the number of ranks in the world.
    pub fn world_size(&self) -> usize {
        Axis::DENSE.iter().map(|axis| self.size(*axis)).product()
    }

    /// Returns the number of ranks in a group along these axes.
    pub fn ranks(&self, axes: &[Axis]) -> usize {
        axes.iter().map(|axis| self.size(*axis)).product()
    }

    /// Returns the names of a group's axes, outermost first, without axes of size 1: `dp_shard x tp`.
    pub fn along(&self, axes: &[Axis]) -> String {
        let all = Axis::DENSE.iter().chain(&Axis::SPARSE[2..]);
        let names = all.filter(|axis| axes.contains(axis) && self.size(**axis) > 1).map(|axis| axis.name());
        names.collect::<Vec<_>>().join(" x ")
    }

    /// Returns a rank's coordinate on an axis.
    pub fn coordinate(&self, rank: usize, axis: Axis) -> usize {
        let axes = if Axis::DENSE.contains(&axis) { &Axis::DENSE[..] } else { &Axis::SPARSE[..] };
        let inner = axes.iter().rev().take_while(|other| **other != axis).map(|other| self.size(*other));
        rank / inner.product::<usize>() % self.size(axis)
    }

    /// Returns the ranks that differ from `rank` on these axes only, including `rank` itself, in ascending order.
    ///
    /// # Panics
    /// Panics if the axes are neither all in [`Axis::DENSE`] nor all in [`Axis::SPARSE`].
    pub fn group(&self, rank: usize, axes: &[Axis]) -> Vec<usize> {
        let views = [&Axis::DENSE[..], &Axis::SPARSE[..]];
        let view = views.into_iter().find(|view| axes.iter().all(|axis| view.contains(axis)));
        let others = view.expect("axes of one view of the ranks").iter().filter(|axis| !axes.contains(axis));
        let others: Vec<Axis> = others.copied().collect();
        let place = |rank| others.iter().map(|axis| self.coordinate(rank, *axis)).collect::<Vec<_>>();
        let own = place(rank);
        (0..self.world_size()).filter(|other| place(*other) == own).collect()
    }
}

impl fmt::Display for MeshShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let axes = Axis::DENSE.iter().chain([&Axis::Ep]).filter(|axis| self.size(**axis) > 1);
        let axes: Vec<_> = axes.map(|axis| format!("{} {}", axis.name(), self.size(*axis))).collect();
        f.write_str(if axes.is_empty() { "one rank".into() } else { axes.join(" x ") }.as_str())
    }
}

/// The ranks of the world along the axes of a [`MeshShape`].
#[derive(Debug)]
pub struct Mesh {
    shape: MeshShape,
    world: Communicator,
}

impl Mesh {
    /// Creates a mesh over the world.
    ///
    /// # Errors
    /// Returns an error if the sizes do not multiply to the world size.
    pub fn new(world: Communicator, shape: MeshShape) -> Result<Self, CommError> {
        if shape.world_size() != world.world_size() {
            let (mesh, ranks) = (shape.world_size(), world.world_size());
            return Err(CommError::Engine(format!("a mesh of {shape} has {mesh} ranks, but there are {ranks}")));
        }
        Ok(Self { shape, world })
    }

    /// Returns the sizes of the axes.
    pub fn shape(&self) -> &MeshShape {
        &self.shape
    }

    /// Returns the communicator of all ranks.
    pub fn world(&self) -> &Communicator {
        &self.world
    }

    /// Creates a communicator of the ranks that differ from this one on `axes` only, metered under these axes; without
    /// axes, of this rank alone. This is a collective: every rank asks for the same axes.
    ///
    /// # Panics
    /// Panics under the same conditions as [`MeshShape::group`].
    pub fn over(&self, axes: &[Axis]) -> Result<Communicator, CommError> {
        let group = self.world.split(self.shape.group(self.world.rank(), axes)[0])?;
        Ok(group.along(&self.shape.along(axes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn partitions(shape: &MeshShape, axes: &[Axis]) {
        let world = 0..shape.world_size();
        let size = axes.iter().map(|axis| shape.size(*axis)).product::<usize>();
        // Each rank is in exactly one group, and all members agree on it.
        let groups: HashSet<_> = world.clone().map(|rank| shape.group(rank, axes)).collect();
        assert!(groups.iter().all(|group| group.len() == size && group.is_sorted()), "{axes:?} of {shape}");
        let mut members: Vec<_> = groups.iter().flatten().copied().collect();
        members.sort_unstable();
        assert_eq!(members, world.collect::<Vec<_>>(), "{axes:?} of {shape}");
    }

    proptest! {
        #[test]
        fn groups_divide_the_world_on_any_set_of_axes(
            sizes in prop::collection::vec(1usize..4, 5..=5),
            ep in 1usize..13,
            chosen in 0usize..32,
        ) {
            let shared = sizes[2] * sizes[3] * sizes[4];
            let ep = (1..=ep).rev().find(|ep| shared.is_multiple_of(*ep)).unwrap();
            let axes: Vec<_> = Axis::DENSE.into_iter().zip(sizes.iter().copied()).chain([(Axis::Ep, ep)]).collect();
            let shape = MeshShape::new(&axes);
            prop_assert_eq!(shape.world_size(), sizes.iter().product::<usize>());
            for view in [&Axis::DENSE[..], &Axis::SPARSE[..]] {
                let set: Vec<Axis> = view.iter().enumerate().filter(|(i, _)| chosen >> i & 1 == 1).map(|(_, axis)| *axis).collect();
                partitions(&shape, &set);
                let places: HashSet<Vec<usize>> = (0..shape.world_size())
                    .map(|rank| view.iter().map(|axis| shape.coordinate(rank, *axis)).collect())
                    .collect();
                prop_assert_eq!(places.len(), shape.world_size());
                for axis in view {
                    for rank in 0..shape.world_size() {
                        prop_assert_eq!(shape.group(rank, &[*axis])[shape.coordinate(rank, *axis)], rank);
                    }
                }
            }
            // `efsdp x ep` covers the same ranks as `dp_shard x cp x tp`.
            prop_assert_eq!(
                shape.group(0, &[Axis::Efsdp, Axis::Ep]),
                shape.group(0, &[Axis::DpShard, Axis::Cp, Axis::Tp])
            );
            let last = shape.world_size() - 1;
            prop_assert_eq!(shape.group(last, &[Axis::Ep]), (last + 1 - ep..=last).collect::<Vec<_>>());
        }
    }
}
