//! How many small messages of all ranks a step takes, beside parameters, gradients and activations.

mod common;

use burn::tensor::Device;
use comm::run_ranks;
use common::{LR, STRATEGIES, config, global_batch, model, units};
use fsdp::{Fsdp, FsdpConfig, FsdpError, PipelineConfig, Strategy};
use std::time::Duration;

/// One that all have as many micro-batches, and one with losses, norms and the caller's numbers.
const MESSAGES: u64 = 2;

#[test]
fn a_step_takes_two_messages_of_all_ranks_whatever_the_layout() {
    let device = Device::flex();
    let (model, batch) = (model(&device), global_batch(&device));
    let two = PipelineConfig { stages: 2, ..PipelineConfig::default() };
    let pipeline = FsdpConfig { pipeline: two, ..config(Strategy::FullShard) };
    for config in STRATEGIES.map(config).into_iter().chain([pipeline]) {
        let (model, batch, of_ranks) = (model.clone(), batch.clone(), config.clone());
        let found = run_ranks(vec![Device::flex(); 4], Duration::from_secs(60), move |comm| {
            let rank = comm.rank();
            let mut fsdp = Fsdp::new(units(model.clone()), comm, of_ranks.clone())?;
            let messages = |fsdp: &Fsdp<_>| fsdp.traffic_by_axes()["world"].0["all_reduce"].calls;
            let (before, mut given) = (messages(&fsdp), vec![]);
            let numbers = || vec![rank as f64, 1.0];
            let keep = |_: &mut Fsdp<_>, sums: &[f64]| {
                given = sums.to_vec();
                Ok(())
            };
            let report = fsdp.train_step_with(std::slice::from_ref(&batch), &[1.0], LR, numbers, keep)?;
            Ok::<_, FsdpError>((messages(&fsdp) - before, report.sums, given))
        })
        .unwrap();
        for found in found {
            assert_eq!(found, (MESSAGES, vec![6.0, 4.0], vec![6.0, 4.0]), "{config:?}");
        }
    }
}
