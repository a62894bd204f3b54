//! The memory that a rank counts equals the memory that the allocator counts.

use burn::module::{Module, Param};
use burn::nn::{Initializer, Linear, LinearConfig};
use burn::tensor::{DType, Device, Distribution, Tensor};
use comm::Communicator;
use fsdp::{
    ActivationCheckpointing, CallBytes, Category, FloatType, ForecastRun, Fsdp, FsdpConfig, FsdpError, Memory,
    PipelineConfig, Precision, Strategy, Units, Wrap,
};
use test_kit::memory::{Counting, held};
use test_kit::on_ranks;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const WIDTH: usize = 192;
const LAYERS: usize = 6;
const MICRO_BATCHES: usize = 3;
const BATCH_BYTES: usize = 8 * 16 * WIDTH * 4;

fn live() -> isize {
    held() as isize
}

/// A stack of matrices, of which a rank may hold a part.
#[derive(Module, Debug)]
struct Experts {
    experts: Param<Tensor<3>>,
}

impl Experts {
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        x.narrow(2, 0, WIDTH / 4).matmul(self.experts.val().sum_dim(0))
    }
}

/// Creates units with a layer of four experts, of which ranks may hold a part.
fn units_with_experts() -> Units<Tensor<3>> {
    let (mut units, device) = (Units::new(), Device::flex());
    let (value, is_expert) = (0.5 / WIDTH as f64, |name: &str| name.ends_with("experts"));
    units.experts(is_expert);
    let linear = || LinearConfig::new(WIDTH, WIDTH).with_initializer(Initializer::Constant { value }).init(&device);
    let first = units.add("first", linear());
    units.first(first, |linear: &Linear, x: &Tensor<3>| linear.forward(x.clone()));
    for i in 0..LAYERS - 2 {
        let stack = Initializer::Constant { value }.init([4, WIDTH / 4, WIDTH], &device);
        let layer = units.add(format!("layer {i}"), Experts { experts: stack });
        units.then(layer, |layer: &Experts, x: Tensor<3>, _| layer.forward(x));
    }
    let last = units.add("last", linear());
    units.last(last, |linear: &Linear, x: Tensor<3>, _| linear.forward(x).powi_scalar(2).mean());
    units
}

fn units() -> Units<Tensor<3>> {
    let (mut units, device) = (Units::new(), Device::flex());
    let value = 0.5 / WIDTH as f64; // the same on all ranks
    let linear = || LinearConfig::new(WIDTH, WIDTH).with_initializer(Initializer::Constant { value }).init(&device);
    let first = units.add("first", linear());
    units.first(first, |linear: &Linear, x: &Tensor<3>| linear.forward(x.clone().cast(linear.weight.val().dtype())));
    for i in 0..LAYERS - 2 {
        let layer = units.add(format!("layer {i}"), linear());
        units.then(layer, |linear: &Linear, x: Tensor<3>, _| linear.forward(x));
    }
    let last = units.add("last", linear());
    units.last(last, |linear: &Linear, x: Tensor<3>, _| linear.forward(x).cast(DType::F32).powi_scalar(2).mean());
    units
}

/// Returns every rank's memory after two steps, and the growth of the process meanwhile.
fn train(config: &FsdpConfig, ranks: usize) -> (Vec<Memory>, isize) {
    let device = Device::flex();
    let (config, x) = (config.clone(), Tensor::<3>::random([8, 16, WIDTH], Distribution::Default, &device));
    let results = on_ranks(ranks, move |comm| {
        let (barrier, steps) = (comm.clone(), |comm: Communicator| {
            let units = if config.ep > 1 { units_with_experts() } else { units() };
            let mut fsdp = Fsdp::new(units, comm, config.clone())?;
            for _ in 0..2 {
                fsdp.train_step(&vec![x.clone(); MICRO_BATCHES], 1e-3)?;
            }
            Ok::<_, FsdpError>(fsdp)
        });
        drop(steps(comm.split(0)?)?); // creates the threads' workspaces of matrix products before measuring
        barrier.barrier()?;
        let before = live();
        barrier.barrier()?;
        let fsdp = steps(comm)?;
        barrier.barrier()?;
        let grown = live() - before;
        barrier.barrier()?;
        Ok::<_, FsdpError>((fsdp.memory(), grown))
    });
    (results.iter().map(|(memory, _)| *memory).collect(), results[0].1)
}

// A single test, because the allocator counts for the whole process.
#[test]
fn memory_is_what_the_allocator_says() {
    let parameters = LAYERS * (WIDTH * WIDTH + WIDTH) * 4;
    let two_layers = Wrap::Size(WIDTH * WIDTH + WIDTH + 1);
    let bf16 = Precision { param: FloatType::Bf16, ..Precision::default() };
    // Two thirds of the parameters belong to experts.
    for row in [
        (1, 4, Strategy::Ddp, 4, [0.5, 0.5]),
        (1, 4, Strategy::FullShard, 4, [0.25, 0.25]),
        (1, 2, Strategy::FullShard, 4, [0.25, 0.25]),
        (1, 2, Strategy::Zero1, 4, [2.0 / 3.0, 0.25]),
        (1, 2, Strategy::HybridShard, 4, [0.5, 0.5]),
        (2, 2, Strategy::FullShard, 4, [0.25, 0.25]),
        (2, 2, Strategy::Ddp, 4, [1.0 / 3.0, 1.0 / 3.0]),
    ]
    .into_iter()
    .chain(
        [
            (1, Strategy::FullShard, 1, [1.0, 1.0]),
            (1, Strategy::FullShard, 4, [0.25, 0.25]),
            (1, Strategy::Block, 4, [0.25, 0.25]),
            (1, Strategy::HybridShard, 4, [0.5, 0.5]),
            (1, Strategy::Zero1, 4, [1.0, 0.25]),
            (1, Strategy::ShardGradOp, 4, [1.0, 0.25]),
            (1, Strategy::Ddp, 2, [1.0, 1.0]),
            (3, Strategy::FullShard, 3, [1.0 / 3.0, 1.0 / 3.0]),
            (2, Strategy::FullShard, 4, [0.25, 0.25]),
            (2, Strategy::Zero1, 4, [0.5, 0.25]),
        ]
        .map(|(stages, strategy, ranks, parts)| (stages, 1, strategy, ranks, parts)),
    )
    .map(|row| (row, FsdpConfig::default()))
    .chain(
        // Parameters that are not sharded have a 16-bit copy.
        [
            (1, 1, Strategy::FullShard, 1, [1.5, 1.0]),
            (1, 1, Strategy::Ddp, 2, [1.5, 1.0]),
            (1, 1, Strategy::FullShard, 4, [0.25, 0.25]),
            (LAYERS, 1, Strategy::Ddp, LAYERS, [1.5 / LAYERS as f64, 1.0 / LAYERS as f64]),
        ]
        .map(|row| (row, FsdpConfig { precision: bf16, ..FsdpConfig::default() })),
    )
    .chain(
        // Replicas; in a pipeline, units of two calls, and gradients that are reduced in every micro-batch.
        [
            ((1, 1, Strategy::FullShard, 4, [0.5, 0.5]), FsdpConfig { dp_replicate: Some(2), ..FsdpConfig::default() }),
            ((1, 1, Strategy::Zero1, 4, [1.0, 0.5]), FsdpConfig { dp_replicate: Some(2), ..FsdpConfig::default() }),
            ((1, 1, Strategy::HybridShard, 2, [1.0, 1.0]), FsdpConfig::default()),
            ((2, 1, Strategy::FullShard, 4, [0.25, 0.25]), FsdpConfig { wrap: two_layers, ..FsdpConfig::default() }),
            (
                (2, 1, Strategy::FullShard, 4, [0.25, 0.25]),
                FsdpConfig { no_sync: Some(false), ..FsdpConfig::default() },
            ),
        ],
    ) {
        let ((stages, ep, strategy, ranks, [of_parameters, of_moments]), rest) = row;
        let pipeline = PipelineConfig { stages, ..PipelineConfig::default() };
        let config = FsdpConfig { pipeline, strategy, ep, ..rest };
        let (memories, grown) = train(&config, ranks);
        for (rank, memory) in memories.iter().enumerate() {
            let calls = [CallBytes::default(); LAYERS];
            let run = ForecastRun {
                world_size: ranks,
                ranks: &[rank],
                micro_batches: MICRO_BATCHES,
                calls: &calls,
                on_cpu: true,
            };
            let units = if ep > 1 { units_with_experts() } else { units() };
            let forecast = units.forecast(&config, run).unwrap()[0].memory;
            assert_eq!(forecast.now, memory.now, "{strategy:?} on {ranks}, {stages} stages, ep {ep}");
            // The end of a gather or a reduction depends on timing; the forecast assumes that each ends late.
            for category in [Category::Parameters, Category::Gradients, Category::Gathered] {
                let (most, found) = (forecast.peak[category], memory.peak[category]);
                assert!(
                    found <= most,
                    "{strategy:?} on {ranks}, {stages} stages: {found} of {}, not {most}",
                    category.name()
                );
            }
        }
        let counted: usize = memories.iter().map(|memory| memory.now.total()).sum();
        // Threads on one device share what they gather, and these two strategies keep it.
        let shared = match strategy {
            // All ranks of a stage share dense parameters; ranks with the same experts share experts.
            Strategy::Zero1 if ep > 1 => {
                let (dense, experts) = (2 * (WIDTH * WIDTH + WIDTH) * 4, 4 * WIDTH * WIDTH * 4 / ep);
                (ranks - 1) * dense + (ranks - ep) * experts
            }
            Strategy::Zero1 | Strategy::ShardGradOp => {
                (ranks - stages * config.replicas()) * memories[0].now[Category::Parameters]
            }
            _ => 0,
        };
        let counted = counted - shared;
        // Other memory: modules, names, the operations of a step, a communication thread per rank, communicators per class
        // of parameters with their meters, and 48 KiB of the flight recorder's last 256 calls.
        let slack = ranks as isize * (if ep > 1 { 84 } else { 72 } + 48) * 1024;
        assert!((grown - counted as isize).abs() < slack, "{strategy:?} on {ranks}: {counted} counted, {grown} grown");
        // The tolerance covers padding.
        let close = |found: usize, part: f64| (found as f64 / (part * parameters as f64) - 1.0).abs() < 0.04;
        for memory in memories {
            assert!(close(memory.now[Category::Parameters], of_parameters), "{strategy:?} on {ranks}: {memory}");
            assert!(close(memory.now[Category::Optimizer], 2.0 * of_moments), "{strategy:?} on {ranks}: {memory}");
            assert_eq!(memory.now[Category::Gradients], 0);
        }
    }

    // On one rank every layer's graph keeps its input; that of the first one is the batch. The last graph also keeps
    // its output.
    let allocated: Option<fn() -> isize> = Some(live);
    let config = FsdpConfig { strategy: Strategy::Ddp, allocated, ..FsdpConfig::default() };
    let peak = |config: &FsdpConfig| train(config, 1).0[0].peak[Category::Activations];
    let kept = peak(&config) as f64 / BATCH_BYTES as f64;
    assert!((LAYERS as f64..LAYERS as f64 + 1.5).contains(&kept), "{kept} batches are kept of {LAYERS} layers");
    // Only the inputs, and one graph at a time.
    let recomputed = peak(&FsdpConfig { activation_checkpointing: ActivationCheckpointing::Full, ..config });
    let kept = recomputed as f64 / BATCH_BYTES as f64;
    assert!(
        (LAYERS as f64 - 1.0..LAYERS as f64 + 1.5).contains(&kept),
        "{kept} batches are kept of {LAYERS} layers' inputs"
    );
}
