//! Activations and their cotangents in flight between ranks.

use crate::FsdpError;
use crate::api::activations::Tensors;
use crate::api::call::Call;
use crate::api::units::ShapeOf;
use burn::tensor::{DType, Device, Float, Int, Tensor, TensorData};
use comm::{CommError, Communicator};
use schedule::{Direction, Peer, Value};

/// The communicators between stages, one per direction: messages in one direction are ordered, but the two directions
/// have no common order.
pub(crate) struct PointToPoint {
    forward: Communicator,
    backward: Communicator,
}

impl PointToPoint {
    /// Creates the communicators between stages. This is a collective.
    pub fn new(stages: &Communicator) -> Result<Self, FsdpError> {
        Ok(Self { forward: stages.split(0)?, backward: stages.split(0)? })
    }
}

/// Sends and receives the values that calls pass on.
pub(crate) struct Messages<'a, B> {
    pub world: &'a Communicator,
    pub stages: &'a PointToPoint,
    /// Returns the number of sequences in a batch's activations, and their length, if the model defines it.
    pub shape: Option<&'a ShapeOf<B>>,
}

impl<B> Messages<'_, B> {
    pub fn send(&self, value: Value, x: &Tensors, to: Peer) -> Result<(), CommError> {
        let (ranks, to) = self.along(value.way, to);
        send(ranks, x, to)
    }

    /// Receives what `call` takes.
    pub fn recv(&self, value: Value, from: Peer, call: &Call<B>, batch: &B) -> Result<Tensors, FsdpError> {
        let dimensions = match value.way {
            Direction::Forward => call.takes(),
            Direction::Backward => call.returns(),
        };
        let (ranks, number) = self.along(value.way, from);
        let x = recv(ranks, number, dimensions)?;
        let found = x.dims();
        let expected = self.shape.map(|shape| shape(batch));
        if let Some((expected, found)) = expected.zip(found.first_chunk().copied()).filter(|(a, b)| a != b) {
            let error = FsdpError::Shape { rank: self.world.rank(), from: self.rank_of(from), found, expected };
            // Other messages of the same send can no longer be used.
            self.world.abort(&error.to_string());
            return Err(error);
        }
        Ok(x)
    }

    /// Returns the communicator that leads to a peer, and the peer's number there.
    fn along(&self, way: Direction, peer: Peer) -> (&Communicator, usize) {
        match (peer, way) {
            (Peer::Rank(rank), _) => (self.world, rank),
            (Peer::Stage(stage), Direction::Forward) => (&self.stages.forward, stage),
            (Peer::Stage(stage), Direction::Backward) => (&self.stages.backward, stage),
        }
    }

    /// Returns the number of a peer among all ranks.
    fn rank_of(&self, peer: Peer) -> usize {
        match peer {
            Peer::Rank(rank) => rank,
            Peer::Stage(stage) => {
                let ranks = self.world.world_size() / self.stages.forward.world_size();
                stage * ranks + self.world.rank() % ranks
            }
        }
    }
}

/// Sends tensors to rank `to`: the sizes of each, and its elements. The sizes stay on the CPU, so that their receiver
/// does not wait for its GPU.
fn send(ranks: &Communicator, x: &Tensors, to: usize) -> Result<(), CommError> {
    for (sizes, flat) in x.flat() {
        let rank = sizes.len();
        let sizes = TensorData::new(sizes.into_iter().map(|size| size as i64).collect(), [rank]);
        ranks.send(Tensor::<1, Int>::from_data(sizes, (&Device::flex(), DType::I64)), to)?;
        ranks.send(flat, to)?;
    }
    Ok(())
}

/// Receives the next tensors from rank `from`; `dimensions` are the numbers of dimensions of what it sends.
fn recv(ranks: &Communicator, from: usize, dimensions: &[usize]) -> Result<Tensors, CommError> {
    let mut tensors = Tensors::default();
    for _ in dimensions {
        let sizes = ranks.recv::<Int>(from)?.into_data();
        let sizes: Vec<usize> = sizes.iter::<i64>().map(|size| size as usize).collect();
        tensors.push(&sizes, ranks.recv::<Float>(from)?);
    }
    Ok(tensors)
}
