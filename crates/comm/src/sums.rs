//! Sums of the ranks' tensors, in rank order.
//!
//! Floats of 16 bits are added in f32 and rounded once, at the end: in bf16, 256 + 1 is 256. On the CPU each tensor passes through the cache
//! once; Burn adds two tensors at a time, and writes and reads the sum again for each.

use crate::{Payload, Reduce};
use burn::backend::Flex;
use burn::tensor::{DType, Element, TensorData};
use bytemuck::Pod;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use std::ops::Range;

/// Elements whose sum stays in the cache while all ranks' are added to it.
const BLOCK: usize = 4096;

impl Payload {
    /// This range of the ranks' tensors, combined element by element in this order. They are at least one, all of one dtype and length; the
    /// result has their dtype.
    pub(crate) fn reduce(parts: &[Self], range: Range<usize>, how: Reduce) -> Self {
        if how == Reduce::Max {
            return in_turn(parts.iter().map(|part| part.part(&range)), max);
        }
        let divisor = if how == Reduce::Mean { parts.len() } else { 1 };
        let dtype = parts[0].dtype();
        let one_pass = match dtype {
            DType::BF16 => rounded_in_one_pass::<bf16>(parts, &range, divisor),
            DType::F16 => rounded_in_one_pass::<f16>(parts, &range, divisor),
            _ => None,
        };
        one_pass.unwrap_or_else(|| match (Self::sum_onto(None, parts, range), divisor) {
            (Self::Float(sum), 1) => Self::Float(sum.cast(dtype)),
            (Self::Float(sum), count) => Self::Float((sum / count as f64).cast(dtype)),
            (sum, 1) => sum,
            (Self::Int(sum), count) => Self::Int(sum / count as i64),
        })
    }

    /// `((onto + p_0) + p_1) + ...` of this range of the ranks' tensors, and of all of `onto`. Its dtype is their [`sum_dtype`](Self::sum_dtype),
    /// which `onto` has too: however many ranks there are, a sum of fp16 does not overflow.
    pub(crate) fn sum_onto(onto: Option<Self>, parts: &[Self], range: Range<usize>) -> Self {
        let one_pass = match parts[0].dtype() {
            DType::F32 => in_one_pass::<f32>(onto.as_ref(), parts, &range),
            DType::BF16 => in_one_pass::<bf16>(onto.as_ref(), parts, &range),
            DType::F16 => in_one_pass::<f16>(onto.as_ref(), parts, &range),
            _ => None,
        };
        let widened = |part: &Self| match part.part(&range) {
            Self::Float(tensor) => Self::Float(tensor.cast(part.sum_dtype())),
            ints => ints,
        };
        one_pass.unwrap_or_else(|| in_turn(onto.into_iter().chain(parts.iter().map(widened)), add))
    }

    /// The dtype in which its like are added.
    pub(crate) fn sum_dtype(&self) -> DType {
        if matches!(self.dtype(), DType::BF16 | DType::F16) { DType::F32 } else { self.dtype() }
    }

    fn part(&self, range: &Range<usize>) -> Self {
        if *range == (0..self.len()) { self.clone() } else { self.clone().slice(range.clone()) }
    }
}

fn in_turn(payloads: impl Iterator<Item = Payload>, combine: fn(Payload, Payload) -> Payload) -> Payload {
    payloads.reduce(combine).expect("a group has ranks")
}

fn add(a: Payload, b: Payload) -> Payload {
    match (a, b) {
        (Payload::Float(a), Payload::Float(b)) => Payload::Float(a + b),
        (Payload::Int(a), Payload::Int(b)) => Payload::Int(a + b),
        _ => unreachable!("ranks agree on the dtype"),
    }
}

fn max(a: Payload, b: Payload) -> Payload {
    match (a, b) {
        (Payload::Float(a), Payload::Float(b)) => Payload::Float(a.max_pair(b)),
        (Payload::Int(a), Payload::Int(b)) => Payload::Int(a.max_pair(b)),
        _ => unreachable!("ranks agree on the dtype"),
    }
}

/// What is added in f32.
trait Addend: Element + Pod {
    /// The values in f32; `room` is as long, and for those that are not f32 themselves.
    fn widened<'a>(values: &'a [Self], room: &'a mut [f32]) -> &'a [f32];
}

impl Addend for f32 {
    fn widened<'a>(values: &'a [Self], _: &'a mut [f32]) -> &'a [f32] {
        values
    }
}

impl Addend for bf16 {
    fn widened<'a>(values: &'a [Self], room: &'a mut [f32]) -> &'a [f32] {
        values.convert_to_f32_slice(room);
        room
    }
}

impl Addend for f16 {
    fn widened<'a>(values: &'a [Self], room: &'a mut [f32]) -> &'a [f32] {
        values.convert_to_f32_slice(room);
        room
    }
}

/// Gives `take` the sum block by block, if all tensors are of `E`, `onto` is of f32, and the CPU has them; None otherwise.
fn blocks<E: Addend>(
    onto: Option<&Payload>,
    parts: &[Payload],
    range: &Range<usize>,
    mut take: impl FnMut(&mut [f32]),
) -> Option<()> {
    let on_cpu = |payload: &Payload| match payload {
        Payload::Float(tensor) => tensor.clone().try_into_primitive::<Flex>().ok(),
        Payload::Int(_) => None,
    };
    let onto = match onto {
        Some(onto) => Some(on_cpu(onto)?),
        None => None,
    };
    let onto = match &onto {
        Some(onto) => Some(onto.as_slice::<f32>()?),
        None => None,
    };
    let tensors = parts.iter().map(on_cpu).collect::<Option<Vec<_>>>()?;
    let slices = tensors.iter().map(|tensor| Some(&tensor.as_slice::<E>()?[range.clone()]));
    let slices = slices.collect::<Option<Vec<_>>>()?;
    let (mut sum, mut room) = (Vec::with_capacity(BLOCK), [0.0; BLOCK]);
    for start in (0..range.len()).step_by(BLOCK) {
        let block = start..range.len().min(start + BLOCK);
        let room = &mut room[..block.len()];
        sum.clear();
        // The first is copied: to add it to zeros would turn -0 into 0.
        sum.extend_from_slice(onto.map_or(&[], |onto| &onto[block.clone()]));
        for slice in &slices {
            let values = E::widened(&slice[block.clone()], room);
            if sum.is_empty() {
                sum.extend_from_slice(values);
            } else {
                sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
            }
        }
        take(&mut sum);
    }
    Some(())
}

fn in_one_pass<E: Addend>(onto: Option<&Payload>, parts: &[Payload], range: &Range<usize>) -> Option<Payload> {
    let mut sums = Vec::with_capacity(range.len());
    blocks::<E>(onto, parts, range, |sum| sums.extend_from_slice(sum))?;
    Some(Payload::from_data(TensorData::new(sums, [range.len()]), &parts[0].device()))
}

fn rounded_in_one_pass<E>(parts: &[Payload], range: &Range<usize>, divisor: usize) -> Option<Payload>
where
    E: Addend,
    [E]: HalfFloatSliceExt,
{
    let mut sums: Vec<E> = Vec::with_capacity(range.len());
    blocks::<E>(None, parts, range, |sum| {
        if divisor > 1 {
            sum.iter_mut().for_each(|sum| *sum /= divisor as f32);
        }
        let start = sums.len();
        sums.resize(start + sum.len(), E::zeroed());
        sums[start..].convert_from_f32_slice(sum);
    })?;
    Some(Payload::from_data(TensorData::new(sums, [range.len()]), &parts[0].device()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{Device, Tensor};

    const RANKS: usize = 1024;

    fn payload(values: Vec<f32>, dtype: DType) -> Payload {
        let len = values.len();
        let device = Device::flex();
        Payload::Float(Tensor::<1>::from_data(TensorData::new(values, [len]), &device).cast(dtype))
    }

    fn values(payload: Payload) -> Vec<f64> {
        payload.into_data().iter::<f64>().collect()
    }

    /// One tensor a rank, rounded to `dtype`: of one sign, so that the sum is as precise as its terms.
    fn parts(len: usize, dtype: DType) -> Vec<Payload> {
        let value = |rank: usize, i: usize| 0.5 + ((rank * 7919 + i * 104_729) % 997) as f32 / 997.0;
        (0..RANKS).map(|rank| payload((0..len).map(|i| value(rank, i)).collect(), dtype)).collect()
    }

    /// Half a unit in the last place of a sum that is rounded once, and what f32 loses on the way.
    fn within_one_rounding(sum: f64, exact: f64, bits: i32) {
        let bound = exact.abs() * (2f64.powi(-bits) + RANKS as f64 * 2f64.powi(-24));
        assert!((sum - exact).abs() <= bound, "{sum} is not {exact} to {bits} bits");
    }

    #[test]
    fn sums_and_means_of_a_thousand_ranks_are_those_of_f64_rounded_once() {
        let len = BLOCK + 3;
        for (dtype, bits) in [(DType::BF16, 8), (DType::F16, 11)] {
            let parts = parts(len, dtype);
            let mut exact = vec![0.0; len];
            for part in &parts {
                exact.iter_mut().zip(values(part.clone())).for_each(|(sum, value)| *sum += value);
            }
            let mean: Vec<f64> = exact.iter().map(|sum| sum / RANKS as f64).collect();
            for (range, how, exact) in
                [(0..len, Reduce::Sum, &exact), (5..len, Reduce::Sum, &exact), (0..len, Reduce::Mean, &mean)]
            {
                let found = Payload::reduce(&parts, range.clone(), how);
                assert_eq!((found.dtype(), found.len()), (dtype, range.len()));
                let pairs = values(found).into_iter().zip(&exact[range]);
                pairs.for_each(|(sum, exact)| within_one_rounding(sum, *exact, bits));
            }
        }
    }

    #[test]
    fn a_thousand_equal_terms_give_a_thousand_times_the_term() {
        for (dtype, term) in [(DType::BF16, 1.0), (DType::BF16, 0.75), (DType::F16, 1.0), (DType::F16, 0.0625)] {
            let parts = vec![payload(vec![term; 3], dtype); RANKS];
            let sum = values(Payload::reduce(&parts, 0..3, Reduce::Sum));
            assert_eq!(sum, [RANKS as f64 * f64::from(term); 3]);
            assert_eq!(values(Payload::reduce(&parts, 0..3, Reduce::Mean)), [f64::from(term); 3]);
        }
    }

    #[test]
    fn a_sum_of_fp16_beyond_its_range_is_finite_in_f32_and_so_is_a_mean() {
        let parts = vec![payload(vec![60_000.0; 2], DType::F16); RANKS];
        let term = values(parts[0].clone())[0];
        for onto in [None, Some(payload(vec![1.0; 2], DType::F32))] {
            let start = if onto.is_some() { 1.0 } else { 0.0 };
            let sum = Payload::sum_onto(onto, &parts, 0..2);
            assert_eq!(sum.dtype(), DType::F32);
            values(sum).into_iter().for_each(|sum| within_one_rounding(sum, start + RANKS as f64 * term, 24));
        }
        assert_eq!(values(Payload::reduce(&parts, 0..2, Reduce::Mean)), [term; 2]);
    }

    #[test]
    fn sums_tensor_by_tensor_are_those_in_one_pass_to_the_bit() {
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let parts = &parts(50, dtype)[..16];
            let onto = Some(payload(vec![-0.0; 40], DType::F32));
            let wide = |part: &Payload| match part.part(&(10..50)) {
                Payload::Float(tensor) => Payload::Float(tensor.cast(DType::F32)),
                ints => ints,
            };
            let by_tensor = in_turn(onto.clone().into_iter().chain(parts.iter().map(wide)), add);
            assert_eq!(values(Payload::sum_onto(onto, parts, 10..50)), values(by_tensor), "{dtype:?}");
        }
    }
}
