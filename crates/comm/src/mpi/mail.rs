//! Messages from one rank to another, which move while both ranks compute.
//!
//! MPI moves a large message only during calls of its functions, on both sides. A process therefore has a thread that
//! makes such calls from its first message on, the *postman*: it advances what the rank has sent, and receives what
//! comes from ranks of which the rank has asked for a message before.
//!
//! ```text
//! rank 0   | compute       | send | compute       | send | compute        |
//! postman                         ~~~~~~~~ polls ~~~~~~~~~~~~~~~~~~~~~~~~~
//! rank 1   | compute                    | recv | compute                  |
//! postman    ~~~~~~~~~~~~~~~ polls ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
//! ```
//!
//! MPI cannot wait for messages without using a core, so the postman sleeps between its polls. A rank that waits for a
//! message polls as well.

use super::header::{Header, due_part};
use super::transfers::Transfers;
use super::world::receive_header;
use super::{LEFT, NOT_A_HEADER, Polled, REFUSED, Tag, buffer};
use crate::payload::Part;
use crate::{Collective, Signature};
use burn::tensor::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Number of messages from a rank that are received before the rank asks for them. An activation in a pipeline is two
/// messages, sizes and elements, so the next one arrives while the rank computes with this one, and the rest stays with
/// the sender.
const AHEAD: usize = 4;

/// How long the postman sleeps between two polls while a message moves: a poll moves what the socket's buffer holds, a
/// megabyte or more.
const MOVING: Duration = Duration::from_micros(200);
/// The same while none does.
const QUIET: Duration = Duration::from_millis(1);

/// The messages of a process, with its postman.
#[derive(Default)]
pub struct Mail {
    shared: Arc<Shared>,
    postman: OnceLock<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// There may be more to poll than before.
    more: Condvar,
}

#[derive(Default)]
struct State {
    /// Messages that were sent and may not have been received yet, by group.
    outbox: Vec<(u64, Transfers)>,
    /// By group and the sender's world number.
    inboxes: BTreeMap<(u64, usize), Inbox>,
    closed: bool,
}

/// What comes from one rank of a group.
struct Inbox {
    /// The first call that asked for a message; for errors.
    collective: Collective,
    letters: VecDeque<Letter>,
    /// Why no more messages come after these.
    end: Option<String>,
}

/// A message that comes or has come.
struct Letter {
    part: Part,
    on_cpu: bool,
    transfers: Transfers,
}

/// A message that has come.
pub struct Received {
    /// Its length and dtype.
    pub part: Part,
    /// Whether the sender had it on a CPU.
    pub on_cpu: bool,
    /// Its elements.
    pub bytes: Bytes,
}

impl Mail {
    /// Sends a part, which the sender has `on_cpu` or not, to a rank. It is kept until it is received.
    ///
    /// # Errors
    /// Returns a rank that cannot be reached.
    pub fn send(&self, group: u64, to: usize, part: Part, on_cpu: bool, bytes: Bytes) -> Result<(), usize> {
        let signature = Some(Signature { collective: Collective::Send(to), len: None, dtype: None });
        let header = Header { signature, part: Some(part), free_group: 0, on_cpu };
        let mut transfers = Transfers::default();
        transfers.send(header.to_bytes(), [to], Tag::MailHeader.of(group));
        transfers.send(bytes, [to], Tag::Mail.of(group));
        let mut state = self.lock();
        state.outbox.push((group, transfers));
        let refused = state.outbox.iter_mut().find_map(|(_, transfers)| transfers.done().err());
        drop(state);
        self.wake();
        refused.map_or(Ok(()), Err)
    }

    /// Looks for what a group has sent and nobody has received.
    pub fn look_for_sent(&self, group: u64) -> Polled<()> {
        let mut state = self.lock();
        state.poll();
        let mut of_group = state.outbox.iter_mut().filter(|(sent_in, _)| *sent_in == group).peekable();
        if of_group.peek().is_none() {
            return Polled::Done(());
        }
        let mut missing = vec![];
        for (_, transfers) in of_group {
            if let Err(rank) = transfers.done() {
                return Polled::Lost(rank, REFUSED.into());
            }
            missing.extend(transfers.waiting_for());
        }
        Polled::Missing(missing)
    }

    /// Looks for the next part from a rank in a group.
    pub fn look_for_part(&self, group: u64, from: usize, collective: Collective) -> Polled<Received> {
        let (mut state, mut is_new) = (self.lock(), false);
        state.inboxes.entry((group, from)).or_insert_with(|| {
            is_new = true;
            Inbox { collective, letters: VecDeque::new(), end: None }
        });
        state.poll();
        let found = state.inboxes.get_mut(&(group, from)).expect("it was made").take(from);
        drop(state);
        if is_new {
            self.wake();
        }
        found
    }

    /// Receives no more in a group.
    pub fn leave(&self, group: u64) {
        self.lock().inboxes.retain(|(of, _), _| *of != group);
    }

    /// Wakes the postman, or starts it.
    fn wake(&self) {
        self.postman.get_or_init(|| {
            let shared = self.shared.clone();
            thread::spawn(move || shared.deliver())
        });
        self.shared.more.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.lock()
    }
}

impl Drop for Mail {
    /// Ends the postman: MPI must not end during its calls.
    fn drop(&mut self) {
        self.lock().closed = true;
        self.shared.more.notify_one();
        if let Some(postman) = self.postman.take() {
            let _ = postman.join(); // it has not panicked, or has said so
        }
    }
}

impl Shared {
    /// The work of the postman.
    fn deliver(&self) {
        let mut state = self.lock();
        while !state.closed {
            state.poll();
            let wait = match state.is_moving() {
                _ if state.outbox.is_empty() && state.inboxes.is_empty() => Duration::MAX,
                true => MOVING,
                false => QUIET,
            };
            state = self.more.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Moves what can move.
    fn poll(&mut self) {
        // A rank that cannot be reached stays here: the next call that needs it says so.
        self.outbox.retain_mut(|(_, transfers)| transfers.done() != Ok(true));
        for ((group, from), inbox) in &mut self.inboxes {
            inbox.poll(*group, *from);
        }
    }

    fn is_moving(&self) -> bool {
        !self.outbox.is_empty() || self.inboxes.values().any(Inbox::is_moving)
    }
}

impl Inbox {
    /// Receives messages, which start with a header each.
    fn poll(&mut self, group: u64, from: usize) {
        while self.end.is_none() && self.letters.len() < AHEAD {
            let Some(header) = receive_header(from, Tag::MailHeader.of(group)) else { break };
            match self.part(header) {
                Ok((part, on_cpu)) => self.letters.push_back(Letter::start(part, on_cpu, from, Tag::Mail.of(group))),
                Err(reason) => self.end = Some(reason),
            }
        }
        for letter in &mut self.letters {
            let _ = letter.transfers.done(); // whoever takes the message finds an error again
        }
    }

    /// Returns the part that a header announces, and whether it is on the CPU.
    ///
    /// # Errors
    /// Returns the reason why none comes.
    fn part(&self, header: Option<Header>) -> Result<(Part, bool), String> {
        let header = header.ok_or(NOT_A_HEADER)?;
        if header.signature.is_none() {
            return Err(LEFT.into());
        }
        let any = Signature { collective: self.collective, len: None, dtype: None };
        due_part(&any, &header, [0, 0], 1).map(|part| (part.expect("mail is a part"), header.on_cpu))
    }

    /// Takes the next part.
    fn take(&mut self, from: usize) -> Polled<Received> {
        match self.letters.front_mut().map(|letter| letter.transfers.done()) {
            Some(Ok(false)) => Polled::Missing(vec![from]),
            Some(Err(rank)) => Polled::Lost(rank, REFUSED.into()),
            Some(Ok(true)) => {
                let Letter { part, on_cpu, transfers } = self.letters.pop_front().expect("it is there");
                Polled::Done(Received { part, on_cpu, bytes: transfers.into_received().remove(0) })
            }
            None => match &self.end {
                Some(reason) => Polled::Lost(from, reason.clone()),
                None => Polled::Missing(vec![from]),
            },
        }
    }

    fn is_moving(&self) -> bool {
        self.letters.iter().any(Letter::is_moving)
    }
}

impl Letter {
    /// Starts to receive a part.
    fn start((len, dtype): Part, on_cpu: bool, from: usize, tag: i32) -> Self {
        let mut transfers = Transfers::default();
        transfers.receive(buffer(len, dtype), [(from, 0..len * dtype.size())], tag);
        Self { part: (len, dtype), on_cpu, transfers }
    }

    fn is_moving(&self) -> bool {
        self.transfers.waiting_for().next().is_some()
    }
}
