//! Random calls of public functions, in which one argument may be invalid, while new memory is poisoned.
//!
//! A call either panics with a message that begins with the name of a public function, or returns what is documented,
//! with every element written. A call with valid, nonempty arguments does not panic.

mod exports;

pub use exports::exported;

use crate::Random;
use burn::tensor::{DType, Device, Gradients, Int, Tensor, TensorData};
use std::any::Any;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

/// The name of a function, and a call of it.
pub type Case = (&'static str, fn(&mut Draw));

/// The shape of a leaf, and the shape and values of its gradient.
type Leaf = Box<dyn Fn(&Gradients) -> Option<(Vec<usize>, Vec<usize>, Vec<f32>)>>;

/// Draws arguments and checks results.
pub struct Draw {
    random: Random,
    /// The dtype of floats.
    dtype: DType,
    /// Whether sizes may be 0.
    empty: bool,
    /// Which argument is changed, and whether the change made a difference.
    wrong: usize,
    changed: bool,
    arguments: usize,
    leaves: Vec<Leaf>,
    /// The sum of all results, if it carries gradients.
    loss: Option<Tensor<1>>,
}

impl Draw {
    fn new(seed: u64) -> Self {
        let mut draw = Self {
            random: Random(seed),
            dtype: DType::F32,
            empty: false,
            wrong: usize::MAX,
            changed: false,
            arguments: 0,
            leaves: vec![],
            loss: None,
        };
        draw.dtype = draw.one_of([DType::F32, DType::BF16, DType::F16]);
        draw.empty = draw.below(3) == 0;
        draw.wrong = draw.below(12);
        draw
    }

    /// Draws a number below `end`, or 0 if `end` is 0.
    pub fn below(&mut self, end: usize) -> usize {
        self.random.below(end)
    }

    /// Draws one of these values.
    pub fn one_of<T: Copy, const N: usize>(&mut self, values: [T; N]) -> T {
        values[self.below(N)]
    }

    /// Draws whether something is the case.
    pub fn coin(&mut self) -> bool {
        self.below(2) == 0
    }

    /// Returns the dtype of floats in this call.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Draws a size of at most `most`.
    pub fn size(&mut self, most: usize) -> usize {
        if self.empty && self.below(4) == 0 { 0 } else { 1 + self.below(most) }
    }

    /// Whether the next argument is the one to change.
    fn is_wrong(&mut self) -> bool {
        self.arguments += 1;
        self.arguments - 1 == self.wrong
    }

    /// Draws an argument that is a number: `right`, or one that may be invalid.
    pub fn number(&mut self, right: usize) -> usize {
        let number = if self.is_wrong() { self.another(right) } else { right };
        self.changed |= number != right;
        number
    }

    fn another(&mut self, right: usize) -> usize {
        self.one_of([0, 1, right + 1, right.saturating_sub(1), 2 * right, 1000])
    }

    fn shape<const D: usize>(&mut self, mut shape: [usize; D], wrong: bool) -> [usize; D] {
        if wrong {
            let dim = self.below(D);
            let len = self.another(shape[dim]).min(40);
            self.changed |= len != shape[dim];
            shape[dim] = len;
        }
        shape
    }

    /// Draws a probability, in 0..1 if it is valid.
    pub fn probability(&mut self) -> f64 {
        let wrong = self.is_wrong();
        self.changed |= wrong;
        if wrong { self.one_of([1.0, -0.1, f64::NAN]) } else { self.one_of([0.0, 0.3]) }
    }

    fn numbers(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.below(257) as f32 / 64.0 - 2.0).collect()
    }

    /// Draws an argument of this dtype without a gradient.
    pub fn plain<const D: usize>(&mut self, shape: [usize; D], dtype: DType) -> Tensor<D> {
        let wrong = self.is_wrong();
        let of_shape = wrong && self.below(3) > 0;
        let shape = self.shape(shape, of_shape);
        let values = self.numbers(shape.iter().product());
        let tensor = Tensor::<D>::from_data(TensorData::new(values, shape), (&Device::flex(), DType::F32));
        let cast = match wrong && !of_shape {
            true => self.one_of([DType::F32, DType::BF16, DType::F16, DType::F64]),
            false => dtype,
        };
        self.changed |= cast != dtype;
        tensor.cast(cast)
    }

    /// Draws a tracked argument of this dtype.
    pub fn tracked<const D: usize>(&mut self, shape: [usize; D], dtype: DType) -> Tensor<D> {
        let tensor = self.plain(shape, dtype).autodiff().require_grad();
        let leaf = tensor.clone();
        self.leaves.push(Box::new(move |gradients| {
            let gradient = leaf.grad(gradients)?;
            Some((leaf.dims().to_vec(), gradient.dims().to_vec(), gradient.into_data().iter::<f32>().collect()))
        }));
        tensor
    }

    /// Draws a tracked argument of the dtype of the call.
    pub fn float<const D: usize>(&mut self, shape: [usize; D]) -> Tensor<D> {
        self.tracked(shape, self.dtype)
    }

    /// Draws an argument of these indices in i32, some of which may be invalid.
    pub fn indices<const D: usize>(
        &mut self,
        shape: [usize; D],
        mut index: impl FnMut(&mut Self, usize) -> i64,
    ) -> Tensor<D, Int> {
        let kind = if self.is_wrong() { 1 + self.below(3) } else { 0 };
        let shape = self.shape(shape, kind == 1);
        let mut values: Vec<i64> = (0..shape.iter().product()).map(|i| index(self, i)).collect();
        if kind == 2 && !values.is_empty() {
            let (place, value) = (self.below(values.len()), self.one_of([-1, -7, 5, 1000, i64::from(i32::MAX)]));
            self.changed |= values[place] != value;
            values[place] = value;
        }
        let dtype = if kind == 3 { self.one_of([DType::I64, DType::U8, DType::I16]) } else { DType::I32 };
        self.changed |= kind == 3;
        Tensor::<D, Int>::from_data(TensorData::new(values, shape), (&Device::flex(), DType::I64)).cast(dtype)
    }

    /// Draws indices below `end`.
    pub fn below_all<const D: usize>(&mut self, shape: [usize; D], end: usize) -> Tensor<D, Int> {
        self.indices(shape, |draw, _| draw.below(end) as i64)
    }

    /// Checks that a result has this shape and is finite, as all arguments are.
    ///
    /// # Panics
    /// If it is not.
    pub fn output<const D: usize>(&mut self, result: Tensor<D>, shape: [usize; D]) {
        assert_eq!(result.dims(), shape, "the shape of a result");
        self.values(result.clone().into_data().iter::<f32>().collect(), shape.iter().product());
        let sum = result.cast(DType::F32).sum();
        self.loss = Some(self.loss.take().map_or(sum.clone(), |loss| loss + sum));
    }

    /// Checks that a result has this many numbers, all finite.
    ///
    /// # Panics
    /// If it does not.
    pub fn values(&mut self, values: Vec<f32>, len: usize) {
        assert_eq!(values.len(), len, "the number of results");
        let unwritten = values.iter().filter(|value| !value.is_finite()).count();
        assert_eq!(unwritten, 0, "elements of a result of {len} that were not written");
    }

    /// Checks that every gradient has the shape of its leaf and is written.
    fn check_gradients(&mut self) {
        let Some(loss) = self.loss.take() else { return };
        if !loss.is_tracked() {
            return;
        }
        let gradients = loss.backward();
        for leaf in &self.leaves {
            if let Some((of, shape, values)) = leaf(&gradients) {
                assert_eq!(shape, of, "the shape of a gradient");
                assert!(values.iter().all(|value| value.is_finite()), "a gradient of {of:?} that was not written");
            }
        }
    }
}

/// Calls a function with arguments that depend on the seed; `names` lists all public functions.
///
/// # Errors
/// If the function panics although its arguments are valid, if the message of its panic does not begin with one of the
/// names, or if a result is not what the case expects.
pub fn check((name, case): Case, seed: u64, names: &BTreeSet<String>) -> Result<(), String> {
    cpu::poison_uninitialised(true);
    let mut draw = Draw::new(seed);
    let caught = |f: &mut dyn FnMut()| quietly(|| catch_unwind(AssertUnwindSafe(f))).map_err(text);
    let wrong = |what: &str, text: String| Err(format!("{name}, seed {seed}: {what}: {text}"));
    let Err(text) = caught(&mut || case(&mut draw)) else {
        return caught(&mut || draw.check_gradients()).or_else(|text| wrong("the backward", text));
    };
    if !draw.empty && !draw.changed {
        return wrong("arguments that fit are refused", text);
    }
    match text.split_once(": ").is_some_and(|(function, _)| names.contains(function)) {
        true => Ok(()),
        false => wrong("the message does not name a function", text),
    }
}

fn text(panic: Box<dyn Any + Send>) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| text.to_string())).unwrap_or_default()
}

/// Runs `f` without printing the messages of panics, on any thread.
fn quietly<R>(f: impl FnOnce() -> R) -> R {
    static ONCE: Once = Once::new();
    static QUIET: AtomicBool = AtomicBool::new(false);
    ONCE.call_once(|| {
        let loud = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !QUIET.load(Ordering::Relaxed) {
                loud(info)
            }
        }));
    });
    QUIET.store(true, Ordering::Relaxed);
    let result = f();
    QUIET.store(false, Ordering::Relaxed);
    result
}
