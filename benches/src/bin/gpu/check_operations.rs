//! Compares the operations of `fused` on the device with those in plain Rust and f32, which `cargo test -p kiln-fused`
//! compares with naive sums in f64.

use crate::checks::{Check, tolerance};
use crate::numbers::{Numbers, tensor};
use crate::operations::{Operation, Shapes, operations};
use crate::report::dtype_name;
use burn::tensor::{DType, Device, Tensor};
use fused::{AdamWState, AdamWStep, FusedAdamW, adamw, sum_of_squares};

impl Check {
    /// Compares results, the gradients of all inputs, and the optimizer, whose state is f32.
    pub fn operations(&mut self, smoke: bool, dtype: DType) {
        let shapes = if smoke { Shapes::TINY } else { Shapes::SMALL };
        let pairs = operations(&shapes, &Device::flex()).into_iter().zip(operations(&shapes, &self.device));
        for (plain, own) in pairs {
            self.each(own.name, |check| check.operation(&plain, &own, dtype));
        }
        if dtype == DType::F32 {
            self.each("adamw", |check| check.optimizer(shapes.gpt2.parameters));
        }
    }

    fn operation(&mut self, plain: &Operation, own: &Operation, dtype: DType) {
        let values = |(i, len): (usize, &usize)| -> Vec<f32> {
            Numbers(101 + i as u32).in_dtype(*len, dtype).into_iter().map(|x| x * own.scale).collect()
        };
        let inputs: Vec<Vec<f32>> = own.inputs.iter().enumerate().map(values).collect();
        let expected = self.results(plain, &inputs, &Device::flex(), DType::F32, self.ones(dtype));
        let found = self.results(own, &inputs, &self.device.clone(), dtype, self.ones(dtype));
        // A sum of products of rounded factors is rounded again: relative to the largest, this is twice a single
        // rounding.
        let bound = match dtype {
            DType::F32 if own.burns_product && !self.cpu => 2e-3,
            DType::F32 => tolerance(dtype),
            _ => 2.0 * tolerance(dtype),
        };
        for (i, (found, expected)) in found.into_iter().zip(expected).enumerate() {
            let what = if i == 0 { String::new() } else { format!(" gradient of input {i}") };
            let expected: Vec<f64> = expected.into_data().iter::<f64>().collect();
            self.floats(&format!("{} {}{what}", own.name, dtype_name(dtype)), found, &expected, bound);
        }
    }

    /// The result, and the gradient of each input.
    fn results(
        &self,
        operation: &Operation,
        inputs: &[Vec<f32>],
        device: &Device,
        dtype: DType,
        ones: bool,
    ) -> Vec<Tensor<1>> {
        let device = device.clone().autodiff();
        let tracked = |values: &Vec<f32>| tensor(values, [values.len()], dtype, &device).require_grad();
        let inputs: Vec<Tensor<1>> = inputs.iter().map(tracked).collect();
        let y = (operation.run)(&inputs);
        let [len] = y.dims();
        let gradients = if ones {
            y.backward()
        } else {
            // Multiples of 1/64, exact in every dtype.
            (y.clone() * Numbers(109).tensor([len], 1.0, y.dtype(), &device)).backward()
        };
        let of = |input: &Tensor<1>| input.grad(&gradients).expect("every input has a gradient");
        [y.clone().inner()].into_iter().chain(inputs.iter().map(of)).collect()
    }

    /// Compares two steps, the second of which finds moments, with weight decay on the first half of the parameters,
    /// and the gradient's norm.
    fn optimizer(&mut self, len: usize) {
        let (parameters, gradients) = (Numbers(121).in_dtype(len, DType::F32), Numbers(122).in_dtype(len, DType::F32));
        let run = |device: &Device| {
            let on = |values: &[f32]| tensor::<1>(values, [len], DType::F32, device);
            let (mut parameter, gradient) = (on(&parameters), on(&gradients));
            let mut state = AdamWState::new(&parameter);
            let step =
                AdamWStep { lr: 1e-2, decayed: len / 2, gradient_scale: 0.5, factor: None, copy: Some(DType::BF16) };
            let mut copy = None;
            for _ in 0..2 {
                (parameter, copy) = adamw(&FusedAdamW::default(), &step, parameter, gradient.clone(), &mut state);
            }
            (parameter, state.mean, state.square, sum_of_squares(gradient), copy.expect("a copy"))
        };
        let ([plain, own], bound) = ([Device::flex(), self.device.clone()].each_ref().map(run), tolerance(DType::F32));
        let wide = |values: Tensor<1>| values.into_data().iter::<f64>().collect::<Vec<_>>();
        self.floats("adamw", own.0, &wide(plain.0), bound);
        self.floats("adamw mean", own.1, &wide(plain.1), bound);
        self.floats("adamw square", own.2, &wide(plain.2), bound);
        self.floats("adamw copy", own.4, &wide(plain.4), tolerance(DType::BF16));
        let (found, expected) = (own.3, plain.3);
        let error = (found - expected).abs() / expected;
        self.line(error <= bound, &format!("sum_of_squares: off by {error:.1e}, {bound:.0e} allowed"));
    }
}
