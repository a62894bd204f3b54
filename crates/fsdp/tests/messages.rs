//! The number of messages per step besides parameters, gradients and activations, in closed form.

mod common;

use burn::tensor::Device;
use common::{LR, STRATEGIES, config, global_batch, model, units};
use fsdp::{ActivationCheckpointing, Fsdp, FsdpConfig, FsdpError, PipelineConfig, Schedule, Strategy};
use std::collections::BTreeMap;
use std::sync::mpsc;
use test_kit::on_ranks;

/// One message compares the numbers of micro-batches; the other carries losses, norms and the caller's numbers.
const MESSAGES: u64 = 2;

#[test]
fn a_step_takes_two_messages_of_all_ranks_whatever_the_layout() {
    let device = Device::flex();
    let (model, batch) = (model(&device), global_batch(&device));
    let two = PipelineConfig { stages: 2, ..PipelineConfig::default() };
    let pipeline = FsdpConfig { pipeline: two, ..config(Strategy::FullShard) };
    for config in STRATEGIES.map(config).into_iter().chain([pipeline]) {
        let (model, batch, of_ranks) = (model.clone(), batch.clone(), config.clone());
        let found = on_ranks(4, move |comm| {
            let rank = comm.rank();
            let mut fsdp = Fsdp::new(units(model.clone()), comm, of_ranks.clone())?;
            let messages = |fsdp: &Fsdp<_>| fsdp.traffic_by_axes()["world"].0["all_reduce"].calls;
            let (before, mut given) = (messages(&fsdp), vec![]);
            let numbers = || vec![rank as f64, 1.0];
            let mut keep = |_: &mut Fsdp<_>, sums: &[f64]| {
                given = sums.to_vec();
                Ok(())
            };
            let report = fsdp.train_step_with(std::slice::from_ref(&batch), &[1.0], LR, numbers, Some(&mut keep))?;
            Ok::<_, FsdpError>((messages(&fsdp) - before, report.sums, given))
        });
        for found in found {
            assert_eq!(found, (MESSAGES, vec![6.0, 4.0], vec![6.0, 4.0]), "{config:?}");
        }
    }
}

/// A watch sees a step's work up to its end, and never more, for any layout and order of micro-batches.
#[test]
fn a_watch_sees_all_of_a_steps_work() {
    let device = Device::flex();
    let (model, batch) = (model(&device), global_batch(&device));
    let of = |schedule| PipelineConfig { stages: 2, schedule, ..PipelineConfig::default() };
    let pipeline = |schedule| FsdpConfig { pipeline: of(schedule), ..config(Strategy::FullShard) };
    let pipelines = [Schedule::Gpipe, Schedule::OneFOneB, Schedule::ZeroBubble].map(pipeline);
    let again = FsdpConfig { activation_checkpointing: ActivationCheckpointing::Full, ..config(Strategy::Zero1) };
    for config in STRATEGIES.map(config).into_iter().chain(pipelines).chain([again]) {
        let (model, batch, of_ranks) = (model.clone(), batch.clone(), config.clone());
        let found = on_ranks(4, move |comm| {
            let mut fsdp = Fsdp::new(units(model.clone()), comm, of_ranks.clone())?;
            let (sender, told) = mpsc::channel();
            fsdp.watch(move |done, all| sender.send((done, all)).expect("somebody listens"));
            let mine: Vec<_> = (0..4).map(|row| batch.part(row..row + 1)).collect();
            fsdp.train_step(&mine, LR)?;
            fsdp.evaluate(&mine, &[1.0; 4])?;
            Ok::<_, FsdpError>(told.try_iter().collect::<Vec<_>>())
        });
        for told in found {
            let all = told.first().map_or(0, |(_, all)| *all);
            assert!(told.is_sorted() && told.iter().all(|(_, of)| *of == all), "{config:?}: {told:?}");
            assert_eq!(told.last().map(|(done, _)| *done), (all > 0).then_some(all), "{config:?}");
        }
    }
}

/// Returns the calls and control messages of the second step on rank 0, by collective.
fn of_a_step(ranks: usize, micro_batches: usize) -> BTreeMap<&'static str, [u64; 2]> {
    let device = Device::flex();
    let (model, batch) = (model(&device), global_batch(&device));
    let mut found = on_ranks(ranks, move |comm| {
        let mut fsdp = Fsdp::new(units(model.clone()), comm, config(Strategy::FullShard))?;
        let mine = vec![batch.part(0..1); micro_batches];
        fsdp.train_step(&mine, LR)?;
        let before = fsdp.traffic().0;
        fsdp.train_step(&mine, LR)?;
        let since = |(name, now): (&'static str, comm::Traffic)| {
            let before = before[name];
            (name, [now.calls - before.calls, now.control - before.control])
        };
        let steps: BTreeMap<_, _> = fsdp.traffic().0.into_iter().map(since).collect();
        Ok::<_, FsdpError>(steps.into_iter().filter(|(_, [calls, _])| *calls > 0).collect())
    });
    found.swap_remove(0)
}

/// Under `full_shard`, with C calls of U units and M micro-batches: each call gathers its unit in the forward and,
/// except for the last call, in the backward. Each unit's gradient is reduce-scattered once per micro-batch. Two small
/// all-reduces compare the numbers of micro-batches, and carry losses and norm. Ranks that are threads post once per
/// round, however many there are.
#[test]
fn a_step_has_as_many_control_messages_as_calls_however_many_ranks_there_are() {
    let (calls, units) = (5, 4);
    for micro_batches in [1, 3] {
        let m = micro_batches as u64;
        let expected = [("all_gather", m * (2 * calls - 1)), ("all_reduce", 2), ("reduce_scatter", m * units)];
        let expected: BTreeMap<_, _> = expected.into_iter().map(|(name, count)| (name, [count; 2])).collect();
        for ranks in [2, 5, 16] {
            assert_eq!(of_a_step(ranks, micro_batches), expected, "{ranks} ranks, {micro_batches} micro-batches");
        }
    }
}
