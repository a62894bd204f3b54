//! A model with the expert layer under Burn's `Learner`, trained on Shakespeare with Kiln's AdamW.

use burn::data::dataloader::{DataLoader, DataLoaderBuilder};
use burn::data::dataset::transform::PartialDataset;
use burn::module::Module;
use burn::nn::loss::CrossEntropyLoss;
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::optim::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::{Device, Int, Tensor};
use burn::train::metric::LossMetric;
use burn::train::{ClassificationOutput, Learner, LearnerSummary, SupervisedTraining};
use burn::train::{InferenceStep, TrainOutput, TrainStep};
use data::{OpenOptions, Split, TensorBatch, TensorBatcher};
use moe::{MoeConfig, MoeLayer};
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex};

const BYTES: usize = 256;
const D: usize = 16;

#[derive(Module, Debug)]
struct Model {
    embedding: Embedding,
    moe: MoeLayer,
    head: Linear,
    /// Tokens per expert of each micro-batch since the last optimizer step. Clones of the model share the list.
    #[module(skip)]
    assigned_e: Arc<Mutex<Vec<Tensor<1>>>>,
}

impl Model {
    fn output(&self, h_btd: Tensor<3>, targets_bt: Tensor<2, Int>) -> ClassificationOutput {
        let (logits_nv, targets_n) = (self.head.forward(h_btd).flatten(0, 1), targets_bt.flatten(0, 1));
        let loss = CrossEntropyLoss::new(None, &logits_nv.device()).forward(logits_nv.clone(), targets_n.clone());
        ClassificationOutput::new(loss, logits_nv, targets_n)
    }
}

impl TrainStep for Model {
    type Input = TensorBatch;
    type Output = ClassificationOutput;

    fn step(&self, batch: TensorBatch) -> TrainOutput<ClassificationOutput> {
        let x_btd = self.embedding.forward(batch.inputs_bt);
        let moe = self.moe.forward(x_btd.clone(), None);
        self.assigned_e.lock().unwrap().push(moe.stats.assigned_e().float());
        let output = self.output(x_btd + moe.y_btd, batch.targets_bt);
        let loss = moe.aux_loss.map_or(output.loss.clone(), |aux_loss| output.loss.clone() + aux_loss);
        TrainOutput::new(self, loss.backward(), output)
    }

    /// The optimizer's step, then that of the selection bias, which has no gradient.
    fn optimize(self, optim: &mut ModuleOptimizer, lr: ModuleLearningRate, gradients: GradientsParams) -> Self {
        let mut model = optim.step(lr, self, gradients);
        let assigned_e = std::mem::take(&mut *model.assigned_e.lock().unwrap());
        model.moe.update_bias_from(assigned_e.into_iter().reduce(|sum_e, more_e| sum_e + more_e).unwrap());
        model
    }
}

impl InferenceStep for Model {
    type Input = TensorBatch;
    type Output = ClassificationOutput;

    fn step(&self, batch: TensorBatch) -> ClassificationOutput {
        let x_btd = self.embedding.forward(batch.inputs_bt);
        self.output(x_btd.clone() + self.moe.evaluate(x_btd).y_btd, batch.targets_bt)
    }
}

/// Runs a range of a training's epochs, from a checkpoint unless it begins at 0. Returns the validation loss after each
/// epoch so far, and how uneven the experts' loads on validation text are at the end.
fn train(folder: &Path, moe: &MoeConfig, epochs: Range<usize>) -> (Vec<f64>, f32) {
    let device = Device::flex().autodiff();
    device.seed(2 + epochs.start as u64); // so that a checkpoint has to replace the initial values
    let model = Model {
        embedding: EmbeddingConfig::new(BYTES, D).init(&device),
        moe: moe.init(D, &device),
        head: LinearConfig::new(D, BYTES).init(&device),
        assigned_e: Arc::default(),
    };
    let options = OpenOptions { cache: Some(folder.with_file_name("cache")), ..OpenOptions::default() };
    let text = data::open("shakespeare", &options).unwrap().dataset;
    // In order: a checkpoint does not hold the loader's generator, so a resumed run would shuffle differently.
    let loader = |split, batches, batch_size| -> Arc<dyn DataLoader<TensorBatch>> {
        let part = PartialDataset::new(text.sequences(split, 32).unwrap(), 0, batches * batch_size);
        DataLoaderBuilder::new(TensorBatcher).batch_size(batch_size).build(part)
    };
    let (train, val) = (loader(Split::Train, 20, 8), loader(Split::Val, 1, 32));
    let training = SupervisedTraining::new(folder, train, val.clone())
        .metrics((LossMetric::new(),))
        .with_default_checkpointers()
        .with_application_logger(None)
        .num_epochs(epochs.end);
    let training = if epochs.start > 0 { training.checkpoint(epochs.start) } else { training };
    let result = training.launch(Learner::new(model, ModuleOptimizer::from(fused::FusedAdamW::default()), 1e-2));
    assert!(result.error.is_none(), "{:?}", result.error);

    let x_btd = result.model.embedding.forward(val.iter().next().unwrap().unwrap().inputs_bt);
    let unevenness = result.model.moe.evaluate(x_btd).stats.load_cv().into_scalar();
    let losses = &LearnerSummary::new(folder, &["Loss"]).unwrap().metrics.valid[0];
    (losses.entries.iter().map(|epoch| epoch.value).collect(), unevenness)
}

#[test]
fn burns_learner_trains_balances_and_resumes_a_model_with_experts() {
    let root = tempfile::tempdir().unwrap();
    let run = |name, moe: &MoeConfig, epochs| train(&root.path().join(name), moe, epochs);
    let plain = MoeConfig::new(32).with_selection_bias(true);
    let with_loss = plain.clone().with_aux_loss_coef(1.0);
    let with_bias = plain.clone().with_bias_update_speed(0.01);
    let trained = [run("plain", &plain, 0..2), run("loss", &with_loss, 0..2), run("bias", &with_bias, 0..2)];
    // Bytes guessed at random have a loss of ln 256 = 5.545.
    assert!(trained.iter().all(|(losses, _)| losses[0] < 4.0 && losses[1] < losses[0] - 0.1), "{trained:?}");
    let [plain, loss, bias] = trained.each_ref().map(|(_, unevenness)| *unevenness);
    assert!(loss < 0.6 * plain && bias < 0.6 * plain, "{trained:?}");

    run("parts", &with_bias, 0..1);
    assert_eq!(run("parts", &with_bias, 1..2), trained[2]);
}
