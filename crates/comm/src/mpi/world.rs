//! The processes started by `mpirun`: their start, failure and end.

use super::mail::Mail;
use super::transfers::Transfers;
use super::{ABORT, Header};
use crate::ranks::run_rank;
use crate::{CommError, Communicator, HierarchicalEngine, MpiEngine, RankFailure, Timeouts};
use ::mpi::collective::SystemOperation;
use ::mpi::environment::Universe;
use ::mpi::point_to_point::{Message, Status};
use ::mpi::topology::SimpleCommunicator;
use ::mpi::traits::{Communicator as _, CommunicatorCollectives, MatchedReceiveVec, Source};
use ::mpi::{Rank, Threading};
use burn::tensor::{Bytes, Device};
use std::env;
use std::error::Error;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The processes started by `mpirun`, one rank each. MPI ends when this is dropped: at the end of the process, after
/// its communicators.
///
/// ```no_run
/// use burn::tensor::Device;
///
/// let Some(world) = comm::MpiWorld::start()? else { return Ok(()) }; // not started by mpirun
/// let result = world.run(Device::flex(), comm::TIMEOUT, |comm| comm.barrier());
/// if let Err(failure) = result {
///     eprintln!("{failure}");
///     world.abort_process(1); // a process that merely returned would leave the others waiting
/// }
/// # Ok::<(), comm::CommError>(())
/// ```
pub struct MpiWorld(Arc<World>);

/// The state that all engines of a process share.
pub(super) struct World {
    /// Comes first: its thread ends before MPI does.
    pub mail: Mail,
    universe: Universe,
    pub rank: usize,
    pub size: usize,
    /// The machine of each rank: the number of the first rank there.
    pub machines: Vec<usize>,
    /// The first group number that is free as far as this rank knows.
    pub free_group: AtomicU64,
    failure: Mutex<Option<Failure>>,
}

/// The first failure that this rank knows of; it ends the world. Ranks have their world numbers.
struct Failure {
    failed: usize,
    reason: String,
    /// The marks that notify the others, if this rank was the first to notice.
    marks: Option<Transfers>,
}

/// How long the drop of [`MpiWorld`] waits for its communicators to be dropped.
const LET_GO: Duration = Duration::from_secs(10);

impl MpiWorld {
    /// Starts MPI, once per process, on its main thread. Returns `None` if `mpirun` has not started the process.
    ///
    /// # Errors
    /// Returns an error if MPI has been started before, or does not allow calls from several threads.
    pub fn start() -> Result<Option<Self>, CommError> {
        if !["OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"].iter().any(|name| env::var_os(name).is_some()) {
            return Ok(None);
        }
        let Some((universe, threading)) = ::mpi::initialize_with_threading(Threading::Multiple) else {
            return Err(CommError::Engine("MPI has been started in this process before".into()));
        };
        if threading != Threading::Multiple {
            let need = "Kiln's ranks communicate while they compute: build MPI with MPI_THREAD_MULTIPLE";
            return Err(CommError::Engine(format!("this MPI provides only Threading::{threading:?}: {need}")));
        }
        let (rank, size) = (universe.world().rank() as usize, universe.world().size() as usize);
        let machines = machines_of(&universe);
        let (free_group, failure) = (AtomicU64::new(1), Mutex::default());
        let mail = Mail::default();
        Ok(Some(Self(Arc::new(World { mail, universe, rank, size, machines, free_group, failure }))))
    }

    /// Returns the machine of each rank: the number of the first rank there.
    pub fn machines(&self) -> &[usize] {
        &self.0.machines
    }

    /// Returns the same processes as if each rank were on the machine with the given number, before they communicate.
    ///
    /// # Panics
    /// Panics if there is a communicator.
    #[doc(hidden)]
    #[must_use]
    pub fn on_machines(mut self, machines: Vec<usize>) -> Self {
        Arc::get_mut(&mut self.0).expect("no communicator yet").machines = machines;
        self
    }

    /// Returns this process's rank.
    pub fn rank(&self) -> usize {
        self.0.rank
    }

    /// Returns the number of processes.
    pub fn world_size(&self) -> usize {
        self.0.size
    }

    /// Returns this process's number among those on its machine, and how many there are. If `mpirun` does not say, all
    /// processes are on one machine.
    pub fn local_rank(&self) -> (usize, usize) {
        let number = |name| env::var(name).ok()?.parse().ok();
        let (rank, size) = (number("OMPI_COMM_WORLD_LOCAL_RANK"), number("OMPI_COMM_WORLD_LOCAL_SIZE"));
        rank.zip(size).unwrap_or((self.rank(), self.world_size()))
    }

    /// Creates this rank's communicator with all other processes; `timeouts` limits how long it waits for them. Call it
    /// once: a second communicator would take the first one's messages.
    ///
    /// If the processes are on several machines, the same number on each and more than one, its collectives have
    /// [two levels](HierarchicalEngine).
    pub fn communicator(&self, device: Device, timeouts: impl Into<Timeouts>) -> Communicator {
        Communicator::new(HierarchicalEngine::over(Arc::new(self.engine(device, timeouts))))
    }

    /// Creates the engine of this rank without levels, in place of the [communicator](Self::communicator).
    #[doc(hidden)]
    pub fn engine(&self, device: Device, timeouts: impl Into<Timeouts>) -> MpiEngine {
        let members = (0..self.0.size).collect();
        MpiEngine::new(0, members, device.without_autodiff(), timeouts.into(), self.0.clone())
    }

    /// Runs `work` as this process's rank, as [`run_ranks`](crate::run_ranks) does for ranks that are threads.
    ///
    /// # Errors
    /// Returns an error if this rank returns an error or panics. The others are notified, but wait in MPI for this
    /// process to end; [`abort_process`](Self::abort_process) ends that wait.
    pub fn run<T, E: Error + 'static>(
        &self,
        device: Device,
        timeouts: impl Into<Timeouts>,
        work: impl FnOnce(Communicator) -> Result<T, E>,
    ) -> Result<T, RankFailure<E>> {
        run_rank(self.communicator(device, timeouts), work)
    }

    /// Returns whether another rank failed first; a failure of this rank is then only a consequence.
    pub fn another_failed_first(&self) -> bool {
        self.0.poll_marks();
        self.0.lock().as_ref().is_some_and(|failure| failure.marks.is_none())
    }

    /// Ends all processes at once (`MPI_Abort`); `mpirun` returns `code`.
    pub fn abort_process(&self, code: i32) -> ! {
        self.0.universe.world().abort(code)
    }
}

impl Drop for MpiWorld {
    /// Ends MPI, which waits for the other processes. A panicking process does not wait and ends them.
    fn drop(&mut self) {
        if thread::panicking() {
            self.abort_process(101);
        }
        // A thread of the rank may be about to drop its communicator. MPI must end here, before the process does.
        let start = Instant::now();
        while Arc::strong_count(&self.0) > 1 && start.elapsed() < LET_GO {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl World {
    /// Ends the world, unless it has already ended, and notifies the other ranks.
    pub fn fail(&self, failed: usize, reason: String) {
        self.poll_marks();
        self.lock().get_or_insert_with(|| {
            let mut mark = (failed as u64).to_ne_bytes().to_vec();
            mark.extend(reason.bytes().take(MAX_REASON));
            let mut marks = Transfers::default();
            marks.send(Bytes::from_elems(mark), (0..self.size).filter(|rank| *rank != self.rank), ABORT);
            Failure { failed, reason, marks: Some(marks) }
        });
    }

    /// Returns the rank that ended the world and the reason, if there was a failure.
    pub fn failure(&self) -> Option<(usize, String)> {
        self.poll_marks();
        self.lock().as_ref().map(|failure| (failure.failed, failure.reason.clone()))
    }

    /// Receives the failure marks of other ranks.
    fn poll_marks(&self) {
        while let Some(message) = self.universe.world().any_process().immediate_matched_probe_with_tag(ABORT) {
            let mark = receive(message);
            let Some((failed, reason)) = mark.split_first_chunk() else { continue };
            let (failed, reason) = (u64::from_ne_bytes(*failed) as usize, String::from_utf8_lossy(reason).into_owned());
            self.lock().get_or_insert(Failure { failed, reason, marks: None });
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Failure>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the next header that a rank has sent with a tag, if one has arrived; the inner `None` means that it is not a
/// header. MPI must have been started.
pub(super) fn receive_header(from: usize, tag: i32) -> Option<Option<Header>> {
    let world = SimpleCommunicator::world();
    let message = world.process_at_rank(from as Rank).immediate_matched_probe_with_tag(tag)?;
    Some(Header::from_bytes(&receive(message)))
}

/// Finds the machine of each rank. It waits for all processes, as the start of MPI before it does.
fn machines_of(universe: &Universe) -> Vec<usize> {
    let world = universe.world();
    let (rank, mut first, mut machines) = (world.rank(), 0, vec![0; world.size() as usize]);
    world.split_shared(rank).all_reduce_into(&rank, &mut first, SystemOperation::min());
    world.all_gather_into(&first, &mut machines);
    machines.into_iter().map(|first| first as usize).collect()
}

/// Maximum length of a reason in bytes; short messages are sent without waiting for the receiver.
const MAX_REASON: usize = 1024;

fn receive(message: (Message, Status)) -> Vec<u8> {
    message.matched_receive_vec::<u8>().0
}
