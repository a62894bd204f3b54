//! The bubble of a pipeline: a step of four stages whose chunks sleep for their cost, compared with each schedule's
//! closed form.
//!
//! `cargo bench -p benches -- bubble`. Stages compute nothing, so two cores suffice for all of them. What a step takes
//! beyond its naps and the closed form is due to messages, wake-ups and the engine itself.

use benches::nap;
use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};
use comm::{Communicator, LocalEngine, TIMEOUT};
use fsdp::{Fsdp, FsdpConfig, FsdpError, PipelineConfig, Schedule, Units};
use schedule::{Links, Pipeline, Ticks, simulate};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

const STAGES: usize = 4;
/// Milliseconds of a stage's forward. Its backward takes twice that.
const FORWARD: u64 = 20;
const STEPS: usize = 5;

/// Adds a number.
#[derive(Module, Debug)]
struct Bias {
    value: Param<Tensor<1>>,
}

impl Bias {
    fn forward(&self, x: Tensor<3>, forward: Duration) -> Tensor<3> {
        nap(x + self.value.val().unsqueeze(), forward, [forward; 2])
    }
}

fn units(chunks: usize, forward: Duration) -> Units<Tensor<3>> {
    let mut units = Units::new();
    let bias = || Bias { value: Param::from_tensor(Tensor::zeros([1], &Device::flex())) };
    for i in 0..chunks {
        let unit = units.add(format!("chunk {i}"), bias());
        if i == 0 {
            units.first(unit, move |bias: &Bias, x: &Tensor<3>| bias.forward(x.clone(), forward));
        } else if i + 1 < chunks {
            units.then(unit, move |bias: &Bias, x, _| bias.forward(x, forward));
        } else {
            units.last(unit, move |bias: &Bias, x, _| bias.forward(x, forward).mean());
        }
    }
    units
}

/// Median time of a rank's step, in milliseconds.
fn train(comm: Communicator, pipeline: &PipelineConfig, micro_batches: usize) -> Result<f64, FsdpError> {
    let chunks = pipeline.stages * pipeline.virtual_stages;
    let forward = Duration::from_millis(FORWARD) / pipeline.virtual_stages as u32;
    let batches = vec![Tensor::zeros([1, 1, 8], comm.device()); micro_batches];
    let config = FsdpConfig { pipeline: pipeline.clone(), ..FsdpConfig::default() };
    let mut fsdp = Fsdp::new(units(chunks, forward), comm, config)?;
    let mut step = || {
        let started = Instant::now();
        fsdp.train_step(&batches, 1e-3).map(|_| started.elapsed().as_secs_f64() * 1e3)
    };
    step()?;
    let mut times = (0..STEPS).map(|_| step()).collect::<Result<Vec<_>, _>>()?;
    times.sort_by(f64::total_cmp);
    Ok(times[STEPS / 2])
}

/// The first stage's step time.
fn measure(pipeline: &PipelineConfig, micro_batches: usize) -> f64 {
    thread::scope(|scope| {
        let engines = LocalEngine::world(vec![Device::flex(); STAGES], TIMEOUT);
        let rank = |engine| train(Communicator::new(Arc::new(engine)), pipeline, micro_batches).expect("a rank trains");
        let ranks: Vec<_> = engines.into_iter().map(|engine| scope.spawn(move || rank(engine))).collect();
        let times: Vec<f64> = ranks.into_iter().map(|rank| rank.join().expect("a rank trains")).collect();
        times[0]
    })
}

/// The bubble in closed form. Where there is none, as for few micro-batches in a V schedule, it is simulated.
fn bubble(pipeline: &Pipeline, ticks: Ticks) -> u64 {
    pipeline.bubble(ticks).unwrap_or_else(|| {
        let takes = |_, action| ticks.of(action);
        let timeline =
            simulate(pipeline, &pipeline.program(), &takes, Links { latency: 0, slots: 1 }).expect("a program runs");
        timeline.bubble(0)
    })
}

fn main() {
    // As in criterion, a benchmark runs if its name contains the filter.
    let filter = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    if filter.is_some_and(|filter| !"bubble".contains(&filter)) {
        return;
    }
    println!("| schedule | micro-batches | computing, ms | bubble in closed form | measured | apart, of the step |");
    println!("|---|---:|---:|---:|---:|---:|");
    for (schedule, virtual_stages) in [
        (Schedule::Gpipe, 1),
        (Schedule::OneFOneB, 1),
        (Schedule::Interleaved1F1B, 2),
        (Schedule::Interleaved1F1B, 5),
        (Schedule::ZeroBubble, 1),
        (Schedule::ZbV, 2),
    ] {
        for micro_batches in [4, 8, 16] {
            let pipeline = PipelineConfig { stages: STAGES, schedule, virtual_stages, calls: vec![] };
            let chunk = FORWARD / virtual_stages as u64;
            let ticks = Ticks { forward: chunk, input: chunk, weights: chunk };
            let form = bubble(&pipeline.of(micro_batches).expect("a pipeline"), ticks) as f64;
            let computing = (3 * FORWARD) as f64 * micro_batches as f64;
            let step = measure(&pipeline, micro_batches);
            let (bubble, apart) = (step - computing, 100.0 * (step - computing - form) / step);
            let name = if virtual_stages > 1 {
                format!("{}, {virtual_stages} chunks", schedule.name())
            } else {
                schedule.name().into()
            };
            println!("| `{name}` | {micro_batches} | {computing} | {form} | {bubble:.1} | {apart:.1}% |");
        }
    }
}
