//! Pipeline stages, unequal shares of a batch, and copies, compared with one graph and with a single rank.

mod common;

use burn::module::Module;
use burn::nn::{Initializer, Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use common::{
    Batch, Curve, LR, Model, STEPS, STRATEGIES, WIDTH, all_train_as, config, global_batch, model, named_units,
    one_graph, units,
};
use fsdp::{
    ActivationCheckpointing, Fsdp, FsdpConfig, FsdpError, FusedAdamW, Optimizers, PipelineConfig, Prefetch, Schedule,
    Strategy, Units, Wrap,
};
use test_kit::{Values, moved, on_ranks};

/// Three ranks share eight sequences in micro-batches of at most three; one of them has only one micro-batch with a
/// weight.
#[test]
fn micro_batches_count_by_their_labels() {
    let device = Device::flex();
    let (model, batch) = (model(&device), global_batch(&device));
    let expected = one_graph(model.clone(), &batch);
    let shares = [[0..3, 3..4], [4..7, 0..1], [0..1, 7..8]];
    let weights = [[3.0, 1.0], [3.0, 0.0], [0.0, 1.0]];
    for strategy in [Strategy::Ddp, Strategy::Zero1, Strategy::ShardGradOp, Strategy::FullShard] {
        let (model, batch) = (model.clone(), batch.clone());
        let shares = shares.clone();
        let curves = on_ranks(3, move |comm| {
            let mut fsdp = Fsdp::new(units(model.clone()), comm, config(strategy))?;
            let (rank, _) = fsdp.data_parallel();
            let mine: Vec<Batch> = shares[rank].iter().map(|range| batch.part(range.clone())).collect();
            let step = |fsdp: &mut Fsdp<Batch>| fsdp.train_step_with(&mine, &weights[rank], LR, Vec::new, None);
            let steps = (0..STEPS).map(|_| step(&mut fsdp).map(|of| [of.loss, of.grad_norm, of.aux_loss]));
            steps.collect::<Result<Curve, FsdpError>>()
        });
        for curve in curves {
            for (found, expected) in curve.iter().zip(&expected) {
                for (found, expected) in found.iter().zip(expected) {
                    assert!((found - expected).abs() < 1e-5 * expected, "{strategy:?}: {found}, not {expected}");
                }
            }
        }
    }
}

/// Chunks of 5 calls, the first and the last of which use the same unit, over 2 to 5 stages, with each kind of
/// sharding.
#[test]
fn every_pipeline_trains_as_one_graph() {
    let device = Device::flex();
    let (model, batch) = (model(&device), global_batch(&device));
    let expected = one_graph(model.clone(), &batch);
    let mut table = vec![];
    let pipelines = [
        (Schedule::Gpipe, 2, 1),
        (Schedule::Gpipe, 4, 1),
        (Schedule::OneFOneB, 2, 1),
        (Schedule::OneFOneB, 3, 1),
        (Schedule::OneFOneB, 5, 1),
        (Schedule::Interleaved1F1B, 2, 2),
        (Schedule::Interleaved1F1B, 1, 5),
        (Schedule::ZeroBubble, 1, 1),
        (Schedule::ZeroBubble, 2, 1),
        (Schedule::ZeroBubble, 3, 1),
        (Schedule::ZeroBubble, 5, 1),
        (Schedule::ZbV, 1, 2),
        (Schedule::ZbV, 2, 2),
    ];
    for (schedule, stages, virtual_stages) in pipelines {
        for strategy in [Strategy::Ddp, Strategy::Zero1, Strategy::ShardGradOp, Strategy::FullShard] {
            for (ranks_per_stage, micro_batches) in [(1, 4), (1, 8), (2, 4), (2, 2)] {
                let pipeline = PipelineConfig { stages, schedule, virtual_stages, calls: vec![] };
                if pipeline.of(micro_batches).is_ok() && stages * ranks_per_stage <= 8 {
                    table.push((FsdpConfig { pipeline, ..config(strategy) }, stages * ranks_per_stage, micro_batches));
                }
            }
        }
    }
    let two = PipelineConfig { stages: 2, ..PipelineConfig::default() };
    let full = FsdpConfig { pipeline: two.clone(), ..config(Strategy::FullShard) };
    let hybrid = FsdpConfig { pipeline: two.clone(), ..config(Strategy::HybridShard) };
    let zero_bubble = PipelineConfig { schedule: Schedule::ZeroBubble, ..two.clone() };
    let split = FsdpConfig { pipeline: zero_bubble, ..full.clone() };
    let uneven = FsdpConfig { pipeline: PipelineConfig { calls: vec![1, 4], ..two }, ..full.clone() };
    for config in [
        FsdpConfig { activation_checkpointing: ActivationCheckpointing::Full, ..full.clone() },
        FsdpConfig { activation_checkpointing: ActivationCheckpointing::Every(2), ..full.clone() },
        FsdpConfig { activation_checkpointing: ActivationCheckpointing::Full, ..split.clone() },
        FsdpConfig { no_sync: Some(false), ..split.clone() },
        FsdpConfig { no_sync: Some(false), ..full.clone() },
        FsdpConfig { wrap: Wrap::Size(3000), ..full.clone() },
        FsdpConfig { wrap: Wrap::Size(3000), ..split.clone() },
        FsdpConfig { forward_prefetch: Prefetch::None, backward_prefetch: Prefetch::Post, ..full },
        uneven,
    ] {
        table.push((config, 4, 2));
    }
    table.push((hybrid, 8, 1));
    all_train_as(&expected, &model, &batch, &table);
}

#[test]
fn copies_that_are_not_the_same_are_found() {
    let device = Device::flex();
    let (model, batch) = (model(&device), global_batch(&device));
    let two = PipelineConfig { stages: 2, ..PipelineConfig::default() };
    let tied = FsdpConfig { pipeline: two, ..config(Strategy::FullShard) };
    // The rank whose copy is corrupted, the unit, and the two ranks that differ.
    for (config, ranks, spoilt, unit, expected) in [
        (
            config(Strategy::Ddp),
            3,
            2,
            1,
            Some("ranks 0 and 2, which hold copies of it (rank 2 differs from 2 that agree)"),
        ),
        (config(Strategy::HybridShard), 4, 0, 0, Some("unit ends is not the same on ranks 0 and 2")),
        (tied, 2, 1, 0, Some("unit ends is not the same on ranks 0 and 1")),
        (config(Strategy::FullShard), 4, 1, 1, None),
    ] {
        let (model, batch) = (model.clone(), batch.clone());
        let found = on_ranks(ranks, move |comm| {
            let rank = comm.rank();
            let (units, ..) = named_units(model.clone());
            let mut fsdp = Fsdp::new(units, comm, config.clone())?;
            fsdp.train_step(std::slice::from_ref(&batch), LR)?;
            let before = fsdp.state().copies;
            if rank == spoilt && unit == 0 {
                fsdp.add_to_parameter("ends.tied.weight", &[1e-7; 10 * WIDTH]);
            } else if rank == spoilt {
                fsdp.add_to_parameter("block 0.up.bias", &[1e-7; 40]);
            }
            Ok::<_, FsdpError>([before, fsdp.state().copies].map(fsdp::Copies::digests))
        });
        let compare = |i: usize| fsdp::compare_copies(found.iter().map(|of_rank| &of_rank[i][..]));
        assert!(compare(0).is_ok(), "they are the same, even read after the next change");
        match expected {
            Some(expected) => {
                let found = compare(1).unwrap_err().to_string();
                assert!(found.contains(expected), "{expected}: {found}");
            }
            None => assert!(found.iter().flatten().all(Vec::is_empty), "there are no copies"),
        }
    }
}

/// The range of sequences of each micro-batch.
const MICRO_BATCHES: [(usize, usize); 4] = [(0, 3), (3, 4), (4, 7), (7, 8)];

/// Returns the change of each parameter in each of three steps with micro-batches of unequal weight. The optimizer's
/// epsilon is so large that a step is proportional to the running mean of gradients, so an error in a gradient is
/// visible here, whatever the loss.
fn moves(
    model: &Model,
    batch: &Batch,
    all: &'static [(usize, usize)],
    config: &FsdpConfig,
    ranks: usize,
) -> Vec<Vec<f32>> {
    let (model, batch, config) = (model.clone(), batch.clone(), config.clone());
    let moves = on_ranks(ranks, move |comm| {
        let (units, ends, blocks) = named_units(model.clone());
        let adamw = FusedAdamW { epsilon: 1e3, weight_decay: 0.0, ..FusedAdamW::default() };
        let mut fsdp = Fsdp::new(
            units,
            comm,
            FsdpConfig { optimizers: Optimizers::new(adamw), clip_grad_norm: None, ..config.clone() },
        )?;
        let (rank, ranks) = fsdp.data_parallel();
        let each = all.len() / ranks;
        let mine = &all[rank * each..(rank + 1) * each];
        let batches: Vec<Batch> = mine.iter().map(|(from, to)| batch.part(*from..*to)).collect();
        let weights: Vec<f64> = mine.iter().map(|(from, to)| (to - from) as f64).collect();
        let parameters = |fsdp: &Fsdp<Batch>| {
            let mut values = Values::default();
            fsdp.gather(ends)?.visit(&mut values);
            blocks.iter().try_for_each(|block| fsdp.gather(*block).map(|block| block.visit(&mut values)))?;
            Ok::<_, FsdpError>(values.in_order())
        };
        let (mut before, mut moves) = (parameters(&fsdp)?, vec![]);
        for _ in 0..3 {
            fsdp.train_step_with(&batches, &weights, 1e3, Vec::new, None)?;
            let after = parameters(&fsdp)?;
            moves.push(moved(&before, &after).concat());
            before = after;
        }
        Ok::<_, FsdpError>(moves)
    });
    assert!(moves.iter().all(|of_rank| *of_rank == moves[0]), "every rank gathers the same");
    moves.into_iter().next().unwrap()
}

#[test]
fn every_parameter_moves_as_on_one_rank() {
    let device = Device::flex();
    let (model, batch) = (model(&device), global_batch(&device));
    let expected = moves(&model, &batch, &[(0, 8)], &config(Strategy::Ddp), 1);
    let pipeline =
        |stages, schedule, virtual_stages| PipelineConfig { stages, schedule, virtual_stages, calls: vec![] };
    let mut table = vec![(FsdpConfig::default().pipeline, Strategy::Block, 3)];
    for (pipeline, stages) in [
        (pipeline(1, Schedule::OneFOneB, 1), 1),
        (pipeline(2, Schedule::Gpipe, 1), 2),
        (pipeline(2, Schedule::OneFOneB, 1), 2),
        (pipeline(2, Schedule::Interleaved1F1B, 2), 2),
        (pipeline(3, Schedule::OneFOneB, 1), 3),
        (pipeline(5, Schedule::Gpipe, 1), 5),
        (pipeline(5, Schedule::OneFOneB, 1), 5),
        (pipeline(2, Schedule::ZeroBubble, 1), 2),
        (pipeline(5, Schedule::ZeroBubble, 1), 5),
        (pipeline(1, Schedule::ZbV, 2), 1),
        (pipeline(2, Schedule::ZbV, 2), 2),
    ] {
        for strategy in
            [Strategy::Ddp, Strategy::Zero1, Strategy::ShardGradOp, Strategy::FullShard, Strategy::HybridShard]
        {
            table.push((pipeline.clone(), strategy, stages * if strategy == Strategy::HybridShard { 4 } else { 2 }));
            table.push((pipeline.clone(), strategy, stages));
        }
    }
    let mut tried = 0;
    for (pipeline, strategy, ranks) in table {
        let config = FsdpConfig { pipeline: pipeline.clone(), ..config(strategy) };
        let micro_batches = MICRO_BATCHES.len() * pipeline.stages / ranks;
        if config.validate(ranks).is_err() || strategy != Strategy::Block && pipeline.of(micro_batches).is_err() {
            continue;
        }
        tried += 1;
        for (step, (found, expected)) in
            moves(&model, &batch, &MICRO_BATCHES, &config, ranks).iter().zip(&expected).enumerate()
        {
            let most = expected.iter().fold(0.0f32, |most, value| most.max(value.abs()));
            for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
                assert!(
                    (found - expected).abs() <= 1e-5 * most,
                    "{strategy:?} on {ranks} ranks, {pipeline:?}, step {step}: number {i} moved by {found}, not {expected}"
                );
            }
        }
    }
    assert!(tried > 50, "{tried}");
}

/// A module without parameters, which is called nonetheless.
#[derive(Module, Debug)]
struct Halve {
    #[module(skip)]
    by: f32,
}

#[test]
fn a_unit_without_parameters_is_called_and_compared_as_any_other() {
    let device = Device::flex();
    let linear = LinearConfig::new(4, 4).with_initializer(Initializer::Constant { value: 0.1 });
    let two = PipelineConfig { stages: 2, ..PipelineConfig::default() };
    let stages = FsdpConfig { pipeline: two, ..config(Strategy::FullShard) };
    let split = PipelineConfig { stages: 2, schedule: Schedule::ZeroBubble, ..PipelineConfig::default() };
    let split = FsdpConfig { pipeline: split, ..config(Strategy::Ddp) };
    let all = STRATEGIES.map(config).into_iter().chain([stages, split]);
    let losses: Vec<f64> = all
        .map(|config| {
            let (linear, device) = (linear.clone(), device.clone());
            let losses = on_ranks(4, move |comm| {
                let mut units = Units::<Tensor<3>>::new();
                let first = units.add("first", linear.init(&device));
                units.first(first, |linear: &Linear, x: &Tensor<3>| linear.forward(x.clone()));
                let halve = units.add("halve", Halve { by: 0.5 });
                units.then(halve, |halve: &Halve, x: Tensor<3>, _| x * halve.by);
                let last = units.add("last", linear.init(&device));
                units.last(last, |linear: &Linear, x: Tensor<3>, _| linear.forward(x).powi_scalar(2).mean());
                let mut fsdp = Fsdp::new(units, comm, config.clone())?;
                let batches = [Tensor::<3>::ones([1, 2, 4], &device), Tensor::<3>::ones([1, 2, 4], &device)];
                fsdp.train_step(&batches, LR)?;
                fsdp.train_step(&batches, LR).map(|report| report.loss)
            });
            losses[0]
        })
        .collect();
    assert!(losses.iter().all(|loss| (loss - losses[0]).abs() < 1e-6 * losses[0]), "{losses:?}");
}
