//! [`FusedAdamW`] as one of Burn's optimizers: each parameter is flattened, which copies nothing if it is contiguous.

use super::{AdamWState, AdamWStep, FusedAdamW, adamw};
use burn::optim::{LearningRate, Optimizer, RecordState, StateSink, StateSource};
use burn::tensor::{DType, Device, Shape, Tensor};

impl Optimizer for FusedAdamW {
    type State<const D: usize> = AdamWState<D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<AdamWState<D>>,
    ) -> (Tensor<D>, Option<AdamWState<D>>) {
        let (shape, dtype) = (tensor.shape(), tensor.dtype());
        let len = shape.num_elements();
        if len == 0 {
            return (tensor, state);
        }
        let parameter = tensor.cast(DType::F32).reshape([len]);
        let mut state = match state {
            Some(state) => reshaped(state, [len]),
            None => AdamWState::new(&parameter),
        };
        let copy = (dtype != DType::F32).then_some(dtype);
        let step = AdamWStep { lr, decayed: len, gradient_scale: 1.0, factor: None, copy };
        let (parameter, copy) = adamw(self, &step, parameter, grad.reshape([len]), &mut state);
        (copy.unwrap_or(parameter).reshape(shape.clone()), Some(reshaped(state, shape)))
    }

    fn to_device<const D: usize>(state: AdamWState<D>, device: &Device) -> AdamWState<D> {
        let [mean, square] = [state.mean, state.square].map(|moment| moment.to_device(device));
        AdamWState { mean, square, ..state }
    }
}

fn reshaped<const D: usize, const E: usize>(state: AdamWState<D>, shape: impl Into<Shape>) -> AdamWState<E> {
    let shape = shape.into();
    let [mean, square] = [state.mean, state.square].map(|moment| moment.reshape(shape.clone()));
    AdamWState { mean, square, steps: state.steps }
}

// The derive macro names items of the crate `burn-optim` and works only there.
impl<const D: usize> RecordState for AdamWState<D> {
    fn state_flatten(&self, prefix: &str, out: &mut StateSink) {
        out.push_tensor(prefix, "mean", self.mean.clone().into_data());
        out.push_tensor(prefix, "square", self.square.clone().into_data());
        out.push_scalar(prefix, "steps", self.steps.into());
    }

    fn state_unflatten(prefix: &str, src: &mut StateSource, device: &Device) -> Option<Self> {
        // With the dtype, because the device's default may be a 16-bit one.
        let mut moment = |name| Some(Tensor::from_data(src.take_tensor(prefix, name)?, (device, DType::F32)));
        let (mean, square) = (moment("mean")?, moment("square")?);
        Some(Self { mean, square, steps: src.take_scalar(prefix, "steps")?.try_into().ok()? })
    }
}
