//! What the calls of all families share, and the rules of their parameters on ranks.

use crate::layers::mlp::BlockOutput;
use crate::layers::vocabulary;
use crate::{Batch, ExpertLoads, Initial, MicroBatch, Parallel, ParameterSpec, Sharding, Targets};
use burn::module::Module;
use burn::nn::Embedding;
use burn::tensor::Tensor;
use fsdp::{Calls, Loss, Units};
use fused::Losses;
use std::collections::HashMap;
use std::rc::Rc;

/// What the calls of a forward need beyond the model. The default is a forward on one device without auxiliary losses.
#[derive(Clone, Default)]
pub struct Training {
    /// The ranks that compute a sequence together.
    pub parallel: Parallel,
    /// Where blocks with experts record their token assignments.
    pub loads: ExpertLoads,
    /// Seed of the initial parameters.
    pub seed: u64,
    /// Weight of the z-loss.
    pub z_loss_coef: f64,
    /// Weight of the mean loss of multi-token prediction.
    pub mtp_loss_coef: f64,
}

impl Training {
    /// Sets the initial values of the units of a model, and how ranks hold its parameters.
    pub(crate) fn set_rules(&self, units: &mut Units<Batch>, parameters: Vec<ParameterSpec>, initial: Initial) {
        units.initializer(move |name, _, runs| initial.values(name, runs));
        let rules: HashMap<String, ParameterSpec> =
            parameters.into_iter().map(|parameter| (parameter.name.clone(), parameter)).collect();
        let rules = Rc::new(rules);
        let [of_experts, of_shards, of_fp32, of_adjusted] = [(); 4].map(|()| rules.clone());
        units.experts(move |name| of_experts[name].sharding == Sharding::Experts);
        units.tensor_parallel(move |name| match of_shards[name].sharding {
            Sharding::Tensor(shard) => Some(shard),
            Sharding::Replicated | Sharding::Experts => None,
        });
        units.keep_fp32(move |name| of_fp32[name].keep_fp32);
        units.adjusted(move |name| !of_adjusted[name].trained);
        units.collectives(self.parallel.first_error.clone());
        let tp = self.parallel.sequences.tp.clone();
        units.shape(move |batch: &Batch| {
            let [b, t] = batch.inputs_bt.dims();
            [b, tp.part(t).len()]
        });
    }

    /// Adds the first call, which embeds the inputs with `embed`, the table of `vocab` tokens.
    pub fn add_embedding<M: 'static>(&self, calls: &mut Calls<M, Batch>, embed: fn(&M) -> &Embedding, vocab: usize) {
        let tp = self.parallel.sequences.tp.clone();
        calls.first("embed", embed, move |table, batch| {
            vocabulary::embed(&tp, table.weight.val(), batch.inputs_bt.clone(), vocab)
        });
    }

    /// Adds a call for each of the blocks, which may have experts. Their token assignments are recorded.
    pub fn add_blocks<M: 'static, K: Module + 'static>(
        &self,
        calls: &mut Calls<M, Batch>,
        (blocks, number): (fn(&M) -> &[K], usize),
        forward: fn(&K, Tensor<3>, &MicroBatch, &Parallel) -> BlockOutput,
    ) {
        for i in 0..number {
            let training = self.clone();
            calls.then(
                format!("blocks.{i}"),
                move |model| &blocks(model)[i],
                move |block, x_bsd, batch| {
                    let output = forward(block, x_bsd, &batch.micro, &training.parallel);
                    output.record(&training.loads, i, &batch.micro);
                    (output.x_btd, output.aux_loss)
                },
            );
        }
    }

    /// The loss of a batch, with the z-loss in training if it is configured.
    pub fn main_loss(&self, batch: &Batch, losses: impl FnOnce(Targets, f64) -> Losses) -> Loss {
        let coef = if batch.micro.step.is_some() { self.z_loss_coef } else { 0.0 };
        let losses = losses(batch.targets.clone(), coef);
        Loss { loss: losses.cross_entropy, aux: (coef > 0.0).then_some(losses.z_loss) }
    }
}
