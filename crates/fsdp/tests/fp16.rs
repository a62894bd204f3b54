//! The limits of fp16 loss scaling, and numbers beyond the range or the precision of 16 bits.

use burn::module::{Module, Param};
use burn::nn::{Initializer, Linear, LinearConfig};
use burn::tensor::{DType, Device, Tensor};
use fsdp::{FloatType, Fsdp, FsdpConfig, FsdpError, NonFinite, PipelineConfig, Precision, Strategy, Units};
use test_kit::on_ranks;

/// Creates two layers whose loss is finite and whose gradient is NaN.
fn units() -> Units<Tensor<3>> {
    let (mut units, device) = (Units::new(), Device::flex());
    let linear = || LinearConfig::new(8, 8).with_initializer(Initializer::Constant { value: 0.1 }).init(&device);
    let first = units.add("first", linear());
    units.first(first, |linear: &Linear, x: &Tensor<3>| linear.forward(x.clone().cast(linear.weight.val().dtype())));
    let last = units.add("last", linear());
    units.last(last, |linear: &Linear, x: Tensor<3>, _| {
        let y = linear.forward(x).cast(DType::F32);
        // The slope of a square root is infinite at 0, and infinity times 0 is NaN.
        y.clone().powi_scalar(2).mean() + (y * 0.0).sqrt().mean()
    });
    units
}

#[test]
fn a_gradient_that_is_no_number_at_scale_one_is_not_finite() {
    let precision = Precision { param: FloatType::Fp16, reduce: FloatType::Fp16 };
    for (stages, strategy) in
        [(1, Strategy::Ddp), (1, Strategy::FullShard), (1, Strategy::Block), (2, Strategy::FullShard)]
    {
        let pipeline = PipelineConfig { stages, ..PipelineConfig::default() };
        let config = FsdpConfig { pipeline, strategy, precision, ..FsdpConfig::default() };
        let reports = on_ranks(2, move |comm| {
            let batch = Tensor::<3>::ones([2, 4, 8], comm.device());
            let mut fsdp = Fsdp::new(units(), comm, config.clone())?;
            (0..20).map(|_| fsdp.train_step(std::slice::from_ref(&batch), 0.1)).collect::<Result<Vec<_>, FsdpError>>()
        });
        for (step, report) in reports[0].iter().enumerate() {
            let same = report.loss.is_finite() && report.loss == reports[0][0].loss;
            assert!(report.skipped && same, "{strategy:?}, step {step}: {report:?}");
            // The scale falls from 65536 to 1 in 16 halvings.
            let last = NonFinite { unit: "last".into(), rank: None };
            assert_eq!(report.non_finite, (step >= 16).then_some(last), "{strategy:?}, step {step}");
        }
    }
}

/// Each rank's gradient is 0.6 x 65536, within the range of fp16; the sum over the ranks is beyond it.
#[test]
fn a_sum_over_ranks_beyond_fp16_is_no_overflow() {
    for (strategy, dp_replicate, cpu_offload) in [
        (Strategy::Ddp, None, false),
        (Strategy::Zero1, None, false),
        (Strategy::ShardGradOp, None, false),
        (Strategy::FullShard, None, false),
        (Strategy::FullShard, None, true),
        (Strategy::HybridShard, Some(2), false),
        (Strategy::HybridShard, Some(4), false),
    ] {
        let precision = Precision { param: FloatType::Fp32, reduce: FloatType::Fp16 };
        let config = FsdpConfig { strategy, precision, dp_replicate, cpu_offload, ..FsdpConfig::default() };
        let reports = on_ranks(8, move |comm| {
            let (mut units, device) = (Units::new(), Device::flex());
            let constant = Initializer::Constant { value: 0.1 };
            let linear = || LinearConfig::new(8, 8).with_bias(false).with_initializer(constant.clone()).init(&device);
            let first = units.add("first", linear());
            units.first(first, |linear: &Linear, x: &Tensor<3>| linear.forward(x.clone()) * 0.0);
            let last = units.add("last", linear());
            units.last(last, |of: &Linear, x: Tensor<3>, _| x.mean() + of.weight.val().sum() * 0.6);
            let mut fsdp = Fsdp::new(units, comm, config.clone())?;
            fsdp.train_step(&[Tensor::<3>::ones([1, 2, 8], &device)], 1e-3)
        });
        // The norm of 64 gradients, each with the mean 0.6 over ranks.
        let (report, norm) = (&reports[0], 0.6 * 8.0);
        let case = format!("{strategy:?}, copies: {dp_replicate:?}, offloaded: {cpu_offload}");
        assert!(!report.skipped && (report.grad_norm / norm - 1.0).abs() < 1e-3, "{case}: {report:?}");
    }
}

#[derive(Module, Debug)]
struct Biased {
    linear: Linear,
    bias: Param<Tensor<1>>,
}

/// A bias starts at 0.3 and moves by 0.001 per step, less than the spacing of bf16 numbers there, 0.002.
#[test]
fn a_parameter_that_is_kept_fp32_is_not_rounded() {
    for (strategy, ranks) in [
        (Strategy::Ddp, 1),
        (Strategy::Ddp, 2),
        (Strategy::Zero1, 2),
        (Strategy::ShardGradOp, 2),
        (Strategy::FullShard, 2),
        (Strategy::HybridShard, 4),
        (Strategy::Block, 2),
    ] {
        let precision = Precision { param: FloatType::Bf16, reduce: FloatType::Bf16 };
        let config = FsdpConfig { strategy, precision, ..FsdpConfig::default() };
        let losses = on_ranks(ranks, move |comm| {
            let (mut units, device) = (Units::new(), Device::flex());
            let constant = |value| Initializer::Constant { value };
            let linear = || LinearConfig::new(8, 8).with_bias(false).with_initializer(constant(0.1)).init(&device);
            let first = units.add("first", linear());
            units.first(first, |linear: &Linear, x: &Tensor<3>| linear.forward(x.clone().cast(DType::BF16)));
            let last = units.add("last", Biased { linear: linear(), bias: constant(0.3).init([1], &device) });
            units.keep_fp32(|name| name == "last.bias");
            units.last(last, |of: &Biased, x: Tensor<3>, _| {
                assert_eq!((of.linear.weight.val().dtype(), of.bias.val().dtype()), (DType::BF16, DType::F32));
                of.linear.forward(x).cast(DType::F32).mean() * 0.0 + of.bias.val().detach()
            });
            let mut fsdp = Fsdp::new(units, comm, config.clone())?;
            let batch = [Tensor::<3>::ones([1, 2, 8], &device)];
            let step = |fsdp: &mut Fsdp<Tensor<3>>| {
                let mut move_bias = |fsdp: &mut Fsdp<Tensor<3>>, _: &[f64]| {
                    fsdp.add_to_parameter("last.bias", &[0.001]);
                    Ok(())
                };
                fsdp.train_step_with(&batch, &[1.0], 1e-3, Vec::new, Some(&mut move_bias)).map(|report| report.loss)
            };
            (0..5).map(|_| step(&mut fsdp)).collect::<Result<Vec<f64>, FsdpError>>()
        });
        for (step, loss) in losses[0].iter().enumerate() {
            let expected = 0.3 + 0.001 * step as f64;
            assert!((loss - expected).abs() < 1e-6, "{strategy:?}, step {step}: {loss}, not {expected}");
        }
    }
}
