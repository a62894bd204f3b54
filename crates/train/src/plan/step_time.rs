//! The time of a step on a cluster, from shapes alone.
//!
//! ```text
//! config ─> fsdp: operations of a rank of each stage, with what they receive ─┐
//! config ─> family: what each call computes ──────────────────────────────────┼─> plan::simulate ─> Timeline
//! cluster: rates ─────────────────────────────────────────────────────────────┘
//! ```

use crate::config::Config;
use crate::plan::layout::different_ranks;
use crate::plan::units::units;
use crate::plan::workload::workload;
use comm::{Axis, MeshShape};
use fsdp::{Offloaded, Operation, SharesRun, Strategy, Transfer};
use model::{ExpertLoads, Parallel};
use plan::{
    Cluster, Collective, Device, Exchange, Group, Offload, Pass, PlanError, RankProgram, Task, Timeline, Work, simulate,
};
use schedule::{Kind, Op, Peer};
use std::collections::HashMap;

/// Bytes that AdamW moves for a parameter: its gradient is read, the parameter and two moments are read and written,
/// all in fp32.
pub(crate) const OPTIMIZER_BYTES: f64 = 28.0;

/// Bytes that move to add an element of a gradient of `element` bytes to the fp32 sum over earlier micro-batches: it is
/// read, and the sum is read and written.
pub(crate) fn added_bytes(element: usize) -> f64 {
    (element + 2 * size_of::<f32>()) as f64
}

/// The name of exchanges with the CPU's memory, beside those of axes.
const CPU: &str = "cpu";

/// What is assumed of a run.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Assumptions {
    /// Whether a token's experts follow each other, as in benchmarks whose gate deals them out in order: then a token is
    /// sent to the ranks that hold `top_k` neighbouring experts, not to `top_k` ranks.
    pub experts_in_order: bool,
    /// In a pipeline: whether a stage starts to reduce the gradients of a chunk after the chunk's backward, and waits for
    /// that before it sends the gradient of its input, as PyTorch does. Kiln reduces beside the backward, and sends first.
    pub reduces_before_sending: bool,
}

/// Simulates a step of a run on a cluster.
///
/// # Errors
/// If ranks wait for each other, which no valid configuration does.
pub(crate) fn step_time(config: &Config, cluster: &Cluster, assumptions: Assumptions) -> Result<Timeline, PlanError> {
    let of_stage = config.parallel.gpus / config.parallel.pp;
    let is_block = config.parallel.strategy == Strategy::Block;
    let ranks = if is_block { 1 } else { of_stage };
    // The memory check allows for the fullest rank; time is that of balanced experts.
    let mut config = config.clone();
    if let Some(moe) = &mut config.moe {
        moe.max_rank_load = 1.0;
    }
    let config = &config;
    let numbers = different_ranks(config);
    let (fsdp, workload, family) = (config.fsdp(), workload(config, numbers[0]), config.family());
    let (world_size, micro_batches) = (config.parallel.gpus, config.micro_batches());
    let units =
        units(config, &ExpertLoads::new(config.moe.as_ref()), &Parallel::default(), &burn::tensor::Device::flex());
    let calls = family.traffic(&workload);
    let run = SharesRun { world_size, ranks: &numbers, micro_batches, calls: &calls, on_cpu: workload.on_cpu };
    let operations = units.operations(&fsdp, run).expect("the configuration is validated");
    let mesh = fsdp.mesh(world_size).expect("the configuration is validated");
    let sent = config.moe.as_ref().filter(|_| assumptions.experts_in_order);
    let sent = sent.map_or(1.0, |moe| sent_in_order(moe.num_experts, moe.num_experts / config.parallel.ep, moe.top_k));
    let mut time = RankTime {
        cluster,
        mesh,
        rank: 0,
        work: family.work(&workload),
        element: workload.element,
        offload: cluster.offload.filter(|_| config.parallel.cpu_offload && !cluster.is_cpu()),
        sent,
        groups: HashMap::new(),
    };
    let program = |(rank, mut operations): (&usize, Vec<Operation>)| {
        if assumptions.reduces_before_sending && config.parallel.pp > 1 {
            operations = reduced_before_sending(operations);
        }
        (time.rank, time.groups) = (*rank, HashMap::new());
        let tasks = operations.iter().map(|operation| time.task(operation)).collect();
        RankProgram { stage: rank / of_stage, rank: *rank, ranks, tasks }
    };
    let steps: Vec<RankProgram> = numbers.iter().zip(operations).map(program).collect();
    simulate(&steps, cluster.shared_cores(config.parallel.gpus))
}

/// Returns the part of a token's rows for experts that is sent if token i has the experts `k i` to `k i + k - 1`, modulo
/// their number, and is sent once to each rank that holds some of them.
fn sent_in_order(experts: usize, of_rank: usize, k: usize) -> f64 {
    let ranks = |token: usize| {
        let (first, last) = (token * k % experts, (token * k + k - 1) % experts);
        let (first, last) = (first / of_rank, last / of_rank);
        (last + experts / of_rank - first) % (experts / of_rank) + 1
    };
    (0..experts).map(ranks).sum::<usize>() as f64 / (experts * k) as f64
}

/// Starts the reductions of a chunk after its backward, and waits for them before its gradient is sent.
///
/// ```text
/// before  B3.0 flatten3 reduce3 B2.0 flatten2 wait3 reduce2 s<1.0 wait2
/// after   B3.0 flatten3 B2.0 flatten2 reduce3 reduce2 wait3 wait2 s<1.0
/// ```
fn reduced_before_sending(operations: Vec<Operation>) -> Vec<Operation> {
    let (mut out, mut reductions): (Vec<Operation>, Vec<Operation>) = (Vec::with_capacity(operations.len()), vec![]);
    for operation in operations {
        let of_backward = |kind| matches!(kind, Kind::Recompute | Kind::Backward | Kind::Input | Kind::Weights);
        match operation.op {
            Op::Reduce { .. } => reductions.push(operation),
            Op::Wait { .. } => {} // follows its reduction
            Op::Run { kind, .. } if of_backward(kind) => out.push(operation),
            Op::Gather { .. } | Op::Free { .. } | Op::Flatten { .. } | Op::Add { .. } => out.push(operation),
            _ => {
                out.append(&mut with_waits(&mut reductions));
                out.push(operation);
            }
        }
    }
    out.append(&mut with_waits(&mut reductions));
    out
}

/// Takes reductions, and adds a wait for each.
fn with_waits(reductions: &mut Vec<Operation>) -> Vec<Operation> {
    let wait = |reduction: &Operation| {
        let Op::Reduce { unit, .. } = reduction.op else { return None };
        Some(Operation {
            op: Op::Wait { unit },
            transfers: vec![],
            functions: 0..0,
            elements: 0,
            offloaded: Offloaded::default(),
        })
    };
    let waits: Vec<Operation> = reductions.iter().filter_map(wait).collect();
    reductions.drain(..).chain(waits).collect()
}

/// Returns the collective of this name; a ring of exchanges is one.
pub(crate) fn collective_of(name: &str) -> Collective {
    match name {
        "all_gather" | "gather" => Collective::AllGather,
        "reduce_scatter" | "scatter" => Collective::ReduceScatter,
        "all_reduce" => Collective::AllReduce,
        "all_to_all" => Collective::AllToAll,
        _ => Collective::PointToPoint,
    }
}

/// Times of a rank's operations.
struct RankTime<'a> {
    cluster: &'a Cluster,
    mesh: MeshShape,
    rank: usize,
    work: Vec<Work>,
    /// Bytes of a gradient's element.
    element: usize,
    /// Rates of what the run offloads, if it does and they are known.
    offload: Option<Offload>,
    /// The part of the rows for experts that is sent.
    sent: f64,
    groups: HashMap<Vec<Axis>, (String, Group)>,
}

impl RankTime<'_> {
    fn task(&mut self, operation: &Operation) -> Task {
        let mut exchanges: Vec<Exchange> =
            operation.transfers.iter().map(|transfer| self.exchange(operation.op, transfer)).collect();
        // A ring's messages travel while a rank attends to those before.
        let mut attention = self.attention(operation);
        for (exchange, transfer) in exchanges.iter_mut().zip(&operation.transfers) {
            if transfer.axes == [Axis::Cp] && transfer.collective == "recv" {
                let hidden = exchange.seconds.min(attention);
                exchange.seconds -= hidden;
                attention -= hidden;
            }
        }
        let slowest = if self.mesh.world_size() > 1 { self.cluster.device.efficiency.slowest_device } else { 1.0 };
        let compute = self.compute(operation) / slowest;
        Task { op: operation.op, compute, copies: self.offload(operation), exchanges }
    }

    /// Returns what an operation exchanges with the CPU's memory, where the cluster says how fast that is.
    fn offload(&self, operation: &Operation) -> Option<Exchange> {
        let Offloaded { sent, touched } = operation.offloaded;
        let stepped =
            if let Op::Step { .. } = operation.op { operation.elements as f64 * OPTIMIZER_BYTES } else { 0.0 };
        let (sent, touched) = (sent as f64, touched as f64 + stepped);
        let seconds = self.offload?.seconds(sent, touched, self.mesh.world_size(), self.cluster);
        (seconds > 0.0).then(|| Exchange { axes: CPU.into(), seconds })
    }

    /// Returns the seconds that an operation computes.
    fn compute(&self, operation: &Operation) -> f64 {
        let device = &self.cluster.device;
        let moved = |bytes: f64| {
            let elements = operation.elements as f64;
            elements * bytes / (device.memory_bandwidth * device.efficiency.memory) + device.efficiency.launch
        };
        match operation.op {
            Op::Run { kind, .. } => self.passes(operation, kind, Work::seconds),
            Op::Flatten { .. } => moved(2.0 * self.element as f64),
            Op::Add { .. } => moved(3.0 * self.element as f64),
            Op::Reduce { .. } if operation.elements > 0 => moved(added_bytes(self.element)),
            Op::Step { .. } if self.offload.is_none() => moved(OPTIMIZER_BYTES),
            _ => 0.0,
        }
    }

    /// Returns the seconds of attention in an operation.
    fn attention(&self, operation: &Operation) -> f64 {
        match operation.op {
            Op::Run { kind, .. } => self.passes(operation, kind, Work::attention_seconds),
            _ => 0.0,
        }
    }

    /// Adds up the passes over the functions of a call.
    fn passes(&self, operation: &Operation, kind: Kind, seconds: fn(&Work, Pass, &Device) -> f64) -> f64 {
        let passes: &[Pass] = match kind {
            Kind::Forward(_) => &[Pass::Forward],
            Kind::Recompute => &[Pass::Recompute],
            Kind::Backward => &[Pass::Input, Pass::Weights],
            Kind::Input => &[Pass::Input],
            Kind::Weights => &[Pass::Weights],
        };
        let functions = &self.work[operation.functions.clone()];
        functions.iter().flat_map(|work| passes.iter().map(|pass| seconds(work, *pass, &self.cluster.device))).sum()
    }

    fn exchange(&mut self, op: Op, transfer: &Transfer) -> Exchange {
        if let Op::Recv { from: Peer::Stage(stage), .. } = op {
            // The rank of that stage with the same place in it.
            let of_stage = self.mesh.world_size() / self.mesh.ranks(&[Axis::Pp]);
            let group = Group::new(vec![self.rank, stage * of_stage + self.rank % of_stage], self.cluster);
            let seconds = self.cluster.communicate(Collective::PointToPoint, transfer.bytes as f64, &group);
            return Exchange { axes: self.mesh.along(&transfer.axes), seconds };
        }
        let Self { cluster, mesh, rank, sent, groups, .. } = self;
        let group = || match transfer.axes.as_slice() {
            // Of two ranks, the farthest that there are.
            [] => ("world".into(), Group::new(vec![0, mesh.world_size() - 1], cluster)),
            axes => (mesh.along(axes), Group::new(mesh.group(*rank, axes), cluster)),
        };
        let (axes, group) = groups.entry(transfer.axes.clone()).or_insert_with(group);
        let collective = collective_of(transfer.collective);
        let part = match transfer.collective {
            "all_to_all" => *sent,
            // One rank sends all others their parts.
            "scatter" => group.ranks() as f64 - 1.0,
            _ => 1.0,
        };
        let seconds = cluster.communicate(collective, part * transfer.bytes as f64, group);
        Exchange { axes: axes.clone(), seconds }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Source;
    use plan::{Activity, Link};
    use schedule::{Direction, Value};

    /// The seconds that the CPU's memory takes of a step of llama3-8b in bf16, at these rates, on all stages together.
    fn offload_seconds(settings: &[&str], bandwidth: f64, memory_bandwidth: f64) -> f64 {
        let always = ["parallel.cpu_offload=true", "train.micro_batch_size=1"];
        let settings: Vec<String> = always.iter().chain(settings).map(ToString::to_string).collect();
        let mut config = Config::load(Source::Preset("llama3-8b"), &settings).unwrap();
        let mut cluster = Cluster::named("h100-sxm").unwrap();
        config.train.device = cluster.kind().into();
        config.parallel.precision.choose(cluster.kind());
        cluster.offload = Some(Offload { link: Link { bandwidth, latency: 0.0 }, memory_bandwidth });
        let timeline = step_time(&config, &cluster, Assumptions::default()).unwrap();
        let copies = |op: &Op| matches!(op, Op::Gather { .. } | Op::Reduce { .. } | Op::Step { .. });
        let waits = timeline.spans().iter().filter(|span| matches!(span.activity, Activity::Exposed(_)));
        waits.filter(|span| copies(&span.op)).map(|span| span.end - span.start).sum()
    }

    /// docs/memory.md, with S parameters and H of the head, which is gathered once for both of its passes. Three
    /// micro-batches of each rank.
    #[test]
    fn offloaded_states_take_as_long_as_their_bytes() {
        let (s, h) = (8_030_261_248.0, 4096.0 * (128_256.0 + 1.0)); // with the head's norm
        let full = ["parallel.strategy=full_shard", "parallel.gpus=4", "train.global_batch_size=12"];
        let zero1 = ["parallel.strategy=zero1", "parallel.gpus=4", "train.global_batch_size=12"];
        let stages = ["parallel.gpus=4", "parallel.pp=4", "train.global_batch_size=3"];
        // Sent: parameters of 2 bytes, gradients of 2 on a single rank of a stage, and else of 4.
        let sent: [(&[&str], f64); 5] = [
            (&["train.global_batch_size=3"], 3.0 * (4.0 * s - 2.0 * h) + 3.0 * 2.0 * s),
            (&["train.global_batch_size=3", "parallel.strategy=zero1"], 3.0 * (4.0 * s - 2.0 * h) + 3.0 * 2.0 * s),
            (&full, (3.0 * (4.0 * s - 2.0 * h) + 3.0 * 4.0 * s) / 4.0),
            (&zero1, (2.0 * s + 4.0 * s) / 4.0),
            (&stages, 2.0 * s + 3.0 * 2.0 * s),
        ];
        for (settings, bytes) in sent {
            let found = offload_seconds(settings, 1e6, 1e14) * 1e6;
            assert!((found / bytes - 1.0).abs() < 1e-4, "{settings:?}: {found:e} bytes are sent, not {bytes:e}");
        }
        // Read and written: 6 bytes to cast, 12 to add, and 28 in the optimizer.
        let touched = 3.0 * (12.0 * s - 6.0 * h) + 3.0 * 6.0 * s + 2.0 * 12.0 * s + 28.0 * s;
        let found = offload_seconds(&["train.global_batch_size=3"], 1e14, 1e6) * 1e6;
        assert!((found / touched - 1.0).abs() < 1e-4, "{found:e} bytes are touched, not {touched:e}");
    }

    #[test]
    fn a_chunk_reduces_before_it_sends() {
        let run = |call| Op::Run { kind: Kind::Backward, call, micro_batch: 0, slot: None };
        let reduce = |unit| Op::Reduce { unit, micro_batch: 0, sends: true, last: true };
        let value = Value { way: Direction::Backward, call: 1, micro_batch: 0 };
        let send = Op::Send { value, to: Peer::Stage(0) };
        let (flatten, wait) = (|unit| Op::Flatten { unit }, |unit| Op::Wait { unit });
        let before = [run(3), flatten(3), reduce(3), run(2), flatten(2), wait(3), reduce(2), send, wait(2)];
        let operation =
            |op| Operation { op, transfers: vec![], functions: 0..0, elements: 0, offloaded: Offloaded::default() };
        let after = reduced_before_sending(before.into_iter().map(operation).collect());
        let after: Vec<String> = after.iter().map(|operation| operation.op.to_string()).collect();
        assert_eq!(after.join(" "), "B3.0 flatten3 B2.0 flatten2 reduce3 reduce2 wait3 wait2 s<1.0");
    }

    #[test]
    fn experts_in_order_are_on_few_ranks() {
        // Of 12 experts a rank, tokens have 0 to 7, 8 to 15, 16 to 23: one, two, one rank.
        for (experts, of_rank, sent) in [(256, 4, 2.0 / 8.0), (128, 16, 1.0 / 8.0), (384, 12, 4.0 / 3.0 / 8.0)] {
            assert!((sent_in_order(experts, of_rank, 8) - sent).abs() < 1e-12, "{experts} experts, {of_rank} a rank");
        }
    }
}
