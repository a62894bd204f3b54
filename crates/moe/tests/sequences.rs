//! Checks that a layer whose sequences are spread over ranks routes like a single rank that has them all.

use burn::module::{Param, ParamId};
use burn::tensor::{Device, Tensor, TensorData};
use comm::{CommError, Communicator, ContextParallel, FirstError, SequenceRanks, TensorParallel};
use moe::{MoeConfig, MoeLayer, MoeOutput, NoiseKey, Overflow, ScoreFunc};
use test_kit::{assert_close, floats, ints, largest, on_ranks, random_tensor};

const NOISE: NoiseKey = NoiseKey { key: 9, first_row: 3 };

/// Makes a layer of tracked parameters, the same on every rank.
fn layer(config: &MoeConfig, d: usize) -> MoeLayer {
    let device = Device::flex().autodiff();
    let mut layer = config.init(d, &device);
    let (e, h) = (config.num_experts, config.moe_intermediate_size);
    fn param<const N: usize>(seed: u64, shape: [usize; N]) -> Param<Tensor<N>> {
        Param::initialized(ParamId::new(), random_tensor(seed, shape, &Device::flex().autodiff()).require_grad())
    }
    layer.router.proj.weight = param(1, [d, e]);
    layer.experts.gate_proj = param(2, [e, d, h]);
    layer.experts.up_proj = param(3, [e, d, h]);
    layer.experts.down_proj = param(4, [e, h, d]);
    layer
}

/// The process groups of a rank: tensor parallelism over adjacent ranks, context parallelism across these groups.
fn ranks(comm: &Communicator, tp: usize, first_error: &FirstError) -> Result<SequenceRanks, CommError> {
    let of_rows = TensorParallel::new(comm.split(comm.rank() / tp)?, first_error.clone());
    let of_context = ContextParallel::new(comm.split(comm.rank() % tp)?, first_error.clone());
    Ok(SequenceRanks { tp: of_rows, cp: of_context, padding: 0 })
}

#[derive(Debug, PartialEq)]
struct Found {
    y: Vec<f32>,
    aux: f32,
    choices: Vec<i32>,
    /// Gradients of the input and of the router.
    gradients: [Vec<f32>; 2],
}

/// Runs a training pass over the rows `x_bsd`, and the backward from `cotangent_bsd` and `times` the auxiliary loss.
fn run(
    layer: &MoeLayer,
    x_bsd: Tensor<3>,
    cotangent_bsd: Tensor<3>,
    ranks: &SequenceRanks,
    times: f64,
) -> (Found, MoeOutput) {
    let x_bsd = Tensor::from_inner(x_bsd).require_grad();
    let output = layer.forward_over(x_bsd.clone(), Some(NOISE), ranks);
    let aux = output.aux_loss.clone().unwrap();
    let loss = (output.y_btd.clone() * Tensor::from_inner(cotangent_bsd)).sum() + aux.clone() * times;
    let gradients = loss.backward();
    let found = Found {
        y: floats(output.y_btd.clone()),
        aux: aux.into_scalar::<f32>(),
        choices: ints(output.stats.assigned_be()),
        gradients: [
            floats(x_bsd.grad(&gradients).unwrap()),
            floats(layer.router.proj.weight.val().grad(&gradients).unwrap()),
        ],
    };
    (found, output)
}

#[track_caller]
fn assert_near(what: &str, found: &[f32], expected: &[f32]) {
    assert_close(what, found, expected, 1e-5 * largest(expected, 1e-3));
}

/// Compares `[b, t, d]` on a single rank with its parts on `cp` x `tp` ranks.
fn routes_as_alone(config: &MoeConfig, [b, t, d]: [usize; 3], [cp, tp]: [usize; 2]) {
    let device = Device::flex();
    let (x, cotangent) = (random_tensor(8, [b, t, d], &device), random_tensor(9, [b, t, d], &device));
    let own = layer(config, d);
    // Each context-parallel rank has the loss of the whole.
    let (expected, _) = run(&own, x.clone(), cotangent.clone(), &SequenceRanks::default(), cp as f64);
    let config = config.clone();
    let of_ranks = on_ranks(cp * tp, move |comm| {
        let first_error = FirstError::default();
        let ranks = ranks(&comm, tp, &first_error)?;
        let layer = layer(&config, d);
        let own = |x: &Tensor<3>| ranks.own(x.clone(), 1);
        let (found, output) = run(&layer, own(&x), own(&cotangent), &ranks, 1.0);
        let y = floats(ranks.gather(output.y_btd.inner()));
        let [d_x, d_router] = found.gradients.clone();
        let s = t / cp / tp;
        let d_x = floats(ranks.gather(Tensor::from_data(TensorData::new(d_x, [b, s, d]), &Device::flex())));
        first_error.check().map(|()| Found { y, gradients: [d_x, d_router], ..found })
    });
    let mut choices = vec![0; expected.choices.len()];
    let mut router = vec![0.0; expected.gradients[1].len()];
    for (rank, found) in of_ranks.iter().enumerate() {
        let what = |what: &str| format!("{what} on rank {rank} of cp {cp} x tp {tp}");
        // A token's choice and output do not depend on the layout: the same bits.
        assert_eq!(found.y, expected.y, "{}", what("y"));
        assert_near(&what("gradient of x"), &found.gradients[0], &expected.gradients[0]);
        choices.iter_mut().zip(&found.choices).for_each(|(all, own)| *all += own);
        router.iter_mut().zip(&found.gradients[1]).for_each(|(all, own)| *all += own);
    }
    assert_eq!(choices, expected.choices);
    let shares = of_ranks.iter().map(|found| found.aux).sum::<f32>();
    assert_near("aux", &[shares / cp as f32], &[expected.aux]);
    assert_near("gradient of the router", &router, &expected.gradients[1]);
}

#[test]
fn rows_over_ranks_are_routed_as_on_one() {
    let dropless = MoeConfig {
        num_experts: 6,
        top_k: 2,
        moe_intermediate_size: 5,
        score_func: ScoreFunc::Sigmoid,
        aux_loss_coef: 0.1,
        z_loss_coef: 0.01,
        ..MoeConfig::default()
    };
    let capped = MoeConfig { capacity_factor: Some(0.75), ..dropless.clone() };
    let rerouted = MoeConfig { overflow: Overflow::Reroute, ..capped.clone() };
    let noisy = MoeConfig { router_noise: 0.3, ..dropless.clone() };
    let all = MoeConfig { router_noise: 0.3, selection_bias: true, n_group: 3, topk_group: 2, ..rerouted.clone() };
    for config in [dropless, capped, rerouted, noisy, all] {
        for over in [[2, 1], [1, 2], [2, 2], [1, 3]] {
            routes_as_alone(&config, [3, 12, 8], over);
        }
    }
}

/// Two blocks of sequences, the first of which has 64 MB of scores.
#[test]
fn noise_is_that_of_a_tokens_place_in_whichever_block_its_sequence_is() {
    let noisy = MoeConfig {
        num_experts: 1024,
        top_k: 1,
        moe_intermediate_size: 1,
        router_noise: 0.3,
        aux_loss_coef: 0.1,
        ..MoeConfig::default()
    };
    routes_as_alone(&noisy, [150, 128, 2], [1, 2]);
}
