//! A call of a unit in the forward, and its result.

use crate::shard::memory::bytes;
use burn::tensor::Tensor;
use std::any::Any;

/// A call of a unit in the forward: one or more functions in a row.
pub(crate) struct Call<B> {
    pub unit: usize,
    steps: Vec<Step<B>>,
}

struct Step<B> {
    /// The unit's module to which the function is applied.
    member: usize,
    forward: Forward<B>,
}

/// The function of a call, of a module of any type.
pub(crate) type Forward<B> = Box<dyn Fn(&dyn Any, Option<Tensor<3>>, &B) -> Output>;

/// Returns the function of a first call.
pub(crate) fn of_first<M: 'static, B>(forward: impl Fn(&M, &B) -> Tensor<3> + 'static) -> Forward<B> {
    Box::new(move |module, _x, batch| Output::Activation(forward(typed(module), batch).into()))
}

/// Returns the function of a call in the middle of a forward.
pub(crate) fn of_middle<M: 'static, B, A: Into<Activation>>(
    forward: impl Fn(&M, Tensor<3>, &B) -> A + 'static,
) -> Forward<B> {
    Box::new(move |module, x, batch| Output::Activation(forward(typed(module), expect(x), batch).into()))
}

/// Returns the function of a last call.
pub(crate) fn of_last<M: 'static, B, L: Into<Loss>>(forward: impl Fn(&M, Tensor<3>, &B) -> L + 'static) -> Forward<B> {
    Box::new(move |module, x, batch| Output::Loss(forward(typed(module), expect(x), batch).into()))
}

fn typed<M: 'static>(module: &dyn Any) -> &M {
    module.downcast_ref().expect("a call's module has the type of its function")
}

fn expect(x: Option<Tensor<3>>) -> Tensor<3> {
    x.expect("every call but the first gets an activation")
}

/// Applies functions in a row, each to its module, up to the first one that returns the model's loss. The result has
/// the sum of all auxiliary losses.
pub(crate) fn in_a_row<'a, B: 'a>(
    functions: impl Iterator<Item = (&'a Forward<B>, &'a dyn Any)>,
    mut x: Option<Tensor<3>>,
    batch: &B,
) -> Output {
    let mut aux: Option<Tensor<1>> = None;
    for (forward, module) in functions {
        match forward(module, x.take(), batch) {
            Output::Activation(activation) => {
                aux = add(aux, activation.aux);
                x = Some(activation.x);
            }
            Output::Loss(Loss { loss, aux: own }) => return Output::Loss(Loss { loss, aux: add(aux, own) }),
        }
    }
    Output::Activation(Activation { x: x.expect("there is a function"), aux })
}

/// The position of a call in a forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    First,
    Middle,
    Last,
}

/// The result of a call.
pub(crate) enum Output {
    Activation(Activation),
    /// Its auxiliary loss includes that of other calls that were merged with this one.
    Loss(Loss),
}

/// The result of a call in the middle of a forward.
pub struct Activation {
    /// The input of the next call.
    pub x: Tensor<3>,
    /// `[1]`: a loss of this call, which is added to the model's.
    pub aux: Option<Tensor<1>>,
}

impl From<Tensor<3>> for Activation {
    fn from(x: Tensor<3>) -> Self {
        Self { x, aux: None }
    }
}

impl From<(Tensor<3>, Option<Tensor<1>>)> for Activation {
    fn from((x, aux): (Tensor<3>, Option<Tensor<1>>)) -> Self {
        Self { x, aux }
    }
}

/// The result of the last call of a forward.
pub struct Loss {
    /// `[1]`: the model's loss.
    pub loss: Tensor<1>,
    /// `[1]`: a loss that is added to it, and reported with the other calls' own losses.
    pub aux: Option<Tensor<1>>,
}

impl From<Tensor<1>> for Loss {
    fn from(loss: Tensor<1>) -> Self {
        Self { loss, aux: None }
    }
}

impl<B> Call<B> {
    pub fn new(unit: usize, forward: Forward<B>) -> Self {
        Self { unit, steps: vec![Step { member: 0, forward }] }
    }

    /// Returns the same call for module `member` of unit `unit`.
    pub fn moved(mut self, unit: usize, member: usize) -> Self {
        self.unit = unit;
        self.steps.iter_mut().for_each(|step| step.member = member);
        self
    }

    /// Appends `next`, a call of the same unit.
    pub fn and_then(&mut self, next: Self) {
        assert_eq!(self.unit, next.unit);
        self.steps.extend(next.steps);
    }

    /// Returns the number of functions.
    pub fn functions(&self) -> usize {
        self.steps.len()
    }

    /// Runs the functions in a row; `module` returns the unit's modules, with values.
    pub fn run<'a>(&'a self, module: impl Fn(usize) -> &'a dyn Any, x: Option<Tensor<3>>, batch: &B) -> Output {
        in_a_row(self.steps.iter().map(|step| (&step.forward, module(step.member))), x, batch)
    }
}

impl Output {
    pub fn bytes(&self) -> usize {
        match self {
            Self::Loss(_) => 0,
            Self::Activation(activation) => bytes(&activation.x),
        }
    }

    /// Returns whether all numbers are finite.
    pub fn is_finite(&self) -> bool {
        let (sum, aux) = match self {
            Self::Loss(Loss { loss, aux }) => (fused::sum_of_squares(loss.clone()), aux),
            Self::Activation(Activation { x, aux }) => {
                let len = x.shape().num_elements();
                (fused::sum_of_squares(x.clone().reshape([len])), aux)
            }
        };
        // On the CPU the sum is f64, and squares of finite f32 numbers do not overflow it.
        sum.is_finite() && aux.as_ref().is_none_or(|aux| fused::sum_of_squares(aux.clone()).is_finite())
    }

    /// Returns the same values outside of any graph.
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
