//! Measures a whole layer, forward and backward, with the gradients of tokens and parameters.

use crate::cases::{Model, Sizes};
use crate::numbers::Numbers;
use crate::report::{Record, Report, dtype_name};
use crate::timer::{finite, seconds};
use burn::module::Param;
use burn::tensor::Device;
use moe::MoeConfig;

/// Measures every model's experts of one rank as a separate layer, with fewer and with more rows.
pub fn measure(device: &Device, sizes: &Sizes, report: &mut Report) {
    let (device, dtype) = (device.clone().autodiff(), report.dtype());
    for model in &sizes.models {
        let (e, Model { top_k: k, d, h, .. }) = (model.local_experts(), *model);
        let config = MoeConfig { num_experts: e, top_k: k, moe_intermediate_size: h, ..MoeConfig::default() };
        let mut layer = config.init(d, &device);
        // About 1 / sqrt(d).
        let scale = 0.5f32.powi((d.ilog2() / 2) as i32);
        let stack = |seed, shape| Param::from_tensor(Numbers(seed).tensor::<3>(shape, scale, dtype, &device));
        layer.router.proj.weight = Param::from_tensor(Numbers(81).tensor::<2>([d, e], scale, dtype, &device));
        layer.experts.gate_proj = stack(82, [e, d, h]);
        layer.experts.up_proj = stack(83, [e, d, h]);
        layer.experts.down_proj = stack(84, [e, h, d]);
        for tokens in model.tokens {
            let (n, rows) = (tokens / model.ep, model.rows(tokens));
            let x_btd = Numbers(85).tensor::<3>([1, n, d], 1.0, dtype, &device).require_grad();
            let launch = || layer.forward(x_btd.clone(), None).y_btd.sum().backward();
            let check = |gradients| finite(x_btd.grad(&gradients).ok_or("there is no gradient")?);
            let record = Record {
                group: "layer",
                op: "forward and backward".into(),
                tier: "chosen".into(),
                shape: model.name,
                rows,
                skew: "routed".into(),
                dtype: dtype_name(dtype).into(),
                seconds: 0.0,
                // Three matrices per expert, and three products for each: forward, the rows' gradients, the matrices'
                // gradients.
                flops: 3.0 * 3.0 * 2.0 * (rows * d) as f64 * h as f64,
                bytes: 0.0,
            };
            let time = seconds(&device, sizes, launch, check);
            report.measured(record, time);
        }
    }
}
