//! Sharding units of a model: what all families share.

use crate::{AnyModel, Batch, ExpertLoads, Family, Parallel, ParameterSpec, Sharding, Targets};
use burn::module::Module;
use burn::tensor::{Device, Tensor};
use fsdp::{Activation, Fsdp, FsdpError, Loss, UnitId, Units};
use fused::Losses;
use std::collections::HashMap;
use std::rc::Rc;

/// What the calls of a training forward need beyond the model.
#[derive(Clone)]
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

/// The units that a model was cut into.
pub trait ModelUnits {
    /// Reassembles the whole model if `keep`. A collective: all ranks must call it, and a rank that keeps nothing holds
    /// one unit at a time.
    fn gather(&self, fsdp: &Fsdp<Batch>, keep: bool, device: &Device) -> Result<Option<AnyModel>, FsdpError>;

    /// Adds `delta` to the selection bias of a layer with experts.
    fn add_to_selection_bias(&self, fsdp: &mut Fsdp<Batch>, layer: usize, delta: &[f32]) {
        let _ = (fsdp, layer, delta);
        unreachable!("a model without experts has no selection bias")
    }
}

impl Training {
    /// Cuts a model into units for training.
    pub fn units(&self, family: &dyn Family, device: &Device) -> (Units<Batch>, Box<dyn ModelUnits>) {
        let mut units = Units::new();
        let initial = family.initial(self.seed);
        units.initializer(move |name, _, runs| initial.values(name, runs));
        let rules: HashMap<String, ParameterSpec> =
            family.parameters().into_iter().map(|parameter| (parameter.name.clone(), parameter)).collect();
        let rules = Rc::new(rules);
        let [of_experts, of_cuts, of_fp32] = [(); 3].map(|()| rules.clone());
        units.experts(move |name| of_experts[name].sharding == Sharding::Experts);
        units.tensor_parallel(move |name| match of_cuts[name].sharding {
            Sharding::Tensor(cut) => Some(cut),
            Sharding::Replicated | Sharding::Experts => None,
        });
        units.keep_fp32(move |name| of_fp32[name].keep_fp32);
        units.collectives(self.parallel.first_error.clone());
        let tp = self.parallel.sequences.tp.clone();
        units.shape(move |batch: &Batch| {
            let [b, t] = batch.inputs_bt.dims();
            [b, tp.part(t).len()]
        });
        let parts = family.add_units(&mut units, self, device);
        (units, parts)
    }
}

/// The loss of a batch, with the z-loss in training if it is configured.
pub(crate) fn main_loss(batch: &Batch, coef: f64, losses: impl FnOnce(Targets, f64) -> Losses) -> Loss {
    let coef = if batch.micro.step.is_some() { coef } else { 0.0 };
    let losses = losses(batch.targets.clone(), coef);
    Loss { loss: losses.cross_entropy, aux: (coef > 0.0).then_some(losses.z_loss) }
}

/// Adds a unit and a call for each block; `forward` returns the function of the block with this number.
pub(crate) fn add_blocks<M, A, F>(
    units: &mut Units<Batch>,
    blocks: Vec<M>,
    forward: impl Fn(usize) -> F,
) -> Vec<UnitId<M>>
where
    M: Module + 'static,
    A: Into<Activation> + 'static,
    F: Fn(&M, Tensor<3>, &Batch) -> A + 'static,
{
    let add = |(i, block)| {
        let unit = units.add(format!("blocks.{i}"), block);
        units.then(unit, forward(i));
        unit
    };
    blocks.into_iter().enumerate().map(add).collect()
}

/// Gathers several units, and keeps them in `modules` if `keep`.
pub(crate) fn gather_all<M: Module + 'static>(
    modules: &mut [M],
    fsdp: &Fsdp<Batch>,
    units: &[UnitId<M>],
    keep: bool,
) -> Result<(), FsdpError> {
    modules.iter_mut().zip(units).try_for_each(|(module, unit)| gather_into(module, fsdp, *unit, keep))
}

/// Gathers a unit, and keeps it in `module` if `keep`.
pub(crate) fn gather_into<M: Module + 'static>(
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
