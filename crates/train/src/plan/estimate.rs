//! A rough estimate of a layout's time and memory, to sort thousands of layouts.

use crate::config::Config;
use crate::plan::step_time::{OPTIMIZER_BYTES, collective_of};
use crate::plan::workload::workload;
use comm::Axis;
use fsdp::{ActivationCheckpointing, CallTraffic, Received, Strategy};
use model::{ParameterSpec, Sharding};
use plan::{Cluster, Collective, Group, Pass};
use schedule::Schedule;

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
    /// Parameters of the model, and of a rank that has all stages.
    model: f64,
    parameters: f64,
}

impl MicroBatch {
    pub fn new(config: &Config, cluster: &Cluster) -> Self {
        let (family, workload) = (config.family(), workload(config, 0));
        let mesh = config.fsdp().mesh(config.parallel.gpus).expect("the configuration is validated");
        let (calls, bytes, work) = (family.traffic(&workload), family.memory(&workload), family.work(&workload));
        let seconds = |pass| work.iter().map(|work| work.seconds(pass, &cluster.device)).sum::<f64>();
        let groups = [Axis::Tp, Axis::Cp, Axis::Ep].map(|axis| (axis, Group::new(mesh.group(0, &[axis]), cluster)));
        let exchange = |((axis, name), bytes): (&(Axis, &'static str), &usize)| {
            let (_, group) = groups.iter().find(|(known, _)| known == axis).expect("calls exchange over these axes");
            if *bytes == 0 { 0.0 } else { cluster.communicate(collective_of(name), *bytes as f64, group) }
        };
        let exchanged = |of: fn(&CallTraffic) -> &Received| calls.iter().flat_map(of).map(exchange).sum::<f64>();
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
            exchanged: [exchanged(|call| &call.forward), exchanged(|call| &call.backward)],
            graphs: bytes.iter().map(|call| call.graph as f64).sum(),
            inputs: bytes.iter().map(|call| call.input as f64).sum(),
            largest: bytes.iter().map(|call| call.graph as f64).fold(0.0, f64::max),
            model: family.parameter_count(),
            parameters: family.parameters().iter().map(|parameter| parameter.len() / parts(parameter)).sum(),
        }
    }
}

/// A layout's seconds per step and bytes per device, roughly.
pub(crate) struct Estimate {
    pub seconds: f64,
    pub bytes: f64,
}

impl Estimate {
    pub fn new(config: &Config, cluster: &Cluster, of: MicroBatch) -> Self {
        let (parallel, device) = (&config.parallel, &cluster.device);
        let (pp, m) = (parallel.pp as f64, config.micro_batches() as f64);
        let recomputes = parallel.activation_checkpointing != ActivationCheckpointing::None;
        let [forward, backward] = of.exchanged;
        let again = if recomputes { of.recompute + forward } else { 0.0 };
        let micro_batch = (of.forward + forward + again + of.input + of.weights + backward) / pp;
        let bubble = match parallel.schedule {
            Schedule::ZeroBubble => micro_batch - of.weights / pp,
            schedule => micro_batch / parallel.virtual_stages.unwrap_or(schedule.default_virtual_stages()) as f64,
        };
        let computed = m * micro_batch + (pp - 1.0) * bubble;
        // In a pipeline, and under zero1, parameters are gathered once and gradients reduced once.
        let (of_stage, element) = (of.parameters / pp, config.parallel.precision.param().dtype().size() as f64);
        let again_and_again = parallel.strategy == Strategy::FullShard && parallel.pp == 1;
        let shards = Group::new((0..parallel.gpus / parallel.pp).collect(), cluster);
        let gathered = cluster.communicate(Collective::AllGather, of_stage * element, &shards);
        let reduced = cluster.communicate(Collective::ReduceScatter, of_stage * FP32, &shards);
        let shown = match again_and_again {
            true => m * (2.0 * gathered + reduced) - computed,
            false => gathered + reduced - computed / m,
        };
        let shard = of.model / parallel.gpus as f64;
        let stepped = OPTIMIZER_BYTES * shard / (device.memory_bandwidth * device.efficiency.memory);
        // Parameters, gradient and moments in fp32; what is gathered; the micro-batches in flight.
        let in_flight = m.min(pp);
        let activations = match recomputes {
            true => of.inputs / pp * in_flight + of.largest,
            false => of.graphs / pp * in_flight,
        };
        let two_units = if again_and_again { (2.0 / config.model.blocks() as f64).min(1.0) } else { 1.0 };
        let bytes = 4.0 * FP32 * shard + two_units * of_stage * (element + FP32) + activations;
        Self { seconds: computed + shown.max(0.0) + stepped, bytes }
    }
}
