use crate::{CommError, Communicator};
use std::fmt;

/// An axis of a [`Mesh`], from the outermost, whose neighbours are far apart, to the innermost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Axis {
    /// Pipeline stages.
    Pp,
    /// Replicas of the shards.
    DpReplicate,
    /// Shards of parameters, gradients and optimizer state.
    DpShard,
    /// Experts.
    Ep,
    /// Tensor-parallel parts of matrices.
    Tp,
}

impl Axis {
    /// All axes, outermost first.
    pub const ALL: [Self; 5] = [Self::Pp, Self::DpReplicate, Self::DpShard, Self::Ep, Self::Tp];

    /// Its name in configurations.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pp => "pp",
            Self::DpReplicate => "dp_replicate",
            Self::DpShard => "dp_shard",
            Self::Ep => "ep",
            Self::Tp => "tp",
        }
    }
}

/// How ranks are numbered along the axes: row-major, the innermost axis counts fastest. The only place with rank arithmetic.
///
/// ```
/// use comm::{Axis, MeshShape};
///
/// let shape = MeshShape::new(&[(Axis::DpReplicate, 2), (Axis::DpShard, 2)]);
/// assert_eq!(shape.group(3, Axis::DpShard), [2, 3]);
/// assert_eq!(shape.group(3, Axis::DpReplicate), [1, 3]);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MeshShape {
    sizes: [usize; 5],
}

impl MeshShape {
    /// Axes with their sizes; those that are not given have 1.
    ///
    /// # Panics
    /// If a size is 0.
    pub fn new(axes: &[(Axis, usize)]) -> Self {
        let mut sizes = [1; 5];
        for (axis, size) in axes {
            assert!(*size > 0, "the mesh axis {} has size 0", axis.name());
            sizes[*axis as usize] = *size;
        }
        Self { sizes }
    }

    /// Ranks along an axis.
    pub fn size(&self, axis: Axis) -> usize {
        self.sizes[axis as usize]
    }

    /// Ranks in all.
    pub fn world_size(&self) -> usize {
        self.sizes.iter().product()
    }

    /// A rank's place on every axis, in the order of [`Axis::ALL`].
    pub fn coordinates(&self, rank: usize) -> [usize; 5] {
        let mut rest = rank;
        let mut coordinates = [0; 5];
        for (coordinate, size) in coordinates.iter_mut().zip(self.sizes).rev() {
            (rest, *coordinate) = (rest / size, rest % size);
        }
        coordinates
    }

    /// A rank's place on one axis.
    pub fn coordinate(&self, rank: usize, axis: Axis) -> usize {
        self.coordinates(rank)[axis as usize]
    }

    /// The rank at a place.
    pub fn rank(&self, coordinates: [usize; 5]) -> usize {
        coordinates.iter().zip(self.sizes).fold(0, |rank, (coordinate, size)| rank * size + coordinate)
    }

    /// The ranks that differ from `rank` on this axis only, itself included, in their order on it.
    pub fn group(&self, rank: usize, axis: Axis) -> Vec<usize> {
        let mut coordinates = self.coordinates(rank);
        let place = |i| {
            coordinates[axis as usize] = i;
            self.rank(coordinates)
        };
        (0..self.size(axis)).map(place).collect()
    }
}

impl fmt::Display for MeshShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let axes = Axis::ALL.iter().filter(|axis| self.size(**axis) > 1);
        let axes: Vec<_> = axes.map(|axis| format!("{} {}", axis.name(), self.size(*axis))).collect();
        f.write_str(if axes.is_empty() { "one rank".into() } else { axes.join(" x ") }.as_str())
    }
}

/// One communicator per axis: the ranks that differ on this axis only.
pub struct Mesh {
    shape: MeshShape,
    world: Communicator,
    axes: [Communicator; 5],
}

impl Mesh {
    /// Splits the world along every axis. A collective: every rank calls it.
    ///
    /// # Errors
    /// If the sizes do not multiply to the world size, or a rank fails.
    pub fn new(world: Communicator, shape: MeshShape) -> Result<Self, CommError> {
        if shape.world_size() != world.world_size() {
            let (mesh, ranks) = (shape.world_size(), world.world_size());
            return Err(CommError::Engine(format!("a mesh of {shape} has {mesh} ranks, but there are {ranks}")));
        }
        let split = |axis| world.split(shape.group(world.rank(), axis)[0]);
        let [pp, dp_replicate, dp_shard, ep, tp] = Axis::ALL;
        let axes = [split(pp)?, split(dp_replicate)?, split(dp_shard)?, split(ep)?, split(tp)?];
        Ok(Self { shape, world, axes })
    }

    /// Its sizes.
    pub fn shape(&self) -> &MeshShape {
        &self.shape
    }

    /// All ranks.
    pub fn world(&self) -> &Communicator {
        &self.world
    }

    /// The ranks that differ from this one on `axis` only.
    pub fn axis(&self, axis: Axis) -> &Communicator {
        &self.axes[axis as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    proptest! {
        #[test]
        fn ranks_and_coordinates_are_one_to_one_and_groups_divide_the_world(
            sizes in prop::collection::vec(1usize..5, 5..=5),
        ) {
            let axes: Vec<_> = Axis::ALL.into_iter().zip(sizes.iter().copied()).collect();
            let shape = MeshShape::new(&axes);
            prop_assert_eq!(shape.world_size(), sizes.iter().product::<usize>());
            let world = 0..shape.world_size();
            let places: HashSet<_> = world.clone().map(|rank| shape.coordinates(rank)).collect();
            prop_assert_eq!(places.len(), shape.world_size());
            for rank in world.clone() {
                prop_assert_eq!(shape.rank(shape.coordinates(rank)), rank);
            }
            for (axis, size) in axes {
                // Each rank is in one group, and all members agree on it.
                let groups: HashSet<_> = world.clone().map(|rank| shape.group(rank, axis)).collect();
                prop_assert!(groups.iter().all(|group| group.len() == size && group.is_sorted()));
                let mut members: Vec<_> = groups.iter().flatten().copied().collect();
                members.sort_unstable();
                prop_assert_eq!(members, world.clone().collect::<Vec<_>>());
                for rank in world.clone() {
                    prop_assert_eq!(shape.group(rank, axis)[shape.coordinate(rank, axis)], rank);
                }
            }
        }
    }
}
