//! One use of a unit in the forward, and what it returns.

use crate::memory::bytes;
use crate::modules::BoundModules;
use crate::unit::{Activation, Loss};
use burn::tensor::Tensor;
use std::any::Any;

/// A use of a unit in the forward: one or more functions in a row.
pub(crate) struct Call<B> {
    pub unit: usize,
    steps: Vec<Step<B>>,
}

struct Step<B> {
    /// Which of the unit's modules it is a function of.
    member: usize,
    forward: Forward<B>,
}

pub(crate) type Forward<B> = Box<dyn Fn(&dyn Any, Option<Tensor<3>>, &B) -> Output>;

/// Where in a forward a call stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    First,
    Middle,
    Last,
}

/// What a call returns.
pub(crate) enum Output {
    Activation(Activation),
    /// What is added to the loss is of other calls too that were merged with this one.
    Loss(Loss),
}

impl<B> Call<B> {
    pub fn new(unit: usize, forward: Forward<B>) -> Self {
        Self { unit, steps: vec![Step { member: 0, forward }] }
    }

    /// The same call of module `member` of unit `unit`.
    pub fn moved(mut self, unit: usize, member: usize) -> Self {
        self.unit = unit;
        self.steps.iter_mut().for_each(|step| step.member = member);
        self
    }

    /// This call and then `next`, which is of the same unit.
    pub fn and_then(&mut self, next: Self) {
        assert_eq!(self.unit, next.unit);
        self.steps.extend(next.steps);
    }

    /// How many functions it is.
    pub fn functions(&self) -> usize {
        self.steps.len()
    }

    pub fn run(&self, bound: &BoundModules, mut x: Option<Tensor<3>>, batch: &B) -> Output {
        let mut aux: Option<Tensor<1>> = None;
        for step in &self.steps {
            match (step.forward)(bound.module(step.member), x.take(), batch) {
                Output::Activation(activation) => {
                    aux = add(aux, activation.aux);
                    x = Some(activation.x);
                }
                Output::Loss(Loss { loss, aux: own }) => return Output::Loss(Loss { loss, aux: add(aux, own) }),
            }
        }
        Output::Activation(Activation { x: x.expect("a call has a step"), aux })
    }
}

impl Output {
    pub fn bytes(&self) -> usize {
        match self {
            Self::Loss(_) => 0,
            Self::Activation(activation) => bytes(&activation.x),
        }
    }

    /// Whether all of its numbers are finite.
    pub fn is_finite(&self) -> bool {
        let (sum, aux) = match self {
            Self::Loss(Loss { loss, aux }) => (fused::sum_of_squares(loss.clone()), aux),
            Self::Activation(Activation { x, aux }) => {
                let len = x.shape().num_elements();
                (fused::sum_of_squares(x.clone().reshape([len])), aux)
            }
        };
        // On the CPU it is a sum in f64, which squares of finite f32 numbers do not overflow.
        sum.is_finite() && aux.as_ref().is_none_or(|aux| fused::sum_of_squares(aux.clone()).is_finite())
    }

    /// The same values outside of any graph.
    pub fn detached(&self) -> Output {
        let inner = |aux: &Option<Tensor<1>>| aux.clone().map(Tensor::inner);
        match self {
            Self::Loss(Loss { loss, aux }) => Self::Loss(Loss { loss: loss.clone().inner(), aux: inner(aux) }),
            Self::Activation(activation) => {
                Self::Activation(Activation { x: activation.x.clone().inner(), aux: inner(&activation.aux) })
            }
        }
    }
}

pub(crate) fn add(a: Option<Tensor<1>>, b: Option<Tensor<1>>) -> Option<Tensor<1>> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a + b),
        (a, b) => a.or(b),
    }
}
