//! Expert parallelism: every parameter moves as on one rank, wherever the experts are, and a lost rank ends the run.

use burn::module::Module;
use burn::nn::Embedding;
use burn::tensor::{Device, Int, Tensor, TensorData};
use comm::{Axis, Communicator, Mesh, RankFailure, TensorParallel, run_ranks};
use fsdp::{
    ActivationCheckpointing, Category, FloatType, Fsdp, FsdpConfig, FsdpError, FusedAdamW, Optimizers, Part,
    PipelineConfig, Precision, Schedule, Strategy, UnitId, Units, Wrap,
};
use model::deepseek::{Block, Head};
use model::{DeepSeek, DeepSeekConfig, Parallel, StepContext, Targets};
use moe::{ExpertParallel, Experts, MoeConfig, ScoreFunc};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use test_kit::{Random, Values, assert_moves, moved, on_ranks};

const T: usize = 6;
const VOCAB: usize = 11;
/// Resolution of a move, which is the difference of numbers below 1.
const RESOLUTION: f32 = 6e-8;
const TIMEOUT: Duration = Duration::from_secs(60);
const FAULT: &str = "a fault that was put there";

/// Sequences of each micro-batch, in order.
const MICRO_BATCHES: [Range<usize>; 4] = [0..3, 3..4, 4..7, 7..8];

struct Batch {
    tokens_bt: Tensor<2, Int>,
    step: StepContext,
}

impl Batch {
    /// The batch of these sequences of the global batch; each token is also the target of the one before.
    fn of(rows: &Range<usize>) -> Self {
        let token = |i: usize| ((i * i + 3 * i) % VOCAB) as i64;
        let tokens: Vec<i64> = (rows.start * T..rows.end * T).map(token).collect();
        let tokens_bt = Tensor::from_data(TensorData::new(tokens, [rows.len(), T]), &Device::flex());
        Self { tokens_bt, step: StepContext { seed: 1, step: 0, first_row: rows.start as u64 } }
    }
}

/// A model, the expert that every token is sent to (`None` for the router's choice), and the layout.
#[derive(Debug, Clone)]
struct Case {
    moe: MoeConfig,
    favourite: Option<usize>,
    config: FsdpConfig,
    ranks: usize,
    /// A rank that panics after this many block calls.
    fault: Option<(usize, usize)>,
}

struct Built {
    fsdp: Fsdp<Batch>,
    embed: UnitId<Embedding>,
    blocks: Vec<UnitId<Block>>,
    head: UnitId<Head>,
}

fn shape() -> DeepSeekConfig {
    DeepSeekConfig {
        vocab_size: VOCAB,
        hidden_size: 16,
        num_hidden_layers: 3,
        first_k_dense_replace: 1,
        intermediate_size: 24,
        num_attention_heads: 2,
        q_lora_rank: None,
        kv_lora_rank: 8,
        qk_nope_head_dim: 4,
        qk_rope_head_dim: 4,
        v_head_dim: 4,
        max_position_embeddings: T,
        ..DeepSeekConfig::default()
    }
}

fn moe() -> MoeConfig {
    MoeConfig {
        num_experts: 4,
        top_k: 2,
        moe_intermediate_size: 12,
        n_shared_experts: 1,
        aux_loss_coef: 0.1,
        capacity_factor: Some(1.0),
        ..MoeConfig::default()
    }
}

fn v3() -> MoeConfig {
    MoeConfig {
        score_func: ScoreFunc::Sigmoid,
        selection_bias: true,
        capacity_factor: None,
        aux_loss_coef: 0.0,
        ..moe()
    }
}

impl Case {
    fn new(moe: MoeConfig, config: FsdpConfig, ranks: usize) -> Self {
        Self { moe, favourite: None, config, ranks, fault: None }
    }

    fn build(&self, comm: Communicator) -> Result<Built, FsdpError> {
        let device = Device::flex();
        let mut parallel = Parallel::default();
        let mut units = Units::new();
        if self.config.ep > 1 {
            let mesh = Mesh::new(comm.clone(), self.config.mesh(comm.world_size())?)?;
            units.experts(Experts::hold);
            units.collectives(parallel.first_error.clone());
            parallel.experts = Some(ExpertParallel::new(mesh.over(&[Axis::Ep])?, parallel.first_error.clone()));
        }
        units.keep_fp32(|name| name.ends_with("router.bias"));
        let (initial, favourite) = (DeepSeek::initial(&shape(), &self.moe, 7), self.favourite);
        units.initializer(move |name, dims, runs| match favourite {
            Some(expert) if name.ends_with("router.bias") => {
                runs.iter().cloned().flatten().map(|i| if i == expert { 10.0 } else { 0.0 }).collect()
            }
            // Larger than usual, so that experts differ.
            _ => {
                initial.values(name, runs).into_iter().map(|value| if dims > 1 { 5.0 * value } else { value }).collect()
            }
        });
        let model = DeepSeek::new(&shape(), &self.moe, &device);
        let (rank, fault, calls) = (comm.rank(), self.fault, Arc::new(AtomicUsize::new(0)));
        let embed = units.add("embed", model.embed);
        units.first(embed, |table, batch: &Batch| fused::embedding(table.weight.val(), batch.tokens_bt.clone()));
        let mut blocks = vec![];
        for (i, block) in model.blocks.into_iter().enumerate() {
            let block = units.add(format!("blocks.{i}"), block);
            let (parallel, calls) = (parallel.clone(), calls.clone());
            units.then(block, move |block: &Block, x_btd, batch: &Batch| {
                if fault == Some((rank, calls.fetch_add(1, Ordering::Relaxed))) {
                    std::panic::panic_any(FAULT);
                }
                let output = block.forward_over(x_btd, &batch.step.into(), &parallel);
                (output.x_btd, output.aux_loss)
            });
            blocks.push(block);
        }
        let head = units.add("head", model.head);
        units.last(head, |head, x_btd, batch| {
            head.losses(x_btd, Targets::all(batch.tokens_bt.clone()), 0.0, &TensorParallel::default()).cross_entropy
        });
        Ok(Built { fsdp: Fsdp::new(units, comm, self.config.clone())?, embed, blocks, head })
    }

    /// Makes three steps with micro-batches of unequal weight. Returns the move of each parameter in each step, and the
    /// gradient norms.
    ///
    /// The optimizer's epsilon is so large that a step is the running mean of gradients times a constant, so an error
    /// in a gradient shows up whatever the loss does.
    fn moves(&self) -> (Vec<Vec<Vec<f32>>>, Vec<f64>) {
        let adamw = FusedAdamW { epsilon: 1e3, weight_decay: 0.0, ..FusedAdamW::default() };
        let case = Self {
            config: FsdpConfig { optimizers: Optimizers::new(adamw), clip_grad_norm: None, ..self.config.clone() },
            ..self.clone()
        };
        let of_ranks = on_ranks(self.ranks, move |comm| {
            let mut built = case.build(comm)?;
            let (rank, ranks) = built.fsdp.data_parallel();
            let each = MICRO_BATCHES.len() / ranks;
            let mine = &MICRO_BATCHES[rank * each..(rank + 1) * each];
            let batches: Vec<Batch> = mine.iter().map(Batch::of).collect();
            let weights: Vec<f64> = mine.iter().map(|rows| rows.len() as f64).collect();
            let (mut before, mut moves, mut norms) = (built.parameters()?, vec![], vec![]);
            for _ in 0..3 {
                norms.push(built.fsdp.train_step_with(&batches, &weights, 1e3, Vec::new, None)?.grad_norm);
                let after = built.parameters()?;
                moves.push(moved(&before, &after));
                before = after;
            }
            Ok::<_, FsdpError>(((moves, norms), built.fsdp.state().copies.digests()))
        });
        let (of_ranks, digests): (Vec<_>, Vec<_>) = of_ranks.into_iter().unzip();
        fsdp::compare_copies(digests.iter().map(Vec::as_slice)).unwrap();
        assert!(of_ranks.iter().all(|of_rank| *of_rank == of_ranks[0]), "every rank gathers the same");
        of_ranks.into_iter().next().unwrap()
    }

    fn moves_as_on_one_rank(&self, (moves, norms): &(Vec<Vec<Vec<f32>>>, Vec<f64>)) {
        let FsdpConfig { strategy, ep, pipeline, .. } = &self.config;
        let which = format!("{strategy:?} of {} ranks, ep {ep}, pp {}", self.ranks, pipeline.stages);
        let (found, found_norms) = self.moves();
        for (found, expected) in found_norms.iter().zip(norms) {
            assert!((found - expected).abs() < 1e-5 * expected, "{which}: norm {found}, not {expected}");
        }
        assert_moves(&which, &found, moves, RESOLUTION);
    }
}

impl Built {
    /// All parameters, gathered.
    fn parameters(&self) -> Result<Vec<Vec<f32>>, FsdpError> {
        let mut values = Values::default();
        self.fsdp.gather(self.embed)?.visit(&mut values);
        self.blocks.iter().try_for_each(|block| self.fsdp.gather(*block).map(|block| block.visit(&mut values)))?;
        self.fsdp.gather(self.head)?.visit(&mut values);
        Ok(values.in_order())
    }
}

fn config(strategy: Strategy, stages: usize, ep: usize) -> FsdpConfig {
    let schedule = if stages == 2 { Schedule::Gpipe } else { Schedule::OneFOneB };
    FsdpConfig {
        strategy,
        ep,
        pipeline: PipelineConfig { stages, schedule, ..PipelineConfig::default() },
        ..FsdpConfig::default()
    }
}

const STRATEGIES: [Strategy; 5] =
    [Strategy::Ddp, Strategy::Zero1, Strategy::ShardGradOp, Strategy::FullShard, Strategy::HybridShard];

#[test]
fn every_parameter_moves_as_on_one_rank_wherever_experts_are() {
    for moe in [moe(), v3()] {
        let alone = Case::new(moe.clone(), config(Strategy::Ddp, 1, 1), 1).moves();
        let mut tried = 0;
        for strategy in STRATEGIES {
            for (stages, ep, ranks) in [(1, 2, 2), (1, 2, 4), (1, 4, 4), (2, 2, 4), (2, 2, 8), (2, 4, 8), (5, 2, 10)] {
                let config = config(strategy, stages, ep);
                if config.validate(ranks).is_ok() {
                    tried += 1;
                    Case::new(moe.clone(), config, ranks).moves_as_on_one_rank(&alone);
                }
            }
        }
        assert!(tried >= 30, "{tried}");
        let full_shard = |stages| config(Strategy::FullShard, stages, 2);
        let scheduled = |schedule, virtual_stages| {
            let pipeline = PipelineConfig { stages: 2, schedule, virtual_stages, calls: vec![] };
            FsdpConfig { pipeline, ..full_shard(2) }
        };
        for config in [
            FsdpConfig { activation_checkpointing: ActivationCheckpointing::Full, ..full_shard(1) },
            FsdpConfig { no_sync: Some(true), ..full_shard(1) },
            FsdpConfig { wrap: Wrap::Size(2000), ..full_shard(1) },
            FsdpConfig { reshard_after_forward: false, ..full_shard(1) },
            scheduled(Schedule::ZeroBubble, 1),
            scheduled(Schedule::ZbV, 2),
            FsdpConfig { strategy: Strategy::Zero1, ..scheduled(Schedule::ZeroBubble, 1) },
        ] {
            Case::new(moe.clone(), config, 4).moves_as_on_one_rank(&alone);
        }
    }
}

#[test]
fn experts_without_rows_get_gradients_of_zero_and_their_copies_stay_the_same() {
    for favourite in [0, 3] {
        let moe = MoeConfig { top_k: 1, ..v3() };
        let favoured = |config, ranks| Case { favourite: Some(favourite), ..Case::new(moe.clone(), config, ranks) };
        let alone = favoured(config(Strategy::Ddp, 1, 1), 1).moves();
        for strategy in STRATEGIES {
            for (ep, ranks) in [(2, 4), (4, 4)] {
                if config(strategy, 1, ep).validate(ranks).is_ok() {
                    favoured(config(strategy, 1, ep), ranks).moves_as_on_one_rank(&alone);
                }
            }
        }
    }
}

/// One rank receives all rows, but accepts no more than the mean at once.
#[test]
fn every_parameter_moves_as_on_one_rank_where_rows_go_in_rounds() {
    let moe = MoeConfig { max_rank_load: 1.0, ..v3() };
    let favoured = |config, ranks| Case { favourite: Some(3), ..Case::new(moe.clone(), config, ranks) };
    let alone = favoured(config(Strategy::Ddp, 1, 1), 1).moves();
    let full_shard = config(Strategy::FullShard, 1, 2);
    let zero_bubble = PipelineConfig { stages: 2, schedule: Schedule::ZeroBubble, ..PipelineConfig::default() };
    for (config, ranks) in [
        (full_shard.clone(), 4),
        (FsdpConfig { activation_checkpointing: ActivationCheckpointing::Full, ..full_shard.clone() }, 4),
        (FsdpConfig { reshard_after_forward: false, ..full_shard.clone() }, 2),
        (FsdpConfig { pipeline: zero_bubble, ..full_shard }, 4),
        (config(Strategy::Zero1, 1, 4), 4),
        (config(Strategy::Ddp, 2, 2), 4),
    ] {
        favoured(config, ranks).moves_as_on_one_rank(&alone);
    }
}

#[test]
fn of_experts_over_four_ranks_each_holds_a_fourth_and_keeps_it_once() {
    let experts_of = |case: Case| {
        let ranks = case.ranks;
        on_ranks(ranks, move |comm| {
            let fsdp = case.build(comm)?.fsdp;
            let parts = fsdp.state().parts;
            let experts = parts.iter().map(|part| &part.of).filter(|of| Experts::hold(&of.name));
            let elements = |of: &Part| {
                let first = of.region.start[0] * of.region.size[1..].iter().product::<usize>();
                (of.name.clone(), first + of.range.start..first + of.range.end)
            };
            let parts: Vec<(String, Range<usize>)> = experts.map(elements).collect();
            Ok::<_, FsdpError>((parts, fsdp.memory().now[Category::Parameters]))
        })
    };
    let large = MoeConfig { moe_intermediate_size: 512, ..moe() };
    let each = 4 * 16 * 512;
    for (strategy, ranks, ep) in [(Strategy::Ddp, 4, 4), (Strategy::FullShard, 8, 4), (Strategy::FullShard, 4, 2)] {
        let of_ranks = experts_of(Case::new(large.clone(), config(strategy, 1, ep), ranks));
        let mut all: Vec<(String, Range<usize>)> = of_ranks.iter().flat_map(|(parts, _)| parts.clone()).collect();
        all.sort_by_key(|(name, range)| (name.clone(), range.start));
        for of_name in all.chunk_by(|a, b| a.0 == b.0) {
            let ends = of_name.iter().fold(0, |end, (name, range)| {
                assert_eq!(range.start, end, "{name}");
                range.end
            });
            assert_eq!(ends, each, "{}", of_name[0].0);
        }
        assert_eq!(all.chunk_by(|a, b| a.0 == b.0).count(), 6, "two layers of three stacks");
        let alone = experts_of(Case::new(large.clone(), config(strategy, 1, 1), ranks))[0].1;
        let most = of_ranks.iter().map(|(_, bytes)| *bytes).max().unwrap();
        let fewer = if strategy == Strategy::Ddp { 6 * each * 4 * 3 / 4 } else { 0 };
        assert!(
            (most + fewer).abs_diff(alone) < 16 * 1024,
            "{strategy:?}, ep {ep}: {most} bytes, not {fewer} fewer than {alone}"
        );
    }
}

/// Ranks 0 and 2 have the same experts. All ranks have the same router, whose bias is fp32 while everything else is
/// bf16.
#[test]
fn copies_of_experts_and_of_what_stays_fp32_are_compared() {
    let bf16 = Precision { param: FloatType::Bf16, ..Precision::default() };
    for (path, len, spoilt, ranks) in
        [("mlp.Moe.experts.up_proj", 4 * 16 * 12, 2, "ranks 0 and 2"), ("mlp.Moe.router.bias", 4, 1, "ranks 0 and 1")]
    {
        let case = Case::new(v3(), FsdpConfig { precision: bf16, ..config(Strategy::Ddp, 1, 2) }, 4);
        let found = on_ranks(4, move |comm| {
            let rank = comm.rank();
            let mut built = case.build(comm)?;
            let before = built.fsdp.state().copies;
            if rank == spoilt {
                built.fsdp.add_to_parameter(&format!("blocks.1.{path}"), &vec![1e-6; len]);
            }
            Ok::<_, FsdpError>([before, built.fsdp.state().copies].map(fsdp::Copies::digests))
        });
        let compare = |i: usize| fsdp::compare_copies(found.iter().map(|of_rank| &of_rank[i][..]));
        compare(0).unwrap();
        let found = compare(1).unwrap_err().to_string();
        assert!(found.contains("unit blocks.1") && found.contains(ranks), "{path}: {found}");
    }
}

/// The rank fails in the forward, in a recomputed forward, or while others exchange rows in a backward.
#[test]
fn a_rank_that_fails_between_exchanges_ends_all_with_its_name() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if panic.payload().downcast_ref::<&str>() != Some(&FAULT) {
            hook(panic);
        }
    }));
    let recompute = |config| FsdpConfig { activation_checkpointing: ActivationCheckpointing::Full, ..config };
    let configs = [
        (config(Strategy::FullShard, 1, 2), 4),
        (recompute(config(Strategy::FullShard, 1, 4)), 4),
        (config(Strategy::Ddp, 2, 2), 4),
        (recompute(config(Strategy::Zero1, 2, 2)), 8),
    ];
    let mut random = Random(1);
    for _ in 0..100 {
        let (config, ranks) = configs[random.below(configs.len())].clone();
        // There are two steps of four micro-batches, with three blocks in a single stage and at least one per stage
        // otherwise.
        let calls = if config.pipeline.stages == 1 { 24 } else { 8 };
        let fault = (random.below(ranks), random.below(calls));
        let rank = fault.0;
        let case = Case { fault: Some(fault), ..Case::new(moe(), config, ranks) };
        let (running, started) = (case.clone(), Instant::now());
        let failure = run_ranks(vec![Device::flex(); ranks], TIMEOUT, move |comm| {
            let mut fsdp = running.build(comm)?.fsdp;
            let batches: Vec<Batch> = MICRO_BATCHES.iter().map(Batch::of).collect();
            (0..2).try_for_each(|_| fsdp.train_step(&batches, 1e-3).map(drop))
        });
        match failure {
            Err(RankFailure::Panicked { rank: failed, message }) if failed == rank => assert_eq!(message, FAULT),
            other => panic!("{case:?}: {other:?}"),
        }
        assert!(started.elapsed() < TIMEOUT, "{case:?}: {:?}", started.elapsed());
    }
}
