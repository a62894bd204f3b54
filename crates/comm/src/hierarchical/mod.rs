//! The engine of ranks on several machines.

mod all_to_all;
mod machines;
#[cfg(test)]
mod tests;

use crate::engine::Metered;
use crate::{Collective, CommError, Cost, Engine, Payload, Reduce, Signature, Summands};
use burn::tensor::Device;
use machines::Machines;
use std::sync::{Arc, OnceLock};

/// A rank in a group that spans machines: what the ranks of a machine have in common crosses the network once.
///
/// A group of N ranks on H machines with g ranks each has two levels: *inside*, the ranks of one machine, and *across*,
/// one rank per machine, all with the same place among the ranks of their machine. A collective takes a step on each.
///
/// ```text
///                  machine 0     machine 1
///                  rank 0   1    rank 2   3      F bytes in all, n = F/N for each rank
/// all_gather            a   b         c   d
///   across             ac  bd        ac  bd      each rank receives (H - 1) n bytes from other machines
///   inside           abcd abcd     abcd abcd     each rank receives (g - 1) H n bytes from its machine
///
/// reduce_scatter     abcd efgh     ijkl mnop
///   inside          ae,cg bf,dh  im,ko jn,lp     ae is a + e; each rank receives (g - 1) H n bytes from its machine
///   across           aeim bfjn     cgko dhlp     each rank receives (H - 1) n bytes from other machines
/// ```
///
/// | call | steps | bytes into a machine, for all its ranks | in one step |
/// |---|---|---|---|
/// | `all_gather` | across, inside | (1 - 1/H) F | g (1 - 1/H) F |
/// | `reduce_scatter` | inside, across | (1 - 1/H) F | g (1 - 1/H) F |
/// | `all_reduce` | the steps of both | 2 (1 - 1/H) F | 2 g (1 - 1/H) F |
/// | `all_reduce` of up to 32 KiB | inside, across | g (H - 1) F | g (H - 1) g F |
/// | `broadcast` | across in the root's column, inside | F, except on the root's machine | g F |
/// | `all_to_all` of parts up to 8 KiB, if (H - 1)(g - 1) is 32 or more | inside, across | the same, in g times fewer messages | |
///
/// The other calls take one step: their bytes cross once in any case.
///
/// # The order of sums
///
/// The tensors of each machine's ranks are added in rank order. Then the machines' sums are added, in the order of the
/// machines' lowest ranks:
///
/// ```text
/// one machine of four ranks    ((t0 + t1) + t2) + t3
/// two machines of two ranks    (t0 + t1) + (t2 + t3)
/// ```
///
/// A sum is bitwise the same every time on the same machines, for threads and processes. On another number of machines
/// it may differ in the last bits. 16-bit floats are added in f32 and rounded once, at the end. Sums of them thus cross
/// the network in f32: `reduce_scatter` moves twice the bytes of the table.
///
/// # Agreement and failures
///
/// Before the first step, all ranks of the group agree on the call in one round. Calls that do not match, and ranks that
/// are missing, are therefore found and named as on one machine. The steps need no headers. Ranks that
/// [have agreed in advance](crate::Communicator::expect_agreement) start with the first step. If one of them is late, a
/// process that waits for it in the first step may be named in its place to those that wait in the second.
///
/// If a rank fails during a call, the call may succeed on some machines and fail on others, which is also true of
/// processes on one machine.
pub struct HierarchicalEngine {
    /// All ranks of the group.
    flat: Arc<dyn Engine>,
    machines: Machines,
    /// This rank's machine and place.
    machine: usize,
    place: usize,
    /// The number of messages that a rank must save in an `all_to_all` in two steps.
    fewest_saved: usize,
    /// Created in the first call that needs them: many groups only send and receive.
    levels: OnceLock<Levels>,
}

/// The groups of a rank on the two levels.
struct Levels {
    /// The ranks of this machine, numbered by place.
    inside: Arc<dyn Engine>,
    /// The ranks with the same place, numbered by machine.
    across: Arc<dyn Engine>,
}

impl HierarchicalEngine {
    /// Returns an engine with two levels over the ranks of `flat`. Returns `flat` itself unless its ranks are on several
    /// machines, the same number on each and more than one.
    pub fn over(flat: Arc<dyn Engine>) -> Arc<dyn Engine> {
        Self::saving(flat, all_to_all::FEWEST_SAVED)
    }

    /// Does the same as [`over`](Self::over), with another number of messages that an `all_to_all` in two steps must save.
    #[doc(hidden)]
    pub fn saving(flat: Arc<dyn Engine>, fewest_saved: usize) -> Arc<dyn Engine> {
        match Machines::of(flat.world_size(), |rank| flat.machine(rank)) {
            Some(machines) => {
                let (machine, place) = machines.find(flat.rank());
                Arc::new(Self { flat, machines, machine, place, fewest_saved, levels: OnceLock::new() })
            }
            None => flat,
        }
    }

    /// Returns the levels. All ranks of the group create them in the same call.
    fn levels(&self) -> Result<&Levels, CommError> {
        if let Some(levels) = self.levels.get() {
            return Ok(levels);
        }
        let inside = self.flat.split(self.machines.ranks(self.machine))?;
        let across = self.flat.split(&self.machines.column(self.place))?;
        for level in [&inside, &across] {
            level.expect_agreement(); // they only run steps of calls on which the whole group agrees
        }
        Ok(self.levels.get_or_init(|| Levels { inside, across }))
    }

    /// Runs the steps of a call on which all ranks agree.
    fn agreed<T>(&self, signature: &Signature, steps: impl FnOnce(&Levels) -> Metered<T>) -> Metered<T> {
        let call = || {
            let agreement = self.flat.agree(signature)?;
            let (result, cost) = steps(self.levels()?)?;
            Ok((result, agreement + cost))
        };
        call().map_err(|error: CommError| error.in_call(signature.collective))
    }

    /// Passes the root's tensor down its column, and then to the other ranks of each machine.
    fn broadcast(
        &self,
        signature: &Signature,
        root: usize,
        mut parts: Vec<Option<Payload>>,
    ) -> Metered<Vec<Option<Payload>>> {
        let (machine, place) = self.machines.find(root);
        self.agreed(signature, |levels| {
            let pass = |level: &dyn Engine, from: usize, tensor: Option<Payload>| -> Metered<Option<Payload>> {
                let signature = Signature { collective: Collective::Broadcast(from), ..signature.clone() };
                let (mut found, cost) = level.exchange(&signature, vec![tensor; level.world_size()])?;
                Ok((found[from].take(), cost))
            };
            let (mut tensor, mut cost) = (parts[root].take(), Cost::default());
            if self.place == place {
                (tensor, cost) = pass(&*levels.across, machine, tensor)?;
            }
            let (tensor, inside) = pass(&*levels.inside, place, tensor)?;
            let mut found = vec![None; parts.len()];
            found[root] = tensor;
            Ok((found, cost + inside))
        })
    }
}

impl Engine for HierarchicalEngine {
    fn rank(&self) -> usize {
        self.flat.rank()
    }

    fn world_size(&self) -> usize {
        self.flat.world_size()
    }

    fn device(&self) -> &Device {
        self.flat.device()
    }

    fn machine(&self, rank: usize) -> usize {
        self.flat.machine(rank)
    }

    fn exchange(&self, signature: &Signature, parts: Vec<Option<Payload>>) -> Metered<Vec<Option<Payload>>> {
        match signature.collective {
            Collective::Broadcast(root) => self.broadcast(signature, root, parts),
            Collective::AllToAll if self.saved_messages() >= self.fewest_saved => self.all_to_all(signature, parts),
            _ => self.flat.exchange(signature, parts),
        }
    }

    fn all_gather(&self, signature: &Signature, shard: Payload) -> Metered<Payload> {
        self.agreed(signature, |levels| {
            let (column, across) = levels.across.all_gather(signature, shard)?;
            let of_column = Signature { len: Some(column.len()), ..signature.clone() };
            let (by_column, inside) = levels.inside.all_gather(&of_column, column)?;
            let mut in_rank_order = vec![0; self.world_size()];
            for (block, rank) in self.machines.by_column().into_iter().enumerate() {
                in_rank_order[rank] = block;
            }
            Ok((by_column.in_order(&in_rank_order), across + inside))
        })
    }

    fn chunks(&self, signature: &Signature, full: Payload) -> Metered<Summands> {
        let (dtype, how) = (full.dtype(), combination(signature.collective));
        self.agreed(signature, |levels| {
            let by_column = full.in_order(&self.machines.by_column());
            let (of_machine, inside) = levels.inside.chunks(signature, by_column)?;
            let partial = of_machine.partial(how);
            let of_column = Signature { len: Some(partial.len()), dtype: Some(partial.dtype()), ..signature.clone() };
            let (partials, across) = levels.across.chunks(&of_column, partial)?;
            Ok((Summands::of_partials(partials, self.world_size(), dtype), inside + across))
        })
    }

    fn all_reduce(&self, signature: &Signature, tensor: Payload, how: Reduce) -> Metered<Payload> {
        let (dtype, step) = (tensor.dtype(), combination(Collective::AllReduce(how)));
        let wide = if step == Reduce::Sum { tensor.widened() } else { tensor };
        self.agreed(signature, |levels| {
            let signature = Signature { dtype: Some(wide.dtype()), ..signature.clone() };
            let (of_machine, inside) = levels.inside.all_reduce(&signature, wide, step)?;
            let (total, across) = levels.across.all_reduce(&signature, of_machine, step)?;
            let total = Summands::of_partials(Summands::new(vec![total]), self.world_size(), dtype);
            Ok((total.reduce(how), inside + across))
        })
    }

    fn agree(&self, signature: &Signature) -> Result<Cost, CommError> {
        self.flat.agree(signature)
    }

    fn expect_agreement(&self) {
        self.flat.expect_agreement();
    }

    fn send(&self, payload: Payload, to: usize) -> Result<(), CommError> {
        self.flat.send(payload, to)
    }

    fn recv(&self, from: usize) -> Result<Payload, CommError> {
        self.flat.recv(from)
    }

    fn try_recv(&self, from: usize) -> Result<Option<Payload>, CommError> {
        self.flat.try_recv(from)
    }

    fn split(&self, members: &[usize]) -> Result<Arc<dyn Engine>, CommError> {
        self.flat.split(members).map(|flat| Self::saving(flat, self.fewest_saved))
    }

    fn check(&self, collective: Collective) -> Result<(), CommError> {
        self.flat.check(collective)
    }

    fn abort(&self, reason: &str) {
        self.flat.abort(reason);
    }
}

/// Returns how the steps of a call combine tensors: a mean is a sum until the end.
pub(crate) fn combination(collective: Collective) -> Reduce {
    if collective == Collective::AllReduce(Reduce::Max) { Reduce::Max } else { Reduce::Sum }
}
