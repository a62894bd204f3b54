//! Which rank of the next machine keeps a copy of a rank's part, and how the copy gets there.

use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use comm::{CommError, Communicator};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// Bytes of a message. A rank's device may hold one at a time.
const MESSAGE: usize = 16 << 20;

/// Where a rank's copies go and come from.
///
/// ```text
/// machine 0   rank 0 ──▶ rank 2   machine 1   rank 2 ──▶ rank 4   machine 2   rank 4 ──▶ rank 0
///             rank 1 ──▶ rank 3               rank 3 ──▶ rank 4
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Neighbor {
    /// The rank of the next machine that gets this rank's part.
    to: usize,
    /// The ranks of the machine before that send their parts here.
    from: Vec<usize>,
    /// Whether this rank sends before it receives. Machines take turns: if a send waited until it is received, a ring in
    /// which all send first would wait forever.
    sends_first: bool,
}

/// The ranks of each machine.
pub(super) fn machines(comm: &Communicator) -> Vec<Vec<usize>> {
    let mut machines = BTreeMap::<usize, Vec<usize>>::new();
    (0..comm.world_size()).for_each(|rank| machines.entry(comm.machine(rank)).or_default().push(rank));
    machines.into_values().collect()
}

impl Neighbor {
    /// Of a rank among these machines; `None` if there is one machine.
    pub fn of(rank: usize, machines: &[Vec<usize>]) -> Option<Self> {
        let here = machines.iter().position(|ranks| ranks.contains(&rank)).filter(|_| machines.len() > 1)?;
        let to = |machine: usize, place: usize| {
            let next = &machines[(machine + 1) % machines.len()];
            next[place % next.len()]
        };
        let before = (here + machines.len() - 1) % machines.len();
        let place = machines[here].iter().position(|other| *other == rank)?;
        let from = machines[before].iter().enumerate().filter(|(place, _)| to(before, *place) == rank);
        let from = from.map(|(_, rank)| *rank).collect();
        Some(Self { to: to(here, place), from, sends_first: here % 2 == 0 })
    }

    /// Sends these files to the next machine, and writes the files that come from the machine before into the folder
    /// `into`, in the order in which they were sent. Every rank calls it.
    ///
    /// # Errors
    /// If ranks cannot exchange messages. A file that cannot be read or written is the inner error, and the ranks have
    /// exchanged all messages.
    pub fn exchange(
        &self,
        comm: &Communicator,
        files: &[PathBuf],
        into: &Path,
    ) -> Result<Result<(), (PathBuf, io::Error)>, CommError> {
        let (mut sent, mut received) = (Ok(()), Ok(()));
        if self.sends_first {
            sent = send(comm, self.to, files)?;
        }
        for from in &self.from {
            received = received.and(receive(comm, *from, into)?);
        }
        if !self.sends_first {
            sent = send(comm, self.to, files)?;
        }
        Ok(sent.and(received))
    }
}

/// Name and length of each file, as one message, and then their bytes.
type Contents = Vec<(String, u64)>;

type OfFile = Result<(), (PathBuf, io::Error)>;

fn send(comm: &Communicator, to: usize, files: &[PathBuf]) -> Result<OfFile, CommError> {
    let mut failure = Ok(());
    let mut open = vec![];
    for path in files {
        let file = File::open(path).and_then(|file| Ok((file.metadata()?.len(), file)));
        match file {
            Ok((len, file)) => open.push((path, len, file)),
            Err(error) => failure = failure.and(Err((path.clone(), error))),
        }
    }
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let contents: Contents = open.iter().map(|(path, len, _)| (name(path), *len)).collect();
    send_bytes(comm, to, &serde_json::to_vec(&contents).expect("plain data"))?;
    for (path, len, mut file) in open {
        for part in parts(len) {
            let mut bytes = vec![0; part];
            if let Err(error) = file.read_exact(&mut bytes) {
                failure = failure.and(Err((path.clone(), error))); // the digests will not fit either
            }
            send_bytes(comm, to, &bytes)?;
        }
    }
    Ok(failure)
}

fn receive(comm: &Communicator, from: usize, into: &Path) -> Result<OfFile, CommError> {
    let contents: Contents = serde_json::from_slice(&receive_bytes(comm, from)?)
        .map_err(|error| CommError::Engine(format!("rank {from} sent no list of files: {error}")))?;
    let mut failure = fs::create_dir_all(into).map_err(|error| (into.to_path_buf(), error));
    for (name, len) in contents {
        let path = into.join(Path::new(&name).file_name().unwrap_or_default());
        let mut file = File::create(&path);
        for part in parts(len) {
            let bytes = receive_bytes(comm, from)?;
            if bytes.len() != part {
                return Err(CommError::Engine(format!("rank {from} sent {} bytes of {name}, not {part}", bytes.len())));
            }
            file = file.and_then(|mut file| file.write_all(&bytes).map(|()| file));
        }
        // A part whose last file is there counts as whole.
        if let Err(error) = file {
            let _ = fs::remove_file(&path);
            failure = failure.and(Err((path, error)));
        }
    }
    Ok(failure)
}

/// The lengths of the messages of a file.
fn parts(len: u64) -> impl Iterator<Item = usize> {
    (0..len).step_by(MESSAGE).map(move |at| (len - at).min(MESSAGE as u64) as usize)
}

/// Sends bytes as integers of 32 bits, which every backend has: their number, and as many as are needed.
fn send_bytes(comm: &Communicator, to: usize, bytes: &[u8]) -> Result<(), CommError> {
    let mut words = vec![0_i32; bytes.len().div_ceil(4) + 1];
    bytemuck::cast_slice_mut(&mut words[1..])[..bytes.len()].copy_from_slice(bytes);
    words[0] = bytes.len() as i32;
    let len = words.len();
    comm.send(Tensor::<1, Int>::from_data(TensorData::new(words, [len]), (&Device::flex(), DType::I32)), to)
}

fn receive_bytes(comm: &Communicator, from: usize) -> Result<Vec<u8>, CommError> {
    let words: Vec<i32> = comm.recv::<Int>(from)?.into_data().iter::<i32>().collect();
    let (len, words) = words.split_first().map_or((0, &[][..]), |(len, words)| (*len as usize, words));
    let bytes: &[u8] = bytemuck::cast_slice(words);
    Ok(bytes[..len.min(bytes.len())].to_vec())
}
