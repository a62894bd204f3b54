//! A call of a unit in the forward, and its result.

use crate::api::activations::{Activations, Tensors};
use burn::tensor::Tensor;
use std::any::Any;

/// A call of a unit in the forward: one or more functions in a row.
pub(crate) struct Call<B> {
    pub unit: usize,
    steps: Vec<MemberCall<B>>,
}

struct MemberCall<B> {
    /// The unit's module to which the function is applied.
    member: usize,
    forward: Function<B>,
}

/// A function of a forward, with the numbers of dimensions of the tensors that it takes and returns.
pub(crate) struct Function<B> {
    pub run: Forward<B>,
    pub takes: Vec<usize>,
    pub returns: Vec<usize>,
}

/// The function of a call, of a module of any type.
pub(crate) type Forward<B> = Box<dyn Fn(&dyn Any, Option<Tensors>, &B) -> Output>;

/// What a call in the middle of a forward returns: [`Activations`], or a pair of them and an auxiliary loss, `[1]`,
/// which is added to the model's.
pub trait CallOutput {
    /// What the next call gets.
    type Next: Activations;

    #[doc(hidden)]
    fn split(self) -> (Self::Next, Option<Tensor<1>>);
}

impl<X: Activations> CallOutput for X {
    type Next = X;

    fn split(self) -> (X, Option<Tensor<1>>) {
        (self, None)
    }
}

impl<X: Activations> CallOutput for (X, Option<Tensor<1>>) {
    type Next = X;

    fn split(self) -> Self {
        self
    }
}

/// Returns the function of a first call.
pub(crate) fn of_first<M: 'static, X: Activations, B>(forward: impl Fn(&M, &B) -> X + 'static) -> Function<B> {
    let run: Forward<B> = Box::new(move |module, _x, batch| output(forward(typed(module), batch)));
    Function { run, takes: vec![], returns: X::ranks() }
}

/// Returns the function of a call in the middle of a forward.
pub(crate) fn of_middle<M: 'static, X: Activations, B, Y: CallOutput>(
    forward: impl Fn(&M, X, &B) -> Y + 'static,
) -> Function<B> {
    let run: Forward<B> = Box::new(move |module, x, batch| output(forward(typed(module), expect(x), batch)));
    Function { run, takes: X::ranks(), returns: Y::Next::ranks() }
}

/// Returns the function of a last call.
pub(crate) fn of_last<M: 'static, X: Activations, B, L: Into<Loss>>(
    forward: impl Fn(&M, X, &B) -> L + 'static,
) -> Function<B> {
    let run: Forward<B> =
        Box::new(move |module, x, batch| Output::Loss(forward(typed(module), expect(x), batch).into()));
    Function { run, takes: X::ranks(), returns: vec![] }
}

fn output(output: impl CallOutput) -> Output {
    let (x, aux) = output.split();
    Output::Activation(Activation { x: Tensors::of(x), aux })
}

fn typed<M: 'static>(module: &dyn Any) -> &M {
    module.downcast_ref().expect("a call's module has the type of its function")
}

fn expect<X: Activations>(x: Option<Tensors>) -> X {
    x.expect("every call but the first gets an activation").typed()
}

/// Applies functions in a row, each to its module, up to the first one that returns the model's loss. The result has
/// the sum of all auxiliary losses.
pub(crate) fn in_a_row<'a, B: 'a>(
    functions: impl Iterator<Item = (&'a Function<B>, &'a dyn Any)>,
    mut x: Option<Tensors>,
    batch: &B,
) -> Output {
    let mut aux: Option<Tensor<1>> = None;
    for (function, module) in functions {
        match (function.run)(module, x.take(), batch) {
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
pub(crate) struct Activation {
    /// The input of the next call.
    pub x: Tensors,
    /// `[1]`: a loss of this call, which is added to the model's.
    pub aux: Option<Tensor<1>>,
}

/// The result of the last call of a forward.
#[derive(Debug, Clone)]
pub struct Loss {
    /// `[1]`: the model's loss.
    pub loss: Tensor<1>,
    /// `[1]`: a loss that is added to the model's loss, and reported together with the losses that other calls add.
    pub aux: Option<Tensor<1>>,
}

impl From<Tensor<1>> for Loss {
    fn from(loss: Tensor<1>) -> Self {
        Self { loss, aux: None }
    }
}

impl<B> Call<B> {
    pub fn new(unit: usize, forward: Function<B>) -> Self {
        Self { unit, steps: vec![MemberCall { member: 0, forward }] }
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

    /// Returns the numbers of dimensions of the tensors that the call takes.
    pub fn takes(&self) -> &[usize] {
        self.steps.first().map_or(&[], |step| &step.forward.takes)
    }

    /// Returns the numbers of dimensions of the tensors that the call returns.
    pub fn returns(&self) -> &[usize] {
        self.steps.last().map_or(&[], |step| &step.forward.returns)
    }

    /// Returns the number of functions.
    pub fn functions(&self) -> usize {
        self.steps.len()
    }

    /// Runs the functions in a row; `module` returns the unit's modules, with values.
    pub fn run<'a>(&'a self, module: impl Fn(usize) -> &'a dyn Any, x: Option<Tensors>, batch: &B) -> Output {
        in_a_row(self.steps.iter().map(|step| (&step.forward, module(step.member))), x, batch)
    }
}

impl Output {
    pub fn bytes(&self) -> usize {
        match self {
            Self::Loss(_) => 0,
            Self::Activation(activation) => activation.x.bytes(),
        }
    }

    /// Returns whether all numbers are finite.
    pub fn is_finite(&self) -> bool {
        // On the CPU the sum is f64, and squares of finite f32 numbers do not overflow it.
        let is_finite = |values: Tensor<1>| fused::sum_of_squares(values).is_finite();
        let (is_ok, aux) = match self {
            Self::Loss(Loss { loss, aux }) => (is_finite(loss.clone()), aux),
            Self::Activation(Activation { x, aux }) => (x.flat().all(|(_, values)| is_finite(values)), aux),
        };
        is_ok && aux.clone().is_none_or(is_finite)
    }

    /// Returns the same values outside any graph.
    pub fn detached(&self) -> Output {
        let inner = |aux: &Option<Tensor<1>>| aux.clone().map(Tensor::without_autodiff);
        match self {
            Self::Loss(Loss { loss, aux }) => {
                Self::Loss(Loss { loss: loss.clone().without_autodiff(), aux: inner(aux) })
            }
            Self::Activation(activation) => {
                Self::Activation(Activation { x: activation.x.detached(), aux: inner(&activation.aux) })
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
