//! Communicators, and the operations to which their ranks have come.

use crate::abi::Code;
use crate::cuda::{Address, Card};
use crate::launches::Kind;
use crate::message::{Message, Process, Seat, Terms, World};
use crate::state::{Comm, Member, State};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// The ranks of a communicator.
#[derive(Default)]
pub struct Ranks {
    /// Where they are; nothing until they have met.
    pub seats: Vec<Seat>,
    /// What each has come to and is not done, in order.
    offers: BTreeMap<usize, VecDeque<Offer>>,
    /// Those that have left, and whether by an abort.
    left: BTreeMap<usize, bool>,
}

/// An operation to which a rank has come.
pub struct Offer {
    /// What it is.
    pub terms: Terms,
    /// What it reads.
    pub source: Source,
    /// Messages of it that must have left this process before it is done, since the process may end then.
    sent: Vec<(Process, u64)>,
}

/// What an operation reads.
pub enum Source {
    /// Memory of a card of this process.
    Card(Card, Address),
    /// Bytes that another process has sent.
    Bytes(Arc<Vec<u8>>),
}

/// An operation that can run now, as a rank has come to it.
pub struct Part {
    /// The rank.
    pub rank: usize,
    /// Its handle, if it is in this process.
    pub comm: Option<Comm>,
    /// The operation.
    pub offer: Offer,
}

impl Ranks {
    /// Whether a process has ranks that have not left.
    fn has(&self, process: Process) -> bool {
        let mut seats = self.seats.iter().enumerate();
        seats.any(|(rank, seat)| seat.process == process && !self.left.contains_key(&rank))
    }

    /// Whether the rank before this one has aborted.
    pub fn is_cut_off(&self, rank: usize) -> bool {
        let size = self.seats.len();
        size > 0 && self.left.get(&((rank + size - 1) % size)) == Some(&true)
    }

    /// What each rank could do next: its first collective, and the first message to and from each other rank.
    fn next(&self) -> Vec<(usize, &Offer)> {
        let mut found: Vec<(usize, &Offer)> = vec![];
        for (rank, offers) in &self.offers {
            for offer in offers {
                let kind = offer.terms.kind;
                let same = |(other, before): &(usize, &Offer)| {
                    let before = before.terms.kind;
                    other == rank && (kind == before || !kind.is_between_two() && !before.is_between_two())
                };
                if !found.iter().any(same) {
                    found.push((*rank, offer));
                }
            }
        }
        found
    }

    /// Ranks and numbers of the calls that can run now: those of all ranks for a collective with the same arguments; a
    /// send and its receive.
    fn matching(&self, is_sent: impl Fn(&Offer) -> bool) -> Option<Vec<(usize, u64)>> {
        let next = self.next();
        let name = |(rank, offer): &(usize, &Offer)| (*rank, offer.terms.number);
        let collective: Vec<_> = next.iter().filter(|(_, offer)| !offer.terms.kind.is_between_two()).collect();
        let arguments = |(_, offer): &(usize, &Offer)| (offer.terms.kind, offer.terms.dtype, offer.terms.count);
        let same = collective.windows(2).all(|pair| arguments(pair[0]) == arguments(pair[1]));
        // In rank order, as `next` has them.
        if !collective.is_empty()
            && collective.len() == self.seats.len()
            && same
            && collective.iter().all(|(_, offer)| is_sent(offer))
        {
            return Some(collective.into_iter().map(name).collect());
        }
        let bytes = |offer: &Offer| offer.terms.count * offer.terms.dtype.size();
        for send in &next {
            let (from, Kind::Send(to)) = (send.0, send.1.terms.kind) else { continue };
            let fits = |(rank, offer): &&(usize, &Offer)| {
                *rank == to && offer.terms.kind == Kind::Recv(from) && bytes(offer) == bytes(send.1)
            };
            if let Some(recv) = next.iter().find(fits)
                && is_sent(send.1)
                && is_sent(recv.1)
            {
                return Some(vec![name(send), name(recv)]);
            }
        }
        None
    }

    fn take(&mut self, rank: usize, number: u64) -> Option<Offer> {
        let offers = self.offers.get_mut(&rank)?;
        let place = offers.iter().position(|offer| offer.terms.number == number)?;
        offers.remove(place)
    }
}

impl State {
    /// The rank of a communicator in this process.
    fn find(&mut self, world: World, rank: usize) -> Option<(&Comm, &mut Member)> {
        self.members.iter_mut().find(|(_, member)| member.world == Some(world) && member.rank == rank)
    }

    /// The other processes with ranks of a communicator.
    pub fn others(&self, world: World) -> BTreeSet<Process> {
        let seats = self.worlds.get(&world).into_iter().flat_map(|ranks| &ranks.seats);
        seats.map(|seat| seat.process).filter(|process| *process != self.own).collect()
    }

    /// Notes that a rank of this process has come to an operation, and tells the processes that need to know it.
    pub fn offer(&mut self, comm: Comm, terms: Terms, from: Address, bytes: Vec<u8>) {
        let Some(member) = self.members.get(&comm) else { return };
        let (Some(world), rank, card) = (member.world, member.rank, member.card) else { return };
        let bytes = Arc::new(bytes);
        let mut sent = vec![];
        for process in self.others(world) {
            let holds = |rank: usize| self.worlds[&world].seats.get(rank).is_some_and(|seat| seat.process == process);
            let (is_told, gets_bytes) = match terms.kind {
                Kind::Send(to) => (holds(to), true),
                Kind::Recv(from) => (holds(from), false),
                Kind::Reduce(_, root) => (true, holds(root)),
                _ => (true, true),
            };
            if is_told {
                let bytes = if gets_bytes { bytes.clone() } else { Arc::default() };
                sent.push((process, self.tell(process, Message::Offer { world, rank, terms, bytes })));
            }
        }
        self.add(world, rank, Offer { terms, source: Source::Card(card, from), sent });
    }

    /// Notes an operation of a rank of another process.
    pub fn hear(&mut self, world: World, rank: usize, terms: Terms, bytes: Arc<Vec<u8>>) {
        let is_over = self.worlds.get(&world).is_some_and(|ranks| !ranks.has(self.own) && !ranks.seats.is_empty());
        if !is_over {
            self.add(world, rank, Offer { terms, source: Source::Bytes(bytes), sent: vec![] });
        }
    }

    fn add(&mut self, world: World, rank: usize, offer: Offer) {
        self.worlds.entry(world).or_default().offers.entry(rank).or_default().push_back(offer);
    }

    /// Takes an operation that can run now, in rank order; of a message, the send and its receive.
    pub fn matching(&mut self) -> Option<Vec<Part>> {
        let is_sent = |offer: &Offer| {
            let has_left = |(process, number): &(Process, u64)| {
                self.lost.contains(process) || self.links.get(process).is_some_and(|link| link.written >= *number)
            };
            offer.sent.iter().all(has_left)
        };
        let mut found = self.worlds.iter().filter(|(_, ranks)| ranks.has(self.own));
        let (world, names) = found.find_map(|(world, ranks)| Some((*world, ranks.matching(is_sent)?)))?;
        let part = |(rank, number)| {
            let comm = self.find(world, rank).map(|(comm, _)| *comm);
            let offer = self.worlds.get_mut(&world)?.take(rank, number)?;
            Some(Part { rank, comm, offer })
        };
        names.into_iter().map(part).collect()
    }

    /// Notes that a rank of this process ends, and tells the other processes of its communicator. Returns the messages
    /// that must have left this process.
    pub fn leave(&mut self, world: World, rank: usize, aborted: bool) -> Vec<(Process, u64)> {
        let offers = self.worlds.get_mut(&world).and_then(|ranks| ranks.offers.remove(&rank)).unwrap_or_default();
        let undone: Vec<u64> = offers.iter().map(|offer| offer.terms.number).collect();
        let message = Message::Leave { world, rank, aborted, undone };
        let others = self.others(world).into_iter();
        let told = others.map(|process| (process, self.tell(process, message.clone()))).collect();
        self.left(world, rank, aborted, &[]);
        told
    }

    /// Notes that a rank has left. If it has aborted, the next rank learns of it.
    pub fn left(&mut self, world: World, rank: usize, aborted: bool, undone: &[u64]) {
        let ranks = self.worlds.entry(world).or_default();
        ranks.left.insert(rank, aborted);
        undone.iter().for_each(|number| drop(ranks.take(rank, *number)));
        let size = ranks.seats.len();
        if size > 0 && !ranks.has(self.own) {
            ranks.offers.clear();
        }
        if ranks.left.len() == size {
            self.worlds.remove(&world);
        }
        if aborted
            && size > 0
            && let Some((_, next)) = self.find(world, (rank + 1) % size)
        {
            next.error.get_or_insert(Code::REMOTE_ERROR);
        }
    }

    /// Notes the end of a process. The ranks that have to do with it learn of it.
    pub fn lose(&mut self, process: Process) {
        self.lost.insert(process);
        for member in self.members.values_mut() {
            let ranks = member.world.and_then(|world| self.worlds.get(&world));
            let meets_there = member.meeting.is_some_and(|(place, _)| place == process);
            if meets_there || ranks.is_some_and(|ranks| ranks.has(process)) {
                member.error.get_or_insert(Code::REMOTE_ERROR);
            }
        }
    }

    /// Whether a rank would wait for a process that has ended.
    pub fn is_broken(&self, world: World) -> bool {
        self.worlds.get(&world).is_some_and(|ranks| self.lost.iter().any(|process| ranks.has(*process)))
    }
}
