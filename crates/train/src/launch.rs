//! How the ranks of a run come to be: threads of this process, or processes that `mpirun` has started.

use crate::device::Devices;
use crate::error::TrainError;
use crate::terminal::shown;
#[cfg(feature = "mpi")]
use comm::MpiWorld;
use comm::{CommError, Communicator, RankFailure, Timeouts};
use std::error::Error;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;
#[cfg(not(feature = "mpi"))]
use without_mpi::MpiWorld;

/// Which of a run's ranks this process is: all of them, or with `mpirun` one.
pub(crate) struct Launch {
    mpi: Option<MpiWorld>,
}

/// Where all processes fail alike, rank 0 alone is to say so, and ends the others before they do.
const AFTER_RANK_0: Duration = Duration::from_millis(500);
/// A rank that fails because another one did leaves it that long to say why.
const AFTER_THE_FIRST: Duration = Duration::from_secs(2);

impl Launch {
    /// As `mpirun` has started this process, or else as threads.
    pub fn start() -> Result<Self, CommError> {
        Ok(Self { mpi: MpiWorld::start()? })
    }

    /// All ranks as threads of this process.
    pub fn threads() -> Self {
        Self { mpi: None }
    }

    /// How many processes `mpirun` has started. None: it has not started this one.
    pub fn processes(&self) -> Option<usize> {
        self.mpi.as_ref().map(MpiWorld::world_size)
    }

    /// Whether this process has rank 0, which alone prints and writes.
    pub fn has_rank_0(&self) -> bool {
        self.mpi.as_ref().is_none_or(|world| world.rank() == 0)
    }

    /// How many of a run's `ranks` are on this machine, and share its devices.
    pub fn ranks_here(&self, ranks: usize) -> usize {
        self.mpi.as_ref().map_or(ranks, |world| world.local_rank().1)
    }

    /// Runs the ranks of this process, each on its device; `devices` are for the ranks on this machine.
    pub fn run_ranks<T, F>(
        &self,
        devices: Devices,
        timeouts: Timeouts,
        work: F,
    ) -> Result<Vec<T>, RankFailure<TrainError>>
    where
        T: Send + 'static,
        F: Fn(Communicator) -> Result<T, TrainError> + Send + Sync + 'static,
    {
        match &self.mpi {
            Some(world) => {
                let device = devices.of_rank[world.local_rank().0].clone();
                world.run(device, timeouts, work).map(|result| vec![result])
            }
            None => comm::run_ranks(devices.of_rank, timeouts, work),
        }
    }

    /// Says what went wrong; with `mpirun` it ends all processes.
    pub fn fail(&self, error: &(dyn Error + 'static)) -> ExitCode {
        let say = |whose: String| {
            // Its text may have names out of files.
            let text = format!("error: {whose}{error}");
            let _ = writeln!(io::stderr(), "{}", shown(&text, io::stderr().is_terminal()));
        };
        let Some(world) = &self.mpi else {
            say(String::new());
            return ExitCode::FAILURE;
        };
        if world.another_failed_first() {
            thread::sleep(AFTER_THE_FIRST);
        } else if world.rank() != 0 {
            thread::sleep(AFTER_RANK_0);
        }
        let names_a_rank = matches!(error.downcast_ref(), Some(TrainError::Rank(_)));
        say(if names_a_rank { String::new() } else { format!("rank {}: ", world.rank()) });
        world.abort_process(1)
    }
}

/// What stands for MPI in a build without it: nothing, and an error where it is needed.
#[cfg(not(feature = "mpi"))]
mod without_mpi {
    use comm::{CommError, Communicator, RankFailure, Timeouts};
    use std::{env, error::Error};

    pub enum MpiWorld {}

    impl MpiWorld {
        pub fn start() -> Result<Option<Self>, CommError> {
            let several = |name| env::var(name).is_ok_and(|size| size != "1");
            match ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"].into_iter().any(several) {
                false => Ok(None),
                true => Err(CommError::Engine("this build has no MPI; build it with `--features mpi`".into())),
            }
        }

        pub fn rank(&self) -> usize {
            match *self {}
        }

        pub fn world_size(&self) -> usize {
            match *self {}
        }

        pub fn local_rank(&self) -> (usize, usize) {
            match *self {}
        }

        pub fn another_failed_first(&self) -> bool {
            match *self {}
        }

        pub fn abort_process(&self, _: i32) -> ! {
            match *self {}
        }

        pub fn run<T, E: Error + 'static>(
            &self,
            _: burn::tensor::Device,
            _: Timeouts,
            _: impl FnOnce(Communicator) -> Result<T, E>,
        ) -> Result<T, RankFailure<E>> {
            match *self {}
        }
    }
}
