//! Optimizers of Burn on shards, groups of parameters, and checkpoints. What they compute is compared with Burn's own
//! `ModuleOptimizer` on one device, and with a run that was not interrupted.

#[path = "common/net.rs"]
mod net;

use burn::module::{Module, ParamGroup};
use burn::nn::LinearConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{
    AdaGradConfig, AdamConfig, AdamWConfig, AdanConfig, GradientsParams, LionConfig, ModuleOptimizer, RmsPropConfig,
    SgdConfig,
};
use burn::tensor::Device;
use fsdp::{AnyOptimizer, Fsdp, FsdpConfig, FsdpError, Optimizers, PipelineConfig, Strategy, Unloaded};
use net::{LR, Net, STEPS, Trained, assert_alike, batch, calls, configs, micro_batches, net, of, on_ranks_with};
use test_kit::{Values, on_ranks};

/// Trains on one device with Burn's own optimizer.
fn by_burn(net: Net, mut optimizer: ModuleOptimizer) -> Trained {
    let (mut net, calls, mut losses) = (net.train(), calls(), vec![]);
    for _ in 0..STEPS {
        let loss = calls.run(&net, &batch()).loss;
        losses.push(f64::from(loss.clone().into_scalar::<f32>()));
        let gradients = GradientsParams::from_grads(loss.backward(), &net);
        net = optimizer.step(LR, net, gradients);
    }
    (losses, Values::of(&net).by_path())
}

/// Every optimizer of Burn that steps element by element, for ranks and for one device.
fn optimizers() -> Vec<(AnyOptimizer, ModuleOptimizer)> {
    macro_rules! both {
        ($config:expr) => {
            ($config.build().into(), $config.init())
        };
    }
    vec![
        both!(AdamConfig::new()),
        both!(AdamWConfig::new().with_weight_decay(0.1).with_amsgrad(true)),
        both!(AdaGradConfig::new()),
        both!(AdanConfig::new()),
        both!(LionConfig::new()),
        both!(RmsPropConfig::new().with_centered(true)),
        both!(SgdConfig::new().with_momentum(Some(MomentumConfig::new()))),
        both!(SgdConfig::new()),
    ]
}

#[test]
fn optimizers_of_burn_step_shards_as_they_step_whole_parameters() {
    let net = net(&Device::flex(), 0.0);
    for (optimizer, whole) in optimizers() {
        let expected = by_burn(net.clone(), whole);
        let optimizers = Optimizers::new(optimizer);
        for (config, ranks) in configs() {
            let config = FsdpConfig { optimizers: optimizers.clone(), ..config };
            assert_alike(on_ranks_with(&net, &config, ranks), &expected);
        }
    }
}

#[test]
fn groups_of_parameters_have_their_own_optimizer_and_learning_rate() {
    let net = net(&Device::flex(), 0.0);
    let decayed = AdamWConfig::new().with_weight_decay(0.1);
    let fused = fused::FusedAdamW { beta1: 0.9, beta2: 0.999, epsilon: 1e-5, weight_decay: 0.1 };
    let sgd = SgdConfig::new();
    // Weights of the layers by AdamW; what is not a matrix without decay; the ends by SGD.
    let whole = decayed
        .init()
        .with_group(
            ParamGroup::from_any_predicates(vec!["bias", "norm"]),
            AdamWConfig::new().with_weight_decay(0.0).build(),
            None,
        )
        .with_group(ParamGroup::from_any_predicates(vec!["input", "output"]), sgd.build(), None);
    let expected = by_burn(net.clone(), whole);
    let is_end = |name: &str, _: &[usize]| name.starts_with("input") || name.starts_with("output");
    let burns = Optimizers::new(decayed.build())
        .with_group(|_, shape| shape.len() < 2, AdamWConfig::new().with_weight_decay(0.0).build(), 1.0)
        .with_group(is_end, sgd.build(), 1.0);
    let kilns = Optimizers::new(fused).with_group(is_end, sgd.build(), 1.0); // decays matrices only
    for (config, ranks) in configs() {
        for optimizers in [&burns, &kilns] {
            let config = FsdpConfig { optimizers: optimizers.clone(), ..config.clone() };
            assert_alike(on_ranks_with(&net, &config, ranks), &expected);
        }
    }
    let still = Optimizers::new(fused).with_group(|_, _| true, fused, 0.0);
    let (_, values) = on_ranks_with(&net, &FsdpConfig { optimizers: still, ..of(Strategy::FullShard) }, 2);
    assert_eq!(values, Values::of(&net).by_path(), "a learning rate of 0 moves something");
}

/// Trains `steps` steps on ranks, from the beginning or from the checkpoint of step 2 in `run`, and saves one there.
fn trained(net: &Net, config: &FsdpConfig, ranks: usize, run: &std::path::Path, resumes: bool) -> Trained {
    let (net, config, run) = (net.clone(), config.clone(), run.to_path_buf());
    let mut results = on_ranks(ranks, move |comm| {
        let units = calls().into_units(net.clone());
        let mut fsdp = match resumes {
            true => Unloaded::new(units, comm, config.clone())?.load(run.join("checkpoints/step-2"))?,
            false => Fsdp::new(units, comm, config.clone())?,
        };
        let mine = micro_batches(&fsdp);
        let mut losses = vec![];
        for step in if resumes { 2 } else { 0 }..STEPS {
            if step == 2 && !resumes {
                fsdp.save(&run, 2)?;
            }
            losses.push(fsdp.train_step(&mine, LR)?.loss);
        }
        let values = Values::of(&fsdp.gather_model(net.clone(), true)?.expect("it is kept"));
        Ok::<_, FsdpError>((losses, values.by_path()))
    });
    results.remove(0)
}

#[test]
fn a_checkpoint_resumes_on_other_ranks_with_the_state_of_any_optimizer() {
    let net = net(&Device::flex(), 0.0).freeze_group(ParamGroup::from_predicate("layers.1"));
    let is_end = |name: &str, _: &[usize]| name.starts_with("input") || name.starts_with("output");
    let mut all: Vec<Optimizers> = optimizers().into_iter().map(|(optimizer, _)| Optimizers::new(optimizer)).collect();
    all.push(Optimizers::default());
    all.push(Optimizers::default().with_group(is_end, AdamConfig::new().build(), 0.5));
    for optimizers in all {
        let with = |strategy| FsdpConfig { optimizers: optimizers.clone(), ..of(strategy) };
        let run = tempfile::tempdir().unwrap();
        let (losses, values) = trained(&net, &with(Strategy::FullShard), 4, run.path(), false);
        for (strategy, ranks) in
            [(Strategy::FullShard, 1), (Strategy::HybridShard, 4), (Strategy::Ddp, 2), (Strategy::Block, 2)]
        {
            let found = trained(&net, &with(strategy), ranks, run.path(), true);
            assert_alike(found, &(losses[2..].to_vec(), values.clone()));
        }
    }
}

#[test]
fn a_pipeline_whose_first_stage_is_frozen_resumes_with_its_optimizer() {
    let net = net(&Device::flex(), 0.0).freeze_group(ParamGroup::from_any_predicates(vec!["input", "layers.0"]));
    let optimizers = Optimizers::new(AdamConfig::new().build());
    let one_stage = FsdpConfig { optimizers, ..of(Strategy::FullShard) };
    let pipeline = PipelineConfig { stages: 2, ..PipelineConfig::default() };
    let two_stages = FsdpConfig { pipeline, ..one_stage.clone() };
    let run = tempfile::tempdir().unwrap();
    let (losses, values) = trained(&net, &two_stages, 2, run.path(), false);
    for (config, ranks) in [(two_stages, 2), (one_stage, 1)] {
        let found = trained(&net, &config, ranks, run.path(), true);
        assert_alike(found, &(losses[2..].to_vec(), values.clone()));
    }
}

#[test]
fn a_checkpoint_of_another_model_is_refused() {
    let net = net(&Device::flex(), 0.0);
    let run = tempfile::tempdir().unwrap();
    trained(&net, &of(Strategy::FullShard), 2, run.path(), false);
    let run = run.path().join("checkpoints/step-2");
    let messages = on_ranks(2, move |comm| {
        let mut other = net.clone();
        other.output = LinearConfig::new(16, 4).init(&Device::flex());
        let unloaded = Unloaded::new(calls().into_units(other), comm, of(Strategy::FullShard))?;
        Ok::<_, FsdpError>(unloaded.load(&run).expect_err("it is refused").to_string())
    });
    assert!(messages[0].contains("its parameter output.") && messages[0].contains("has shape"), "{}", messages[0]);
}

#[test]
fn a_checkpoint_of_other_optimizers_is_refused() {
    let net = net(&Device::flex(), 0.0);
    let config = |optimizers| FsdpConfig { optimizers, ..of(Strategy::FullShard) };
    let run = tempfile::tempdir().unwrap();
    trained(&net, &config(Optimizers::new(AdamConfig::new().build())), 2, run.path(), false);
    let (net, run) = (net.clone(), run.path().join("checkpoints/step-2"));
    let messages = on_ranks(2, move |comm| {
        let units = calls().into_units(net.clone());
        let loaded = Unloaded::new(units, comm, config(Optimizers::default()))?.load(&run);
        Ok::<_, FsdpError>(loaded.expect_err("it is refused").to_string())
    });
    assert!(messages[0].contains("saved by another optimizer: it has no exp_avg"), "{}", messages[0]);
}

#[test]
fn gradients_can_be_looked_at_and_changed_before_the_step() {
    let net = net(&Device::flex(), 0.0);
    let sgd = || Optimizers::new(SgdConfig::new().build());
    // Half the gradient at twice the learning rate is the same step.
    let expected = by_burn(net.clone(), SgdConfig::new().init());
    for (config, ranks) in configs() {
        let (net, config) = (net.clone(), FsdpConfig { optimizers: sgd(), ..config });
        let mut results = on_ranks(ranks, move |comm| {
            let mut fsdp = Fsdp::new(calls().into_units(net.clone()), comm, config.clone())?;
            let (mine, mut losses) = (micro_batches(&fsdp), vec![]);
            for _ in 0..STEPS {
                let mut seen = 0;
                let mut backward = fsdp.backward(&mine, &[1.0; 2])?;
                let norm = backward.grad_norm()?;
                backward.map_gradients(&mut |part, gradient| {
                    assert_eq!(gradient.dims(), [part.range.len()]);
                    seen += part.range.len();
                    gradient * 0.5
                })?;
                assert!(seen > 0);
                let report = backward.step(2.0 * LR)?;
                assert!((0.5 * norm / report.grad_norm - 1.0).abs() < 1e-6, "{norm} and {}", report.grad_norm);
                losses.push(report.loss);
            }
            // Without a step, gradients are discarded.
            drop(fsdp.backward(&mine, &[1.0; 2])?);
            Ok::<_, FsdpError>((losses, Values::of(&fsdp.gather_model(net.clone(), true)?.expect("kept")).by_path()))
        });
        assert_alike(results.remove(0), &expected);
    }
}
