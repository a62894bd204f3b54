//! The configured model, whole or as sharding units.

use crate::config::Config;
use burn::tensor::Device;
use fsdp::{ForecastRun, Fsdp, FsdpError, Units};
use model::{AnyModel, Batch, ExpertLoads, LayerLoad, Parallel, Training, layer_loads};

/// The configured model, whose parameters are not set yet.
pub(crate) fn new_model(config: &Config, device: &Device) -> AnyModel {
    config.model.model(config.moe.as_ref(), device)
}

/// Cuts the configured model into units. In training, blocks with experts record their token assignments in `loads`.
pub(crate) fn units(config: &Config, loads: &ExpertLoads, parallel: &Parallel, device: &Device) -> Units<Batch> {
    let training = Training {
        parallel: parallel.clone(),
        loads: loads.clone(),
        seed: config.train.seed,
        z_loss_coef: config.train.z_loss_coef,
        mtp_loss_coef: config.train.mtp_loss_coef,
    };
    config.model.units(config.moe.as_ref(), &training, device)
}

/// Checks from shapes alone that the model can be sharded as configured: a program's own model may have layers that
/// cannot be sharded.
pub(crate) fn check(config: &Config) -> Result<(), FsdpError> {
    let units = units(config, &ExpertLoads::new(config.moe.as_ref()), &Parallel::default(), &Device::flex());
    let (world_size, micro_batches) = (config.parallel.gpus, config.micro_batches());
    let run = ForecastRun { world_size, ranks: &[0], micro_batches, calls: &[], on_cpu: true };
    units.forecast(&config.fsdp(), run).map(drop)
}

/// Updates the selection biases from the step's expert loads, if configured; `sums` are [`ExpertLoads::numbers`],
/// summed over all ranks.
pub(crate) fn update_selection_biases(config: &Config, fsdp: &mut Fsdp<Batch>, sums: &[f64]) -> Result<(), FsdpError> {
    let speed = config.moe.as_ref().map_or(0.0, |moe| moe.bias_update_speed);
    let Some((layers, experts)) = config.expert_layers().filter(|_| speed != 0.0) else { return Ok(()) };
    let family = config.family();
    for LayerLoad { layer, assigned, .. } in layer_loads(sums, &layers, experts) {
        fsdp.add_to_parameter(&family.selection_bias(layer), &moe::bias_update(&assigned, speed));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
