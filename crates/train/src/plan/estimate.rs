//! A rough estimate of a layout's time and memory, to sort thousands of layouts.

use crate::config::Config;
use crate::plan::memory_check;
use crate::plan::step_time::{OPTIMIZER_BYTES, added_bytes, collective_of};
use crate::plan::workload::workload;
use comm::Axis;
use fsdp::{ActivationCheckpointing, CallTraffic, Received, Strategy, Wrap};
use model::{ParameterSpec, Sharding};
use plan::{Cluster, Collective, Group, Offload, Pass, Work};
use schedule::{Pipeline, Ticks};
use std::collections::HashMap;

const FP32: f64 = 4.0;

/// A micro-batch on the ranks that compute it together, over all stages: seconds, and bytes of activations.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MicroBatch {
    forward: f64,
    recompute: f64,
    input: f64,
    weights: f64,
    /// What calls exchange in the forward and in the backward.
    exchanged: [f64; 2],
    graphs: f64,
    inputs: f64,
    largest: f64,
    /// Number of blocks, and the part of the time that they take; the rest is the head's.
    blocks: usize,
    of_blocks: f64,
    /// Parameters of the model, and the experts' and the others' of a rank that has all stages.
    model: f64,
    parameters: [f64; 2],
}

impl MicroBatch {
    pub fn new(config: &Config, cluster: &Cluster) -> Self {
        let mut config = config.clone();
        if let Some(moe) = &mut config.moe {
            moe.max_rank_load = 1.0; // time is that of balanced experts
        }
        let config = &config;
        let (family, workload) = (config.family(), workload(config, 0));
        let mesh = config.fsdp_without_chunks().mesh(config.parallel.gpus).expect("the configuration is validated");
        let (calls, bytes, work) = (family.traffic(&workload), family.memory(&workload), family.work(&workload));
        let of_calls = |calls: &[Work], pass| calls.iter().map(|work| work.seconds(pass, &cluster.device)).sum::<f64>();
        let seconds = |pass| of_calls(&work, pass);
        let once =
            |calls| [Pass::Forward, Pass::Input, Pass::Weights].map(|pass| of_calls(calls, pass)).iter().sum::<f64>();
        let blocks = family.blocks();
        let groups = [Axis::Tp, Axis::Cp, Axis::Ep].map(|axis| (axis, Group::new(mesh.group(0, &[axis]), cluster)));
        let exchange = |((axis, name), bytes): (&(Axis, &'static str), &usize)| {
            let (_, group) = groups.iter().find(|(known, _)| known == axis).expect("calls exchange over these axes");
            if *bytes == 0 { 0.0 } else { cluster.communicate(collective_of(name), *bytes as f64, group) }
        };
        // As in a simulation, a ring's messages count as far as they take longer than the attention beside them.
        let exchanged = |of: fn(&CallTraffic) -> &Received, pass| {
            let of_call = |(call, work): (&CallTraffic, &Work)| {
                let all = of(call).iter().map(exchange).sum::<f64>();
                let ring = of(call).get_key_value(&(Axis::Cp, "recv")).map_or(0.0, exchange);
                all - ring.min(work.attention_seconds(pass, &cluster.device))
            };
            calls.iter().zip(&work).map(of_call).sum::<f64>()
        };
        let parts = |parameter: &ParameterSpec| match parameter.sharding {
            Sharding::Replicated => 1.0,
            Sharding::Tensor(_) => config.parallel.tp as f64,
            Sharding::Experts => config.parallel.ep as f64,
        };
        Self {
            forward: seconds(Pass::Forward),
            recompute: seconds(Pass::Recompute),
            input: seconds(Pass::Input),
            weights: seconds(Pass::Weights),
            exchanged: [exchanged(|call| &call.forward, Pass::Forward), exchanged(|call| &call.backward, Pass::Input)],
            graphs: bytes.iter().map(|call| call.graph as f64).sum(),
            inputs: bytes.iter().map(|call| call.input as f64).sum(),
            largest: bytes.iter().map(|call| call.graph as f64).fold(0.0, f64::max),
            blocks,
            of_blocks: once(&work[..=blocks]) / once(&work),
            model: family.parameter_count(),
            parameters: [true, false].map(|experts| {
                let all = family.parameters();
                let some = all.iter().filter(|parameter| (parameter.sharding == Sharding::Experts) == experts);
                some.map(|parameter| parameter.len() / parts(parameter)).sum()
            }),
        }
    }
}

impl MicroBatch {
    /// Returns how much longer the fullest of `chunks` chunks takes than the mean: blocks are whole, and the last chunk has
    /// the head.
    fn fullest(&self, chunks: usize) -> f64 {
        let most = self.blocks.div_ceil(chunks);
        let last = self.blocks.saturating_sub(most * (chunks - 1)) as f64;
        let block = self.of_blocks / self.blocks as f64;
        (most as f64 * block).max(last * block + 1.0 - self.of_blocks) * chunks as f64
    }
}

/// A layout's seconds per step and bytes per device, roughly.
pub(crate) struct Estimate {
    pub seconds: f64,
    pub bytes: f64,
    /// Bytes that the fullest device needs for certain, and without checkpoints on the way.
    pub at_least: [f64; 2],
}

/// The ranks that share parameters in a stage of this many ranks, if they are so far apart. Layouts have few different ones.
pub(crate) type Groups = HashMap<(usize, usize), Group>;

/// The stage's ranks, and how far apart those are that shard experts, and those that shard the other parameters.
fn shared_by(config: &Config) -> [(usize, usize); 2] {
    let parallel = &config.parallel;
    let ranks = parallel.gpus / parallel.pp;
    // Shards of experts are on every ep-th rank.
    [(ranks, parallel.ep), (ranks, 1)]
}

/// The groups of these layouts.
pub(crate) fn groups(layouts: &[Config], cluster: &Cluster) -> Groups {
    let mut groups = Groups::new();
    for (ranks, apart) in layouts.iter().flat_map(shared_by) {
        let new = || Group::new((0..ranks).step_by(apart).collect(), cluster);
        groups.entry((ranks, apart)).or_insert_with(new);
    }
    groups
}

impl Estimate {
    /// Of one of the layouts of which the `groups` are.
    pub fn new(config: &Config, cluster: &Cluster, of: MicroBatch, groups: &Groups) -> Self {
        let (parallel, device) = (&config.parallel, &cluster.device);
        let (pp, m) = (parallel.pp as f64, config.micro_batches() as f64);
        let recomputed = match parallel.activation_checkpointing {
            ActivationCheckpointing::None => 0.0,
            ActivationCheckpointing::Full => 1.0,
            ActivationCheckpointing::Every(blocks) => 1.0 / blocks as f64,
        };
        let [forward, backward] = of.exchanged;
        let again = recomputed * (of.recompute + forward);
        let micro_batch = (of.forward + forward + again + of.input + of.weights + backward) / pp;
        let virtual_stages = parallel.virtual_stages();
        let pipeline = Pipeline::new(parallel.schedule, parallel.pp, virtual_stages, config.micro_batches());
        let pipeline = pipeline.expect("the configuration is validated");
        // In nanoseconds, of a chunk.
        let ticks = |seconds: f64| (1e9 * seconds / pp / virtual_stages as f64) as u64;
        let ticks = Ticks {
            forward: ticks(of.forward + forward),
            input: ticks(again + of.input + backward),
            weights: ticks(of.weights),
        };
        let computed = m * micro_batch * of.fullest(pipeline.chunks())
            + 1e-9 * pipeline.bubble(ticks).unwrap_or_else(|| least_bubble(&pipeline, ticks)) as f64;
        // In a pipeline, and under zero1, parameters are gathered once and gradients reduced once.
        let element = config.parallel.precision.param().dtype().size() as f64;
        let again_and_again = parallel.strategy == Strategy::FullShard && parallel.pp == 1;
        let groups = shared_by(config).map(|of| &groups[&of]);
        let of_stage = of.parameters.iter().sum::<f64>() / pp;
        let moved = |collective, element: f64| {
            let parts = of.parameters.iter().zip(groups);
            parts.map(|(count, group)| cluster.communicate(collective, count / pp * element, group)).sum::<f64>()
        };
        let (gathered, reduced) = (moved(Collective::AllGather, element), moved(Collective::ReduceScatter, FP32));
        let shown = match again_and_again {
            true => m * (2.0 * gathered + reduced) - computed,
            false => gathered + reduced - computed / m,
        };
        let shard = of.model / parallel.gpus as f64;
        let reduces_once = config.fsdp_without_chunks().reduces_once();
        let added = if reduces_once { (m - 1.0) * of_stage } else { 0.0 };
        let optimizer = OPTIMIZER_BYTES * shard;
        let offload = cluster.offload.filter(|_| parallel.cpu_offload && !cluster.is_cpu());
        let stepped = if offload.is_some() { 0.0 } else { optimizer } + added_bytes(element as usize) * added;
        let stepped = stepped / (device.memory_bandwidth * device.efficiency.memory);
        // How often the shard comes from the CPU, and its gradients go back.
        let over_bus = |rates: Offload| {
            let alone = parallel.gpus == parallel.pp;
            let gathers = if again_and_again || alone && parallel.pp == 1 { 2.0 * m } else { 1.0 };
            let reductions = if reduces_once && !alone { 1.0 } else { m };
            let times = gathers + reductions;
            let touched = times * (element + FP32) + (reductions - 1.0) * 3.0 * FP32;
            rates.seconds(times * element * shard, touched * shard + optimizer, parallel.gpus, cluster)
        };
        let offloaded = offload.map_or(0.0, over_bus);
        // Parameters, gradient and moments in fp32; what is gathered; the micro-batches in flight.
        let in_flight = pipeline.live(0) as f64 / virtual_stages as f64;
        // A backward in two parts keeps the graph, recomputed or not, until the second one.
        let activations = match recomputed > 0.0 && !parallel.schedule.splits_backward() {
            true => (recomputed * of.inputs + (1.0 - recomputed) * of.graphs) / pp * in_flight + of.largest,
            false => of.graphs / pp * in_flight,
        };
        let two_units = if again_and_again { (2.0 / config.model.blocks() as f64).min(1.0) } else { 1.0 };
        let rests = if parallel.cpu_offload { 0.0 } else { 4.0 * FP32 * shard };
        let bytes = rests + two_units * of_stage * (element + FP32) + activations;
        Self {
            seconds: computed + shown.max(0.0) + stepped + offloaded,
            bytes,
            at_least: at_least(config, cluster, &of, reduces_once),
        }
    }
}

/// A bubble from below, where there is no closed form: the first micro-batch passes through all chunks and back.
fn least_bubble(pipeline: &Pipeline, ticks: Ticks) -> u64 {
    let Ticks { forward, input, weights } = ticks;
    let passes = pipeline.chunks() as u64 * (forward + input) + weights;
    let computes = (pipeline.micro_batches() * pipeline.virtual_stages()) as u64 * (forward + input + weights);
    passes.saturating_sub(computes)
}

/// Returns a bound from below of the memory that is forecast for a layout. Ranks of one stage need the same, and the
/// fullest stage at least the mean of all. Before a rank's first backward, it has forwarded a micro-batch through all its
/// chunks, and in a pipeline or under `zero1` it has all their parameters. Before its last one, it has all gradients in
/// fp32 if they are reduced once.
fn at_least(config: &Config, cluster: &Cluster, of: &MicroBatch, reduces_once: bool) -> [f64; 2] {
    let parallel = &config.parallel;
    let element = parallel.precision.param().dtype().size() as f64;
    // Ranks on a CPU share what they gather; a copy in fp32 may have the shard in it.
    let is_apart = !cluster.is_cpu() && element < FP32;
    let stays = parallel.pp > 1 || matches!(parallel.strategy, Strategy::Zero1 | Strategy::ShardGradOp);
    let gathered = if stays && is_apart { element * of.parameters.iter().sum::<f64>() } else { 0.0 };
    let activations = match (parallel.activation_checkpointing, parallel.wrap) {
        (ActivationCheckpointing::None, _) => of.graphs,
        (_, Wrap::Block) => of.inputs,
        _ => 0.0, // a call keeps one input for several blocks
    };
    let whole_backwards = parallel.virtual_stages() == 1 && !parallel.schedule.splits_backward();
    let adds_up = reduces_once && whole_backwards && config.micro_batches() > 1;
    let gradients = if adds_up && !parallel.cpu_offload { FP32 * of.parameters.iter().sum::<f64>() } else { 0.0 };
    // The states of offloaded parameters are elsewhere.
    let shard = if parallel.cpu_offload { 0.0 } else { FP32 * of.model / parallel.gpus as f64 };
    let of_rank = memory_check::at_least(config, shard, (gathered + gradients + activations) / parallel.pp as f64);
    let ranks = if cluster.is_cpu() { parallel.gpus.min(cluster.devices_per_node) as f64 } else { 1.0 };
    of_rank.map(|bytes| ranks * bytes)
}
