//! The engine of ranks with a GPU each, whose tensors move by NCCL: feature `nccl`.

mod meeting;
mod messages;
mod turns;

use crate::engine::Metered;
use crate::hierarchical::combination;
use crate::local::cards::Memory;
use crate::{Collective, CommError, Cost, Engine, Payload, Reduce, Signature, Summands, Timeouts};
use ::nccl::{Call, Communicator, Element, NcclError, Reduction, UniqueId};
use burn::tensor::{DType, Device, Tensor};
use meeting::Met;
use messages::Messages;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use turns::{Turn, Turns};

/// A rank whose tensors on the GPU move by NCCL. Everything else moves by the engine below, threads or MPI: what ranks
/// agree on, and tensors on the CPU.
///
/// ```text
/// rank 0  call to 1 | number to 1 | turn to 1 | NCCL queues | poll, check failures, poll .. | result
/// rank 1  call to 0 | number to 0 | turn to 0 | NCCL queues | poll, check failures, poll .. | result
/// ```
///
/// * Ranks agree on each call before NCCL gets it, since NCCL waits without end for calls that do not match. They also
///   agree on the order in which calls of several groups are queued on their GPUs. No rank queues a call before its
///   turn has come on all, so no GPU waits for a rank that is not about to queue it too.
/// * Each call waits on the host until the GPU has done it, so that a rank that fails can be noticed, and the GPUs be
///   freed from waiting for it. After a failure, NCCL's communicator is aborted on every rank.
/// * [Messages](Engine::send) are queued when the receiver asks for them; the sender does not wait.
/// * NCCL adds in an order of its own. A sum is bitwise the same every time on the same GPUs and machines; on others,
///   and with another engine, it may differ in the last bits. 16-bit floats are added in f32 and rounded once, so sums
///   of them cross the links in f32: `reduce_scatter` moves twice the bytes.
/// * The meter counts the bytes of the engines that move each part once. NCCL's rings and trees may move fewer.
///
/// Each group makes its communicator in its first call that needs one, and another one for the messages between two
/// ranks in one direction. Each has buffers on the GPU, which Kiln's memory check does not count.
pub struct NcclEngine {
    host: Arc<dyn Engine>,
    /// The GPU's number.
    card: usize,
    timeouts: Timeouts,
    turns: Arc<Turns>,
    /// A number that this group has on all its ranks, and no other group.
    group: u64,
    splits: AtomicU64,
    communicator: Mutex<Option<Communicator>>,
    messages: Messages,
}

impl From<NcclError> for CommError {
    fn from(error: NcclError) -> Self {
        Self::Engine(error.to_string())
    }
}

impl NcclEngine {
    /// Creates the engine of a rank over that of its world, whose device is a CUDA GPU that no other rank has.
    ///
    /// # Errors
    /// NCCL cannot be loaded, the device is not a CUDA GPU, or two ranks have the same one.
    pub fn over(host: Arc<dyn Engine>, timeouts: impl Into<Timeouts>) -> Result<Arc<dyn Engine>, CommError> {
        ::nccl::version()?;
        let probe = Payload::Float(Tensor::empty([1], host.device()));
        let Some(memory) = Memory::of(&probe) else {
            let reason =
                format!("rank {} has {:?}, and NCCL moves tensors between CUDA GPUs", host.rank(), host.device());
            return Err(CommError::Engine(reason));
        };
        let engine = Self::new(host, memory.number(), timeouts.into(), Arc::default(), 0)?;
        engine.check_cards()?;
        Ok(Arc::new(engine))
    }

    /// All ranks of the group call this.
    fn new(
        host: Arc<dyn Engine>,
        card: usize,
        timeouts: Timeouts,
        turns: Arc<Turns>,
        group: u64,
    ) -> Result<Self, CommError> {
        let everyone: Vec<_> = (0..host.world_size()).collect();
        let messages = Messages::new(host.split(&everyone)?);
        let (splits, communicator) = (AtomicU64::new(0), Mutex::default());
        Ok(Self { host, card, timeouts, turns, group, splits, communicator, messages })
    }

    fn check(&self, collective: Collective) -> impl FnMut() -> Result<(), CommError> + use<> {
        until(self.host.clone(), self.timeouts.call, collective)
    }

    /// Runs calls of NCCL when their turn has come.
    fn run(&self, collective: Collective, met: Met, calls: &[Call]) -> Result<(), CommError> {
        let turn = met.turn;
        let run = || {
            let mut joined = self.communicator.lock().unwrap_or_else(PoisonError::into_inner);
            if joined.is_none() {
                *joined = Some(self.join(collective)?);
            }
            let communicator = joined.as_mut().expect("it was made just now");
            turn.wait(self.check(collective))?;
            // Freeing memory waits for the GPU. If a GPU had this call and waited for another rank whose turn has not
            // come, that rank could be waiting for a call of this one's thread that frees memory.
            self.meet_again(collective)?;
            // SAFETY: the callers hold the memory until this returns. If it fails, the GPU has been freed before.
            unsafe { communicator.run(calls, || drop(turn), self.check(collective)) }
        };
        let done = run();
        if let Err(error @ CommError::Engine(_)) = &done {
            self.host.abort(&error.to_string());
        }
        done
    }

    /// Makes the group's communicator: rank 0 names it.
    fn join(&self, collective: Collective) -> Result<Communicator, CommError> {
        let id = if self.rank() == 0 { UniqueId::new().map_err(CommError::from) } else { Ok(UniqueId([0; 128])) };
        let id = self.share(collective, id)?;
        Communicator::new(id, self.rank(), self.world_size(), self.card, self.check(collective))
    }

    /// Runs a call that makes one tensor of one.
    fn one(&self, collective: Collective, met: Met, from: &Payload, to: &Payload, call: Made) -> Result<(), CommError> {
        if from.bytes() == 0 {
            return Ok(());
        }
        let element = element(from.dtype()).expect("`meet` has checked it");
        let memory = |payload: &Payload| Memory::of(payload).ok_or_else(|| CommError::Engine(NOT_ON_CARD.into()));
        let (from, to) = (memory(from)?, memory(to)?);
        self.run(collective, met, &[call(from.address(), to.address(), element)])
    }
}

impl Drop for NcclEngine {
    fn drop(&mut self) {
        let joined = self.communicator.get_mut().unwrap_or_else(PoisonError::into_inner);
        let_go(&*self.host, joined.as_mut());
    }
}

/// Before a communicator is dropped: after a failure, it does not wait for the other ranks.
fn let_go(host: &dyn Engine, joined: Option<&mut Communicator>) {
    if let Some(communicator) = joined
        && host.check(Collective::Barrier).is_err()
    {
        communicator.abort();
    }
}

/// Returns a check of a call in progress: it fails if a rank of the world has failed, or when the time is up.
fn until(
    host: Arc<dyn Engine>,
    timeout: Duration,
    collective: Collective,
) -> impl FnMut() -> Result<(), CommError> + use<> {
    let start = Instant::now();
    move || {
        host.check(collective)?;
        if start.elapsed() < timeout {
            return Ok(());
        }
        let reason = format!(
            "{collective} on rank {} of {}: NCCL has not ended within {timeout:?} what all ranks have called",
            host.rank(),
            host.world_size()
        );
        Err(CommError::Engine(reason))
    }
}

/// Returns the hash of numbers by FNV-1a.
fn fnv(numbers: &[u64]) -> u64 {
    let bytes = numbers.iter().flat_map(|number| number.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// Makes a call of two addresses.
type Made<'a> = &'a dyn Fn(u64, u64, Element) -> Call;

const NOT_ON_CARD: &str = "a tensor on the GPU has no memory there";

/// Returns NCCL's type for a dtype, if it has one.
fn element(dtype: DType) -> Option<Element> {
    Some(match dtype {
        DType::F64 => Element::F64,
        DType::F32 | DType::Flex32 => Element::F32,
        DType::F16 => Element::F16,
        DType::BF16 => Element::BF16,
        DType::I64 => Element::I64,
        DType::I32 => Element::I32,
        DType::I8 => Element::I8,
        DType::U64 => Element::U64,
        DType::U32 => Element::U32,
        DType::U8 => Element::U8,
        _ => return None,
    })
}

fn reduction(how: Reduce) -> Reduction {
    if how == Reduce::Max { Reduction::Max } else { Reduction::Sum }
}

impl Engine for NcclEngine {
    fn rank(&self) -> usize {
        self.host.rank()
    }

    fn world_size(&self) -> usize {
        self.host.world_size()
    }

    fn device(&self) -> &Device {
        self.host.device()
    }

    fn machine(&self, rank: usize) -> usize {
        self.host.machine(rank)
    }

    fn exchange(&self, signature: &Signature, mut parts: Vec<Option<Payload>>) -> Metered<Vec<Option<Payload>>> {
        let (met, coming) = match self.meet_parts(signature, &parts)? {
            Some(met) => met,
            None => return self.host.exchange(signature, parts),
        };
        let (me, device) = (self.rank(), self.device());
        let mut found: Vec<_> =
            coming.iter().map(|part| part.map(|(len, dtype)| Payload::empty(dtype, len, device))).collect();
        found[me] = parts[me].take();
        let memory = |parts: &[Option<Payload>]| -> Vec<(usize, Memory)> {
            let others = parts.iter().enumerate().filter(|(rank, _)| *rank != me);
            let filled = others.filter_map(|(rank, part)| Some((rank, part.as_ref().filter(|part| part.bytes() > 0)?)));
            filled.filter_map(|(rank, part)| Some((rank, Memory::of(part)?))).collect()
        };
        let (outgoing, incoming) = (memory(&parts), memory(&found));
        let sends = outgoing.iter().map(|(to, part)| Call::Send { from: part.address(), bytes: part.bytes(), to: *to });
        let recvs =
            incoming.iter().map(|(from, part)| Call::Recv { to: part.address(), bytes: part.bytes(), from: *from });
        let calls: Vec<_> = sends.chain(recvs).collect();
        let control = met.cost;
        // A rank without calls joins the others' communicator all the same.
        self.run(signature.collective, met, &calls)?;
        let bytes = found.iter().enumerate().filter_map(|(from, part)| Some((from, part.as_ref()?.bytes())));
        let cost = Cost::received(self, bytes) + control;
        Ok((found, cost))
    }

    fn all_gather(&self, signature: &Signature, shard: Payload) -> Metered<Payload> {
        let Some(met) = self.meet(signature, &shard)? else { return self.host.all_gather(signature, shard) };
        let (count, cost) = (shard.len(), Cost::from_each(self, shard.bytes()) + met.cost);
        let full = shard.empty_on(self.device(), self.world_size() * count);
        let call = |from, to, element| Call::AllGather { from, to, count, element };
        self.one(signature.collective, met, &shard, &full, &call)?;
        Ok((full, cost))
    }

    fn chunks(&self, signature: &Signature, full: Payload) -> Metered<Summands> {
        let Some(met) = self.meet(signature, &full)? else { return self.host.chunks(signature, full) };
        let (n, dtype, how) = (self.world_size(), full.dtype(), combination(signature.collective));
        let wide = if how == Reduce::Sum { full.widened() } else { full };
        let chunk = wide.empty_on(self.device(), wide.len() / n);
        let (count, cost) = (chunk.len(), Cost::from_each(self, chunk.bytes()) + met.cost);
        let call = |from, to, element| Call::ReduceScatter { from, to, count, element, how: reduction(how) };
        self.one(signature.collective, met, &wide, &chunk, &call)?;
        Ok((Summands::of_partials(Summands::new(vec![chunk]), n, dtype), cost))
    }

    fn all_reduce(&self, signature: &Signature, tensor: Payload, how: Reduce) -> Metered<Payload> {
        if tensor.is_on_cpu() {
            return self.host.all_reduce(signature, tensor, how);
        }
        let Some(met) = self.meet(signature, &tensor)? else { return self.host.all_reduce(signature, tensor, how) };
        let (count, dtype) = (tensor.len(), tensor.dtype());
        let cost = Cost::from_each(self, tensor.bytes()) + met.cost;
        let wide = if how == Reduce::Max { tensor } else { tensor.widened() };
        let total = wide.empty_on(self.device(), count);
        let call = |from, to, element| Call::AllReduce { from, to, count, element, how: reduction(how) };
        self.one(signature.collective, met, &wide, &total, &call)?;
        let total = Summands::of_partials(Summands::new(vec![total]), self.world_size(), dtype);
        Ok((total.reduce(how), cost))
    }

    fn agree(&self, signature: &Signature) -> Result<Cost, CommError> {
        self.host.agree(signature)
    }

    fn expect_agreement(&self) {
        self.host.expect_agreement();
    }

    fn send(&self, payload: Payload, to: usize) -> Result<(), CommError> {
        self.post(payload, to)
    }

    fn recv(&self, from: usize) -> Result<Payload, CommError> {
        self.receive(from)
    }

    fn split(&self, members: &[usize]) -> Result<Arc<dyn Engine>, CommError> {
        let split = self.splits.fetch_add(1, Ordering::Relaxed);
        // The way from the world to the group.
        let group = fnv(&[self.group, split, members[0] as u64]);
        let host = self.host.split(members)?;
        Ok(Arc::new(Self::new(host, self.card, self.timeouts, self.turns.clone(), group)?))
    }

    fn check(&self, collective: Collective) -> Result<(), CommError> {
        self.host.check(collective)
    }

    fn abort(&self, reason: &str) {
        self.host.abort(reason);
    }
}
