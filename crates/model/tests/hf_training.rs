//! Trainings of 15 steps against PyTorch: models of transformers, AdamW with weight decay and clipping
//! (`tests/reference/make_llama_fixtures.py`).

mod common;

use burn::tensor::{Device, Int, Tensor, TensorData};
use common::load;
use fsdp::{Fsdp, FsdpConfig, FsdpError, FusedAdamW, Optimizers};
use model::{Batch, ExpertLoads, MicroBatch, Parallel, StepContext, Targets, Training};
use safetensors::SafeTensors;
use std::collections::BTreeMap;
use std::fs;
use test_kit::{floats, on_ranks, reference, stored_floats, stored_ints};

const STEPS: usize = 15;
/// Of a loss, and of the share by which a norm differs. Measured: 1e-6 and 4e-7.
const TOLERANCE: f64 = 1e-5;

/// Loss and gradient norm of each step of a training over `ranks` ranks, each of which has some of the sequences.
fn trained(name: &'static str, ranks: usize) -> Vec<[f64; 2]> {
    let mut of_ranks = on_ranks(ranks, move |comm| {
        let device = Device::flex();
        let pretrained = load(&reference(name));
        let mut values = BTreeMap::new();
        pretrained.model.for_each_parameter(|path, _, value| {
            values.insert(path.to_string(), floats(value));
        });
        let (rank, config) = (
            comm.rank(),
            FsdpConfig {
                optimizers: Optimizers::new(FusedAdamW { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.1 }),
                clip_grad_norm: Some(1.0),
                ..FsdpConfig::default()
            },
        );
        let training = Training {
            parallel: Parallel::new(&config, &comm)?,
            loads: ExpertLoads::new(pretrained.moe.as_ref()),
            seed: 1,
            z_loss_coef: 0.0,
            mtp_loss_coef: 0.0,
        };
        let mut units = pretrained.config.units(pretrained.moe.as_ref(), &training, &device);
        units
            .initializer(move |name, _, runs| runs.iter().flat_map(|run| values[name][run.clone()].to_vec()).collect());
        let mut fsdp = Fsdp::new(units, comm, config)?;

        let file = fs::read(reference(name).join("training.safetensors")).unwrap();
        let tokens = SafeTensors::deserialize(&file).unwrap();
        let (tokens, shape) = stored_ints(&tokens, "tokens");
        let [b, length] = [shape[1], shape[2]];
        let step = |(i, rows): (usize, &[i64])| {
            let (t, mine) = (length - 1, rank * b / ranks..(rank + 1) * b / ranks);
            let part = |from: usize| {
                let rows = mine.clone().flat_map(|row| rows[row * length + from..][..t].to_vec()).collect::<Vec<_>>();
                Tensor::<2, Int>::from_data(TensorData::new(rows, [mine.len(), t]), &device)
            };
            let context = StepContext { seed: 1, step: i as u64, first_row: mine.start as u64 };
            let (inputs_bt, targets) = (part(0), Targets::all(part(1)));
            let batch = Batch { inputs_bt, targets, micro: MicroBatch::from(context), mtp: vec![] };
            let report = fsdp.train_step(&[batch], 1e-3)?;
            Ok([report.loss, report.grad_norm])
        };
        tokens.chunks(b * length).enumerate().map(step).collect::<Result<Vec<_>, FsdpError>>()
    });
    of_ranks.remove(0)
}

#[test]
fn trainings_have_the_losses_and_gradient_norms_of_pytorch() {
    for name in ["llama-scaled-rope", "qwen2", "qwen2-window", "qwen3", "mistral-window", "mixtral", "qwen3-moe"] {
        let file = fs::read(reference(name).join("training.safetensors")).unwrap();
        let expected = SafeTensors::deserialize(&file).unwrap();
        let [losses, norms] = ["losses", "grad_norms"]
            .map(|of| stored_floats(&expected, of).into_iter().map(f64::from).collect::<Vec<_>>());
        assert_eq!(losses.len(), STEPS);
        for ranks in [1, 2] {
            let mut worst = [0.0f64; 2];
            for (found, expected) in trained(name, ranks).iter().zip(losses.iter().zip(&norms)) {
                let of_step = [(found[0] - expected.0).abs(), (found[1] / expected.1 - 1.0).abs()];
                worst = [0, 1].map(|i| worst[i].max(of_step[i]));
            }
            println!(
                "{name} on {ranks} ranks: losses differ by {:.1e} at most, norms by a share of {:.1e}",
                worst[0], worst[1]
            );
            assert!(worst.iter().all(|worst| *worst <= TOLERANCE), "{name} on {ranks} ranks: {worst:?}");
        }
    }
}
