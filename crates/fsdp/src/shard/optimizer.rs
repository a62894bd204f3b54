//! The optimizers of one shard.

use crate::api::optimizers::{FlatOptimizer, Kind, Optimizers};
use crate::shard::memory::{Category, Ledger, MemoryGuard};
use crate::shard::state::{Number, OptimizerState, ShardValues};
use crate::shard::tensor_shard::Sliced;
use crate::{FsdpError, Layout};
use burn::optim::{DynState, StateSource};
use burn::tensor::{DType, Device, Tensor, TensorData};
use fused::{AdamWState, AdamWStep, FusedAdamW, adamw};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// The factor of gradients before a step.
#[derive(Clone)]
pub(crate) struct GradientScale {
    /// The part that the host knows.
    pub known: f64,
    /// The part that only the device knows so far, if gradients are on a device: [`fused::clip_factor`].
    pub factor: Option<Tensor<1>>,
}

/// The names of the moments in the [`OptimizerState`] of Kiln's AdamW, which are PyTorch's.
pub const MOMENTS: [&str; 2] = ["exp_avg", "exp_avg_sq"];

/// The optimizers of one shard. Each has consecutive elements, with the padding between them.
pub(crate) struct ShardOptimizer {
    segments: Vec<Segment>,
    steps: u64,
    ledger: Ledger,
    /// The states' bytes; `None` before the first step.
    held: Option<MemoryGuard>,
}

/// Consecutive elements of one optimizer.
struct Segment {
    /// Its range in the shard.
    range: Range<usize>,
    lr_factor: f64,
    stepper: Stepper,
}

enum Stepper {
    /// The segment starts with elements of matrices; only these decay.
    Fused {
        config: FusedAdamW,
        decayed: usize,
        state: Option<AdamWState>,
    },
    Burn {
        optimizer: Arc<dyn FlatOptimizer>,
        state: Option<DynState>,
    },
}

impl ShardOptimizer {
    /// Creates the optimizers of the range `shard` of the buffer of these parameters.
    pub fn new(
        optimizers: &Optimizers,
        params: &[Sliced],
        layout: &Layout,
        shard: Range<usize>,
        ledger: Ledger,
    ) -> Self {
        let group_of =
            |i: &usize| (layout.params()[*i].offset, optimizers.group_of(&params[*i].name, &params[*i].shape));
        let mut starts: Vec<(usize, usize)> = layout.by_offset().iter().map(group_of).collect();
        starts.dedup_by_key(|(_, group)| *group);
        if starts.is_empty() {
            starts.push((0, 0)); // a buffer of padding alone
        }
        let ends = starts.iter().skip(1).map(|(start, _)| *start).chain([layout.padded_len()]);
        let segment = |(&(start, group), end): (&(usize, usize), usize)| {
            let (start, end) = (start.max(shard.start), end.min(shard.end));
            let group = optimizers.group(group);
            (start < end).then(|| Segment {
                range: start - shard.start..end - shard.start,
                lr_factor: group.lr_factor,
                stepper: match group.optimizer.kind() {
                    Kind::Burn(optimizer) => Stepper::Burn { optimizer: optimizer.clone(), state: None },
                    Kind::Fused(config) => {
                        let decayed = layout.matrices_end().saturating_sub(start).min(end - start);
                        Stepper::Fused { config: *config, decayed, state: None }
                    }
                },
            })
        };
        let segments = starts.iter().zip(ends).filter_map(segment).collect();
        Self { segments, steps: 0, ledger, held: None }
    }

    /// Makes an optimizer step on `shard` with its gradient; returns the new shard, and its copy in the type `copy` if
    /// one is given.
    pub fn step(
        &mut self,
        lr: f64,
        scale: &GradientScale,
        [shard, gradient]: [Tensor<1>; 2],
        copy: Option<DType>,
    ) -> (Tensor<1>, Option<Tensor<1>>) {
        self.steps += 1;
        let stepped = match &mut self.segments[..] {
            [whole] => whole.step(lr, scale, [shard, gradient], copy),
            segments => {
                let step = |segment: &mut Segment| {
                    let part = |of: &Tensor<1>| of.clone().slice(segment.range.clone());
                    segment.step(lr, scale, [part(&shard), part(&gradient)], copy)
                };
                let (shards, copies): (Vec<_>, Vec<_>) = segments.iter_mut().map(step).unzip();
                let copies: Option<Vec<_>> = copies.into_iter().collect();
                (Tensor::cat(shards, 0), copies.map(|copies| Tensor::cat(copies, 0)))
            }
        };
        self.hold();
        stepped
    }

    /// Undoes the last step, which had no effect because its gradient's factor turned out to be below 0.
    ///
    /// # Panics
    /// If an optimizer is not [`FusedAdamW`]; others wait until the factor is known.
    pub fn take_back(&mut self) {
        self.steps -= 1;
        for segment in &mut self.segments {
            match &mut segment.stepper {
                Stepper::Fused { state: Some(state), .. } if state.steps > 1 => state.steps -= 1,
                Stepper::Fused { state, .. } => *state = None,
                Stepper::Burn { .. } => panic!("optimizers of Burn step when the factor is known"),
            }
        }
        if self.steps == 0 {
            self.held = None;
        }
    }

    /// Returns the state of every segment, with its range in the shard; nothing before the first step.
    pub fn states(&self) -> Vec<(Range<usize>, OptimizerState<Tensor<1>>)> {
        let state = |segment: &Segment| Some((segment.range.clone(), segment.stepper.state()?));
        self.segments.iter().filter_map(state).collect()
    }

    /// Resumes with the states of the whole shard after `steps` steps; 0 starts from the beginning.
    pub fn load(&mut self, steps: u64, values: &ShardValues, device: &Device) -> Result<(), FsdpError> {
        self.steps = steps;
        for segment in self.segments.iter_mut().filter(|_| steps > 0) {
            if let Some(state) = values.state_in(&segment.range)? {
                segment.stepper.load(steps, state, device)?;
            }
        }
        self.hold();
        Ok(())
    }

    /// Counts the states' bytes once there are states.
    fn hold(&mut self) {
        if self.held.is_none() && self.steps > 0 {
            let bytes = self.segments.iter().map(|segment| segment.stepper.bytes(segment.range.len())).sum();
            self.held = Some(self.ledger.hold(Category::Optimizer, bytes));
        }
    }
}

impl Segment {
    fn step(
        &mut self,
        lr: f64,
        scale: &GradientScale,
        [shard, gradient]: [Tensor<1>; 2],
        copy: Option<DType>,
    ) -> (Tensor<1>, Option<Tensor<1>>) {
        let (lr, GradientScale { known: gradient_scale, factor }) = (lr * self.lr_factor, scale.clone());
        match &mut self.stepper {
            Stepper::Fused { config, decayed, state } => {
                let state = state.get_or_insert_with(|| AdamWState::new(&shard));
                let step = AdamWStep { lr, decayed: *decayed, gradient_scale, factor, copy };
                adamw(config, &step, shard, gradient, state)
            }
            Stepper::Burn { optimizer, state } => {
                let scaled = gradient.cast(DType::F32) * gradient_scale;
                let scaled = factor.into_iter().fold(scaled, |scaled, factor| scaled * factor);
                let stepped;
                (stepped, *state) = optimizer.step(lr, [shard, scaled], state.take());
                let copy = copy.map(|dtype| stepped.clone().cast(dtype));
                (stepped, copy)
            }
        }
    }
}

impl Stepper {
    fn state(&self) -> Option<OptimizerState<Tensor<1>>> {
        Some(match self {
            Self::Fused { state, .. } => {
                let AdamWState { mean, square, .. } = state.clone()?;
                let tensors = MOMENTS.map(String::from).into_iter().zip([mean, square]).collect();
                OptimizerState { tensors, numbers: BTreeMap::new() }
            }
            Self::Burn { optimizer, state } => {
                let record = optimizer.record(state.as_ref()?);
                let tensor = |(name, data)| (name, Tensor::from_data(data, &Device::flex()));
                OptimizerState {
                    tensors: record.tensors.into_iter().map(tensor).collect(),
                    numbers: record.scalars.into_iter().map(|(name, scalar)| (name, Number::of(scalar))).collect(),
                }
            }
        })
    }

    fn load(&mut self, steps: u64, values: OptimizerState<Vec<f32>>, device: &Device) -> Result<(), FsdpError> {
        let data = |values: Vec<f32>| {
            let len = values.len();
            TensorData::new(values, [len])
        };
        let OptimizerState { mut tensors, numbers } = values;
        match self {
            // Saved before its first step, or frozen: it starts from the beginning.
            Self::Fused { .. } if tensors.is_empty() => {}
            Self::Fused { state, .. } => {
                let mut moment = |name| {
                    let values = tensors.remove(name).ok_or_else(|| missing(name))?;
                    Ok::<_, FsdpError>(Tensor::from_data(data(values), device))
                };
                let (mean, square) = (moment(MOMENTS[0])?, moment(MOMENTS[1])?);
                *state = Some(AdamWState { mean, square, steps: i32::try_from(steps).unwrap_or(i32::MAX) });
            }
            Self::Burn { .. } if tensors.is_empty() && numbers.is_empty() => {}
            Self::Burn { optimizer, state } => {
                let scalars = numbers.into_iter().map(|(name, number)| (name, number.scalar())).collect();
                let mut source = StateSource::new(scalars);
                tensors.into_iter().for_each(|(name, values)| source.insert_tensor(name, data(values)));
                *state = Some(optimizer.load(&mut source, device).ok_or_else(|| missing(optimizer.name()))?);
            }
        }
        Ok(())
    }

    /// Returns the bytes of the state of `len` elements.
    fn bytes(&self, len: usize) -> usize {
        match self {
            Self::Fused { .. } => MOMENTS.len() * len * size_of::<f32>(),
            Self::Burn { optimizer, state } => {
                let record = state.as_ref().map(|state| optimizer.record(state)).unwrap_or_default();
                record.tensors.iter().map(|(_, data)| data.as_bytes().len()).sum()
            }
        }
    }
}

fn missing(what: &str) -> FsdpError {
    FsdpError::State(format!("the state was saved by another optimizer: it has no {what}; give the same optimizers"))
}
