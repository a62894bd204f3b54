//! A model's units and calls on one rank, from shapes alone: the basis of forecasts of memory and traffic.

use crate::api::inspect::ModuleParam;
use crate::groups::outline::outline;
use crate::groups::placement::{Stages, axes_of, block_owners};
use crate::groups::plan;
use crate::shard::modules::{ClassParams, Modules, Wrapped, wrap};
use crate::shard::tensor_shard;
use crate::{FsdpConfig, FsdpError, Layout, Strategy, Units};
use comm::{Axis, MeshShape};
use schedule::{Op, Place, lower};
use std::ops::Range;

/// A model on a rank.
pub(crate) struct Shapes {
    pub units: Vec<Unit>,
    pub calls: Vec<ShapeCall>,
    stages: Stages,
    /// Under `block`: the rank that computes each call.
    owners: Option<Vec<usize>>,
    pub rank: usize,
    /// The whole model's parameters in fp32, in bytes.
    pub model: usize,
}

pub(crate) struct Unit {
    pub classes: Vec<Class>,
}

/// A class of a unit's parameters: the numbers of its shards and of their copies, and the bytes of the rank's shard in
/// fp32, of all parameters (of cut ones, the rank's parts) in the compute type, and of the same in fp32.
#[derive(Clone, Copy)]
pub(crate) struct Class {
    pub of: plan::Class,
    pub is_trained: bool,
    pub shards: usize,
    pub replicas: usize,
    pub shard: usize,
    pub whole: usize,
    pub whole_fp32: usize,
    /// What of all parameters in the compute type is no matrix.
    pub vectors: usize,
}

/// A call: its unit, and the range of the model's functions that it consists of.
pub(crate) struct ShapeCall {
    pub unit: usize,
    pub functions: Range<usize>,
    /// The ranks of the tensors that it returns.
    pub returns: Vec<usize>,
}

impl Shapes {
    /// Computes the shapes for some of `world_size` ranks.
    pub fn of_ranks<B: 'static>(
        units: Units<B>,
        config: &FsdpConfig,
        world_size: usize,
        ranks: &[usize],
    ) -> Result<Vec<Self>, FsdpError> {
        config.validate(world_size)?;
        let mesh = config.mesh(world_size)?;
        let wrapped = wrap(units, config)?;
        ranks.iter().map(|rank| Self::of_rank(&wrapped, config, &mesh, *rank)).collect()
    }

    fn of_rank<B: 'static>(
        wrapped: &Wrapped<B>,
        config: &FsdpConfig,
        mesh: &MeshShape,
        rank: usize,
    ) -> Result<Self, FsdpError> {
        let Wrapped { units: modules, calls, calls_of_chunks, rules, .. } = wrapped;
        let stages = Stages::new(&config.pipeline, calls_of_chunks, mesh.coordinate(rank, Axis::Pp))?;
        let axes = |class| axes_of(class, config.strategy);
        let parts = |class| mesh.ranks(&axes(class)[2]);
        let size = config.precision.param.dtype().size();
        let class = |ClassParams { class: of, is_trained, params }: ClassParams| {
            let [shard, replicate, part] = axes(of);
            let (shards, replicas) = (mesh.ranks(&shard), mesh.ranks(&replicate));
            let place = [part.first().map_or(0, |axis| mesh.coordinate(rank, *axis)), parts(of)];
            let size = if of == plan::Class::Fp32 { size_of::<f32>() } else { size };
            let len = tensor_shard::layout(&params, place, shards).padded_len();
            let (whole, whole_fp32) = (len * size, len * size_of::<f32>());
            let no_matrix = params.iter().filter(|param| param.shape.len() < 2);
            let vectors = no_matrix.map(|param| param.region(place).size.iter().product::<usize>() * size).sum();
            Class { of, is_trained, shards, replicas, shard: whole_fp32 / shards, whole, whole_fp32, vectors }
        };
        let kept = rules.kept(config);
        let unit = |modules: &Modules| {
            let classes = modules.classes(parts, &kept)?;
            Ok(Unit { classes: classes.params.into_iter().map(class).collect() })
        };
        let units = modules.iter().map(unit).collect::<Result<Vec<_>, FsdpError>>()?;
        let shards = mesh.ranks(&axes(plan::Class::Dense)[0]);
        let in_fp32 = |modules: &Modules| {
            Layout::new(modules.params().into_iter().map(ModuleParam::named_shape), shards).padded_len()
                * size_of::<f32>()
        };
        let model = modules.iter().map(in_fp32).sum();
        let owners = (config.strategy == Strategy::Block).then(|| block_owners(calls.len(), mesh.world_size()));
        let mut end = 0;
        let call = |call: &crate::api::call::Call<B>| {
            end += call.functions();
            let functions = end - call.functions()..end;
            ShapeCall { unit: call.unit, functions, returns: call.returns().to_vec() }
        };
        let calls = calls.iter().map(call).collect();
        Ok(Self { units, calls, stages, owners, rank, model })
    }

    /// Returns the operations of the rank in a step with this number of micro-batches.
    pub fn lowered(&self, config: &FsdpConfig, on_cpu: bool, micro_batches: usize) -> Result<Vec<Op>, FsdpError> {
        let units: Vec<usize> = self.calls.iter().map(|call| call.unit).collect();
        let gathers = |unit: usize| self.units[unit].classes.iter().any(|class| class.gathers(config, on_cpu));
        let outline = outline(config, &units, &self.stages, self.owners.as_deref(), gathers);
        let place = Place { stage: self.stages.stage, rank: self.rank };
        Ok(lower(&outline, &config.pipeline.of(micro_batches)?, place))
    }
}

impl Unit {
    /// Returns the classes with gradients.
    pub fn trained(&self) -> impl Iterator<Item = &Class> {
        self.classes.iter().filter(|class| class.is_trained)
    }

    /// Returns the sum of a number of bytes over the classes.
    pub fn sum(&self, bytes: impl Fn(&Class) -> usize) -> usize {
        self.classes.iter().map(bytes).sum()
    }
}

impl Class {
    /// Returns whether the shard has the type and the place in which it is used.
    fn is_at_hand(&self, config: &FsdpConfig, on_cpu: bool) -> bool {
        self.whole == self.whole_fp32 && (on_cpu || !config.cpu_offload)
    }

    /// The same as [`Plan::replicates`](plan::Plan::replicates).
    pub fn replicates(&self, config: &FsdpConfig) -> bool {
        match self.shards {
            1 => self.whole != self.whole_fp32 && !config.cpu_offload,
            _ => !config.strategy.shards().parameters,
        }
    }

    /// The same as [`Plan::gathers`](plan::Plan::gathers).
    pub fn gathers(&self, config: &FsdpConfig, on_cpu: bool) -> bool {
        (self.shards > 1 || !self.is_at_hand(config, on_cpu)) && !self.replicates(config)
    }

    /// Returns the bytes of parameters between steps.
    pub fn parameters_at_rest(&self, config: &FsdpConfig, on_cpu: bool) -> usize {
        match self.replicates(config) {
            false => self.shard,
            true if self.is_at_hand(config, on_cpu) => self.whole, // the shard is a part of it
            true => self.whole + self.shard,
        }
    }

    /// Returns the bytes of the moments of Kiln's AdamW. Optimizers of Burn may keep less or more.
    pub fn moments(&self) -> usize {
        if self.is_trained { 2 * self.shard } else { 0 }
    }

    /// Returns the bytes of a whole gradient in the compute type.
    pub fn gradient(&self) -> usize {
        if self.is_trained { self.whole } else { 0 }
    }
}
