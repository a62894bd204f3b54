//! The configured model cut into sharding units, and its reassembly.

mod tail;

use crate::batch::Batch;
use crate::config::{Config, ModelConfig};
use crate::expert_loads::{ExpertLoads, LayerLoad, bias_update, layer_loads};
use burn::module::Module;
use burn::nn::Embedding;
use burn::tensor::{Device, Tensor};
use checkpoint::Parameter;
use comm::{Axis, Communicator, ContextParallel, Mesh, TensorParallel};
use fsdp::{Activation, Fsdp, FsdpConfig, FsdpError, Layout, Loss, ParamLayout, UnitId, Units};
use fused::Losses;
use model::deepseek::Block;
use model::gpt2::{Gpt2Block, Gpt2Ends};
use model::{DeepSeek, Gpt2, Initial, LanguageModel, Parallel, Targets, cut};
use moe::{ExpertParallel, Experts, Router};
use std::ops::Deref;
use tail::{Coefs, Tail};

/// The units a model was cut into, so that it can be reassembled.
pub(crate) enum Parts {
    Gpt2 { ends: UnitId<Gpt2Ends>, blocks: Vec<UnitId<Gpt2Block>> },
    DeepSeek { embed: UnitId<Embedding>, blocks: Vec<UnitId<Block>>, tail: Tail },
}

/// Creates the groups of ranks that compute a model's sequences together with this one. A collective.
pub(crate) fn parallel(config: &FsdpConfig, world: &Communicator) -> Result<Parallel, FsdpError> {
    let (mut parallel, mesh) = (Parallel::default(), Mesh::new(world.clone(), config.mesh(world.world_size())?)?);
    if config.ep > 1 {
        parallel.experts = Some(ExpertParallel::new(mesh.over(&[Axis::Ep])?, parallel.first_error.clone()));
    }
    if config.tp > 1 {
        parallel.sequences.tp = TensorParallel::new(mesh.over(&[Axis::Tp])?, parallel.first_error.clone());
    }
    if config.cp > 1 {
        parallel.sequences.cp = ContextParallel::new(mesh.over(&[Axis::Cp])?, parallel.first_error.clone());
    }
    Ok(parallel)
}

/// Cuts the configured model into units: the embedding, each block, and the head (see [`tail`]). GPT-2's first and last
/// unit are one, because they share their matrix.
///
/// A unit's name is the path of its field in the model, so a parameter's name in a checkpoint is its path. In training,
/// blocks with experts record their token assignments in `loads`.
pub(crate) fn units(
    config: &Config,
    loads: &ExpertLoads,
    parallel: &Parallel,
    device: &Device,
) -> (Units<Batch>, Parts) {
    let mut units = Units::new();
    units.experts(Experts::hold);
    units.tensor_parallel(cut);
    units.collectives(parallel.first_error.clone());
    units.keep_fp32(Router::holds_bias);
    let tp = parallel.sequences.tp.clone();
    units.shape(move |batch: &Batch| {
        let [b, t] = batch.inputs_bt.dims();
        [b, tp.part(t).len()]
    });
    let (tp, all) = (|| parallel.sequences.tp.clone(), || parallel.clone());
    let initial = initial(config);
    let z_loss_coef = config.train.z_loss_coef;
    units.draw(move |name, dims, runs| initial.values(name, dims, runs));
    let parts = match &config.model {
        ModelConfig::Gpt2(shape) => {
            let model = Gpt2::new(shape, device);
            let ends = units.add("ends", model.ends);
            let of = all();
            units.first(ends, move |ends, batch: &Batch| ends.embed(batch.inputs_bt.clone(), &batch.micro, &of));
            let blocks = add_blocks(&mut units, model.blocks, |_| {
                let of = all();
                move |block: &Gpt2Block, x_bsd, batch: &Batch| block.forward(x_bsd, &batch.micro, &of)
            });
            let of = all();
            units.last(ends, move |ends, x_bsd, batch| {
                main_loss(batch, z_loss_coef, |targets, coef| ends.losses(x_bsd, targets, coef, &of))
            });
            Parts::Gpt2 { ends, blocks }
        }
        ModelConfig::DeepSeek(shape) => {
            let moe = config.moe.clone().unwrap_or_default();
            let model = DeepSeek::new(shape, &moe, device);
            let embed = units.add("embed", model.embed);
            let (of, vocab_size) = (tp(), shape.vocab_size);
            units.first(embed, move |table: &Embedding, batch: &Batch| {
                model::deepseek::embed(table, batch.inputs_bt.clone(), vocab_size, &of)
            });
            let blocks = add_blocks(&mut units, model.blocks, |layer| {
                let (loads, parallel) = (loads.clone(), parallel.clone());
                move |block: &Block, x_bsd, batch: &Batch| {
                    let output = block.forward_over(x_bsd, &batch.micro, &parallel);
                    if let (Some(stats), Some(place)) = (&output.stats, batch.micro.place) {
                        loads.record(layer, place.first_row, stats);
                    }
                    (output.x_btd, output.aux_loss)
                }
            });
            let coefs = Coefs { z_loss: z_loss_coef, mtp: config.train.mtp_loss_coef };
            let tail = Tail::add(&mut units, embed, (model.head, model.mtp), shape, coefs, (loads, parallel));
            Parts::DeepSeek { embed, blocks, tail }
        }
    };
    (units, parts)
}

/// The initial values of the configured model.
pub(crate) fn initial(config: &Config) -> Initial {
    match &config.model {
        ModelConfig::Gpt2(shape) => Gpt2::initial(shape, config.train.seed),
        ModelConfig::DeepSeek(_) => DeepSeek::initial(config.train.seed),
    }
}

/// A batch's loss and, in training, its z-loss if there is one.
fn main_loss(batch: &Batch, coef: f64, losses: impl FnOnce(Targets, f64) -> Losses) -> Loss {
    let coef = if batch.micro.place.is_some() { coef } else { 0.0 };
    let losses = losses(batch.targets.clone(), coef);
    Loss { loss: losses.cross_entropy, aux: (coef > 0.0).then_some(losses.z_loss) }
}

/// Adds blocks; `forward` returns the function of each block, given its index.
fn add_blocks<M: Module + 'static, A: Into<Activation> + 'static, F: Fn(&M, Tensor<3>, &Batch) -> A + 'static>(
    units: &mut Units<Batch>,
    blocks: Vec<M>,
    forward: impl Fn(usize) -> F,
) -> Vec<UnitId<M>> {
    let add = |(i, block)| {
        let unit = units.add(format!("blocks.{i}"), block);
        units.then(unit, forward(i));
        unit
    };
    blocks.into_iter().enumerate().map(add).collect()
}

impl Parts {
    /// Moves the selection biases against the loads of the step, if configured. `sums` are the sums over all ranks of
    /// [`ExpertLoads::numbers`].
    pub fn update_selection_biases(
        &self,
        config: &Config,
        fsdp: &mut Fsdp<Batch>,
        sums: &[f64],
    ) -> Result<(), FsdpError> {
        let speed = config.moe.as_ref().map_or(0.0, |moe| moe.bias_update_speed);
        let (Self::DeepSeek { blocks, tail, .. }, Some((layers, experts))) = (self, config.expert_layers()) else {
            return Ok(());
        };
        if speed == 0.0 {
            return Ok(());
        }
        for LayerLoad { layer, assigned, .. } in layer_loads(sums, &layers, experts) {
            let update = bias_update(&assigned, speed);
            match blocks.get(layer) {
                Some(block) => fsdp.add_to_parameter(*block, "mlp.Moe.router.bias", &update),
                None => {
                    let module = tail.module(layer - blocks.len());
                    fsdp.add_to_parameter(module, "block.mlp.Moe.router.bias", &update);
                }
            }
        }
        Ok(())
    }

    /// Gathers the whole model and returns it if `keep` is set. A collective: every rank must call it, and ranks that
    /// keep nothing hold one unit at a time.
    pub fn gather(
        &self,
        config: &Config,
        fsdp: &Fsdp<Batch>,
        keep: bool,
        device: &Device,
    ) -> Result<Option<Whole>, FsdpError> {
        let whole = match (self, &config.model) {
            (Self::Gpt2 { ends, blocks }, ModelConfig::Gpt2(shape)) => {
                let mut model = Gpt2::new(shape, device);
                gather_into(&mut model.ends, fsdp, *ends, keep)?;
                gather_all(&mut model.blocks, fsdp, blocks, keep)?;
                Whole::Gpt2(model)
            }
            (Self::DeepSeek { embed, blocks, tail }, ModelConfig::DeepSeek(shape)) => {
                let mut model = DeepSeek::new(shape, &config.moe.clone().unwrap_or_default(), device);
                gather_into(&mut model.embed, fsdp, *embed, keep)?;
                gather_all(&mut model.blocks, fsdp, blocks, keep)?;
                tail.gather_into(&mut model, fsdp, keep)?;
                Whole::DeepSeek(model)
            }
            _ => unreachable!("the units were made from this configuration"),
        };
        Ok(keep.then_some(whole))
    }
}

fn gather_all<M: Module + 'static>(
    modules: &mut [M],
    fsdp: &Fsdp<Batch>,
    units: &[UnitId<M>],
    keep: bool,
) -> Result<(), FsdpError> {
    modules.iter_mut().zip(units).try_for_each(|(module, unit)| gather_into(module, fsdp, *unit, keep))
}

fn gather_into<M: Module + 'static>(
    module: &mut M,
    fsdp: &Fsdp<Batch>,
    unit: UnitId<M>,
    keep: bool,
) -> Result<(), FsdpError> {
    let gathered = fsdp.gather(unit)?;
    if keep {
        *module = gathered;
    }
    Ok(())
}

/// A model of either kind.
pub(crate) enum Whole {
    Gpt2(Gpt2),
    DeepSeek(DeepSeek),
}

impl Whole {
    /// Creates the configured model without setting its parameters.
    pub fn new(config: &Config, device: &Device) -> Self {
        match &config.model {
            ModelConfig::Gpt2(shape) => Self::Gpt2(Gpt2::new(shape, device)),
            ModelConfig::DeepSeek(shape) => {
                Self::DeepSeek(DeepSeek::new(shape, &config.moe.clone().unwrap_or_default(), device))
            }
        }
    }
}

impl Deref for Whole {
    type Target = dyn LanguageModel;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Gpt2(model) => model,
            Self::DeepSeek(model) => model,
        }
    }
}

/// Name and shape of each parameter of the configured model, without initializing it.
pub(crate) fn parameters(config: &Config) -> Vec<Parameter> {
    let layout = match Whole::new(config, &Device::flex()) {
        Whole::Gpt2(model) => Layout::of(&model, 1),
        Whole::DeepSeek(model) => Layout::of(&model, 1),
    };
    let parameter = |param: &ParamLayout| Parameter { name: param.name.clone(), shape: param.shape.clone() };
    layout.params().iter().map(parameter).collect()
}

/// Number of parameters of the configured model.
pub(crate) fn parameter_count(config: &Config) -> usize {
    match Whole::new(config, &Device::flex()) {
        Whole::Gpt2(model) => model::parameter_count(&model),
        Whole::DeepSeek(model) => model::parameter_count(&model),
    }
}

#[cfg(test)]
mod tests;
