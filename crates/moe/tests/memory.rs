//! Checks that no rank holds more rows of other ranks at once than configured, however uneven the choices are, and that
//! no rank holds the scores of others.

use burn::module::{Param, ParamId};
use burn::tensor::{Device, Tensor};
use comm::{CommError, Communicator, FirstError, SequenceRanks, TensorParallel};
use moe::{ExpertParallel, MoeConfig, Overflow};
use test_kit::memory::{Counting, held, largest_block, most_held, restart};
use test_kit::on_ranks;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const RANKS: usize = 4;
const D: usize = 32;
const H: usize = 64;
/// Rows per rank.
const ROWS: usize = 2048;
/// The most bytes that a pass allocates on all ranks together beyond those before it, and its largest block.
#[derive(Debug, Clone, Copy)]
struct Peak {
    bytes: usize,
    block: usize,
}

/// Measures the peak of a pass that all ranks run at the same time.
fn peak_of(comm: &Communicator, pass: impl FnOnce()) -> Result<Peak, CommError> {
    comm.barrier()?;
    let before = held();
    restart();
    comm.barrier()?;
    pass();
    comm.barrier()?;
    Ok(Peak { bytes: most_held() - before, block: largest_block() })
}

/// Measures a pass in training, with its backward, or in evaluation; all tokens choose the expert of rank 0.
fn peak(training: bool, max_rank_load: f64) -> Peak {
    let config = MoeConfig {
        num_experts: RANKS,
        top_k: 1,
        moe_intermediate_size: H,
        selection_bias: true,
        max_rank_load,
        ..MoeConfig::default()
    };
    let of_ranks = on_ranks(RANKS, move |comm| {
        let device = if training { Device::flex().autodiff() } else { Device::flex() };
        fn param<const N: usize>(value: Tensor<N>, training: bool) -> Param<Tensor<N>> {
            Param::initialized(ParamId::new(), if training { value.require_grad() } else { value })
        }
        let floats = |values: Vec<f32>| Tensor::<1>::from_floats(values.as_slice(), &device);
        let mut layer = config.init(D, &device);
        // Expert i prefers element i, and token i is element i % 4, so a quarter of the tokens prefers each expert.
        let likes = floats((0..D * RANKS).map(|i| f32::from(i / RANKS == i % RANKS)).collect());
        let tokens = floats((0..ROWS * D).map(|i| f32::from(i / D % RANKS == i % D)).collect());
        layer.router.proj.weight = param(likes.reshape([D, RANKS]), training);
        let bias = floats((0..RANKS).map(|expert| if expert == 0 { 10.0 } else { 0.0 }).collect());
        layer.router.bias = Some(Param::initialized(ParamId::new(), bias));
        let mine = |p, q| param(Tensor::<3>::full([1, p, q], 0.01, &device), training);
        (layer.experts.gate_proj, layer.experts.up_proj) = (mine(D, H), mine(D, H));
        layer.experts.down_proj = mine(H, D);
        let x_btd = tokens.reshape([1, ROWS, D]);
        let first_error = FirstError::default();
        let (spread, alone) = (ExpertParallel::new(comm.clone(), first_error.clone()), SequenceRanks::default());

        let peak = peak_of(&comm, || match training {
            true => drop(spread.forward(&layer, x_btd, None, &alone).y_btd.sum().backward()),
            false => drop(spread.evaluate(&layer, x_btd, &alone)),
        })?;
        first_error.check().map(|()| peak)
    });
    of_ranks[0]
}

fn of_the_rows_of_all_ranks_one_holds_a_bounded_part_at_once() {
    // The widest rows are those of the experts' hidden layer.
    let block = |rows: usize| rows * H * size_of::<f32>();
    for training in [true, false] {
        let at_once = peak(training, RANKS as f64);
        assert!(at_once.block >= block(RANKS * ROWS), "all rows come to one rank: {at_once:?}");
        for max_rank_load in [1.0, 2.0] {
            let in_rounds = peak(training, max_rank_load);
            println!("training {training}: {at_once:?}, {in_rounds:?} of at most {max_rank_load} times the mean");
            let most = max_rank_load as usize * ROWS;
            assert!(in_rounds.block <= block(most), "{in_rounds:?}");
            let saved = (RANKS * ROWS - most) * (3 * H + 2 * D) * size_of::<f32>();
            assert!(in_rounds.bytes + saved / 2 < at_once.bytes, "{in_rounds:?} and not {at_once:?}");
        }
    }
}

/// Measures the largest block of a training pass over `t` rows of each of two sequences, spread over the ranks.
fn block_of_routing(config: &MoeConfig, t: usize) -> usize {
    let config = config.clone();
    let of_ranks = on_ranks(RANKS, move |comm| {
        let device = Device::flex().autodiff();
        let mut layer = config.init(8, &device);
        let likes: Vec<f32> = (0..8 * config.num_experts).map(|i| ((i * i) % 17) as f32 / 17.0).collect();
        let likes = Tensor::<1>::from_floats(likes.as_slice(), &device).reshape([8, config.num_experts]);
        layer.router.proj.weight = Param::initialized(ParamId::new(), likes.require_grad());
        let first_error = FirstError::default();
        let tp = TensorParallel::new(comm.clone(), first_error.clone());
        let ranks = SequenceRanks { tp, ..SequenceRanks::default() };
        let rows: Vec<f32> = (0..2 * t / RANKS * 8).map(|i| ((i * 7 + comm.rank()) % 23) as f32 / 23.0).collect();
        let x_bsd = Tensor::<1>::from_floats(rows.as_slice(), &device).reshape([2, t / RANKS, 8]).require_grad();
        let peak = peak_of(&comm, || {
            let output = layer.forward_over(x_bsd, None, &ranks);
            drop((output.y_btd.sum() + output.aux_loss.expect("it has a coefficient")).backward());
        })?;
        first_error.check().map(|()| peak.block)
    });
    of_ranks[0]
}

fn no_rank_holds_scores_of_rows_that_it_does_not_have() {
    let balanced =
        MoeConfig { num_experts: 256, top_k: 2, moe_intermediate_size: 1, aux_loss_coef: 0.1, ..MoeConfig::default() };
    let capped = MoeConfig { capacity_factor: Some(1.0), ..balanced.clone() };
    let rerouted = MoeConfig { overflow: Overflow::Reroute, ..capped.clone() };
    for config in [balanced, capped, rerouted] {
        for t in [2048, 4096, 8192] {
            let (block, of_rank) = (block_of_routing(&config, t), 2 * t / RANKS * 256 * size_of::<f32>());
            println!("{t} rows: {block} bytes in a block, {of_rank} of scores of a rank's rows");
            assert!(block <= of_rank, "{block} bytes of {t} rows, {of_rank} of a rank's scores");
        }
    }
}

/// Both checks run in one test, because the allocator counts for the whole process.
#[test]
fn what_one_rank_holds_of_others_is_bounded() {
    of_the_rows_of_all_ranks_one_holds_a_bounded_part_at_once();
    no_rank_holds_scores_of_rows_that_it_does_not_have();
}
