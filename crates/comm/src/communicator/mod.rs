//! The collectives of a rank on typed tensors, over any engine.

mod point_to_point;
mod rounds;

use crate::engine::Metered;
use crate::error::panic_message;
use crate::flight::{FlightRecorder, GroupCalls};
use crate::meter::Meter;
use crate::{Collective, CommError, Cost, Engine, Kind, Payload, Reduce, Signature, TrafficTable};
use burn::tensor::{Device, Float, Int, Tensor, TensorData};
use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

/// The largest tensor, in bytes, that is all-reduced in one round: N/2 times the bytes of two rounds, and half the
/// waiting.
const SMALL: usize = 32 * 1024;

/// The name under which a group is metered if it is not along mesh axes.
pub(crate) const WORLD: &str = "world";

/// Returns the bytes that a rank receives in an `all_reduce` of `len` elements of `size` bytes over `ranks` ranks. For
/// small tensors these are all elements of all other ranks. Larger tensors are split into one chunk per rank, and each
/// of the two rounds receives one chunk from every other rank.
pub fn all_reduce_bytes(len: usize, size: usize, ranks: usize) -> usize {
    let rounds = if len * size <= SMALL { len } else { 2 * len.div_ceil(ranks) };
    (ranks - 1) * rounds * size
}

/// The collectives of one rank in a group of N ranks.
///
/// Every method blocks until all ranks of the group have made the same call, and returns an error on every rank if one
/// of them does not; [the properties](crate) say what happens if a process fails during a call. Tensors are flat (reshaping
/// is free), of any float or integer dtype, and not tracked by autodiff. Clones represent the same rank.
#[derive(Clone)]
pub struct Communicator {
    engine: Arc<dyn Engine>,
    /// For error messages.
    world_rank: usize,
    /// The mesh axes of the group; for the meter.
    axes: Arc<str>,
    meter: Meter,
    /// The group, for the flight recorder.
    group: Arc<GroupCalls>,
    flight: Arc<FlightRecorder>,
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "rank {} of {} ({})", self.rank(), self.world_size(), self.axes)
    }
}

impl Communicator {
    /// Creates the collectives of a world from its engine.
    pub fn new(engine: Arc<dyn Engine>) -> Self {
        let (rank, world_size) = (engine.rank(), engine.world_size());
        let (group, flight) = (GroupCalls::of_world(world_size), FlightRecorder::new(rank, world_size));
        Self { world_rank: rank, engine, axes: WORLD.into(), meter: Meter::default(), group, flight }
    }

    /// Returns the same group, whose tensors on the GPU move by NCCL ([`NcclEngine`](crate::NcclEngine)). Every rank
    /// calls it, before the group is split.
    ///
    /// # Errors
    /// NCCL cannot be loaded, this rank's device is not a CUDA GPU, or two ranks have the same one.
    #[cfg(feature = "nccl")]
    pub fn by_nccl(self, timeouts: impl Into<crate::Timeouts>) -> Result<Self, CommError> {
        Ok(Self { engine: crate::NcclEngine::over(self.engine.clone(), timeouts)?, ..self })
    }

    /// Returns the same group, metered under these axes together with all groups split off from it.
    pub(crate) fn along(self, axes: &str) -> Self {
        Self { axes: axes.into(), ..self }
    }

    /// Returns this rank's number, from 0 to N - 1.
    pub fn rank(&self) -> usize {
        self.engine.rank()
    }

    /// Returns the number of ranks in the group, N.
    pub fn world_size(&self) -> usize {
        self.engine.world_size()
    }

    /// Returns the number of the machine of a rank. The ranks of a machine have the same number.
    pub fn machine(&self, rank: usize) -> usize {
        self.engine.machine(rank)
    }

    /// Returns the device on which results arrive.
    pub fn device(&self) -> &Device {
        self.engine.device()
    }

    /// Concatenates the ranks' tensors in rank order: `[n]` becomes `[N * n]`.
    pub fn all_gather<K: Kind>(&self, shard: Tensor<1, K>) -> Result<Tensor<1, K>, CommError> {
        let (collective, shard) = (Collective::AllGather, K::forget(shard));
        self.metered(&whole(collective, &shard), || self.all_gather_as(collective, shard)).map(K::remember)
    }

    /// Returns chunk `rank` of the sum of the ranks' tensors: `[N * n]` becomes `[n]`.
    pub fn reduce_scatter<K: Kind>(&self, full: Tensor<1, K>) -> Result<Tensor<1, K>, CommError> {
        let (collective, full) = (Collective::ReduceScatter, K::forget(full));
        let signature = whole(collective, &full);
        let call = || self.chunks(collective, full).map(|(chunks, cost)| (chunks.reduce(Reduce::Sum), cost));
        self.metered(&signature, call).map(K::remember)
    }

    /// Continues a sum with a [`reduce_scatter`](Self::reduce_scatter): returns chunk `rank` of
    /// `((onto + t_0) + t_1) + ...`, where `onto` is this rank's chunk so far. The gradients of several micro-batches
    /// are thus always added in the same order, however many ranks computed them.
    ///
    /// For 16-bit tensors, the sum and `onto` are f32, so fp16 does not overflow with any number of ranks.
    pub fn reduce_scatter_onto(&self, full: Tensor<1>, onto: Option<Tensor<1>>) -> Result<Tensor<1>, CommError> {
        let (collective, full, onto) = (Collective::ReduceScatter, Payload::Float(full), onto.map(Payload::Float));
        let signature = whole(collective, &full);
        let call = || {
            let (chunk, dtype) = (full.len() / self.world_size(), full.sum_dtype());
            if let Some(onto) = onto.as_ref().filter(|onto| (onto.len(), onto.dtype()) != (chunk, dtype)) {
                let (chunk, sum) = (format!("[{chunk}] {dtype:?}"), format!("[{}] {:?}", onto.len(), onto.dtype()));
                let reason = format!("chunks of {chunk} cannot be added to a sum of {sum}");
                return Err(self.bad_argument(collective, reason));
            }
            let (chunks, cost) = self.chunks(collective, full)?;
            Ok((chunks.sum_onto(onto), cost))
        };
        self.metered(&signature, call).map(Float::remember)
    }

    /// Combines the ranks' tensors: `[n]` stays `[n]`.
    pub fn all_reduce<K: Kind>(&self, tensor: Tensor<1, K>, how: Reduce) -> Result<Tensor<1, K>, CommError> {
        let tensor = K::forget(tensor);
        let (signature, small) = (whole(Collective::AllReduce(how), &tensor), tensor.bytes() <= SMALL);
        let call = || if small { self.reduce_at_once(tensor, how) } else { self.reduce_in_chunks(tensor, how) };
        self.metered(&signature, call).map(K::remember)
    }

    /// Combines the ranks' numbers element by element in f64, on the host alone.
    pub fn all_reduce_numbers(&self, numbers: &[f64], how: Reduce) -> Result<Vec<f64>, CommError> {
        let data = TensorData::new(numbers.to_vec(), [numbers.len()]);
        let payload = Payload::from_data(data, &Device::flex());
        let signature = whole(Collective::AllReduce(how), &payload);
        let total = self.metered(&signature, || self.reduce_at_once(payload, how))?;
        Ok(total.into_data().iter::<f64>().collect())
    }

    /// Returns rank `root`'s tensor; the tensors of the others must have its shape and dtype.
    pub fn broadcast<K: Kind>(&self, tensor: Tensor<1, K>, root: usize) -> Result<Tensor<1, K>, CommError> {
        let (collective, tensor) = (Collective::Broadcast(root), K::forget(tensor));
        self.check_root(collective, root)?;
        let signature = whole(collective, &tensor);
        let parts = if self.rank() == root { vec![Some(tensor); self.world_size()] } else { self.nothing() };
        let mut found = self.call(&signature, parts)?;
        Ok(K::remember(found[root].take().expect("the root gives everyone its tensor")))
    }

    /// Returns every rank's tensor in rank order on rank `root`, and nothing elsewhere. Lengths may differ.
    pub fn gather<K: Kind>(&self, tensor: Tensor<1, K>, root: usize) -> Result<Vec<Tensor<1, K>>, CommError> {
        let (collective, tensor) = (Collective::Gather(root), K::forget(tensor));
        self.check_root(collective, root)?;
        let signature = Signature { len: None, ..whole(collective, &tensor) };
        let mut parts = self.nothing();
        parts[root] = Some(tensor);
        Ok(self.call(&signature, parts)?.into_iter().flatten().map(K::remember).collect())
    }

    /// Returns part `rank` of the parts that rank `root` gives, one per rank; the others pass `None`.
    pub fn scatter<K: Kind>(&self, parts: Option<Vec<Tensor<1, K>>>, root: usize) -> Result<Tensor<1, K>, CommError> {
        let (collective, n) = (Collective::Scatter(root), self.world_size());
        self.check_root(collective, root)?;
        let parts = match (parts, self.rank() == root) {
            (Some(parts), true) if parts.len() == n => parts.into_iter().map(|part| Some(K::forget(part))).collect(),
            (None, false) => self.nothing(),
            (Some(parts), true) => {
                return Err(self.bad_argument(collective, format!("{} parts for {n} ranks", parts.len())));
            }
            (None, true) => return Err(self.bad_argument(collective, "the root gives no parts".into())),
            (Some(_), false) => return Err(self.bad_argument(collective, "only the root gives parts".into())),
        };
        let mut found = self.call(&Signature { collective, len: None, dtype: None }, parts)?;
        match found[root].take() {
            Some(part) if K::is(&part) => Ok(K::remember(part)),
            _ => Err(self.bad_argument(collective, "the root's part is of another kind than was asked for".into())),
        }
    }

    /// Splits `rows`, `[sum of send_counts]`, into parts and sends part i to rank i. Returns the received parts,
    /// concatenated in rank order, and their element counts. Counts may be 0.
    pub fn all_to_all<K: Kind>(
        &self,
        rows: Tensor<1, K>,
        send_counts: &[usize],
    ) -> Result<(Tensor<1, K>, Vec<usize>), CommError> {
        let (collective, n, rows) = (Collective::AllToAll, self.world_size(), K::forget(rows));
        if send_counts.len() != n {
            return Err(self.bad_argument(collective, format!("{} counts for {n} ranks", send_counts.len())));
        }
        if send_counts.iter().sum::<usize>() != rows.len() {
            let sum: usize = send_counts.iter().sum();
            return Err(self.bad_argument(collective, format!("the counts add up to {sum} of {} elements", rows.len())));
        }
        let signature = Signature { len: None, ..whole(collective, &rows) };
        let mut start = 0;
        let parts = send_counts.iter().map(|count| {
            start += count;
            Some(rows.clone().slice(start - count..start))
        });
        let parts: Vec<Payload> = self.call(&signature, parts.collect())?.into_iter().flatten().collect();
        let counts = parts.iter().map(Payload::len).collect();
        Ok((K::remember(Payload::cat(parts)), counts))
    }

    /// Returns when every rank has called it.
    pub fn barrier(&self) -> Result<(), CommError> {
        let signature = Signature { collective: Collective::Barrier, len: None, dtype: None };
        self.metered(&signature, || match self.world_size() {
            1 => Ok(((), Cost::default())),
            _ => self.engine.agree(&signature).map(|cost| ((), cost)),
        })
    }

    /// Returns the group of the ranks that pass the same `color`, numbered in the order of their ranks here. It is
    /// metered as an `all_gather` of the colors.
    pub fn split(&self, color: usize) -> Result<Self, CommError> {
        let data = TensorData::new(vec![color as i64], [1]);
        let color_1 = Tensor::<1, Int>::from_data(data, (self.device(), burn::tensor::DType::I64));
        let colors = self.all_gather(color_1)?.into_data();
        let members = colors.iter::<i64>().enumerate().filter(|(_, other)| *other == color as i64);
        let members: Vec<usize> = members.map(|(rank, _)| rank).collect();
        Ok(Self { engine: self.engine.split(&members)?, group: self.group.split(&members), ..self.clone() })
    }

    /// Notes that all ranks of the group make the same calls in the same order from now on, which they have compared, as
    /// by a digest of their lists. Every rank says so at the same point.
    ///
    /// Processes then send no headers before collectives whose sizes all ranks know: control no longer grows with N. A
    /// rank that makes another call all the same is an error at the timeout, or receives what is meant for another call.
    pub fn expect_agreement(&self) {
        self.engine.expect_agreement();
    }

    /// Tells the other ranks that this one has failed; their current and future calls return an error with `reason`.
    pub fn abort(&self, reason: &str) {
        self.flight.abort(reason);
        self.engine.abort(reason);
    }

    /// Returns the result of `work`; if it fails or panics, notifies the other ranks at once ([`abort`](Self::abort)).
    /// The others then do not wait until the caller has dropped its state, which can take minutes, for example if it
    /// joins a thread that writes to a slow disk.
    ///
    /// ```text
    /// let mut state = State::new(); // outside `work`: not yet dropped when the others are notified
    /// comm.abort_on_failure(|| state.train())?;
    /// ```
    pub fn abort_on_failure<T, E: Display>(&self, work: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let result = catch_unwind(AssertUnwindSafe(work));
        match &result {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => self.abort(&error.to_string()),
            Err(panic) => self.abort(&format!("panicked: {}", panic_message(&**panic))),
        }
        result.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Returns what this rank has communicated through this communicator and all groups split off from it.
    pub fn traffic(&self) -> TrafficTable {
        self.meter.table()
    }

    /// Returns the traffic by the axes of the groups, as named by [`MeshShape::along`](crate::MeshShape::along); groups
    /// outside a mesh count as `world`.
    pub fn traffic_by_axes(&self) -> BTreeMap<String, TrafficTable> {
        self.meter.by_axes()
    }

    /// Returns the recorder of this rank's calls, through this communicator and all groups of the same world. Another
    /// thread may read it while the rank is stuck in a call.
    pub fn flight(&self) -> Arc<FlightRecorder> {
        self.flight.clone()
    }

    /// Notes where this rank is in the program, for the flight recorder: the number of the step and what the rank does
    /// in it, such as `forward` or `checkpoint`. Calls made on other threads count as made in the background from now
    /// on.
    pub fn note_place(&self, step: u64, what: &'static str) {
        self.flight.note_place(step, what);
    }

    /// Runs `call`, records it, and meters the cost that it returns. A single rank communicates nothing.
    fn metered<T>(&self, signature: &Signature, call: impl FnOnce() -> Metered<T>) -> Result<T, CommError> {
        if self.world_size() == 1 {
            return call().map(|(result, _)| result);
        }
        // A call that panics stays open in the record.
        let entered = self.flight.enter(&self.group, &self.axes, signature.clone());
        let result = call();
        let left = self.flight.leave(&entered, result.as_ref().map(|(_, cost)| cost.bytes()));
        let (result, cost) = result?;
        self.meter.add(&self.axes, signature.collective, cost, left - entered.at);
        Ok(result)
    }

    fn check_root(&self, collective: Collective, rank: usize) -> Result<(), CommError> {
        let n = self.world_size();
        if rank < n { Ok(()) } else { Err(self.bad_argument(collective, format!("there are only {n} ranks"))) }
    }

    /// Ranks that share a tracked tensor share a graph and wait for each other's backward forever.
    fn check_tracked(&self, collective: Collective, payload: &Payload) -> Result<(), CommError> {
        if payload.is_tracked() {
            return Err(self.bad_argument(collective, "the tensor is tracked by autodiff: give its `inner()`".into()));
        }
        Ok(())
    }

    fn bad_argument(&self, collective: Collective, reason: String) -> CommError {
        let error = CommError::BadArgument { rank: self.world_rank, collective, reason };
        self.abort(&error.to_string());
        error
    }

    fn nothing(&self) -> Vec<Option<Payload>> {
        vec![None; self.world_size()]
    }
}

fn whole(collective: Collective, tensor: &Payload) -> Signature {
    Signature { collective, len: Some(tensor.len()), dtype: Some(tensor.dtype()) }
}
