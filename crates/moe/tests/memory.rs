//! However uneven the choices are, no rank holds more rows of others at once than it was told to.

use burn::module::{Param, ParamId};
use burn::tensor::{Device, Tensor};
use comm::{CommError, FirstError, SequenceRanks, run_ranks};
use moe::{ExpertParallel, MoeConfig, MoeLayer};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// Bytes that are allocated; the most of them, and the largest block, since that was last asked.
static NOW: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);
static BLOCK: AtomicUsize = AtomicUsize::new(0);

/// Counts for all ranks together: what one of them allocates another may free.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn add(bytes: usize) {
    let now = NOW.fetch_add(bytes, Relaxed) + bytes;
    MOST.fetch_max(now, Relaxed);
    BLOCK.fetch_max(bytes, Relaxed);
}

// SAFETY: every call goes to `System` as it came. Counting never allocates.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        add(new_size);
        NOW.fetch_sub(layout.size(), Relaxed);
        unsafe { System.realloc(block, layout, new_size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Relaxed);
        unsafe { System.dealloc(block, layout) }
    }
}

const RANKS: usize = 4;
const D: usize = 32;
const H: usize = 64;
/// Rows of a rank.
const ROWS: usize = 2048;
/// What a pass takes at most beyond what was there before, on all ranks together, and its largest block.
#[derive(Debug, Clone, Copy)]
struct Peak {
    bytes: usize,
    block: usize,
}

/// Of a pass in training, with its backward, or in evaluation. All tokens want the expert of rank 0 if that is the favourite.
fn peak(training: bool, favourite: bool, max_rank_load: f64) -> Peak {
    let config = MoeConfig {
        num_experts: RANKS,
        top_k: 1,
        moe_intermediate_size: H,
        selection_bias: true,
        max_rank_load,
        ..MoeConfig::default()
    };
    let of_ranks = run_ranks(vec![Device::flex(); RANKS], Duration::from_secs(60), move |comm| {
        let device = if training { Device::flex().autodiff() } else { Device::flex() };
        fn param<const N: usize>(value: Tensor<N>, training: bool) -> Param<Tensor<N>> {
            Param::initialized(ParamId::new(), if training { value.require_grad() } else { value })
        }
        let floats = |values: Vec<f32>| Tensor::<1>::from_floats(values.as_slice(), &device);
        let mut layer = MoeLayer::new(D, &config, &device);
        // Expert i likes element i, and token i is element i % 4: a fourth of them likes each expert.
        let likes = floats((0..D * RANKS).map(|i| f32::from(i / RANKS == i % RANKS)).collect());
        let tokens = floats((0..ROWS * D).map(|i| f32::from(i / D % RANKS == i % D)).collect());
        layer.router.proj.weight = param(likes.reshape([D, RANKS]), training);
        let bias = floats((0..RANKS).map(|expert| if favourite && expert == 0 { 10.0 } else { 0.0 }).collect());
        layer.router.bias = Some(Param::initialized(ParamId::new(), bias));
        let mine = |p, q| param(Tensor::<3>::full([1, p, q], 0.01, &device), training);
        (layer.experts.gate_proj, layer.experts.up_proj) = (mine(D, H), mine(D, H));
        layer.experts.down_proj = mine(H, D);
        let x_btd = tokens.reshape([1, ROWS, D]);
        let first_error = FirstError::default();
        let (spread, alone) = (ExpertParallel::new(comm.clone(), first_error.clone()), SequenceRanks::default());

        comm.barrier()?;
        let before = NOW.load(Relaxed);
        MOST.store(before, Relaxed);
        BLOCK.store(0, Relaxed);
        comm.barrier()?;
        match training {
            true => drop(spread.forward(&layer, x_btd, None, &alone).y_btd.sum().backward()),
            false => drop(spread.evaluate(&layer, x_btd, &alone)),
        }
        comm.barrier()?;
        let peak = Peak { bytes: MOST.load(Relaxed) - before, block: BLOCK.load(Relaxed) };
        first_error.check().map(|()| peak)
    });
    of_ranks.unwrap_or_else(|failure: comm::RankFailure<CommError>| panic!("{failure}"))[0]
}

#[test]
fn of_the_rows_of_all_ranks_one_holds_a_bounded_part_at_once() {
    // The widest of what there is a row of.
    let block = |rows: usize| rows * H * size_of::<f32>();
    for training in [true, false] {
        let at_once = peak(training, true, RANKS as f64);
        assert!(at_once.block >= block(RANKS * ROWS), "all rows come to one rank: {at_once:?}");
        for max_rank_load in [1.0, 2.0] {
            let in_rounds = peak(training, true, max_rank_load);
            println!("training {training}: {at_once:?}, {in_rounds:?} of at most {max_rank_load} times the mean");
            let most = max_rank_load as usize * ROWS;
            assert!(in_rounds.block <= block(most), "{in_rounds:?}");
            let saved = (RANKS * ROWS - most) * (3 * H + 2 * D) * size_of::<f32>();
            assert!(in_rounds.bytes + saved / 2 < at_once.bytes, "{in_rounds:?} and not {at_once:?}");
        }
    }
}
