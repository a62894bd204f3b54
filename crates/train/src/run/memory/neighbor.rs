//! Which rank of the next machine keeps a copy of a rank's part, and how the copy gets there.

use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use comm::{CommError, Communicator, Reduce};
use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// Bytes of a message.
const MESSAGE: usize = 16 << 20;
/// Rounds after which the ranks wait for each other.
const ROUNDS: usize = 4;

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
    /// `into`. Every rank calls it.
    ///
    /// A round moves at most one message in each direction. After every few rounds, the ranks wait for each other, so that
    /// what has been sent and not received does not pile up in memory, and no rank waits for longer than a few messages
    /// take.
    ///
    /// # Errors
    /// If ranks cannot exchange messages. A file that cannot be read or written is the inner error, and the ranks have
    /// exchanged all messages.
    pub fn exchange(&self, comm: &Communicator, files: &[PathBuf], into: &Path) -> Result<OfFile, CommError> {
        let mut outgoing = Outgoing::new(files);
        let mut incoming: Vec<Incoming> = self.from.iter().map(|from| Incoming::new(*from, into)).collect();
        let rounds = comm.all_reduce_numbers(&[outgoing.messages() as f64], Reduce::Max)?[0] as usize;
        for round in 0..rounds {
            if self.sends_first {
                outgoing.send_next(comm, self.to)?;
            }
            incoming.iter_mut().try_for_each(|from| from.receive_next(comm))?;
            if !self.sends_first {
                outgoing.send_next(comm, self.to)?;
            }
            if (round + 1).is_multiple_of(ROUNDS) {
                comm.barrier()?;
            }
        }
        Ok(incoming.into_iter().fold(outgoing.failure, |failure, from| failure.and(from.failure)))
    }
}

/// Name and length of each file: the first message.
type Contents = Vec<(String, u64)>;

/// The first error of a file.
type OfFile = Result<(), (PathBuf, io::Error)>;

/// Files that are sent.
struct Outgoing {
    contents: Option<Contents>,
    files: VecDeque<(PathBuf, File, VecDeque<usize>)>,
    failure: OfFile,
}

impl Outgoing {
    fn new(paths: &[PathBuf]) -> Self {
        let (mut contents, mut files, mut failure) = (vec![], VecDeque::new(), Ok(()));
        for path in paths {
            match File::open(path).and_then(|file| Ok((file.metadata()?.len(), file))) {
                Ok((len, file)) => {
                    contents.push((path.file_name().unwrap_or_default().to_string_lossy().into_owned(), len));
                    files.push_back((path.clone(), file, parts(len)));
                }
                Err(error) => note(&mut failure, path, error),
            }
        }
        Self { contents: Some(contents), files, failure }
    }

    fn messages(&self) -> usize {
        1 + self.files.iter().map(|(.., parts)| parts.len()).sum::<usize>()
    }

    /// Sends the next message, if there is one.
    fn send_next(&mut self, comm: &Communicator, to: usize) -> Result<(), CommError> {
        if let Some(contents) = self.contents.take() {
            return send_bytes(comm, to, &serde_json::to_vec(&contents).expect("plain data"));
        }
        while let Some((path, file, parts)) = self.files.front_mut() {
            let Some(part) = parts.pop_front() else {
                self.files.pop_front();
                continue;
            };
            let mut bytes = vec![0; part];
            if let Err(error) = file.read_exact(&mut bytes) {
                note(&mut self.failure, path, error); // the digests will not fit either
            }
            return send_bytes(comm, to, &bytes);
        }
        Ok(())
    }
}

/// Files that come from a rank. Each gets its name once it is complete.
struct Incoming {
    from: usize,
    into: PathBuf,
    /// The files that are not complete, with the lengths of their messages; `None` until the first message.
    files: Option<VecDeque<(PathBuf, VecDeque<usize>)>>,
    /// The first of them, once it has been begun.
    open: Option<File>,
    failure: OfFile,
}

impl Incoming {
    fn new(from: usize, into: &Path) -> Self {
        let failure = fs::create_dir_all(into).map_err(|error| (into.to_path_buf(), error));
        Self { from, into: into.into(), files: None, open: None, failure }
    }

    /// Receives the next message, if there is one.
    fn receive_next(&mut self, comm: &Communicator) -> Result<(), CommError> {
        let wrong = |what: String| CommError::Engine(format!("rank {} sent {what}", self.from));
        let Some(files) = &mut self.files else {
            let contents: Contents = serde_json::from_slice(&receive_bytes(comm, self.from)?)
                .map_err(|error| wrong(format!("no list of files: {error}")))?;
            let path = |name: &str| self.into.join(Path::new(name).file_name().unwrap_or_default());
            self.files = Some(contents.iter().map(|(name, len)| (path(name), parts(*len))).collect());
            self.name_complete();
            return Ok(());
        };
        let Some((path, parts)) = files.front_mut() else { return Ok(()) };
        let part = parts.pop_front().expect("a file that is not complete has messages");
        let bytes = receive_bytes(comm, self.from)?;
        if bytes.len() != part {
            return Err(wrong(format!("{} bytes of a file, not {part}", bytes.len())));
        }
        let open = self.open.take().map_or_else(|| File::create(beside(path)), Ok);
        match open.and_then(|mut file| file.write_all(&bytes).map(|()| file)) {
            Ok(file) => self.open = Some(file),
            Err(error) => note(&mut self.failure, path, error),
        }
        self.name_complete();
        Ok(())
    }

    /// Names the files that are complete, also those without bytes.
    fn name_complete(&mut self) {
        let Some(files) = &mut self.files else { return };
        while let Some((path, _)) = files.pop_front_if(|(_, parts)| parts.is_empty()) {
            let open = self.open.take().map_or_else(|| File::create(beside(&path)), Ok);
            if let Err(error) = open.and_then(|_| fs::rename(beside(&path), &path)) {
                note(&mut self.failure, &path, error);
            }
        }
    }
}

/// The name of a file that is not complete.
fn beside(path: &Path) -> PathBuf {
    path.with_added_extension("new")
}

/// Keeps the first error.
fn note(failure: &mut OfFile, path: &Path, error: io::Error) {
    if failure.is_ok() {
        *failure = Err((path.to_path_buf(), error));
    }
}

/// The lengths of the messages of a file.
fn parts(len: u64) -> VecDeque<usize> {
    (0..len).step_by(MESSAGE).map(|at| (len - at).min(MESSAGE as u64) as usize).collect()
}

/// Sends bytes as integers of 32 bits: their number, and as many as are needed.
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
