//! What the ranks of a call tell each other on the host before NCCL gets the call.

use super::{NcclEngine, Turn, element};
use crate::payload::{DTYPES, Part, dtype_number};
use crate::{Collective, CommError, Cost, Engine, Payload, Reduce, Signature};
use ::nccl::UniqueId;
use burn::tensor::{Device, TensorData};

/// A call on which all ranks have agreed.
pub struct Met {
    /// This rank's part in the order of calls, with the call's number.
    pub turn: Turn,
    /// What the agreement costs, with that before the call is queued.
    pub cost: Cost,
}

/// An exchange on which all ranks have agreed, and what each of them sends to this one.
pub type MetParts = (Met, Vec<Option<Part>>);

/// What a rank says of its tensors: 1 if some are on the CPU, and 1 if some are on the GPU.
fn places<'a>(payloads: impl Iterator<Item = &'a Payload>) -> [i64; 2] {
    payloads.fold([0; 2], |[cpu, gpu], payload| if payload.is_on_cpu() { [1, gpu] } else { [cpu, 1] })
}

/// Returns whether a call goes by NCCL, from the [`places`] of all ranks together. The engine below must not move tensors
/// between GPUs: its copies wait for all that a GPU has queued, and so for calls of NCCL that wait for other ranks.
fn goes_by_nccl(said: &[i64], signature: &Signature) -> Result<bool, CommError> {
    let (cpu, gpu) = (said[0] > 0, said[1] > 0);
    if cpu && gpu {
        return Err(CommError::Engine(format!("{signature}: some tensors are on the CPU and some on the GPU")));
    }
    Ok(!cpu)
}

/// The signature of an agreement on nothing but the call.
fn bare(collective: Collective) -> Signature {
    Signature { collective, len: None, dtype: None }
}

impl NcclEngine {
    /// Agrees on a call to which every rank gives one tensor. Returns `None` if the engine below has to make the call.
    pub(super) fn meet(&self, signature: &Signature, payload: &Payload) -> Result<Option<Met>, CommError> {
        let len = payload.len() as i64;
        let [cpu, gpu] = places(std::iter::once(payload));
        let (most, cost) = self.greatest(signature, vec![cpu, gpu, len, -len])?;
        if most[2] != -most[3] {
            let reason = format!("{signature}: ranks give from {} to {} elements", -most[3], most[2]);
            return Err(CommError::Engine(reason));
        }
        if !goes_by_nccl(&most[..2], signature)? {
            return Ok(None);
        }
        if element(payload.dtype()).is_none() {
            let reason = format!("{signature}: NCCL has no 16-bit integers: cast to 32 bits first");
            return Err(CommError::Engine(reason));
        }
        // Only now, when all ranks are in the call: until its number is known, other calls wait, and one of them may be
        // what a rank has to do before it gets here.
        let turn = self.turns.enter(self.group);
        let (number, _) = self.greatest(signature, vec![turn.proposal])?;
        turn.agree(number[0]);
        Ok(Some(Met { turn, cost: cost + cost + cost }))
    }

    /// Agrees on an exchange, and returns what each rank sends to this one.
    pub(super) fn meet_parts(
        &self,
        signature: &Signature,
        parts: &[Option<Payload>],
    ) -> Result<Option<MetParts>, CommError> {
        let n = self.world_size();
        let (most, cost) = self.greatest(signature, places(parts.iter().flatten()).to_vec())?;
        if !goes_by_nccl(&most, signature)? {
            return Ok(None);
        }
        let turn = self.turns.enter(self.group);
        // Length and dtype of each part, sender by sender, receiver by receiver; then the call's number.
        let mut rows = vec![-1; 2 * n * n + 1];
        rows[2 * n * n] = turn.proposal;
        for (to, part) in parts.iter().enumerate() {
            if let Some(part) = part {
                let at = 2 * (self.rank() * n + to);
                (rows[at], rows[at + 1]) = (part.len() as i64, dtype_number(part.dtype()) as i64);
            }
        }
        let (rows, more) = self.greatest(signature, rows)?;
        turn.agree(rows[2 * n * n]);
        let coming = (0..n).map(|from| {
            let at = 2 * (from * n + self.rank());
            let dtype = DTYPES.get(usize::try_from(rows[at + 1]).ok()?)?;
            Some((usize::try_from(rows[at]).ok()?, *dtype))
        });
        Ok(Some((Met { turn, cost: cost + more + cost }, coming.collect())))
    }

    /// Returns when the turn of a call has come on all ranks.
    pub(super) fn meet_again(&self, collective: Collective) -> Result<(), CommError> {
        self.greatest(&bare(collective), vec![0]).map(drop)
    }

    /// Returns an error on all ranks if two of one process have the same GPU. Each process may number the GPUs in its own
    /// way, so between processes only NCCL can tell.
    pub(super) fn check_cards(&self) -> Result<(), CommError> {
        let n = self.world_size();
        let mut rows = vec![0; 2 * n];
        (rows[self.rank()], rows[n + self.rank()]) = (self.card as i64, i64::from(std::process::id()));
        let (rows, _) = self.greatest(&bare(Collective::Barrier), rows)?;
        let (cards, processes) = rows.split_at(n);
        let place = |rank: usize| (self.machine(rank), processes[rank], cards[rank]);
        let shared = (0..n).find_map(|b| Some(((0..b).find(|a| place(*a) == place(b))?, b)));
        match shared {
            None => Ok(()),
            Some((a, b)) => Err(CommError::Engine(format!(
                "ranks {a} and {b} both have cuda:{}, and NCCL takes one rank on each GPU: start at most as many ranks as \
                 there are GPUs, or set comm.nccl to false",
                cards[a]
            ))),
        }
    }

    /// Gives rank 0's identifier to all ranks.
    pub(super) fn share(&self, collective: Collective, id: Result<UniqueId, CommError>) -> Result<UniqueId, CommError> {
        let mut bytes: Vec<i64> = match &id {
            Ok(id) => id.0.iter().map(|byte| i64::from(*byte)).collect(),
            Err(_) => vec![0; 128],
        };
        bytes.push(i64::from(id.is_err()));
        let (shared, _) = self.greatest(&bare(collective), bytes)?;
        id?;
        if shared[128] != 0 {
            return Err(CommError::Engine("rank 0 of a group cannot use NCCL".into()));
        }
        let mut id = UniqueId([0; 128]);
        id.0.iter_mut().zip(shared).for_each(|(byte, shared)| *byte = shared as u8);
        Ok(id)
    }

    /// Returns the greatest of the ranks' numbers, place by place, by the engine below.
    fn greatest(&self, signature: &Signature, mine: Vec<i64>) -> Result<(Vec<i64>, Cost), CommError> {
        let len = mine.len();
        let mine = Payload::from_data(TensorData::new(mine, [len]), &Device::flex());
        let (most, cost) = self.host.all_reduce(signature, mine, Reduce::Max)?;
        let control = Cost { control: cost.control.max(self.world_size() - 1), ..Cost::default() };
        Ok((most.into_data().iter::<i64>().collect(), control))
    }
}
