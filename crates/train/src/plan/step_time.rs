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
use burn::tensor::Device;
use comm::{Axis, MeshShape};
use fsdp::{Operation, SharesRun, Strategy, Transfer};
use model::{ExpertLoads, Parallel};
use plan::{Cluster, Collective, Group, Message, Pass, PlanError, Step, Task, Timeline, Work, simulate};
use schedule::{Kind, Op};
use std::collections::HashMap;

/// Bytes that AdamW moves for a parameter: its gradient is read, the parameter and two moments are read and written,
/// all in fp32.
pub(crate) const OPTIMIZER_BYTES: f64 = 28.0;

/// What is assumed of a run.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Assumptions {
    /// Whether all experts of a token are on one rank, as in benchmarks with a balanced gate that deals them out in
    /// order: then one copy of a token is sent, not `top_k`.
    pub one_expert_copy: bool,
}

/// Simulates a step of a run on a cluster.
///
/// # Errors
/// If ranks wait for each other, which no valid configuration does.
pub(crate) fn step_time(config: &Config, cluster: &Cluster, assumptions: Assumptions) -> Result<Timeline, PlanError> {
    let of_stage = config.parallel.gpus / config.parallel.pp;
    let is_block = config.parallel.strategy == Strategy::Block;
    let ranks = if is_block { 1 } else { of_stage };
    let steps: Vec<Step> = different_ranks(config)
        .into_iter()
        .map(|rank| Step { stage: rank / of_stage, rank, ranks, tasks: tasks(config, cluster, rank, assumptions) })
        .collect();
    simulate(&steps, cluster.shared_cores(config.parallel.gpus))
}

fn tasks(config: &Config, cluster: &Cluster, rank: usize, assumptions: Assumptions) -> Vec<Task> {
    // The memory check allows for the fullest rank; time is that of balanced experts.
    let mut config = config.clone();
    if let Some(moe) = &mut config.moe {
        moe.max_rank_load = 1.0;
    }
    let config = &config;
    let units = units(config, &ExpertLoads::new(config.moe.as_ref()), &Parallel::default(), &Device::flex());
    let (fsdp, workload, family) = (config.fsdp(), workload(config, rank), config.family());
    let (world_size, micro_batches) = (config.parallel.gpus, config.micro_batches());
    let calls = family.traffic(&workload);
    let run = SharesRun { world_size, rank, micro_batches, calls: &calls, on_cpu: workload.on_cpu };
    let operations = units.operations(&fsdp, run).expect("the configuration is validated");
    let mesh = fsdp.mesh(world_size).expect("the configuration is validated");
    let top_k = config.moe.as_ref().map_or(1, |moe| moe.top_k);
    let mut rank = RankTime {
        cluster,
        mesh,
        rank,
        work: family.work(&workload),
        element: workload.element,
        sent: if assumptions.one_expert_copy { 1.0 / top_k as f64 } else { 1.0 },
        groups: HashMap::new(),
    };
    operations.iter().map(|operation| rank.task(operation)).collect()
}

/// Returns the collective of this name; a ring of messages is one.
pub(crate) fn collective_of(name: &str) -> Collective {
    match name {
        "all_gather" | "gather" => Collective::AllGather,
        "reduce_scatter" | "scatter" => Collective::ReduceScatter,
        "all_reduce" => Collective::AllReduce,
        "all_to_all" => Collective::AllToAll,
        _ => Collective::Message,
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
    /// The part of the rows for experts that is sent.
    sent: f64,
    groups: HashMap<Vec<Axis>, (String, Group)>,
}

impl RankTime<'_> {
    fn task(&mut self, operation: &Operation) -> Task {
        let messages = operation.transfers.iter().map(|transfer| self.message(transfer)).collect();
        let slowest = if self.mesh.world_size() > 1 { self.cluster.device.efficiency.slowest } else { 1.0 };
        Task { op: operation.op, compute: self.compute(operation) / slowest, messages }
    }

    /// Returns the seconds that an operation computes.
    fn compute(&self, operation: &Operation) -> f64 {
        let device = &self.cluster.device;
        let moved = |bytes: f64| {
            let elements = operation.elements as f64;
            elements * bytes / (device.memory_bandwidth * device.efficiency.memory) + device.efficiency.launch
        };
        match operation.op {
            Op::Run { kind, .. } => {
                let passes: &[Pass] = match kind {
                    Kind::Forward(_) => &[Pass::Forward],
                    Kind::Recompute => &[Pass::Recompute],
                    Kind::Backward => &[Pass::Input, Pass::Weights],
                    Kind::Input => &[Pass::Input],
                    Kind::Weights => &[Pass::Weights],
                };
                let functions = &self.work[operation.functions.clone()];
                functions.iter().flat_map(|work| passes.iter().map(|pass| work.seconds(*pass, device))).sum()
            }
            Op::Flatten { .. } => moved(2.0 * self.element as f64),
            Op::Add { .. } => moved(3.0 * self.element as f64),
            Op::Step { .. } => moved(OPTIMIZER_BYTES),
            _ => 0.0,
        }
    }

    fn message(&mut self, transfer: &Transfer) -> Message {
        let Self { cluster, mesh, rank, sent, groups, .. } = self;
        let group = || match transfer.axes.as_slice() {
            // Of two ranks, the farthest that there are.
            [] => ("world".into(), Group::new(vec![0, mesh.world_size() - 1], cluster)),
            axes => (mesh.along(axes), Group::new(mesh.group(*rank, axes), cluster)),
        };
        let (axes, group) = groups.entry(transfer.axes.clone()).or_insert_with(group);
        let collective = collective_of(transfer.collective);
        let part = if collective == Collective::AllToAll { *sent } else { 1.0 };
        let seconds = cluster.communicate(collective, part * transfer.bytes as f64, group);
        Message { axes: axes.clone(), seconds }
    }
}
