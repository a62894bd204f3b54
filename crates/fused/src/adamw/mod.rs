//! AdamW (arXiv 1711.05101), with PyTorch's formula, in one pass over parameter, moments and gradient.
//!
//! ```text
//! m = b1 m + (1 - b1) g        v = b2 v + (1 - b2) g^2
//! p = p (1 - lr decay) - lr / (1 - b1^t) * m / (sqrt(v / (1 - b2^t)) + epsilon)
//! ```
//!
//! Each element costs 16 bytes of reads and 12 of writes, plus 2 for a 16-bit copy to compute with. Memory without
//! another owner is updated in place.

#[cfg(feature = "cubecl")]
pub(crate) mod cube;
mod optimizer;

use crate::check::Call;
#[cfg(feature = "cubecl")]
use crate::cube::specs::spec;
use crate::slices::{contiguous, float, slice};
use crate::with_float;
use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, Flex, TensorMetadata, backend_extension};
use burn::tensor::{DType, Tensor};
use cpu::{Element, Pieces, team, vectorised};

/// AdamW (arXiv 1711.05101), for [`adamw`] and as one of Burn's [optimizers](burn::optim::Optimizer). The defaults are
/// the usual values for language models and differ from those of `burn::optim::AdamWConfig`:
///
/// | | `beta1` | `beta2` | `epsilon` | `weight_decay` |
/// |---|---|---|---|---|
/// | `fused::FusedAdamW` | 0.9 | 0.95 | 1e-8 | 0.1 |
/// | `burn::optim::AdamWConfig` | 0.9 | 0.999 | 1e-5 | 1e-4 |
///
/// # As an optimizer of Burn
///
/// `ModuleOptimizer::from(FusedAdamW::default())` is an optimizer for any module, with Burn's parameter groups, gradient
/// clipping and records. As in PyTorch, weight decay applies to every tensor that the optimizer is given, including
/// biases and gains of norms; a parameter group exempts them:
///
/// ```
/// use burn::module::ParamGroup;
/// use burn::nn::{Linear, LinearConfig};
/// use burn::optim::{GradientsParams, ModuleOptimizer};
/// use burn::tensor::{Device, Tensor};
/// use fused::FusedAdamW;
///
/// let device = Device::flex().autodiff();
/// let model: Linear = LinearConfig::new(4, 2).init(&device);
/// let mut optim = ModuleOptimizer::from(FusedAdamW::default()).with_group(
///     ParamGroup::from_predicate("bias"),
///     FusedAdamW { weight_decay: 0.0, ..FusedAdamW::default() },
///     None,
/// );
/// let loss = model.forward(Tensor::<2>::ones([3, 4], &device)).powi_scalar(2).mean();
/// let gradients = GradientsParams::from_grads(loss.backward(), &model);
/// let model = optim.step(3e-4, model, gradients);
/// # let _ = model;
/// ```
///
/// Moments are f32. A parameter of bf16 or f16 is updated in f32 and rounded, so a change below half its precision is
/// lost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FusedAdamW {
    /// Decay rate of the mean of gradients.
    pub beta1: f64,
    /// Decay rate of the mean of squared gradients.
    pub beta2: f64,
    /// Added to the denominator.
    pub epsilon: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
}

impl Default for FusedAdamW {
    fn default() -> Self {
        Self { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.1 }
    }
}

/// The optimizer state of one parameter: flat for [`adamw`], in the parameter's shape in a Burn optimizer.
#[derive(Debug, Clone)]
pub struct AdamWState<const D: usize = 1> {
    /// Running mean of gradients.
    pub mean: Tensor<D>,
    /// Running mean of squared gradients.
    pub square: Tensor<D>,
    /// Steps taken.
    pub steps: i32,
}

impl<const D: usize> AdamWState<D> {
    /// Returns the state before the first step of a parameter with the shape of `like`.
    pub fn new(like: &Tensor<D>) -> Self {
        Self { mean: like.zeros_like(), square: like.zeros_like(), steps: 0 }
    }
}

/// One step of a flat parameter.
#[derive(Debug, Clone)]
pub struct AdamWStep {
    /// Learning rate.
    pub lr: f64,
    /// Number of elements, from the start, to which weight decay applies.
    pub decayed: usize,
    /// Multiplies the gradient.
    pub gradient_scale: f64,
    /// Also multiplies the gradient: `[1]`, f32. This is a number that the host does not know, such as a
    /// [`clip_factor`](crate::clip_factor). A negative factor skips the step: only the number of steps changes.
    pub factor: Option<Tensor<1>>,
    /// The dtype of the parameter's copy, if one is wanted.
    pub copy: Option<DType>,
}

/// Makes one step of an f32 `parameter` with its gradient, which may be of another float type. Returns the parameter,
/// and its copy if the step asks for one. Neither is tracked.
///
/// # Panics
/// If lengths differ, if gradient or copy are not f32, bf16 or f16, or if parameter, state or factor are not f32. The
/// state is then unchanged.
pub fn adamw(
    config: &FusedAdamW,
    step: &AdamWStep,
    parameter: Tensor<1>,
    gradient: Tensor<1>,
    state: &mut AdamWState,
) -> (Tensor<1>, Option<Tensor<1>>) {
    let (call, len) = (Call("adamw"), parameter.dims());
    for (name, tensor) in [("parameter", &parameter), ("state.mean", &state.mean), ("state.square", &state.square)] {
        call.dtype(name, tensor.dtype(), DType::F32);
        call.shape(name, tensor.dims(), len);
    }
    call.float("gradient", gradient.dtype());
    call.shape("gradient", gradient.dims(), len);
    step.copy.into_iter().for_each(|copy| call.float("step.copy", copy));
    if let Some(factor) = &step.factor {
        call.dtype("step.factor", factor.dtype(), DType::F32);
        call.shape("step.factor", factor.dims(), [1]);
    }
    state.steps += 1;
    let (rates, device) = (Rates::new(config, step, state.steps), parameter.device());
    let take = |tensor: &mut Tensor<1>| std::mem::replace(tensor, Tensor::empty([0], &device)).inner().into_dispatch();
    let (mean, square) = (take(&mut state.mean), take(&mut state.square));
    let factor = step.factor.clone().unwrap_or_else(|| Tensor::empty([0], (&device, DType::F32)));
    let (gradient, factor) = (gradient.inner().into_dispatch(), factor.inner().into_dispatch());
    let (parameter, mean, square, copy) =
        Dispatch::fused_adamw(parameter.inner().into_dispatch(), mean, square, gradient, factor, rates);
    (state.mean, state.square) = (Tensor::from_dispatch(mean), Tensor::from_dispatch(square));
    (Tensor::from_dispatch(parameter), step.copy.map(|_| Tensor::from_dispatch(copy)))
}

/// The constants of one step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rates {
    /// Number of elements, from the start, to which weight decay applies.
    pub decayed: usize,
    /// Multiplies the gradient.
    pub gradient_scale: f32,
    /// Decay rate of the mean.
    pub beta1: f32,
    /// Decay rate of the square.
    pub beta2: f32,
    /// Added to the denominator.
    pub epsilon: f32,
    /// `1 - lr * weight_decay`
    pub keep: f32,
    /// `lr / (1 - beta1^t)`
    pub lr: f32,
    /// `1 / sqrt(1 - beta2^t)`
    pub inverse_sqrt_correction2: f32,
    /// The dtype of the parameter's copy, if one is wanted.
    pub copy: Option<DType>,
}

impl Rates {
    fn new(config: &FusedAdamW, step: &AdamWStep, steps: i32) -> Self {
        Self {
            decayed: step.decayed,
            gradient_scale: step.gradient_scale as f32,
            beta1: config.beta1 as f32,
            beta2: config.beta2 as f32,
            epsilon: config.epsilon as f32,
            keep: (1.0 - step.lr * config.weight_decay) as f32,
            lr: (step.lr / (1.0 - config.beta1.powi(steps))) as f32,
            inverse_sqrt_correction2: (1.0 - config.beta2.powi(steps)).powf(-0.5) as f32,
            copy: step.copy,
        }
    }
}

/// The step. The tape does not record it.
#[backend_extension(Cube: cfg(feature = "cubecl"), Flex, Fusion: cfg(feature = "cubecl"))]
#[allow(clippy::type_complexity)]
pub(crate) trait AdamWOps: Backend {
    /// Maps parameter, mean and square (statistics), the gradient and its factor to the first three after a step, and
    /// the copy that the rates ask for (empty for none). The factor is a statistic of one element, or empty for none;
    /// if it is negative, there is no step.
    #[fusion(meta = |parameter, mean, square, _, _, rates| {
        let copied = if rates.copy.is_some() { parameter.shape[0] } else { 0 };
        let copy = spec([copied], rates.copy.unwrap_or(DType::F32));
        (parameter.clone(), mean.clone(), square.clone(), copy)
    })]
    fn fused_adamw(
        parameter: FloatTensor<Self>,
        mean: FloatTensor<Self>,
        square: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        factor: FloatTensor<Self>,
        rates: Rates,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);
}

impl AdamWOps for Flex {
    fn fused_adamw(
        parameter: FloatTensor<Self>,
        mean: FloatTensor<Self>,
        square: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        factor: FloatTensor<Self>,
        mut rates: Rates,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let mut state = [parameter, mean, square].map(|tensor| contiguous(&tensor));
        let gradient = contiguous(&widened(gradient));
        match slice::<f32>(&contiguous(&factor)).first() {
            Some(factor) if *factor < 0.0 => {
                let [parameter, mean, square] = state;
                let copy = match rates.copy {
                    Some(dtype) => Self::float_cast(parameter.clone(), dtype.into()),
                    None => float(Vec::<f32>::new(), [0]),
                };
                return (parameter, mean, square, copy);
            }
            Some(factor) => rates.gradient_scale *= factor,
            None => {}
        }
        let copy = with_float!(rates.copy.unwrap_or(DType::F32), T => {
            let copy = adamw_cpu::<T>(state.each_mut().map(own), slice(&gradient), &rates);
            let len = copy.len();
            float(copy, [len])
        });
        let [parameter, mean, square] = state;
        (parameter, mean, square, copy)
    }
}

/// Converts to f32.
fn widened(x: FloatTensor<Flex>) -> FloatTensor<Flex> {
    if x.dtype() == DType::F32 { x } else { Flex::float_cast(x, DType::F32.into()) }
}

/// The values of a contiguous tensor, to modify: copied if they have another owner.
fn own(tensor: &mut FloatTensor<Flex>) -> &mut [f32] {
    if slice::<f32>(tensor).len() < tensor.storage::<f32>().len() {
        // The tensor is a slice of something larger, all of which would be copied.
        *tensor = float(slice::<f32>(tensor).to_vec(), tensor.shape());
    }
    tensor.storage_mut()
}

/// Updates parameter, mean and square, and returns the parameter's copy, which is empty if none is wanted.
fn adamw_cpu<T: Element>([p, m, v]: [&mut [f32]; 3], g: &[f32], rates: &Rates) -> Vec<T> {
    const TASK: usize = 32 * 1024;
    let mut copy = vec![T::from_f32(0.0); if rates.copy.is_some() { p.len() } else { 0 }];
    let (state, copies) = ([p, m, v].map(Pieces::new), Pieces::new(&mut copy));
    team::for_each(g.len().div_ceil(TASK), |i| {
        // SAFETY: the parts of tasks are disjoint.
        let [p, m, v] = state.map(|values| unsafe { values.part(i, TASK) });
        let g = &g[i * TASK..g.len().min((i + 1) * TASK)];
        let edge = rates.decayed.saturating_sub(i * TASK).min(g.len());
        let ((decayed, p_rest), (m, m_rest), (v, v_rest)) =
            (p.split_at_mut(edge), m.split_at_mut(edge), v.split_at_mut(edge));
        step(rates, decayed, m, v, &g[..edge]);
        step(&Rates { keep: 1.0, ..*rates }, p_rest, m_rest, v_rest, &g[edge..]);
        if rates.copy.is_some() {
            // SAFETY: as above.
            T::narrow(p, unsafe { copies.part(i, TASK) });
        }
    });
    copy
}

vectorised! {
    fn step(rates: &Rates, p: &mut [f32], m: &mut [f32], v: &mut [f32], g: &[f32]) {
        for (((p, m), v), g) in p.iter_mut().zip(m).zip(v).zip(g) {
            let g = g * rates.gradient_scale;
            *m = rates.beta1 * *m + (1.0 - rates.beta1) * g;
            *v = rates.beta2 * *v + (1.0 - rates.beta2) * g * g;
            let denominator = v.sqrt() * rates.inverse_sqrt_correction2 + rates.epsilon;
            *p = *p * rates.keep - rates.lr * *m / denominator;
        }
    }
}
