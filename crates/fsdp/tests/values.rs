//! The values that a rank creates for a model: those that it holds, and none if it resumes from a state.

mod common;

use burn::tensor::Device;
use comm::TensorShard;
use common::{Batch, LR, Model, STRATEGIES, config, global_batch, model, units};
use fsdp::{Fsdp, FsdpConfig, FsdpError, MOMENTS, OptimizerState, Part, PartValues, State, Strategy, Units, Unloaded};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use test_kit::on_ranks;

/// Number of elements per parameter that ranks compare.
const PROBE: usize = 64;

/// Creates units with drawn values, and a counter of drawn values.
fn drawn(model: &Model) -> (Units<Batch>, Arc<AtomicUsize>) {
    let (mut units, count) = (units(model.clone()), Arc::new(AtomicUsize::new(0)));
    let counted = count.clone();
    units.initializer(move |name, _, runs| {
        let seed: usize = name.bytes().map(usize::from).sum();
        let value = |i: usize| ((i * 7919 + seed * 104_729) % 1000) as f32 / 2500.0 - 0.2;
        let values: Vec<f32> = runs.iter().cloned().flatten().map(value).collect();
        counted.fetch_add(values.len(), Ordering::Relaxed);
        values
    });
    (units, count)
}

/// Returns the number of elements of each parameter, and of all parameters.
fn sizes(model: &Model) -> (Vec<usize>, usize) {
    let layout = fsdp::Layout::of(model, 1);
    (layout.params().iter().map(|param| param.shape.iter().product()).collect(), layout.len())
}

#[test]
fn all_ranks_together_draw_what_they_hold_once() {
    let model = model(&Device::flex());
    let (params, len) = sizes(&model);
    let probes: usize = params.iter().map(|size| PROBE.min(*size)).sum();
    let drawn_by = |config: FsdpConfig| {
        let model = model.clone();
        on_ranks(4, move |comm| {
            let (mut units, count) = drawn(&model);
            units.tensor_parallel(|name| name.ends_with("up.weight").then_some(TensorShard::COLUMNS));
            Fsdp::new(units, comm, config.clone())?;
            Ok::<_, FsdpError>(count.load(Ordering::Relaxed))
        })
    };
    for (strategy, copies) in
        [(Strategy::Ddp, 4), (Strategy::Zero1, 4), (Strategy::FullShard, 1), (Strategy::HybridShard, 2)]
    {
        let total: usize = drawn_by(config(strategy)).into_iter().sum();
        assert_eq!(total, copies * len + 4 * probes, "{strategy:?}");
    }
    // Columns of a matrix; each rank holds a part of every row.
    let total: usize = drawn_by(FsdpConfig { tp: 4, ..config(Strategy::FullShard) }).into_iter().sum();
    assert_eq!(total, len + 4 * probes, "columns over four ranks");
}

/// Whole parameters and moments assembled from all ranks' states; nothing is cut.
#[derive(Default)]
struct Kept(HashMap<String, [Vec<f32>; 3]>);

impl Kept {
    fn put(&mut self, state: &State) {
        for part in &state.parts {
            let len = part.of.shape.iter().product();
            let kept = self.0.entry(part.of.name.clone()).or_insert_with(|| [(); 3].map(|()| vec![f32::NAN; len]));
            let state = part.optimizer.clone().expect("steps were made");
            let [mean, square] = MOMENTS.map(|moment| state.tensors[moment].clone());
            for (kept, tensor) in kept.iter_mut().zip([part.param.clone(), mean, square]) {
                kept[part.of.range.clone()].copy_from_slice(&tensor.into_data().try_into_vec::<f32>().unwrap());
            }
        }
    }

    fn read(&self, wanted: &Part) -> Result<PartValues, String> {
        let kept = self.0.get(&wanted.name).ok_or_else(|| format!("{} is not there", wanted.name))?;
        let [param, mean, square] = [0, 1, 2].map(|i| kept[i][wanted.range.clone()].to_vec());
        let tensors = MOMENTS.map(String::from).into_iter().zip([mean, square]).collect();
        Ok(PartValues { param, optimizer: OptimizerState { tensors, ..OptimizerState::default() } })
    }
}

#[test]
fn a_model_that_is_loaded_draws_nothing_and_goes_on_as_if_it_had_not_stopped() {
    let device = Device::flex();
    let (model, batch) = (model(&device), global_batch(&device));
    for strategy in STRATEGIES {
        let (model, batch, kept) = (model.clone(), batch.clone(), Arc::new(Mutex::new(Kept::default())));
        let runs = on_ranks(4, move |comm| {
            let mut fsdp = Fsdp::new(drawn(&model).0, comm.clone(), config(strategy))?;
            let (rank, ranks) = fsdp.data_parallel();
            let mine = [batch.part(8 * rank / ranks..8 * (rank + 1) / ranks)];
            let step = |fsdp: &mut Fsdp<Batch>| fsdp.train_step(&mine, LR).map(|report| report.loss.to_bits());
            step(&mut fsdp)?;
            let state = fsdp.state();
            kept.lock().unwrap().put(&state);
            fsdp.all_reduce(&[0.0])?;
            let on = [step(&mut fsdp)?, step(&mut fsdp)?];
            let (units, count) = drawn(&model);
            let unloaded = Unloaded::new(units, comm, config(strategy))?;
            let mut again = unloaded.load_state(state.progress, &mut |wanted| kept.lock().unwrap().read(wanted))?;
            Ok::<_, FsdpError>((on, [step(&mut again)?, step(&mut again)?], count.load(Ordering::Relaxed)))
        });
        for (on, again, count) in runs {
            assert_eq!((on, count), (again, 0), "{strategy:?}");
        }
    }
}

/// Where each shard has a copy, the ranks that are left hold the whole state: under `ddp` any rank, and under
/// `hybrid_shard` of two times two ranks the first or the last two.
#[test]
fn ranks_that_hold_copies_of_all_shards_hold_what_all_ranks_save() {
    let device = Device::flex();
    let (model, batch) = (model(&device), global_batch(&device));
    for (strategy, survivors) in [(Strategy::Ddp, 2..3), (Strategy::HybridShard, 2..4)] {
        let (model, batch) = (model.clone(), batch.clone());
        let states = on_ranks(4, move |comm| {
            let mut fsdp = Fsdp::new(drawn(&model).0, comm, config(strategy))?;
            let (rank, ranks) = fsdp.data_parallel();
            fsdp.train_step(&[batch.part(8 * rank / ranks..8 * (rank + 1) / ranks)], LR)?;
            Ok::<_, FsdpError>((fsdp.state(), fsdp.held_state().expect("the step has ended")))
        });
        let (mut saved, mut held) = (Kept::default(), Kept::default());
        states.iter().for_each(|(state, _)| saved.put(state));
        states[survivors].iter().for_each(|(_, state)| held.put(state));
        assert!(!saved.0.is_empty() && saved.0.values().flatten().flatten().all(|value| value.is_finite()));
        assert_eq!(held.0, saved.0, "{strategy:?}");
    }
}

/// Their collectives would not match.
#[test]
fn ranks_with_other_options_are_named_before_the_first_step() {
    let model = model(&Device::flex());
    let errors = on_ranks(3, move |comm| {
        let keeps = FsdpConfig { reshard_after_forward: false, ..config(Strategy::FullShard) };
        let config = if comm.rank() == 2 { keeps } else { config(Strategy::FullShard) };
        Ok::<_, FsdpError>(Fsdp::new(units(model.clone()), comm, config).err().map(|error| error.to_string()))
    });
    for error in errors {
        let error = error.expect("an error on every rank");
        assert!(error.contains("rank 2 would not run the same step as rank 0"), "{error}");
    }
}

#[test]
fn a_part_that_is_not_there_is_an_error() {
    let model = model(&Device::flex());
    let errors = on_ranks(1, move |comm| {
        let of_param = |len| PartValues { param: vec![0.0; len], optimizer: OptimizerState::default() };
        let progress = fsdp::Progress { optimizer_steps: 0, loss_scale: None };
        let load = |read: &mut fsdp::ReadPart| {
            let unloaded = Unloaded::new(drawn(&model).0, comm.clone(), config(Strategy::FullShard))?;
            Ok::<_, FsdpError>(unloaded.load_state(progress, read).err().map(|error| error.to_string()))
        };
        let missing = load(&mut |wanted| match wanted.name.contains("block 1") {
            true => Err(format!("{} is not there", wanted.name)),
            false => Ok(of_param(wanted.range.len())),
        })?;
        let short = load(&mut |_| Ok(of_param(1)))?;
        Ok::<_, FsdpError>([missing, short].map(Option::unwrap))
    });
    assert!(errors[0][0].contains("block 1.") && errors[0][0].contains("is not there"), "{errors:?}");
    assert!(errors[0][1].contains("1 values for a part of"), "{errors:?}");
}
