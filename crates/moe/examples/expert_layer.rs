//! The expert layer inside an ordinary Burn model, trained in an ordinary Burn loop:
//!
//! `cargo run --example expert_layer`
//!
//! Points are scattered around eight centers, and each center has its own linear map from a point to a target. One
//! expert can learn one map.

use burn::module::Module;
use burn::nn::loss::{MseLoss, Reduction};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::{Device, Distribution, Int, Tensor};
use moe::{MoeConfig, MoeLayer, MoeOutput};

const CENTERS: usize = 8;
const WIDTH: usize = 16;
const STEPS: usize = 300;

#[derive(Module, Debug)]
struct Model {
    moe: MoeLayer,
    head: Linear,
}

impl Model {
    fn init(device: &Device) -> Self {
        let moe = MoeConfig::new(32)
            .with_num_experts(8)
            .with_top_k(2)
            .with_aux_loss_coef(1e-3)
            .with_selection_bias(true)
            .with_bias_update_speed(5e-3);
        Self { moe: moe.init(WIDTH, device), head: LinearConfig::new(WIDTH, 1).init(device) }
    }

    fn forward(&self, x_btd: Tensor<3>) -> (Tensor<3>, MoeOutput) {
        let output = self.moe.forward(x_btd.clone(), None);
        (self.head.forward(x_btd + output.y_btd.clone()), output)
    }
}

fn main() {
    let device = Device::flex().autodiff();
    device.seed(1);
    let normal = |shape: [usize; 2], std| Tensor::<2>::random(shape, Distribution::Normal(0.0, std), &device);
    // The first center is common and the last one rare: a router that follows the data is unbalanced.
    let (centers, maps) = (normal([CENTERS, WIDTH], 1.0), normal([CENTERS, WIDTH], 0.5));
    let mut model = Model::init(&device);
    let mut optimizer = AdamWConfig::new().init();
    let (mut losses, mut unevenness) = (vec![], vec![]);
    for _ in 0..STEPS {
        let uniform = Tensor::<1>::random([4 * 64], Distribution::Uniform(0.0, 1.0), &device);
        let center_n: Tensor<1, Int> = (uniform.powi_scalar(2) * CENTERS as f64).int();
        let x_nd = centers.clone().select(0, center_n.clone()) + normal([4 * 64, WIDTH], 0.5);
        let target_n1 = (x_nd.clone() * maps.clone().select(0, center_n)).sum_dim(1);

        let (predicted, output) = model.forward(x_nd.reshape([4, 64, WIDTH]));
        let loss = MseLoss::new().forward(predicted, target_n1.reshape([4, 64, 1]), Reduction::Mean);
        losses.push(loss.clone().into_scalar::<f32>());
        unevenness.push(output.stats.load_cv().into_scalar::<f32>());
        let total = loss + output.aux_loss.expect("its coefficient is not 0");
        let gradients = GradientsParams::from_grads(total.backward(), &model);
        model = optimizer.step(3e-3, model, gradients);
        model.moe = model.moe.update_bias(&output.stats);
    }
    for (what, values, most) in [("loss", losses, 0.2), ("unevenness of the experts' loads", unevenness, 0.5)] {
        let mean = |part: &[f32]| part.iter().sum::<f32>() / part.len() as f32;
        let (first, last) = (mean(&values[..20]), mean(&values[STEPS - 20..]));
        println!("{what}: {first:.3} -> {last:.3}");
        assert!(last < most * first, "{what} went from {first} to {last}, expected less than {most} of it");
    }
}
