//! Checks that experts spread over ranks compute the same as the local layer.

use burn::module::{Param, ParamId};
use burn::tensor::{Device, Tensor};
use comm::{CommError, FirstError, SequenceRanks, run_ranks};
use moe::{ExpertParallel, MoeConfig, MoeLayer};
use std::time::Duration;
use test_kit::{assert_close, floats, largest, on_ranks, random_tensor};

const D: usize = 8;
const T: usize = 5;
const TIMEOUT: Duration = Duration::from_secs(60);

fn config() -> MoeConfig {
    MoeConfig {
        num_experts: 6,
        top_k: 2,
        moe_intermediate_size: 12,
        n_shared_experts: 1,
        selection_bias: true,
        aux_loss_coef: 0.1,
        ..MoeConfig::default()
    }
}

/// Makes a layer of tracked parameters, the same on every rank; every token chooses `favourite`.
fn layer(config: &MoeConfig, favourite: Option<usize>) -> MoeLayer {
    let device = Device::flex().autodiff();
    let mut layer = config.init(D, &device);
    let (e, h) = (config.num_experts, config.moe_intermediate_size);
    fn param<const N: usize>(seed: u64, shape: [usize; N]) -> Param<Tensor<N>> {
        Param::initialized(ParamId::new(), random_tensor(seed, shape, &Device::flex().autodiff()).require_grad())
    }
    layer.router.proj.weight = param(1, [D, e]);
    layer.experts.gate_proj = param(2, [e, D, h]);
    layer.experts.up_proj = param(3, [e, D, h]);
    layer.experts.down_proj = param(4, [e, h, D]);
    if let Some(shared) = &mut layer.shared_experts {
        shared.gate_proj.weight = param(5, [D, h]);
        shared.up_proj.weight = param(6, [D, h]);
        shared.down_proj.weight = param(7, [h, D]);
    }
    let mut bias = vec![0.0f32; e];
    if let Some(favourite) = favourite {
        bias[favourite] = 10.0;
    }
    let bias = Tensor::<1>::from_floats(bias.as_slice(), &device);
    layer.router.bias = config.selection_bias.then(|| Param::initialized(ParamId::new(), bias));
    layer
}

/// Output, and gradients of the input, the router and the three matrices of the experts.
#[derive(Debug)]
struct Found {
    y: Vec<f32>,
    gradients: [Vec<f32>; 5],
}

/// Runs the sequences `from..to` of the global batch of `b` through `forward`, and the backward from a fixed cotangent.
fn run(layer: &MoeLayer, b: usize, from: usize, to: usize, forward: impl FnOnce(Tensor<3>) -> Tensor<3>) -> Found {
    let device = Device::flex().autodiff();
    let of_batch = |seed| random_tensor::<3>(seed, [b, T, D], &Device::flex()).slice([from..to, 0..T, 0..D]);
    let x_btd = Tensor::<3>::from_data(of_batch(8).into_data(), &device).require_grad();
    let y_btd = forward(x_btd.clone());
    let cotangent = Tensor::<3>::from_data(of_batch(9).into_data(), &device);
    let gradients = (y_btd.clone() * cotangent).sum().backward();
    let experts = &layer.experts;
    Found {
        y: floats(y_btd),
        gradients: [
            x_btd.grad(&gradients).map(floats).unwrap_or_default(),
            layer.router.proj.weight.val().grad(&gradients).map(floats).unwrap_or_default(),
            experts.gate_proj.val().grad(&gradients).map(floats).unwrap_or_default(),
            experts.up_proj.val().grad(&gradients).map(floats).unwrap_or_default(),
            experts.down_proj.val().grad(&gradients).map(floats).unwrap_or_default(),
        ],
    }
}

#[track_caller]
fn assert_near(what: &str, found: &[f32], expected: &[f32]) {
    assert_close(what, found, expected, 1e-5 * largest(expected, 1.0));
}

/// Reduces a layer to the experts of a rank.
fn keep_experts(layer: &mut MoeLayer, rank: usize, ranks: usize) {
    let each = layer.experts.gate_proj.dims()[0] / ranks;
    for weight in [&mut layer.experts.gate_proj, &mut layer.experts.up_proj, &mut layer.experts.down_proj] {
        let part = weight.val().inner().narrow(0, rank * each, each);
        *weight = Param::initialized(ParamId::new(), Tensor::from_inner(part).require_grad());
    }
}

/// `shares` is the number of sequences of each rank.
fn equals_the_local_layer(config: &MoeConfig, favourite: Option<usize>, shares: &[usize]) {
    let b = shares.iter().sum();
    let local = layer(config, favourite);
    let expected = run(&local, b, 0, b, |x_btd| local.forward(x_btd, None).y_btd);

    let (config, of_rank) = (config.clone(), shares.to_vec());
    let found = on_ranks(shares.len(), move |comm| {
        let rank = comm.rank();
        let from = of_rank[..rank].iter().sum();
        let first_error = FirstError::default();
        let spread = ExpertParallel::new(comm.clone(), first_error.clone());
        let mut layer = layer(&config, favourite);
        keep_experts(&mut layer, rank, of_rank.len());
        let found = run(&layer, b, from, from + of_rank[rank], |x_btd| {
            spread.forward(&layer, x_btd, None, &SequenceRanks::default()).y_btd
        });
        first_error.check().map(|()| found)
    });

    let joined = |of: fn(&Found) -> &Vec<f32>| found.iter().flat_map(|found| of(found).clone()).collect::<Vec<f32>>();
    // A row has the same bits wherever it is computed.
    assert_eq!(joined(|found| &found.y), expected.y, "y on {shares:?}");
    assert_eq!(joined(|found| &found.gradients[0]), expected.gradients[0], "gradient of x on {shares:?}");
    // Each rank's part of the batch contributes to the router's gradient; an expert's gradient is complete on its rank.
    let zeros = vec![0.0; expected.gradients[1].len()];
    let router = found.iter().fold(zeros, |sum, found| {
        // A rank without tokens has no gradient.
        let own = found.gradients[1].iter().copied().chain(std::iter::repeat(0.0));
        sum.iter().zip(own).map(|(sum, own)| sum + own).collect()
    });
    assert_near("gradient of the router", &router, &expected.gradients[1]);
    assert_near("gradient of gate", &joined(|found| &found.gradients[2]), &expected.gradients[2]);
    assert_near("gradient of up", &joined(|found| &found.gradients[3]), &expected.gradients[3]);
    assert_near("gradient of down", &joined(|found| &found.gradients[4]), &expected.gradients[4]);
}

#[test]
fn experts_on_many_ranks_equal_the_local_layer() {
    for shares in [&[3][..], &[2, 1], &[1, 1, 2], &[1; 6]] {
        equals_the_local_layer(&config(), None, shares);
    }
}

#[test]
fn a_rank_may_have_no_tokens_and_an_expert_all_of_them() {
    equals_the_local_layer(&config(), None, &[2, 0, 1]);
    for favourite in [0, 5] {
        let top_1 = MoeConfig { top_k: 1, ..config() };
        equals_the_local_layer(&top_1, Some(favourite), &[1, 2]);
        equals_the_local_layer(&top_1, Some(favourite), &[2, 0, 1]);
    }
}

#[test]
fn capacity_is_counted_in_sequences_on_any_number_of_ranks() {
    let limited = MoeConfig { capacity_factor: Some(0.5), ..config() };
    equals_the_local_layer(&limited, None, &[2, 1]);
    equals_the_local_layer(&MoeConfig { capacity_factor: Some(1e-9), ..config() }, None, &[1, 1]);
}

/// One rank would get all rows, but takes at most the mean at once.
#[test]
fn rows_that_go_in_rounds_become_the_same() {
    for max_rank_load in [1.0, 1.3] {
        let skewed = MoeConfig { max_rank_load, ..config() };
        for favourite in [0, 3, 5] {
            for shares in [&[2, 1][..], &[2, 0, 1], &[1; 6]] {
                equals_the_local_layer(&MoeConfig { top_k: 1, ..skewed.clone() }, Some(favourite), shares);
                equals_the_local_layer(&skewed, Some(favourite), shares);
            }
        }
        // In a layer with a capacity, some rows are unfilled.
        let limited = MoeConfig { capacity_factor: Some(1.5), ..skewed.clone() };
        equals_the_local_layer(&limited, Some(0), &[2, 0, 1]);
    }
}

#[test]
fn a_lost_rank_is_a_failure_that_is_kept_in_forward_and_backward() {
    // With a favorite expert, the rows go in rounds.
    for (lost_in_backward, favourite) in [(false, None), (true, None), (false, Some(0)), (true, Some(0))] {
        let found = run_ranks(vec![Device::flex(); 2], TIMEOUT, move |comm| {
            let rank = comm.rank();
            let first_error = FirstError::default();
            let spread = ExpertParallel::new(comm.clone(), first_error.clone());
            let skewed = MoeConfig { top_k: 1, max_rank_load: 1.0, ..config() };
            let config = if favourite.is_some() { skewed } else { config() };
            let mut layer = layer(&config, favourite);
            keep_experts(&mut layer, rank, 2);
            if rank == 1 && !lost_in_backward {
                return Err(CommError::Engine("it is lost".into()));
            }
            let device = Device::flex().autodiff();
            let x_btd = Tensor::<3>::ones([1, T, D], &device).require_grad();
            let y_btd = spread.forward(&layer, x_btd.clone(), None, &SequenceRanks::default()).y_btd;
            if rank == 1 {
                return Err(CommError::Engine("it is lost".into()));
            }
            let gradients = y_btd.sum().backward();
            assert_eq!(x_btd.grad(&gradients).unwrap().dims(), [1, T, D]);
            let error = first_error.check().unwrap_err().to_string();
            assert!(error.contains("rank 1"), "{error}");
            first_error.check()
        });
        let message = found.unwrap_err().to_string();
        assert!(message.contains("rank 1") && message.contains("it is lost"), "{message}");
    }
}
