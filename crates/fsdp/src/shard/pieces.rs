//! The state of a model as the pieces of a checkpoint, and back.
//!
//! A parameter's values and the moments of Kiln's AdamW have their own kinds in a checkpoint. The state of a Burn
//! optimizer is stored next to the parameter, as additional parameters: `NAME@LEAF` for a tensor with one number per
//! element, and `NAME@#LEAF` for a single number.

use crate::shard::optimizer::MOMENTS;
use crate::shard::state::{Number, OptimizerState, Part, PartValues, StatePart};
use burn::tensor::Tensor;
use checkpoint::{Checkpoint, CheckpointError, Kind, Parameter, Piece, Values};
use std::collections::BTreeMap;

/// Returns what [`checkpoint::write_rank`] writes of these parts. Values are copied from a device when they are
/// written.
pub fn pieces(parts: Vec<StatePart>) -> Vec<(Piece, Values<'static>)> {
    parts.into_iter().flat_map(pieces_of).collect()
}

fn pieces_of(StatePart { of, param, optimizer }: StatePart) -> Vec<(Piece, Values<'static>)> {
    let Part { name, shape, region, range } = of;
    let begins = range.start == 0 && region.start.iter().all(|start| *start == 0);
    let region = (region.len() != shape.iter().product::<usize>()).then_some(region);
    let OptimizerState { mut tensors, numbers } = optimizer.unwrap_or_default();
    let moments = MOMENTS.map(|moment| tensors.remove(moment));
    let whole = Piece { name: name.clone(), shape, region, offset: range.start, len: range.len(), has_moments: false };
    let further = |(leaf, tensor): (String, Tensor<1>)| {
        let piece = Piece { name: format!("{name}@{leaf}"), ..whole.clone() };
        let values: Values<'static> = Box::new(move |_| floats(&tensor));
        (piece, values)
    };
    let number = |(leaf, number): (String, Number)| {
        let name = format!("{name}@#{leaf}");
        let values: Values<'static> = Box::new(move |_| number.encoded().to_vec());
        let (shape, len) = (vec![Number::LEN], Number::LEN);
        (Piece { name, shape, region: None, offset: 0, len, has_moments: false }, values)
    };
    let mut all: Vec<_> = tensors.into_iter().map(further).collect();
    all.extend(numbers.into_iter().filter(|_| begins).map(number)); // once, by the rank that has the first element
    let has_moments = moments[0].is_some();
    let values = move |kind: Kind| match (kind, &moments) {
        (Kind::Param, _) => floats(&param),
        (Kind::ExpAvg, [Some(mean), _]) => floats(mean),
        (Kind::ExpAvgSq, [_, Some(square)]) => floats(square),
        _ => unreachable!("a piece without moments is asked for its values only"),
    };
    all.push((Piece { has_moments, ..whole }, Box::new(values)));
    all
}

fn floats(tensor: &Tensor<1>) -> Vec<f32> {
    tensor.clone().into_data().try_into_vec::<f32>().expect("masters and states are f32")
}

/// Reads a part that a rank holds.
///
/// # Errors
/// If the checkpoint has no such parameter, if it cannot be read, or if a value is not finite.
pub fn read_part(checkpoint: &Checkpoint, wanted: &Part) -> Result<PartValues, CheckpointError> {
    let (mut tensors, mut numbers) = (BTreeMap::new(), BTreeMap::new());
    let mut parameter = checkpoint.parameter(&wanted.name)?;
    let has_moments = parameter.has(Kind::ExpAvg);
    let mut read = |kind| parameter.read_region(kind, &wanted.region, wanted.range.clone());
    if has_moments {
        for (moment, kind) in MOMENTS.into_iter().zip([Kind::ExpAvg, Kind::ExpAvgSq]) {
            tensors.insert(moment.into(), read(kind)?);
        }
    }
    let param = read(Kind::Param)?;
    CheckpointError::expect_finite(&param, checkpoint.path(), &wanted.name)?;
    let prefix = format!("{}@", wanted.name);
    let all = &checkpoint.index().parameters; // ordered by name
    let from = all.partition_point(|parameter| parameter.name < prefix);
    for Parameter { name, .. } in all[from..].iter().take_while(|parameter| parameter.name.starts_with(&prefix)) {
        let leaf = &name[prefix.len()..];
        match leaf.strip_prefix('#') {
            Some(leaf) => {
                let encoded = checkpoint.read(name, Kind::Param, 0..Number::LEN)?;
                numbers.insert(leaf.into(), Number::decoded(&encoded));
            }
            None => {
                let values = checkpoint.read_region(name, Kind::Param, &wanted.region, wanted.range.clone())?;
                tensors.insert(leaf.into(), values);
            }
        }
    }
    Ok(PartValues { param, optimizer: OptimizerState { tensors, numbers } })
}

/// A number as five f32: its type, and 64 bits in four parts, so that nothing is rounded.
impl Number {
    const LEN: usize = 5;

    fn encoded(self) -> [f32; Self::LEN] {
        let (tag, bits) = match self {
            Self::UInt(value) => (0.0, value),
            Self::Int(value) => (1.0, value.cast_unsigned()),
            Self::Float(value) => (2.0, value.to_bits()),
            Self::Bool(value) => (3.0, u64::from(value)),
        };
        let part = |i: u32| f32::from((bits >> (16 * i)) as u16);
        [tag, part(0), part(1), part(2), part(3)]
    }

    fn decoded(encoded: &[f32]) -> Self {
        let bits = (0..4).map(|i| (encoded[i + 1] as u64) << (16 * i)).sum::<u64>();
        match encoded[0] as u8 {
            0 => Self::UInt(bits),
            1 => Self::Int(bits.cast_signed()),
            2 => Self::Float(f64::from_bits(bits)),
            _ => Self::Bool(bits != 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_survive_as_floats() {
        let floats = [0.0, -0.0, 1e-310, f64::MAX, std::f64::consts::PI].map(Number::Float);
        let others =
            [Number::UInt(u64::MAX), Number::UInt(3), Number::Int(i64::MIN), Number::Int(-1), Number::Bool(true)];
        for number in floats.into_iter().chain(others) {
            assert_eq!(Number::decoded(&number.encoded()), number);
        }
    }
}
