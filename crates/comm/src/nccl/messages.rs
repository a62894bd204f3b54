//! Messages from one rank to another by NCCL.
//!
//! A GPU that has queued its part of a message would wait until the other one has, and hold up its later calls. A
//! message is therefore queued once the receiver asks for it. From then on, it is a call of two ranks like any other,
//! with a [turn](super::turns) of its own. Each direction between two ranks has a communicator and a stream of its own,
//! so both can send at once. A thread of the sender's, the *postman*, does the sender's part, and the sender computes on:
//!
//! ```text
//! sender     send | compute ......................................................
//! postman              <- ask | offer ->           <- number | ready <-> ready | NCCL
//! receiver             ask -> |          <- offer, number -> | ready <-> ready | NCCL | result
//! ```
//!
//! The first message of a direction has one word more, after the number: the communicator's identifier. Words are
//! messages of the engine below: the sender's in the group itself, the receiver's in a second group of the same ranks,
//! so that they do not mix with those of the other direction. A tensor on the CPU follows its offer there.

use super::turns::{Turn, Turns};
use super::{NOT_ON_CARD, NcclEngine, fnv, let_go, until};
use crate::local::cards::Memory;
use crate::payload::{DTYPES, Part, dtype_number};
use crate::{Collective, CommError, Engine, Payload, Timeouts};
use ::nccl::{Call, Communicator, UniqueId};
use burn::tensor::{Device, TensorData};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The messages of a rank in a group.
pub struct Messages {
    /// The group in which receivers speak.
    answers: Arc<dyn Engine>,
    /// By receiver.
    postmen: Mutex<BTreeMap<usize, Postman>>,
    /// By sender.
    incoming: Mutex<BTreeMap<usize, Arc<Mutex<Direction>>>>,
}

/// A thread that sends to one rank.
struct Postman {
    letters: mpsc::Sender<Letter>,
    /// Since when there are no more letters.
    closed: Arc<OnceLock<Instant>>,
    thread: JoinHandle<()>,
}

/// What is sent.
enum Letter {
    OnCpu(Payload),
    /// A tensor on the GPU, without memory if it is empty. The tensor itself stays on the thread that has computed it.
    OnCard(Part, Option<Memory>),
}

/// One rank's end of the messages from one rank to another.
struct Direction {
    host: Arc<dyn Engine>,
    answers: Arc<dyn Engine>,
    card: usize,
    timeouts: Timeouts,
    turns: Arc<Turns>,
    /// A number that this direction has on both ranks, and no group.
    number: u64,
    /// The rank at the other end.
    peer: usize,
    communicator: Option<Communicator>,
}

/// How long a postman sleeps at first before it looks again, and at most.
const NAP: Duration = Duration::from_micros(50);
const MOST: Duration = Duration::from_millis(1);

/// What an offer says in the place of a proposal: the tensor is on the CPU, or it is empty.
const ON_CPU: i64 = -1;
const NOTHING: i64 = -2;

/// The numbers of the ranks of a direction in its communicator.
const SENDER: usize = 0;
const RECEIVER: usize = 1;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Messages {
    /// Creates those of a rank. Receivers speak in the group of `answers`, which has the ranks of the engine below.
    pub fn new(answers: Arc<dyn Engine>) -> Self {
        Self { answers, postmen: Mutex::default(), incoming: Mutex::default() }
    }
}

impl NcclEngine {
    /// Hands a tensor to the postman.
    pub(super) fn post(&self, payload: Payload, to: usize) -> Result<(), CommError> {
        if to == self.rank() {
            return self.host.send(payload, to);
        }
        self.host.check(Collective::Send(to))?;
        let letter = match payload {
            payload if payload.is_on_cpu() => Letter::OnCpu(payload),
            // On this thread, whose kernels write the tensor.
            payload => Letter::OnCard((payload.len(), payload.dtype()), memory_of(&payload)?),
        };
        let mut postmen = lock(&self.messages.postmen);
        let postman = postmen.entry(to).or_insert_with(|| Postman::start(self.direction(self.rank(), to, to)));
        if postman.letters.send(letter).is_ok() {
            return Ok(());
        }
        drop(postmen);
        // A postman leaves after a failure only, of which the world knows.
        self.host.check(Collective::Send(to))?;
        Err(CommError::Engine(format!("rank {} cannot send to rank {to} any more", self.rank())))
    }

    /// Receives the next tensor from a rank.
    pub(super) fn receive(&self, from: usize) -> Result<Payload, CommError> {
        if from == self.rank() {
            return self.host.recv(from);
        }
        let mut incoming = lock(&self.messages.incoming);
        let direction = incoming.entry(from).or_insert_with(|| {
            let direction = self.direction(from, self.rank(), from);
            Arc::new(Mutex::new(direction))
        });
        let direction = direction.clone();
        drop(incoming);
        let received = lock(&direction).receive();
        if let Err(error @ CommError::Engine(_)) = &received {
            self.host.abort(&error.to_string());
        }
        received
    }

    fn direction(&self, from: usize, to: usize, peer: usize) -> Direction {
        Direction {
            host: self.host.clone(),
            answers: self.messages.answers.clone(),
            card: self.card,
            timeouts: self.timeouts,
            turns: self.turns.clone(),
            number: fnv(&[self.group, u64::MAX, from as u64, to as u64]),
            peer,
            communicator: None,
        }
    }
}

impl Drop for Messages {
    /// Waits until all is received that was sent, at most as long as for any call.
    fn drop(&mut self) {
        let postmen = std::mem::take(self.postmen.get_mut().unwrap_or_else(PoisonError::into_inner));
        let close = |Postman { letters, closed, thread }| {
            drop::<mpsc::Sender<_>>(letters);
            let _ = closed.set(Instant::now());
            thread
        };
        let threads: Vec<JoinHandle<()>> = postmen.into_values().map(close).collect();
        // The ends of a communicator wait for each other: this rank's receiving ones for the postmen of others, which
        // need nothing of this thread.
        self.incoming.get_mut().unwrap_or_else(PoisonError::into_inner).clear();
        threads.into_iter().for_each(|thread| drop(thread.join()));
    }
}

impl Postman {
    fn start(mut direction: Direction) -> Self {
        let ((letters, outbox), closed) = (mpsc::channel(), Arc::new(OnceLock::new()));
        let is_closed = closed.clone();
        let deliver = move || {
            let host = direction.host.clone();
            let all = || outbox.into_iter().try_for_each(|letter| direction.send(letter, &is_closed));
            match catch_unwind(AssertUnwindSafe(all)) {
                Ok(Err(error @ CommError::Engine(_))) => host.abort(&error.to_string()),
                Ok(_) => {} // the world knows of other errors
                Err(_) => host.abort("the thread that sends to another rank has panicked"),
            }
        };
        let name = "NCCL postman".into();
        let thread = thread::Builder::new().name(name).spawn(deliver).expect("the machine starts a thread");
        Self { letters, closed, thread }
    }
}

impl Direction {
    /// Sends a tensor when the receiver asks for it.
    fn send(&mut self, letter: Letter, closed: &OnceLock<Instant>) -> Result<(), CommError> {
        let collective = Collective::Send(self.peer);
        self.wait_to_be_asked(closed)?;
        let ((len, dtype), memory) = match letter {
            Letter::OnCpu(payload) => {
                self.say(&[ON_CPU])?;
                return self.host.send(payload, self.peer);
            }
            Letter::OnCard(part, memory) => (part, memory),
        };
        let (len, dtype) = (len as i64, dtype_number(dtype) as i64);
        let Some(memory) = memory else { return self.say(&[NOTHING, len, dtype]) };
        let turn = self.turns.enter(self.number);
        self.say(&[turn.proposal, len, dtype])?;
        turn.agree(number(&self.answer()?, 0)?);
        if self.communicator.is_none() {
            let id = UniqueId::new()?;
            self.say(&id.0.map(i64::from))?;
            self.join(id, SENDER, collective)?;
        }
        turn.wait(self.check(collective))?;
        self.say(&[0])?;
        self.answer()?;
        let call = Call::Send { from: memory.address(), bytes: memory.bytes(), to: RECEIVER };
        // SAFETY: the memory is held until this returns. If it fails, the GPU has been freed before, or its driver hangs.
        unsafe { self.queue(call, turn, collective) }
    }

    /// Asks for a tensor and receives it.
    fn receive(&mut self) -> Result<Payload, CommError> {
        let collective = Collective::Recv(self.peer);
        self.reply(&[0])?;
        let offer = self.hear()?;
        let proposal = number(&offer, 0)?;
        if proposal == ON_CPU {
            return self.host.recv(self.peer);
        }
        let dtype = DTYPES.get(number(&offer, 2)? as usize).ok_or_else(not_an_offer)?;
        let payload = Payload::empty(*dtype, number(&offer, 1)? as usize, self.host.device());
        if proposal == NOTHING {
            return Ok(payload);
        }
        let memory = memory_of(&payload)?.ok_or_else(not_an_offer)?;
        let turn = self.turns.enter(self.number);
        let agreed = proposal.max(turn.proposal);
        self.reply(&[agreed])?;
        turn.agree(agreed);
        if self.communicator.is_none() {
            let mut id = UniqueId([0; 128]);
            id.0.iter_mut().zip(self.hear()?).for_each(|(byte, said)| *byte = said as u8);
            self.join(id, RECEIVER, collective)?;
        }
        turn.wait(self.check(collective))?;
        // As in other calls: whatever frees memory has been done on both ranks before one of them queues.
        self.reply(&[0])?;
        self.hear()?;
        let call = Call::Recv { to: memory.address(), bytes: memory.bytes(), from: SENDER };
        // SAFETY: as above.
        unsafe { self.queue(call, turn, collective) }?;
        Ok(payload)
    }

    /// Runs this rank's part when both are ready, and gives up the turn once it is queued.
    ///
    /// # Safety
    /// As for [`Communicator::run`].
    unsafe fn queue(&mut self, call: Call, turn: Turn, collective: Collective) -> Result<(), CommError> {
        let check = self.check(collective);
        let communicator = self.communicator.as_mut().expect("both have joined");
        // SAFETY: the caller's.
        unsafe { communicator.run(&[call], || drop(turn), check) }
    }

    fn join(&mut self, id: UniqueId, rank: usize, collective: Collective) -> Result<(), CommError> {
        self.communicator = Some(Communicator::new(id, rank, 2, self.card, self.check(collective))?);
        Ok(())
    }

    /// Waits until the receiver asks. It may take any time to come to that, so this has no limit of its own while there
    /// may be more letters, and does not count as a wait for the receiver.
    fn wait_to_be_asked(&self, closed: &OnceLock<Instant>) -> Result<(), CommError> {
        let mut nap = NAP;
        while self.answers.try_recv(self.peer)?.is_none() {
            if closed.get().is_some_and(|closed| closed.elapsed() > self.timeouts.call) {
                let (rank, peer) = (self.host.rank(), self.peer);
                let reason = format!("rank {peer} has not received what rank {rank} has sent to it at the end");
                return Err(CommError::Engine(reason));
            }
            thread::sleep(nap);
            nap = (2 * nap).min(MOST);
        }
        Ok(())
    }

    fn check(&self, collective: Collective) -> impl FnMut() -> Result<(), CommError> + use<> {
        until(self.host.clone(), self.timeouts.call, collective)
    }

    /// As sender, says numbers to the receiver.
    fn say(&self, numbers: &[i64]) -> Result<(), CommError> {
        self.host.send(packed(numbers), self.peer)
    }

    /// As receiver, hears what the sender says.
    fn hear(&self) -> Result<Vec<i64>, CommError> {
        self.host.recv(self.peer).map(unpacked)
    }

    /// As receiver, replies to the sender.
    fn reply(&self, numbers: &[i64]) -> Result<(), CommError> {
        self.answers.send(packed(numbers), self.peer)
    }

    /// As sender, waits for what the receiver replies.
    fn answer(&self) -> Result<Vec<i64>, CommError> {
        self.answers.recv(self.peer).map(unpacked)
    }
}

impl Drop for Direction {
    fn drop(&mut self) {
        let_go(&*self.host, self.communicator.as_mut());
    }
}

/// Returns the memory of a tensor on the GPU; none of an empty one.
fn memory_of(payload: &Payload) -> Result<Option<Memory>, CommError> {
    match Memory::of(payload).filter(|_| payload.bytes() > 0) {
        None if payload.bytes() > 0 => Err(CommError::Engine(NOT_ON_CARD.into())),
        memory => Ok(memory),
    }
}

fn packed(numbers: &[i64]) -> Payload {
    Payload::from_data(TensorData::new(numbers.to_vec(), [numbers.len()]), &Device::flex())
}

fn unpacked(payload: Payload) -> Vec<i64> {
    payload.into_data().iter::<i64>().collect()
}

fn number(said: &[i64], place: usize) -> Result<i64, CommError> {
    said.get(place).copied().ok_or_else(not_an_offer)
}

fn not_an_offer() -> CommError {
    CommError::Engine("a rank has said what belongs to no message: do all ranks make the same calls?".into())
}
