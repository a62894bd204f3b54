//! Calls that pass tensors of other ranks than 3, and several of them, on any layout of ranks.

#[path = "common/net.rs"]
#[allow(unused_imports)]
mod net;

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{Linear, LinearConfig, PaddingConfig2d};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};
use fsdp::{Calls, Fsdp, FsdpConfig, FsdpError, Optimizers, UnitId, Units};
use net::configs;
use test_kit::{Values, assert_close, on_ranks};

const STEPS: usize = 3;
const LR: f64 = 0.1;

#[derive(Module, Debug)]
struct ConvNet {
    stem: Conv2d,
    convs: Vec<Conv2d>,
    pool: Linear,
    head: Linear,
}

/// Images, `[b, 1, 6, 6]`; the network learns the mean of an image.
type Images = Tensor<4>;

fn conv_net(device: &Device) -> ConvNet {
    device.seed(3);
    let conv = |from, to| Conv2dConfig::new([from, to], [3, 3]).with_padding(PaddingConfig2d::Same).init(device);
    let (stem, convs) = (conv(1, 4), vec![conv(4, 4), conv(4, 4)]);
    let net =
        ConvNet { stem, convs, pool: LinearConfig::new(4, 5).init(device), head: LinearConfig::new(5, 1).init(device) };
    Values::of(&net); // draws all of them now, in this order
    net
}

/// An image becomes an image, then an image with its embedding, then the embedding alone.
fn calls() -> Calls<ConvNet, Images> {
    let mut calls = Calls::new();
    calls.first("stem", |net: &ConvNet| &net.stem, |conv, images: &Images| relu(conv.forward(images.clone())));
    for i in 0..2 {
        let forward = |conv: &Conv2d, x: Tensor<4>, _: &Images| x.clone() + relu(conv.forward(x));
        calls.then(format!("convs.{i}"), move |net: &ConvNet| &net.convs[i], forward);
    }
    let pool = |linear: &Linear, x: Tensor<4>, _: &Images| {
        let [b, c, ..] = x.dims();
        let embedding: Tensor<2> = linear.forward(x.clone().reshape([b, c, 36]).mean_dim(2).reshape([b, c]));
        let aux = Some(embedding.clone().powi_scalar(2).mean() * 0.1);
        ((x, embedding), aux)
    };
    calls.then("pool", |net: &ConvNet| &net.pool, pool);
    let loss = |linear: &Linear, (x, embedding): (Tensor<4>, Tensor<2>), images: &Images| {
        let [b, ..] = x.dims();
        let mean = |of: Tensor<4>| of.reshape([b as i32, -1]).mean_dim(1);
        (linear.forward(embedding) + mean(x) - mean(images.clone())).powi_scalar(2).mean()
    };
    calls.last("head", |net: &ConvNet| &net.head, loss);
    calls
}

fn images() -> Images {
    let values: Vec<f32> = (0..8 * 36).map(|i| (i as f32 * 0.37).sin() * 1.5).collect();
    Tensor::<1>::from_floats(values.as_slice(), &Device::flex()).reshape([8, 1, 6, 6])
}

#[test]
fn images_and_pairs_of_tensors_train_as_one_graph() {
    let net = conv_net(&Device::flex());
    let (mut whole, mut optimizer, mut expected) = (net.clone().train(), SgdConfig::new().init(), vec![]);
    for _ in 0..STEPS {
        let loss = calls().run(&whole, &images());
        expected.push(loss.loss.clone().into_scalar::<f32>());
        let all = loss.loss + loss.aux.expect("the pool has one");
        whole = optimizer.step(LR, whole.clone(), GradientsParams::from_grads(all.backward(), &whole));
    }
    let expected_values = Values::of(&whole).in_order().concat();
    for (config, ranks) in configs() {
        let (net, config) =
            (net.clone(), FsdpConfig { optimizers: Optimizers::new(SgdConfig::new().build()), ..config });
        let results = on_ranks(ranks, move |comm| {
            let mut fsdp = Fsdp::new(calls().into_units(net.clone()), comm, config.clone())?;
            let (rank, ranks) = fsdp.data_parallel();
            let (of, len) = (2 * ranks, 8 / (2 * ranks));
            let part = |i: usize| images().slice((2 * rank + i) % of * len..((2 * rank + i) % of + 1) * len);
            let mine = [part(0), part(1)];
            let losses: Result<Vec<f32>, FsdpError> =
                (0..STEPS).map(|_| Ok(fsdp.train_step(&mine, LR)?.loss as f32)).collect();
            let trained = fsdp.gather_model(net.clone(), true)?.expect("it is kept");
            Ok::<_, FsdpError>((losses?, Values::of(&trained).in_order().concat()))
        });
        assert_close("losses", &results[0].0, &expected, 1e-5);
        assert_close("values", &results[0].1, &expected_values, 1e-5);
    }
}

#[test]
fn calls_that_do_not_fit_each_other_are_refused() {
    let net = conv_net(&Device::flex());
    let messages = on_ranks(1, move |comm| {
        let mut units = Units::<Images>::new();
        let stem: UnitId<Conv2d> = units.add("stem", net.stem.clone());
        let head: UnitId<Linear> = units.add("head", net.head.clone());
        units.first(stem, |conv: &Conv2d, images: &Images| conv.forward(images.clone()));
        units.last(head, |linear: &Linear, x: Tensor<2>, _: &Images| linear.forward(x).mean());
        let refused = Fsdp::new(units, comm, FsdpConfig::default());
        Ok::<_, FsdpError>(refused.expect_err("it is refused").to_string())
    });
    let expected = "the call of head takes tensors of [2] dimensions, and the call of stem before it returns [4]";
    assert!(messages[0].contains(expected), "{}", messages[0]);
}
