//! The bridge between loops over `f32` slices and Burn's autodiff.

use crate::deferred;
use burn::backend::autodiff::{
    Autodiff,
    checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
    grads::Gradients,
    ops::{Backward, Ops, OpsKind},
};
use burn::backend::ops::FloatTensorOps;
use burn::backend::{Backend, Dispatch, Flex, TensorMetadata, backend_extension, tensor::FloatTensor};
use burn::tensor::{DType, Shape, Tensor, TensorData};
use std::fmt::Debug;
use std::sync::Arc;

/// An operation of `N` float inputs on the CPU. Slices are whole contiguous tensors.
pub(crate) trait Kernel<const N: usize>: Debug + Send + Sync + 'static {
    /// What [`backward`](Self::backward) reads; what is not saved it gets as empty slices.
    const SAVES: Saves;

    /// The input that is a weight: the backward can compute its gradient without the others, and these without it.
    const WEIGHT: Option<usize> = None;

    /// Shape of the output.
    fn output_shape(&self, inputs: [&Shape; N]) -> Shape;

    fn forward(&self, inputs: [&[f32]; N], output: &mut [f32]);

    /// Writes the gradient of every input; `gradients` are zero at first, and with a [`WEIGHT`](Self::WEIGHT) empty where nobody wants one.
    fn backward(&self, inputs: [&[f32]; N], output: &[f32], cotangent: &[f32], gradients: [&mut [f32]; N]);
}

/// What is kept of a forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Saves {
    /// All inputs.
    Inputs,
    /// The output.
    Output,
    /// Nothing of either.
    Nothing,
}

/// Whether [`Kernel`]s run on this tensor: f32 on the CPU.
pub(crate) fn runs_on<const D: usize>(x: &Tensor<D>) -> bool {
    x.dtype() == DType::F32 && x.clone().inner().try_into_primitive::<Flex>().is_ok()
}

/// Applies a kernel of one input.
pub(crate) fn apply1<const D: usize, const O: usize>(kernel: impl Kernel<1>, x: Tensor<D>) -> Tensor<O> {
    Tensor::from_dispatch(<Dispatch as KernelOps>::kernel1(x.into_dispatch(), Arc::new(kernel)))
}

/// Applies a kernel of two inputs.
pub(crate) fn apply2<const D1: usize, const D2: usize>(
    kernel: impl Kernel<2>,
    a: Tensor<D1>,
    b: Tensor<D2>,
) -> Tensor<D1> {
    Tensor::from_dispatch(<Dispatch as KernelOps>::kernel2(a.into_dispatch(), b.into_dispatch(), Arc::new(kernel)))
}

/// Applies a kernel of three inputs.
pub(crate) fn apply3<const D1: usize, const D2: usize>(
    kernel: impl Kernel<3>,
    a: Tensor<D1>,
    b: Tensor<D2>,
    c: Tensor<D2>,
) -> Tensor<D1> {
    let (a, b, c) = (a.into_dispatch(), b.into_dispatch(), c.into_dispatch());
    Tensor::from_dispatch(<Dispatch as KernelOps>::kernel3(a, b, c, Arc::new(kernel)))
}

/// [`Kernel`] without its type.
pub trait AnyKernel<const N: usize>: Debug + Send + Sync {
    /// From inputs to the output.
    fn forward(&self, inputs: [&FloatTensor<Flex>; N]) -> FloatTensor<Flex>;
    /// From what was saved (inputs, or the output) and the cotangent to the inputs' gradients.
    fn backward(
        &self,
        saved: &[FloatTensor<Flex>],
        shapes: &[Shape; N],
        cotangent: FloatTensor<Flex>,
        wanted: [bool; N],
    ) -> [Option<FloatTensor<Flex>>; N];
    /// What the backward is to be given.
    fn saves(&self) -> Saves;
    /// The input that is a weight.
    fn weight(&self) -> Option<usize>;
}

impl<const N: usize, K: Kernel<N>> AnyKernel<N> for K {
    fn forward(&self, inputs: [&FloatTensor<Flex>; N]) -> FloatTensor<Flex> {
        let shapes = inputs.map(|input| input.shape());
        let inputs = inputs.map(contiguous);
        let shape = self.output_shape(shapes.each_ref());
        let mut output = vec![0.0; shape.num_elements()];
        Kernel::forward(self, inputs.each_ref().map(slice), &mut output);
        tensor(output, shape)
    }

    fn backward(
        &self,
        saved: &[FloatTensor<Flex>],
        shapes: &[Shape; N],
        cotangent: FloatTensor<Flex>,
        wanted: [bool; N],
    ) -> [Option<FloatTensor<Flex>>; N] {
        let saved: Vec<_> = saved.iter().map(contiguous).collect();
        let cotangent = contiguous(&cotangent);
        let all = K::WEIGHT.is_none();
        let len = |i: usize| if all || wanted[i] { shapes[i].num_elements() } else { 0 };
        let mut gradients: [Vec<f32>; N] = std::array::from_fn(|i| vec![0.0; len(i)]);
        let slices = gradients.each_mut().map(Vec::as_mut_slice);
        match K::SAVES {
            Saves::Nothing => Kernel::backward(self, [&[]; N], &[], slice(&cotangent), slices),
            Saves::Output => Kernel::backward(self, [&[]; N], slice(&saved[0]), slice(&cotangent), slices),
            Saves::Inputs => {
                let inputs = std::array::from_fn(|i| slice(&saved[i]));
                Kernel::backward(self, inputs, &[], slice(&cotangent), slices);
            }
        }
        let mut shapes = shapes.iter().zip(wanted);
        gradients.map(|gradient| {
            let (shape, wanted) = shapes.next().expect("one shape an input");
            wanted.then(|| tensor(gradient, shape.clone()))
        })
    }

    fn weight(&self) -> Option<usize> {
        K::WEIGHT
    }

    fn saves(&self) -> Saves {
        K::SAVES
    }
}

/// Flex's own `to_contiguous` would copy a part of a larger buffer, as the parameters of a sharded unit are.
pub(crate) fn contiguous(tensor: &FloatTensor<Flex>) -> FloatTensor<Flex> {
    if tensor.is_contiguous() { tensor.clone() } else { tensor.to_contiguous() }
}

pub(crate) fn slice(tensor: &FloatTensor<Flex>) -> &[f32] {
    tensor.as_slice().expect("kernels get contiguous f32 tensors")
}

fn tensor(values: Vec<f32>, shape: Shape) -> FloatTensor<Flex> {
    Flex::float_from_data(TensorData::new(values, shape), &Default::default())
}

/// Kernels as operations of Burn.
#[backend_extension(Flex, Autodiff)]
pub trait KernelOps: Backend {
    /// A kernel of one input.
    fn kernel1(a: FloatTensor<Self>, kernel: Arc<dyn AnyKernel<1>>) -> FloatTensor<Self>;
    /// A kernel of two inputs.
    fn kernel2(a: FloatTensor<Self>, b: FloatTensor<Self>, kernel: Arc<dyn AnyKernel<2>>) -> FloatTensor<Self>;
    /// A kernel of three inputs.
    fn kernel3(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        c: FloatTensor<Self>,
        kernel: Arc<dyn AnyKernel<3>>,
    ) -> FloatTensor<Self>;
}

impl KernelOps for Flex {
    fn kernel1(a: FloatTensor<Self>, kernel: Arc<dyn AnyKernel<1>>) -> FloatTensor<Self> {
        kernel.forward([&a])
    }

    fn kernel2(a: FloatTensor<Self>, b: FloatTensor<Self>, kernel: Arc<dyn AnyKernel<2>>) -> FloatTensor<Self> {
        kernel.forward([&a, &b])
    }

    fn kernel3(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        c: FloatTensor<Self>,
        kernel: Arc<dyn AnyKernel<3>>,
    ) -> FloatTensor<Self> {
        kernel.forward([&a, &b, &c])
    }
}

impl<C: CheckpointStrategy> KernelOps for Autodiff<Flex, C> {
    fn kernel1(a: FloatTensor<Self>, kernel: Arc<dyn AnyKernel<1>>) -> FloatTensor<Self> {
        tracked::<C, 1>([a], kernel)
    }

    fn kernel2(a: FloatTensor<Self>, b: FloatTensor<Self>, kernel: Arc<dyn AnyKernel<2>>) -> FloatTensor<Self> {
        tracked::<C, 2>([a, b], kernel)
    }

    fn kernel3(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        c: FloatTensor<Self>,
        kernel: Arc<dyn AnyKernel<3>>,
    ) -> FloatTensor<Self> {
        tracked::<C, 3>([a, b, c], kernel)
    }
}

/// What a step's backward needs.
#[derive(Debug, Clone)]
struct State<const N: usize> {
    kernel: Arc<dyn AnyKernel<N>>,
    saved: Vec<FloatTensor<Flex>>,
    shapes: [Shape; N],
}

fn tracked<C: CheckpointStrategy, const N: usize>(
    inputs: [FloatTensor<Autodiff<Flex, C>>; N],
    kernel: Arc<dyn AnyKernel<N>>,
) -> FloatTensor<Autodiff<Flex, C>> {
    #[derive(Debug)]
    struct Step;

    impl<const N: usize> Backward<Flex, N> for Step {
        type State = State<N>;

        fn backward(self, ops: Ops<State<N>, N>, gradients: &mut Gradients, _: &mut Checkpointer) {
            let cotangent = gradients.consume::<Flex>(&ops.node);
            let mut wanted = ops.parents.each_ref().map(Option::is_some);
            if let Some((i, weight)) = ops.state.kernel.weight().and_then(|i| Some((i, ops.parents[i].as_ref()?)))
                && deferred::defers(weight.parents.len())
            {
                wanted[i] = false;
                let (id, cotangent) = (weight.id, cotangent.clone());
                let State { kernel, mut saved, shapes } = ops.state.clone();
                saved[i] = Flex::float_zeros([0].into(), &Default::default(), DType::F32.into()); // not read, and not kept
                deferred::defer(move |gradients| {
                    let only = std::array::from_fn(|input| input == i);
                    let of_inputs = kernel.backward(&saved, &shapes, cotangent, only);
                    gradients.register::<Flex>(id, of_inputs.into_iter().flatten().next().expect("it is wanted"));
                });
            }
            let State { kernel, saved, shapes } = ops.state;
            let of_inputs = kernel.backward(&saved, &shapes, cotangent, wanted);
            for (parent, gradient) in ops.parents.iter().zip(of_inputs) {
                if let (Some(parent), Some(gradient)) = (parent, gradient) {
                    gradients.register::<Flex>(parent.id, gradient);
                }
            }
        }
    }

    let output = kernel.forward(inputs.each_ref().map(|input| input.primitive()));
    match Step.prepare::<C>(inputs.each_ref().map(|input| input.node())).compute_bound().stateful() {
        OpsKind::Tracked(step) => {
            let saved = match kernel.saves() {
                Saves::Nothing => vec![],
                Saves::Output => vec![output.clone()],
                Saves::Inputs => inputs.iter().map(|input| input.primitive().clone()).collect(),
            };
            let shapes = inputs.each_ref().map(|input| input.primitive().shape());
            step.finish(State { kernel, saved, shapes }, output)
        }
        OpsKind::UnTracked(step) => step.finish(output),
    }
}
