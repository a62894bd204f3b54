//! Sums of the ranks' tensors in a given order.
//!
//! 16-bit floats are added in f32 and rounded once at the end: in bf16, 256 + 1 is 256. On the CPU each tensor passes
//! through the cache once; Burn adds two tensors at a time and so writes and reads the sum again for each one.

use crate::{Payload, Reduce};
use burn::backend::Flex;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, Element, TensorData};
use bytemuck::Pod;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use std::ops::Range;
use std::sync::Arc;

/// Elements per block, whose sum stays in the cache while all ranks' values are added.
const BLOCK: usize = 4096;

/// The same range of each rank's tensor, or of the partial results of several ranks each, to be combined in order. There
/// is at least one tensor, and all have the same dtype and length. Clones and subranges share the tensors.
#[derive(Clone)]
pub struct Summands {
    tensors: Arc<Tensors>,
    range: Range<usize>,
    /// Number of ranks whose tensors they contain.
    ranks: usize,
    /// The dtype of the ranks' tensors.
    dtype: DType,
}

struct Tensors {
    payloads: Vec<Payload>,
    /// The same tensors, if they are floats on the CPU.
    on_cpu: Option<Vec<FloatTensor<Flex>>>,
}

impl Summands {
    /// Creates summands from whole tensors.
    ///
    /// # Panics
    /// Panics if there are none.
    pub fn new(payloads: Vec<Payload>) -> Self {
        let flex = |payload: &Payload| match payload {
            Payload::Float(tensor) => tensor.clone().try_into_primitive::<Flex>().ok(),
            Payload::Int(_) => None,
        };
        let (ranks, dtype, range) = (payloads.len(), payloads[0].dtype(), 0..payloads[0].len());
        let on_cpu = payloads.iter().map(flex).collect();
        Self { tensors: Arc::new(Tensors { payloads, on_cpu }), range, ranks, dtype }
    }

    /// Creates summands from [partial results](Self::partial) which together contain the tensors of `ranks` ranks, of
    /// `dtype`.
    pub(crate) fn of_partials(partials: Self, ranks: usize, dtype: DType) -> Self {
        Self { ranks, dtype, ..partials }
    }

    /// Returns a subrange of these summands.
    pub(crate) fn part(&self, range: Range<usize>) -> Self {
        let start = self.range.start;
        Self { range: start + range.start..start + range.end, ..self.clone() }
    }

    /// Returns each rank's range in rank order.
    fn payloads(&self) -> impl Iterator<Item = Payload> {
        let range = |payload: &Payload| match self.range == (0..payload.len()) {
            true => payload.clone(),
            false => payload.clone().slice(self.range.clone()),
        };
        self.tensors.payloads.iter().map(range)
    }

    /// Combines the tensors element by element into a part of a larger [`reduce`](Self::reduce): sums are in
    /// [`Payload::sum_dtype`], and not yet rounded or divided.
    pub(crate) fn partial(&self, how: Reduce) -> Payload {
        if how == Reduce::Max { self.reduce(how) } else { self.sum_onto(None) }
    }

    /// Combines the tensors element by element, in the ranks' dtype.
    pub(crate) fn reduce(&self, how: Reduce) -> Payload {
        if how == Reduce::Max {
            return in_turn(self.payloads(), max);
        }
        let divisor = if how == Reduce::Mean { self.ranks } else { 1 };
        let dtype = self.dtype;
        let one_pass = match dtype {
            DType::BF16 => self.rounded_in_one_pass::<bf16>(divisor),
            DType::F16 => self.rounded_in_one_pass::<f16>(divisor),
            _ => None,
        };
        one_pass.unwrap_or_else(|| match (self.sum_onto(None), divisor) {
            (Payload::Float(sum), 1) => Payload::Float(sum.cast(dtype)),
            (Payload::Float(sum), count) => Payload::Float((sum / count as f64).cast(dtype)),
            (sum, 1) => sum,
            (Payload::Int(sum), count) => Payload::Int(sum / count as i64),
        })
    }

    /// Returns `((onto + p_0) + p_1) + ...` in [`Payload::sum_dtype`], the dtype of `onto` too: sums of fp16 do not
    /// overflow, however many ranks there are.
    pub(crate) fn sum_onto(&self, onto: Option<Payload>) -> Payload {
        let one_pass = match self.first().dtype() {
            DType::F32 => self.in_one_pass::<f32>(onto.as_ref()),
            DType::BF16 => self.in_one_pass::<bf16>(onto.as_ref()),
            DType::F16 => self.in_one_pass::<f16>(onto.as_ref()),
            _ => None,
        };
        one_pass.unwrap_or_else(|| in_turn(onto.into_iter().chain(self.payloads().map(Payload::widened)), add))
    }

    fn first(&self) -> &Payload {
        &self.tensors.payloads[0]
    }

    fn in_one_pass<E: Addend>(&self, onto: Option<&Payload>) -> Option<Payload> {
        let mut sums = Vec::with_capacity(self.range.len());
        self.blocks::<E>(onto, |sum| sums.extend_from_slice(sum))?;
        Some(Payload::from_data(TensorData::new(sums, [self.range.len()]), &self.first().device()))
    }

    fn rounded_in_one_pass<E: Addend>(&self, divisor: usize) -> Option<Payload>
    where
        [E]: HalfFloatSliceExt,
    {
        let mut sums: Vec<E> = Vec::with_capacity(self.range.len());
        self.blocks::<E>(None, |sum| {
            if divisor > 1 {
                sum.iter_mut().for_each(|sum| *sum /= divisor as f32);
            }
            let start = sums.len();
            sums.resize(start + sum.len(), E::zeroed());
            sums[start..].convert_from_f32_slice(sum);
        })?;
        Some(Payload::from_data(TensorData::new(sums, [self.range.len()]), &self.first().device()))
    }

    /// Passes the sum to `take` block by block. Returns `None` unless all tensors are of `E`, `onto` is of f32, and all
    /// are on the CPU.
    fn blocks<E: Addend>(&self, onto: Option<&Payload>, mut take: impl FnMut(&mut [f32])) -> Option<()> {
        let onto = onto.map(|onto| Self::new(vec![onto.clone()]));
        let onto = match &onto {
            Some(onto) => Some(onto.tensors.on_cpu.as_ref()?[0].as_slice::<f32>()?),
            None => None,
        };
        let tensors = self.tensors.on_cpu.as_ref()?;
        let slices = tensors.iter().map(|tensor| Some(&tensor.as_slice::<E>()?[self.range.clone()]));
        let slices = slices.collect::<Option<Vec<_>>>()?;
        let (len, mut sum) = (self.range.len(), Vec::with_capacity(BLOCK.min(self.range.len())));
        let mut room = [0.0; BLOCK];
        for start in (0..len).step_by(BLOCK) {
            let block = start..len.min(start + BLOCK);
            let room = &mut room[..block.len()];
            sum.clear();
            // Copy the first tensor: adding it to zeros would turn -0 into 0.
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
}

impl Payload {
    /// Returns the dtype in which payloads of this dtype are added.
    pub(crate) fn sum_dtype(&self) -> DType {
        if matches!(self.dtype(), DType::BF16 | DType::F16) { DType::F32 } else { self.dtype() }
    }

    /// Returns the same values in [`sum_dtype`](Self::sum_dtype).
    pub(crate) fn widened(self) -> Self {
        let dtype = self.sum_dtype();
        match self {
            Self::Float(tensor) => Self::Float(tensor.cast(dtype)),
            ints => ints,
        }
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

/// A type that is added in f32.
trait Addend: Element + Pod {
    /// Returns the values in f32. `room` has the same length and receives them if they must be converted.
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

    /// Creates one tensor per rank, rounded to `dtype`. All values have one sign, so the sum is as precise as its
    /// terms.
    fn parts(len: usize, dtype: DType) -> Vec<Payload> {
        let value = |rank: usize, i: usize| 0.5 + ((rank * 7919 + i * 104_729) % 997) as f32 / 997.0;
        (0..RANKS).map(|rank| payload((0..len).map(|i| value(rank, i)).collect(), dtype)).collect()
    }

    /// Allows half a unit in the last place for rounding the sum once, plus the rounding errors of adding in f32.
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
                let found = Summands::new(parts.clone()).part(range.clone()).reduce(how);
                assert_eq!((found.dtype(), found.len()), (dtype, range.len()));
                let pairs = values(found).into_iter().zip(&exact[range]);
                pairs.for_each(|(sum, exact)| within_one_rounding(sum, *exact, bits));
            }
        }
    }

    #[test]
    fn a_thousand_equal_terms_give_a_thousand_times_the_term() {
        for (dtype, term) in [(DType::BF16, 1.0), (DType::BF16, 0.75), (DType::F16, 1.0), (DType::F16, 0.0625)] {
            let parts = Summands::new(vec![payload(vec![term; 3], dtype); RANKS]);
            let sum = values(parts.reduce(Reduce::Sum));
            assert_eq!(sum, [RANKS as f64 * f64::from(term); 3]);
            assert_eq!(values(parts.reduce(Reduce::Mean)), [f64::from(term); 3]);
        }
    }

    #[test]
    fn a_sum_of_fp16_beyond_its_range_is_finite_in_f32_and_so_is_a_mean() {
        let parts = Summands::new(vec![payload(vec![60_000.0; 2], DType::F16); RANKS]);
        let term = values(parts.first().clone())[0];
        for onto in [None, Some(payload(vec![1.0; 2], DType::F32))] {
            let start = if onto.is_some() { 1.0 } else { 0.0 };
            let sum = parts.sum_onto(onto);
            assert_eq!(sum.dtype(), DType::F32);
            values(sum).into_iter().for_each(|sum| within_one_rounding(sum, start + RANKS as f64 * term, 24));
        }
        assert_eq!(values(parts.reduce(Reduce::Mean)), [term; 2]);
    }

    #[test]
    fn sums_tensor_by_tensor_are_those_in_one_pass_to_the_bit() {
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let parts = Summands::new(parts(50, dtype)[..16].to_vec()).part(10..50);
            let onto = Some(payload(vec![-0.0; 40], DType::F32));
            let wide = |part| match part {
                Payload::Float(tensor) => Payload::Float(tensor.cast(DType::F32)),
                ints => ints,
            };
            let by_tensor = in_turn(onto.clone().into_iter().chain(parts.payloads().map(wide)), add);
            assert_eq!(values(parts.sum_onto(onto)), values(by_tensor), "{dtype:?}");
        }
    }
}
