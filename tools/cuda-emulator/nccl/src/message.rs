//! What processes tell each other, and how it is written: a frame is its number of words and of bytes, the words, and
//! the bytes. Numbers have the order of the host, since all processes are on one.

use crate::abi::{Code, DType, Reduction};
use crate::launches::Kind;
use crate::state::Comm;
use std::ffi::c_int;
use std::io::{self, Read, Write};
use std::sync::Arc;

/// A process that uses the library: a random number, which also names its socket.
pub type Process = u64;

/// A communicator: the process in which its ranks have met, and a number that this one has given.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct World(pub Process, pub u64);

/// Why ranks meet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Name {
    /// They were given the identifier with this number.
    Id(u64),
    /// They split a communicator, as often before as the number says.
    Split(World, u64),
}

/// A rank that joins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Joining {
    /// Its number, of the new communicator or of the one that is split.
    pub rank: usize,
    /// Its process.
    pub process: Process,
    /// The ordinal of its card.
    pub card: c_int,
    /// The handle that waits: the new one, or the one that is split.
    pub waiting: Comm,
    /// The new handle, unless the rank joins no communicator of the split.
    pub comm: Option<Comm>,
    /// Colour and key of a split.
    pub order: (c_int, c_int),
}

/// Where a rank of a communicator is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seat {
    /// Its process.
    pub process: Process,
    /// The ordinal of its card.
    pub card: c_int,
}

/// What a rank has joined.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Joined {
    /// Its handle.
    pub comm: Comm,
    /// The communicator.
    pub world: World,
    /// Its number there.
    pub rank: usize,
    /// All ranks.
    pub seats: Vec<Seat>,
}

/// What matching calls have in common, and the number of the call among those of its rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub struct Terms {
    pub number: u64,
    pub kind: Kind,
    pub dtype: DType,
    pub count: usize,
}

/// What a process tells another one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message {
    /// A rank wants to join those of this name, of which there will be `size`.
    Join { name: Name, size: usize, joining: Joining },
    /// It does not want to any more.
    Withdraw { name: Name, comm: Comm },
    /// The ranks have met for which the handle `waiting` waits, or cannot.
    Met { waiting: Comm, joined: Option<Joined>, error: Option<Code> },
    /// A rank has come to an operation, which reads these bytes. They are missing where nobody needs them.
    Offer { world: World, rank: usize, terms: Terms, bytes: Arc<Vec<u8>> },
    /// A rank has ended, and these operations of it are not done.
    Leave { world: World, rank: usize, aborted: bool, undone: Vec<u64> },
}

/// No message has more words: that of a communicator of 16 ranks has about 40.
const MOST_WORDS: u64 = 1 << 16;

impl Message {
    /// Writes a frame.
    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let (mut words, mut bytes): (Vec<u64>, &[u8]) = (vec![], &[]);
        match self {
            Self::Join { name, size, joining } => {
                words.push(0);
                write_name(&mut words, *name);
                let Joining { rank, process, card, waiting, comm, order } = *joining;
                let comm = comm.unwrap_or(0);
                words.extend([*size as u64, rank as u64, process, card as u64, waiting as u64, comm as u64]);
                words.extend([order.0 as u64, order.1 as u64]);
            }
            Self::Withdraw { name, comm } => {
                words.push(1);
                write_name(&mut words, *name);
                words.push(*comm as u64);
            }
            Self::Met { waiting, joined, error } => {
                words.extend([2, *waiting as u64, error.map_or(0, |code| code.0 as u64)]);
                if let Some(Joined { comm, world, rank, seats }) = joined {
                    words.extend([*comm as u64, world.0, world.1, *rank as u64]);
                    words.extend(seats.iter().flat_map(|seat| [seat.process, seat.card as u64]));
                }
            }
            Self::Offer { world, rank, terms, bytes: read } => {
                let Terms { number, kind, dtype, count } = *terms;
                words.extend([3, world.0, world.1, *rank as u64, number]);
                words.extend(numbers(kind));
                words.extend([dtype as u64, count as u64]);
                bytes = read;
            }
            Self::Leave { world, rank, aborted, undone } => {
                words.extend([4, world.0, world.1, *rank as u64, u64::from(*aborted)]);
                words.extend(undone);
            }
        }
        let sizes = [words.len() as u64, bytes.len() as u64];
        let head: Vec<u8> = sizes.iter().chain(&words).flat_map(|word| word.to_ne_bytes()).collect();
        to.write_all(&head)?;
        to.write_all(bytes)
    }

    /// Reads a frame.
    pub fn read(from: &mut impl Read) -> io::Result<Self> {
        let sizes = read_words(from, 2)?;
        if sizes[0] > MOST_WORDS {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let words = read_words(from, sizes[0] as usize)?;
        let mut bytes = vec![0; sizes[1] as usize];
        from.read_exact(&mut bytes)?;
        Self::of(&words, bytes).ok_or(io::ErrorKind::InvalidData.into())
    }

    fn of(words: &[u64], bytes: Vec<u8>) -> Option<Self> {
        let (kind, rest) = words.split_first()?;
        Some(match (kind, rest) {
            (0, [a, b, c, d, size, rank, process, card, waiting, comm, color, key]) => {
                let order = (*color as c_int, *key as c_int);
                let (rank, card, waiting, comm) = (*rank as usize, *card as c_int, *waiting as Comm, *comm as Comm);
                let comm = (comm != 0).then_some(comm);
                let joining = Joining { rank, process: *process, card, waiting, comm, order };
                Self::Join { name: name([*a, *b, *c, *d])?, size: *size as usize, joining }
            }
            (1, [a, b, c, d, comm]) => Self::Withdraw { name: name([*a, *b, *c, *d])?, comm: *comm as Comm },
            (2, [waiting, error, rest @ ..]) => {
                let joined = match rest {
                    [] => None,
                    [comm, process, number, rank, seats @ ..] => {
                        let seat = |seat: &[u64; 2]| Seat { process: seat[0], card: seat[1] as c_int };
                        let seats = seats.as_chunks().0.iter().map(seat).collect();
                        let (comm, world, rank) = (*comm as Comm, World(*process, *number), *rank as usize);
                        Some(Joined { comm, world, rank, seats })
                    }
                    _ => return None,
                };
                let error = (*error != 0).then_some(Code(*error as c_int));
                Self::Met { waiting: *waiting as Comm, joined, error }
            }
            (3, [process, world, rank, number, a, b, c, dtype, count]) => {
                let (kind, dtype) = (kind_of([*a, *b, *c])?, DType::of(*dtype as c_int)?);
                let terms = Terms { number: *number, kind, dtype, count: *count as usize };
                Self::Offer { world: World(*process, *world), rank: *rank as usize, terms, bytes: bytes.into() }
            }
            (4, [process, world, rank, aborted, undone @ ..]) => Self::Leave {
                world: World(*process, *world),
                rank: *rank as usize,
                aborted: *aborted != 0,
                undone: undone.to_vec(),
            },
            _ => return None,
        })
    }
}

fn read_words(from: &mut impl Read, count: usize) -> io::Result<Vec<u64>> {
    let mut bytes = vec![0; 8 * count];
    from.read_exact(&mut bytes)?;
    Ok(bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).collect())
}

fn write_name(to: &mut Vec<u64>, name: Name) {
    to.extend(match name {
        Name::Id(number) => [0, number, 0, 0],
        Name::Split(World(process, number), splits) => [1, process, number, splits],
    });
}

fn name(words: [u64; 4]) -> Option<Name> {
    match words {
        [0, number, 0, 0] => Some(Name::Id(number)),
        [1, process, number, splits] => Some(Name::Split(World(process, number), splits)),
        _ => None,
    }
}

/// A kind, its reduction, and its root or peer.
fn numbers(kind: Kind) -> [u64; 3] {
    match kind {
        Kind::AllReduce(how) => [0, how as u64, 0],
        Kind::ReduceScatter(how) => [1, how as u64, 0],
        Kind::AllGather => [2, 0, 0],
        Kind::Broadcast(root) => [3, 0, root as u64],
        Kind::Reduce(how, root) => [4, how as u64, root as u64],
        Kind::Send(to) => [5, 0, to as u64],
        Kind::Recv(from) => [6, 0, from as u64],
    }
}

fn kind_of([kind, how, rank]: [u64; 3]) -> Option<Kind> {
    let (how, rank) = (Reduction::of(how as c_int)?, rank as usize);
    let kinds = [
        Kind::AllReduce(how),
        Kind::ReduceScatter(how),
        Kind::AllGather,
        Kind::Broadcast(rank),
        Kind::Reduce(how, rank),
        Kind::Send(rank),
        Kind::Recv(rank),
    ];
    kinds.get(kind as usize).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_they_were_written() {
        let (world, name) = (World(u64::MAX, 7), Name::Split(World(3, 4), 5));
        let joining = Joining { rank: 2, process: 9, card: 1, waiting: 16, comm: None, order: (-1, c_int::MIN) };
        let seats = vec![Seat { process: 1, card: 0 }, Seat { process: 2, card: 15 }];
        let joined = Some(Joined { comm: 32, world, rank: 1, seats });
        let mut all = vec![
            Message::Join { name, size: 4, joining },
            Message::Join { name: Name::Id(6), size: 4, joining: Joining { comm: Some(48), ..joining } },
            Message::Withdraw { name, comm: 48 },
            Message::Met { waiting: 16, joined, error: None },
            Message::Met { waiting: 16, joined: None, error: Some(Code::INVALID_USAGE) },
            Message::Leave { world, rank: 3, aborted: true, undone: vec![4, 5] },
        ];
        let how = Reduction::Average;
        let (reduce, scatter) = (Kind::Reduce(how, 2), Kind::ReduceScatter(how));
        let kinds =
            [Kind::AllReduce(how), scatter, Kind::AllGather, Kind::Broadcast(1), reduce, Kind::Send(3), Kind::Recv(3)];
        all.extend(kinds.map(|kind| {
            let terms = Terms { number: 8, kind, dtype: DType::BF16, count: 3 };
            Message::Offer { world, rank: 0, terms, bytes: Arc::new(vec![1, 2, 3]) }
        }));
        let mut written = vec![];
        all.iter().for_each(|message| message.write(&mut written).unwrap());
        let mut from = &written[..];
        assert_eq!(all.iter().map(|_| Message::read(&mut from).unwrap()).collect::<Vec<_>>(), all);
        assert!(Message::read(&mut from).is_err());
    }

    #[test]
    fn what_is_no_message_is_refused() {
        for words in [&[0, 5][..], &[1, 0], &[1, 0, 9], &[2, 0, 4, 9], &[1 << 40, 0]] {
            let bytes: Vec<u8> = words.iter().flat_map(|word: &u64| word.to_ne_bytes()).collect();
            assert!(Message::read(&mut &bytes[..]).is_err(), "{words:?}");
        }
    }
}
