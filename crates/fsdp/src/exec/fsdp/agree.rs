//! Checks before the first step that all ranks were given the same.

use crate::shard::sharded_unit::ShardedUnit;
use crate::{FsdpConfig, FsdpError};
use comm::{Communicator, Reduce};
use schedule::Outline;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Bits of a digest that a number holds exactly.
const BITS: u32 = f64::MANTISSA_DIGITS;

/// Returns an error unless the ranks' outlines, from which each makes its operations, and what decides on the sizes and
/// types of their collectives have the same digest. Otherwise collectives that do not match would fail in the middle of a
/// step.
pub(super) fn on_outline(world: &Communicator, outline: &Outline, config: &FsdpConfig) -> Result<(), FsdpError> {
    let mut hasher = DefaultHasher::new();
    outline.hash(&mut hasher);
    let FsdpConfig { strategy, dp_replicate, ep, tp, cp, precision, .. } = config;
    format!("{strategy:?} {dp_replicate:?} {ep} {tp} {cp} {precision:?}").hash(&mut hasher);
    let mut digests = vec![0.0; world.world_size()];
    digests[world.rank()] = (hasher.finish() >> (u64::BITS - BITS)) as f64;
    let digests = world.all_reduce_numbers(&digests, Reduce::Sum)?;
    match digests.iter().position(|digest| *digest != digests[0]) {
        Some(rank) => Err(FsdpError::Outline { ranks: [0, rank] }),
        None => Ok(()),
    }
}

/// Returns an error unless all ranks were given the same values, compared by sums of squares, if there are any.
pub(super) fn on_values(world: &Communicator, units: &[ShardedUnit], squares: &[Option<f64>]) -> Result<(), FsdpError> {
    if squares.is_empty() {
        return Ok(());
    }
    // The maximum of each square and of its negative; for units held by other stages this rank contributes nothing.
    let highest =
        |sign: f64| squares.iter().map(move |square| square.map_or(f64::NEG_INFINITY, |square| sign * square));
    let values: Vec<f64> = highest(1.0).chain(highest(-1.0)).collect();
    let highest = world.all_reduce_numbers(&values, Reduce::Max)?;
    let (most, least) = highest.split_at(squares.len());
    match most.iter().zip(least).position(|(most, least)| *most != -least) {
        Some(unit) => Err(FsdpError::Values(units[unit].name())),
        None => Ok(()),
    }
}
