//! The slots of gathered parameters.

use crate::FsdpError;
use crate::groups::comm_thread::{CommStreams, Pending};
use crate::shard::sharded_unit::ShardedUnit;
use crate::shard::weights::Weights;
use std::collections::HashMap;

/// Gathered parameters by slot.
#[derive(Default)]
pub(crate) struct Gathered(HashMap<usize, Pending<Option<Weights>>>);

impl Gathered {
    /// Starts to gather a unit into a slot, on all ranks or on rank `to` only.
    pub fn gather(&mut self, unit: &ShardedUnit, streams: &CommStreams, to: Option<usize>, slot: usize) {
        self.0.insert(slot, unit.gather(streams, to));
    }

    /// Takes the parameters of a slot once they have arrived, or those that rest on the rank.
    pub fn take(&mut self, unit: &ShardedUnit, slot: Option<usize>) -> Result<Weights, FsdpError> {
        let Some(slot) = slot else { return Ok(unit.at_hand()) };
        Ok(self.free(slot)?.expect("gathered on the rank that runs the call"))
    }

    /// Puts back what was [taken](Self::take).
    pub fn put(&mut self, slot: Option<usize>, weights: Weights) {
        self.0.extend(slot.map(|slot| (slot, Pending::ready(Some(weights)))));
    }

    /// Empties a slot once its parameters have arrived, and returns them on the ranks that got them.
    pub fn free(&mut self, slot: usize) -> Result<Option<Weights>, FsdpError> {
        self.0.remove(&slot).expect("a slot is gathered before it is used").wait()
    }
}
