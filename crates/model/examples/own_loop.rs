//! DeepSeek in your own training loop, with Burn's AdamW: `cargo run --example own_loop`.
//!
//! After each step, the selection biases of the experts follow their loads.

use burn::module::Module;
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::{Device, Int, Tensor};
use model::{Batch, Decoder, DeepSeek, DeepSeekConfig, ExpertLoads, StepContext, Targets, Training, layer_loads};
use moe::{MoeConfig, ScoreFunc};

const TEXT: &str = "The five boxing wizards jump quickly. Pack my box with five dozen liquor jugs. ";
const T: usize = 32;

/// Four rows of the text's bytes, and the bytes after each.
fn batch(step: u64, device: &Device) -> Batch {
    let bytes: Vec<i32> = TEXT.bytes().map(i32::from).cycle().take(TEXT.len() + 8 * T).collect();
    let rows = |next: usize| {
        let row = |row: usize| &bytes[(step as usize * 11 + row * 29) % TEXT.len() + next..][..T];
        let tokens: Vec<i32> = (0..4).flat_map(row).copied().collect();
        Tensor::<1, Int>::from_ints(tokens.as_slice(), device).reshape([4, T])
    };
    let micro = StepContext { seed: 1337, step, first_row: 0 }.into();
    Batch { micro, ..Batch::new(rows(0), Targets::all(rows(1))) }
}

fn main() {
    let device = Device::flex().autodiff();
    let config = DeepSeekConfig {
        vocab_size: 256,
        hidden_size: 64,
        num_hidden_layers: 2,
        first_k_dense_replace: 1,
        intermediate_size: 128,
        ..DeepSeekConfig::default()
    };
    let moe = MoeConfig {
        num_experts: 8,
        moe_intermediate_size: 64,
        n_shared_experts: 1,
        score_func: ScoreFunc::Sigmoid,
        selection_bias: true,
        bias_update_speed: 0.01,
        aux_loss_coef: 0.001,
        ..MoeConfig::default()
    };
    let mut model = DeepSeek::init(&config, &moe, 1337, &device).train();
    let mut optimizer = AdamWConfig::new().init();
    let training = Training { loads: ExpertLoads::new(Some(&moe)), ..Training::default() };
    let calls = model.calls(&training);
    let (mut losses, mut imbalance) = (vec![], vec![]);
    for step in 0..60 {
        training.loads.begin(false);
        let loss = calls.run(&model, &batch(step, &device));
        losses.push(loss.loss.clone().into_scalar::<f32>());
        let total = loss.loss + loss.aux.expect("the balance loss");
        let gradients = GradientsParams::from_grads(total.backward(), &model);
        model = optimizer.step(3e-3, model, gradients).update_biases(&training.loads);
        imbalance.push(layer_loads(&training.loads.sums(&[1], 8), &[1], 8)[0].cv());
    }
    let mean = |of: &[f64]| of.iter().sum::<f64>() / of.len() as f64;
    let [before, after] = [mean(&imbalance[..10]), mean(&imbalance[50..])];
    println!("loss {:.3} -> {:.3}; variation of the experts' loads {before:.2} -> {after:.2}", losses[0], losses[59]);
    assert!(losses[59] < 0.5 * losses[0] && after < before);
}
