//! Messages beside tensors of a step, in closed form.

mod common;

use burn::tensor::Device;
use comm::run_ranks;
use common::{LR, config, global_batch, model, units};
use fsdp::{Fsdp, FsdpError, Strategy};
use std::collections::BTreeMap;
use std::time::Duration;

/// Calls and control messages of the second step on rank 0, by collective.
fn of_a_step(ranks: usize, micro_batches: usize) -> BTreeMap<&'static str, [u64; 2]> {
    let device = Device::flex();
    let (model, batch) = (model(&device), global_batch(&device));
    let found = run_ranks(vec![device; ranks], Duration::from_secs(60), move |comm| {
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
    found.unwrap().swap_remove(0)
}

/// Of C calls of U units and M micro-batches under `full_shard`: each call gathers its unit in the forward and, but for
/// the last, in the backward; each unit's gradient is scattered once a micro-batch; and two small sums tell all ranks
/// how many micro-batches there are, and then losses and norm. Rank threads post once a round, however many they are.
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
