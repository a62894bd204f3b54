//! Burn's optimizers train models as they come, initialized or read from a folder of transformers: a step moves every
//! parameter but the selection biases, which follow the loads of experts.

use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{Device, Int, Tensor, TensorData};
use model::hf::{Folder, Pretrained};
use model::{Batch, Decoder, DeepSeek, ExpertLoads, Gpt2, Llama, StepContext, Targets, Training};
use moe::MoeConfig;
use test_kit::{Values, reference};

/// Makes a step with all losses of training, and checks what has moved.
fn step_moves_all<M: Decoder>(what: &str, model: &M, vocab: usize, moe: Option<&MoeConfig>, device: &Device) {
    let model = model.clone().train();
    let tokens = |next: usize| {
        let values: Vec<i64> = (0..2 * 12).map(|i| ((i + next) * (i + next + 3) % vocab) as i64).collect();
        Tensor::<2, Int>::from_data(TensorData::new(values, [2, 12]), device)
    };
    let micro = StepContext { seed: 1, step: 0, first_row: 0 }.into();
    let batch = Batch { micro, ..Batch::new(tokens(0), Targets::all(tokens(1))) };
    let training = Training { loads: ExpertLoads::new(moe), z_loss_coef: 1e-3, ..Training::default() };
    training.loads.begin(false);
    let loss = model.calls(&training).run(&model, &batch);
    let total = loss.loss + loss.aux.unwrap_or_else(|| panic!("{what}: the z-loss, and the balance loss"));
    let gradients = GradientsParams::from_grads(total.backward(), &model);
    let before = Values::of(&model).by_path();
    let after = Values::of(&SgdConfig::new().init().step(1.0, model, gradients)).by_path();
    for (path, before) in before {
        assert_eq!(after[&path] == before, path.ends_with("router.bias"), "{what}: {path}");
    }
}

#[test]
fn a_step_moves_all_parameters_of_initialized_and_of_loaded_models() {
    let device = Device::flex().autodiff();
    for name in ["gpt2-a", "deepseek-v3-q-lora", "qwen3-moe"] {
        let loaded = Pretrained::load(&Folder::open(&reference(name)).unwrap(), &device).unwrap();
        let (config, moe, vocab) = (&loaded.config, loaded.moe.as_ref(), loaded.config.vocab_size());
        let [is_new, is_loaded] = ["new", "loaded"].map(|how| format!("{name}, {how}"));
        if let (Some(model), Some(config)) = (loaded.model.get::<Gpt2>(), config.get()) {
            step_moves_all(&is_loaded, model, vocab, moe, &device);
            step_moves_all(&is_new, &Gpt2::init(config, 1, &device), vocab, moe, &device);
        } else if let (Some(model), Some(config)) = (loaded.model.get::<Llama>(), config.get()) {
            step_moves_all(&is_loaded, model, vocab, moe, &device);
            step_moves_all(&is_new, &Llama::init(config, moe, 1, &device), vocab, moe, &device);
        } else {
            let (model, config) = (loaded.model.get::<DeepSeek>().unwrap(), config.get().unwrap());
            step_moves_all(&is_loaded, model, vocab, moe, &device);
            step_moves_all(&is_new, &DeepSeek::init(config, moe.unwrap(), 1, &device), vocab, moe, &device);
        }
    }
}
