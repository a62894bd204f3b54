//! What one call of a forward passes to the next: one or more tensors.

use crate::exec::vjp::vjp_seed;
use crate::shard::memory::bytes;
use burn::tensor::{Device, Gradients, Tensor};
use std::collections::VecDeque;

/// What one call of a forward passes to the next: a float tensor of 1 to 5 dimensions, or a tuple of up to four of
/// them.
///
/// ```
/// use burn::tensor::Tensor;
///
/// fn passes<X: fsdp::Activations>() {}
/// passes::<Tensor<3>>(); // [batch, positions, width]
/// passes::<(Tensor<4>, Tensor<2>)>(); // an image, and its embedding
/// ```
pub trait Activations: 'static {
    /// Returns the number of dimensions of each tensor.
    #[doc(hidden)]
    fn ranks() -> Vec<usize>;

    #[doc(hidden)]
    fn give(self, to: &mut Tensors);

    #[doc(hidden)]
    fn take(from: &mut Tensors) -> Self;
}

/// The tensors of [`Activations`], in order.
#[doc(hidden)]
#[derive(Debug, Clone, Default)]
pub struct Tensors(VecDeque<AnyTensor>);

#[derive(Debug, Clone)]
enum AnyTensor {
    D1(Tensor<1>),
    D2(Tensor<2>),
    D3(Tensor<3>),
    D4(Tensor<4>),
    D5(Tensor<5>),
}

/// Evaluates an expression for a tensor of any rank; with `=>`, the result is a tensor of the same rank.
macro_rules! each {
    ($any:expr, $x:ident, $result:expr) => {
        match $any {
            AnyTensor::D1($x) => $result,
            AnyTensor::D2($x) => $result,
            AnyTensor::D3($x) => $result,
            AnyTensor::D4($x) => $result,
            AnyTensor::D5($x) => $result,
        }
    };
    ($any:expr, $x:ident => $result:expr) => {
        match $any {
            AnyTensor::D1($x) => AnyTensor::D1($result),
            AnyTensor::D2($x) => AnyTensor::D2($result),
            AnyTensor::D3($x) => AnyTensor::D3($result),
            AnyTensor::D4($x) => AnyTensor::D4($result),
            AnyTensor::D5($x) => AnyTensor::D5($result),
        }
    };
}

macro_rules! of_rank {
    ($rank:literal, $variant:ident) => {
        impl Activations for Tensor<$rank> {
            fn ranks() -> Vec<usize> {
                vec![$rank]
            }

            fn give(self, to: &mut Tensors) {
                to.0.push_back(AnyTensor::$variant(self));
            }

            fn take(from: &mut Tensors) -> Self {
                match from.0.pop_front() {
                    Some(AnyTensor::$variant(x)) => x,
                    other => panic!("a call takes a tensor of rank {}, and got {other:?}", $rank),
                }
            }
        }
    };
}

of_rank!(1, D1);
of_rank!(2, D2);
of_rank!(3, D3);
of_rank!(4, D4);
of_rank!(5, D5);

macro_rules! of_tuple {
    ($($part:ident),+) => {
        impl<$($part: Activations),+> Activations for ($($part,)+) {
            fn ranks() -> Vec<usize> {
                [$($part::ranks()),+].concat()
            }

            #[allow(non_snake_case, reason = "the names of the types")]
            fn give(self, to: &mut Tensors) {
                let ($($part,)+) = self;
                $($part.give(to);)+
            }

            fn take(from: &mut Tensors) -> Self {
                ($($part::take(from),)+)
            }
        }
    };
}

of_tuple!(A, B);
of_tuple!(A, B, C);
of_tuple!(A, B, C, D);

impl Tensors {
    pub(crate) fn of(x: impl Activations) -> Self {
        let mut tensors = Self::default();
        x.give(&mut tensors);
        tensors
    }

    pub(crate) fn typed<X: Activations>(mut self) -> X {
        X::take(&mut self)
    }

    fn map(self, f: impl FnMut(AnyTensor) -> AnyTensor) -> Self {
        Self(self.0.into_iter().map(f).collect())
    }

    pub(crate) fn bytes(&self) -> usize {
        self.0.iter().map(|any| each!(any, x, bytes(x))).sum()
    }

    /// Returns the sizes of the first tensor.
    pub(crate) fn dims(&self) -> Vec<usize> {
        self.0.front().map_or(vec![], |any| each!(any, x, x.dims().to_vec()))
    }

    /// Makes each tensor the leaf of a graph.
    pub(crate) fn tracked(self) -> Self {
        self.map(|any| each!(any, x => x.autodiff().require_grad()))
    }

    /// Returns the same values outside any graph.
    pub(crate) fn detached(&self) -> Self {
        self.clone().map(|any| each!(any, x => x.without_autodiff()))
    }

    /// Returns the gradients of leaves; those on which nothing depends are zeros.
    pub(crate) fn take_gradients(self, gradients: &mut Gradients, device: &Device) -> Self {
        self.map(|any| {
            each!(any, x => {
                let zeros = || Tensor::zeros(x.shape(), (device, x.dtype()));
                x.grad_remove(gradients).unwrap_or_else(zeros)
            })
        })
    }

    /// Returns the start of a backward in which these outputs have the gradients `cotangents`; see [`vjp_seed`].
    pub(crate) fn seed(self, cotangents: Self) -> Tensor<1> {
        let seeds = self.0.into_iter().zip(cotangents.0).map(|(y, cotangent)| match (y, cotangent) {
            (AnyTensor::D1(y), AnyTensor::D1(cotangent)) => vjp_seed(y, cotangent),
            (AnyTensor::D2(y), AnyTensor::D2(cotangent)) => vjp_seed(y, cotangent),
            (AnyTensor::D3(y), AnyTensor::D3(cotangent)) => vjp_seed(y, cotangent),
            (AnyTensor::D4(y), AnyTensor::D4(cotangent)) => vjp_seed(y, cotangent),
            (AnyTensor::D5(y), AnyTensor::D5(cotangent)) => vjp_seed(y, cotangent),
            (y, cotangent) => panic!("the gradient of {y:?} has another rank: {cotangent:?}"),
        });
        seeds.reduce(|sum, seed| sum + seed).expect("a call returns a tensor")
    }

    /// Returns each tensor's sizes and elements.
    pub(crate) fn flat(&self) -> impl Iterator<Item = (Vec<usize>, Tensor<1>)> {
        self.0.iter().map(|any| {
            each!(any, x, {
                let len = x.shape().num_elements();
                (x.dims().to_vec(), x.clone().reshape([len]))
            })
        })
    }

    /// Adds a tensor of these sizes.
    ///
    /// # Panics
    /// If there are not 1 to 5 sizes.
    pub(crate) fn push(&mut self, sizes: &[usize], flat: Tensor<1>) {
        self.0.push_back(match *sizes {
            [_] => AnyTensor::D1(flat),
            [a, b] => AnyTensor::D2(flat.reshape([a, b])),
            [a, b, c] => AnyTensor::D3(flat.reshape([a, b, c])),
            [a, b, c, d] => AnyTensor::D4(flat.reshape([a, b, c, d])),
            [a, b, c, d, e] => AnyTensor::D5(flat.reshape([a, b, c, d, e])),
            _ => panic!("activations have 1 to 5 dimensions, not those of {sizes:?}"),
        });
    }
}
