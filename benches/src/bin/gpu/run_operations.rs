//! Measures the operations of `fused`, forward alone and with backward, and a step of the optimizer.

use crate::cases::Sizes;
use crate::numbers::Numbers;
use crate::operations::{Gpt2, Operation, operations};
use crate::report::{Record, Report, dtype_name};
use crate::timer::{finite, seconds};
use burn::tensor::{DType, Device, Tensor};
use fused::{AdamWState, AdamWStep, FusedAdamW, adamw, sum_of_squares};

/// Measures all of them.
pub fn measure(device: &Device, sizes: &Sizes, report: &mut Report) {
    for operation in operations(&sizes.shapes, device) {
        of_operation(&operation, device, sizes, report);
    }
    optimizer(&sizes.shapes.gpt2, device, sizes, report);
}

fn record(op: String, model: &'static str, rows: usize, dtype: DType) -> Record {
    let (tier, skew, dtype) = ("chosen".into(), "none".into(), dtype_name(dtype).into());
    Record { group: "operation", op, tier, shape: model, rows, skew, dtype, seconds: 0.0, flops: 0.0, bytes: 0.0 }
}

fn of_operation(operation: &Operation, device: &Device, sizes: &Sizes, report: &mut Report) {
    let dtype = report.dtype();
    let inputs = |device: &Device| -> Vec<Tensor<1>> {
        let input = |(i, len): (usize, &usize)| Numbers(101 + i as u32).tensor([*len], operation.scale, dtype, device);
        operation.inputs.iter().enumerate().map(input).collect()
    };
    let mut note = |pass: usize, time| {
        let op = format!("{} {}", operation.name, ["forward", "forward and backward"][pass]);
        let (flops, bytes) = (operation.flops[pass], (operation.elements[pass] * dtype.size()) as f64);
        report.measured(Record { flops, bytes, ..record(op, operation.model, operation.rows, dtype) }, time);
    };
    {
        let inputs = inputs(device);
        note(0, seconds(device, sizes, || (operation.run)(&inputs), finite));
    }
    let device = device.clone().autodiff();
    let inputs: Vec<_> = inputs(&device).into_iter().map(Tensor::require_grad).collect();
    // Both Kiln and PyTorch start the backward with a tensor of ones.
    let launch = || (operation.run)(&inputs).backward();
    note(
        1,
        seconds(&device, sizes, launch, |gradients| finite(inputs[0].grad(&gradients).ok_or("there is no gradient")?)),
    );
}

/// Measures the optimizer on all parameters in one f32 tensor, as on a rank.
fn optimizer(model: &Gpt2, device: &Device, sizes: &Sizes, report: &mut Report) {
    let (len, dtype) = (model.parameters, DType::F32);
    let on = |seed| Numbers(seed).tensor::<1>([len], 0.25, dtype, device);
    let (gradient, config) = (on(131), FusedAdamW::default());
    let mut note = |op: &str, bytes: usize, time| {
        let bytes = (bytes * len) as f64;
        report.measured(Record { bytes, ..record(op.into(), model.name, len, dtype) }, time);
    };
    // Reads parameter, gradient and both moments; writes all but the gradient, and a copy in 16 bits.
    note("adamw step", 7 * 4 + 2, {
        let mut parameter = Some(on(132));
        let mut state = AdamWState::new(&gradient);
        let step = AdamWStep { lr: 1e-4, decayed: len, gradient_scale: 1.0, factor: None, copy: Some(DType::BF16) };
        let launch = || {
            let before = parameter.take().expect("each step leaves one");
            let (after, _) = adamw(&config, &step, before, gradient.clone(), &mut state);
            parameter = Some(after.clone());
            after
        };
        seconds(device, sizes, launch, finite)
    });
    // Includes copying the result to the host, where training needs it.
    note("sum_of_squares forward", 4, {
        let check = |sum: f64| if sum.is_finite() { Ok(()) } else { Err("the sum is not a number".into()) };
        seconds(device, sizes, || sum_of_squares(gradient.clone()), check)
    });
}
