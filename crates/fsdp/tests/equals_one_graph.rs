//! Every strategy on any number of ranks matches one autodiff graph of the whole model on one device.

mod common;

use burn::tensor::Device;
use common::{
    Batch, CLIP, LR, STRATEGIES, all_train_as, config, global_batch, model, model_of, one_graph, sharded, units,
};
use fsdp::{
    ActivationCheckpointing, Category, FloatType, Fsdp, FsdpConfig, FsdpError, Layout, Precision, Prefetch, Strategy,
    Wrap,
};
use test_kit::on_ranks;

#[test]
fn every_strategy_on_any_number_of_ranks_trains_as_one_graph() {
    let device = Device::flex();
    let (model, batch) = (model(&device), global_batch(&device));
    let expected = one_graph(model.clone(), &batch);
    assert!(expected[0][1] > CLIP, "the test must clip");
    let mut table = vec![];
    for strategy in STRATEGIES {
        for activation_checkpointing in [ActivationCheckpointing::None, ActivationCheckpointing::Full] {
            for (ranks, micro_batches) in [(1, 1), (1, 4), (2, 1), (2, 2), (3, 1), (4, 1), (4, 2)] {
                let config = FsdpConfig { activation_checkpointing, ..config(strategy) };
                // Three ranks cannot share eight sequences evenly; under `block` they need not share them.
                let fits = ranks != 3 || strategy == Strategy::Block;
                if fits && config.validate(ranks).is_ok() {
                    table.push((config, ranks, micro_batches));
                }
            }
        }
    }
    all_train_as(&expected, &model, &batch, &table);
}

#[test]
fn every_policy_trains_as_one_graph() {
    let device = Device::flex();
    let (model, batch) = (model(&device), global_batch(&device));
    let expected = one_graph(model.clone(), &batch);
    let full = config(Strategy::FullShard);
    let policies = [
        FsdpConfig { wrap: Wrap::Size(1), ..full.clone() },
        FsdpConfig { wrap: Wrap::Size(2000), ..full.clone() },
        FsdpConfig { wrap: Wrap::Size(3000), activation_checkpointing: ActivationCheckpointing::Full, ..full.clone() },
        FsdpConfig { wrap: Wrap::Size(usize::MAX), ..full.clone() },
        FsdpConfig { reshard_after_forward: false, ..full.clone() },
        FsdpConfig { activation_checkpointing: ActivationCheckpointing::Every(2), ..full.clone() },
        FsdpConfig { activation_checkpointing: ActivationCheckpointing::Every(3), ..full.clone() },
        FsdpConfig { forward_prefetch: Prefetch::None, backward_prefetch: Prefetch::None, ..full.clone() },
        FsdpConfig { forward_prefetch: Prefetch::Post, backward_prefetch: Prefetch::Post, ..full.clone() },
        FsdpConfig { forward_prefetch: Prefetch::Post, backward_prefetch: Prefetch::None, ..config(Strategy::Block) },
        FsdpConfig { no_sync: Some(true), ..full.clone() },
        FsdpConfig { no_sync: Some(true), ..config(Strategy::ShardGradOp) },
        FsdpConfig { no_sync: Some(true), ..config(Strategy::HybridShard) },
        FsdpConfig { reshard_after_forward: false, ..config(Strategy::Block) },
    ];
    let table: Vec<_> = policies.into_iter().map(|config| (config, 4, 2)).collect();
    all_train_as(&expected, &model, &batch, &table);
}

/// These ranks compute in CPU memory, so nothing moves, but casts and sums are those of an offload.
#[test]
fn what_is_offloaded_trains_as_one_graph() {
    let device = Device::flex();
    let (model, batch) = (model(&device), global_batch(&device));
    let expected = one_graph(model.clone(), &batch);
    let offloaded = |strategy| FsdpConfig { cpu_offload: true, ..config(strategy) };
    let cases =
        STRATEGIES.into_iter().flat_map(|strategy| [(1, 4), (2, 2), (4, 2)].map(|(n, m)| (offloaded(strategy), n, m)));
    let table: Vec<_> = cases.filter(|(config, ranks, _)| config.validate(*ranks).is_ok()).collect();
    all_train_as(&expected, &model, &batch, &table);
}

#[test]
fn at_most_two_units_are_gathered_at_once_and_one_without_prefetch() {
    let device = Device::flex();
    let (model, batch) = (model(&device), global_batch(&device));
    for strategy in [Strategy::FullShard, Strategy::HybridShard, Strategy::Block] {
        for activation_checkpointing in [ActivationCheckpointing::None, ActivationCheckpointing::Full] {
            for (prefetch, units) in [(Prefetch::Pre, 2), (Prefetch::Post, 1), (Prefetch::None, 1)] {
                let config = FsdpConfig {
                    activation_checkpointing,
                    forward_prefetch: prefetch,
                    backward_prefetch: prefetch,
                    ..config(strategy)
                };
                let sizes = Layout::of(&model.blocks[0], 4).padded_len() * 4;
                for (_, memory) in sharded(&model, &batch, &config, 4, 2) {
                    let gathered = memory.peak[Category::Gathered];
                    assert!(gathered <= units * sizes, "{strategy:?} {prefetch:?}: {gathered} of units of {sizes}");
                    assert!(gathered > 0);
                }
            }
        }
    }
}

#[test]
fn bf16_trains_nearly_as_one_graph() {
    let device = Device::flex();
    let (model, batch) = (model(&device), global_batch(&device));
    let expected = one_graph(model.clone(), &batch);
    for reduce in [FloatType::Fp32, FloatType::Bf16] {
        for strategy in STRATEGIES {
            let precision = Precision { param: FloatType::Bf16, reduce };
            let config = FsdpConfig { precision, ..config(strategy) };
            for micro_batches in [1, 2] {
                let (curve, _) = &sharded(&model, &batch, &config, 4, micro_batches)[0];
                for (found, expected) in curve.iter().zip(&expected) {
                    assert!(
                        (found[0] - expected[0]).abs() < 0.02 * expected[0],
                        "{strategy:?}, {micro_batches} micro-batches: {found:?}, not {expected:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn an_overflow_of_fp16_changes_nothing_and_halves_the_scale() {
    let device = Device::flex();
    let (model, batch) = (model(&device), global_batch(&device));
    let precision = Precision { param: FloatType::Fp16, reduce: FloatType::Fp16 };
    for strategy in [Strategy::Ddp, Strategy::FullShard, Strategy::Block] {
        let (config, model, batch) = (FsdpConfig { precision, ..config(strategy) }, model.clone(), batch.clone());
        let reports = on_ranks(2, move |comm| {
            let mut fsdp = Fsdp::new(units(model.clone()), comm, config.clone())?;
            // With the initial scale of 65536, the gradients of this loss exceed 65504, the largest fp16 value.
            let large = Batch { x: batch.x.clone() * 3.0, target: batch.target.clone() * 100.0 };
            (0..20).map(|_| fsdp.train_step(std::slice::from_ref(&large), LR)).collect::<Result<Vec<_>, FsdpError>>()
        });
        let reports = &reports[0];
        assert!(reports[0].skipped, "the first step overflows");
        assert!(reports.iter().filter(|report| !report.skipped).count() >= 10, "a scale that fits is found");
        for two in reports.windows(2) {
            assert_eq!(two[0].skipped, two[0].loss == two[1].loss, "a skipped step changes nothing: {two:?}");
        }
        assert!(reports[19].loss < reports[0].loss);
    }
}

#[test]
fn ranks_that_were_given_different_models_or_batches_all_get_an_error() {
    let device = Device::flex();
    let (models, batch) = ([1, 2].map(|seed| model_of(&device, seed)), global_batch(&device));
    for strategy in [Strategy::Ddp, Strategy::FullShard] {
        let errors = |own_models: bool, batches: [usize; 2]| {
            let (models, batch) = (models.clone(), batch.clone());
            on_ranks(2, move |comm| {
                let rank = comm.rank();
                let model = models[if own_models { rank } else { 0 }].clone();
                let step = |mut fsdp: Fsdp<Batch>| fsdp.train_step(&vec![batch.clone(); batches[rank]], LR);
                let result = Fsdp::new(units(model), comm, config(strategy)).and_then(step);
                Ok::<_, FsdpError>(result.err().map(|error| error.to_string()).unwrap_or_default())
            })
        };
        let all_contain = |errors: Vec<String>, part: &str| {
            assert!(errors.iter().all(|error| error.contains(part)), "{errors:?}");
        };
        all_contain(errors(true, [1, 1]), "unit ends has not the same initial values");
        all_contain(errors(false, [0, 0]), "at least one micro-batch");
        all_contain(errors(false, [1, 2]), "the ranks between 1 and 2");
        assert_eq!(errors(false, [1, 1]), ["", ""], "there is nothing to refuse");
    }
}

#[test]
fn options_that_make_no_sense_together_are_refused() {
    let refused = |config: FsdpConfig, ranks, reason: &str| {
        let message = config.validate(ranks).unwrap_err().to_string();
        assert!(message.contains(reason), "{message}");
    };
    let hybrid = config(Strategy::HybridShard);
    refused(hybrid, 3, "2 replicas (dp_replicate) cannot share 3 ranks evenly");
    let replicas = |strategy, replicas| FsdpConfig { dp_replicate: Some(replicas), ..config(strategy) };
    refused(replicas(Strategy::Zero1, 4), 6, "4 replicas (dp_replicate) cannot share 6 ranks evenly");
    refused(replicas(Strategy::FullShard, 0), 4, "dp_replicate is 0: give at least 1");
    refused(replicas(Strategy::Ddp, 2), 4, "ddp, which has 4 copies");
    refused(replicas(Strategy::Block, 2), 4, "dp_replicate 2 with strategy block");
    assert!(replicas(Strategy::Ddp, 4).validate(4).is_ok());
    refused(FsdpConfig { wrap: Wrap::Size(5), ..config(Strategy::Block) }, 4, "wrap size:5 with strategy block");
    refused(FsdpConfig { no_sync: Some(true), ..config(Strategy::Block) }, 4, "no_sync with strategy block");
    refused(FsdpConfig { reshard_after_forward: false, ..config(Strategy::Zero1) }, 4, "never gathers");
    let every_0 = ActivationCheckpointing::Every(0);
    refused(FsdpConfig { activation_checkpointing: every_0, ..config(Strategy::Ddp) }, 4, "every:0");
}
