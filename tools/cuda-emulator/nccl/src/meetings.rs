//! How ranks find each other. They meet in one process: the one that has made the identifier, or, for a split, that of
//! rank 0. When all are there, it tells each of them who the others are.
//!
//! ```text
//! process a   join ---.                     .--> met: the ranks of the new communicator
//! process b   join -----> all are there -------> met
//! process c   join ---'                     '--> met
//! ```

use crate::abi::Code;
use crate::links::Link;
use crate::message::{Joined, Joining, Message, Name, Process, Seat, World};
use crate::state::{Comm, State};

impl State {
    /// Tells a process something. Returns the number of the message among those to the process.
    pub fn tell(&mut self, process: Process, message: Message) -> u64 {
        if process == self.own {
            self.receive(message);
            return 0;
        }
        let link = self.link(process);
        link.tell(message);
        link.queued
    }

    fn link(&mut self, process: Process) -> &mut Link {
        let own = self.own;
        self.links.entry(process).or_insert_with(|| Link::to(own, process))
    }

    /// Takes what a process tells.
    pub fn receive(&mut self, message: Message) {
        match message {
            Message::Join { name, size, joining } => self.meet(name, size, joining),
            Message::Withdraw { name, comm } => {
                if let Some((_, waiting)) = self.meetings.get_mut(&name) {
                    waiting.retain(|one| one.comm != Some(comm));
                }
            }
            Message::Met { waiting, joined, error } => self.met(waiting, joined, error),
            Message::Offer { world, rank, terms, bytes } => self.hear(world, rank, terms, bytes),
            Message::Leave { world, rank, aborted, undone } => self.left(world, rank, aborted, &undone),
        }
    }

    /// Adds a rank to those that wait here. The last one makes the communicators.
    fn meet(&mut self, name: Name, size: usize, mine: Joining) {
        let (of, waiting) = self.meetings.entry(name).or_insert_with(|| (size, vec![]));
        if *of != size || waiting.iter().any(|other| other.rank == mine.rank) {
            eprintln!("emulated NCCL: two ranks {}, or {size} and {of} ranks, of one identifier", mine.rank);
            return self.answer(mine, None, Some(Code::INVALID_USAGE));
        }
        waiting.push(mine);
        if waiting.len() < size {
            return;
        }
        let mut all = self.meetings.remove(&name).map(|(_, all)| all).unwrap_or_default();
        // Ranks of a communicator are in the order of their keys, then of their ranks before.
        all.sort_by_key(|one| (one.order, one.rank));
        for same in all.chunk_by(|a, b| a.order.0 == b.order.0) {
            let world = World(self.own, self.fresh());
            let seats: Vec<_> = same.iter().map(|one| Seat { process: one.process, card: one.card }).collect();
            let mut cards: Vec<_> = seats.iter().map(|seat| seat.card).collect();
            cards.sort_unstable();
            let twice = same[0].comm.is_some() && cards.windows(2).any(|pair| pair[0] == pair[1]);
            if twice {
                eprintln!("emulated NCCL: two ranks of a communicator are on the same card");
            }
            for (rank, one) in same.iter().enumerate() {
                let joined = one.comm.map(|comm| Joined { comm, world, rank, seats: seats.clone() });
                self.answer(*one, joined, twice.then_some(Code::INVALID_USAGE));
            }
        }
    }

    fn answer(&mut self, to: Joining, joined: Option<Joined>, error: Option<Code>) {
        self.tell(to.process, Message::Met { waiting: to.waiting, joined, error });
    }

    /// Notes that the ranks have met for which a handle of this process waits.
    fn met(&mut self, waiting: Comm, joined: Option<Joined>, error: Option<Code>) {
        let comm = joined.as_ref().map_or(waiting, |joined| joined.comm);
        if let Some(Joined { comm, world, rank, seats }) = joined {
            let size = seats.len();
            let ranks = self.worlds.entry(world).or_default();
            ranks.seats = seats;
            let is_cut_off = ranks.is_cut_off(rank);
            let is_broken = self.is_broken(world);
            let Some(member) = self.members.get_mut(&comm) else {
                // It was aborted in the meantime.
                self.leave(world, rank, true);
                return;
            };
            (member.world, member.meeting, member.rank, member.size) = (Some(world), None, rank, size);
            if is_cut_off || is_broken {
                member.error.get_or_insert(Code::REMOTE_ERROR);
            }
            // So that each process notices the end of every other one.
            for process in self.others(world) {
                self.link(process);
            }
        }
        if let (Some(code), Some(member)) = (error, self.members.get_mut(&comm)) {
            member.error.get_or_insert(code);
        }
        if let Some(child) = self.members.get_mut(&waiting).and_then(|member| member.child.as_mut()) {
            child.met = true;
        }
    }
}
