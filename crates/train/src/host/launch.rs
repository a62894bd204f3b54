//! How a run's ranks are started: as threads of this process, or as processes started by `mpirun`.

use crate::config::CommConfig;
use crate::error::TrainError;
use crate::host::attempt::{self, Cause};
use crate::host::device::Devices;
use crate::terminal::to_stderr;
#[cfg(feature = "mpi")]
use comm::MpiWorld;
use comm::{CommError, Communicator, RankFailure, Timeouts};
use fsdp::FsdpError;
use std::env;
use std::error::Error;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;
#[cfg(not(feature = "mpi"))]
use without_mpi::MpiWorld;

/// The ranks that this process runs: all of a run's, or one with `mpirun`.
pub(crate) struct Launch {
    mpi: Option<MpiWorld>,
}

/// If all processes fail in the same way, only rank 0 reports it, and ends the others before they do.
const AFTER_RANK_0: Duration = Duration::from_millis(500);
/// A rank that fails because another rank failed gives that rank this long to report why.
const AFTER_THE_FIRST: Duration = Duration::from_secs(2);

impl Launch {
    /// Detects whether `mpirun` started this process; otherwise ranks are threads.
    pub fn start() -> Result<Self, CommError> {
        Ok(Self { mpi: MpiWorld::start()? })
    }

    /// Runs all ranks as threads of this process.
    pub fn threads() -> Self {
        Self { mpi: None }
    }

    /// Warns if a launcher has started several processes that are not connected. Only the first of them prints it.
    pub fn warn(&self) {
        let first = started_by(&|name| env::var(name).ok()).filter(|by| by.number == 0);
        let Some(StartedBy { launcher, processes, .. }) = first.filter(|_| self.processes().unwrap_or(1) == 1) else {
            return;
        };
        let (why, build) = match cfg!(feature = "mpi") {
            true => ("MPI does not see them", ""),
            false => ("this build has no MPI", "build with `--features mpi` and "),
        };
        to_stderr(&format!(
            "warning: {launcher} has started {processes} processes, and {why}: each trains by itself, in a run of its own; for \
             one run of {processes} ranks {build}start it with `mpirun -n {processes}` (or `srun --mpi=pmix -n {processes}`), or \
             start one process with `--gpus {processes}`"
        ));
    }

    /// Number of processes that `mpirun` started; `None` without `mpirun`.
    pub fn processes(&self) -> Option<usize> {
        self.mpi.as_ref().map(MpiWorld::world_size)
    }

    /// The number of this process on its machine; `None` without `mpirun`.
    pub fn local_rank(&self) -> Option<usize> {
        self.mpi.as_ref().map(|world| world.local_rank().0)
    }

    /// Whether this process has rank 0, the only one that prints and writes.
    pub fn has_rank_0(&self) -> bool {
        self.mpi.as_ref().is_none_or(|world| world.rank() == 0)
    }

    /// Number of a run's `ranks` that are on this machine and share its devices.
    pub fn ranks_here(&self, ranks: usize) -> usize {
        self.mpi.as_ref().map_or(ranks, |world| world.local_rank().1)
    }

    /// Runs the ranks of this process, each on its device; `devices` are those of the ranks on this machine.
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

    /// Prints an error; with `mpirun`, also ends all processes.
    pub fn fail(&self, error: &(dyn Error + 'static)) -> ExitCode {
        let (cause, step) = error.downcast_ref().map_or((Cause::Other, None), TrainError::cause);
        let say = |whose: String| {
            // The text may contain names from files.
            let what = if cause == Cause::NearlyFull { "" } else { "error: " };
            to_stderr(&format!("{what}{whose}{error}"));
        };
        let Some(world) = &self.mpi else {
            attempt::failed(&error.to_string(), cause, step);
            say(String::new());
            return ExitCode::FAILURE;
        };
        if world.another_failed_first() || is_consequence(error) {
            thread::sleep(AFTER_THE_FIRST);
        } else if world.rank() != 0 {
            thread::sleep(AFTER_RANK_0);
        }
        let names_a_rank = matches!(error.downcast_ref(), Some(TrainError::Rank(_) | TrainError::Waited { .. }));
        attempt::failed(&error.to_string(), cause, step);
        say(if names_a_rank { String::new() } else { format!("rank {}: ", world.rank()) });
        world.abort_process(1)
    }
}

/// Whether an error says that another rank has failed or left, which says why by itself.
fn is_consequence(error: &(dyn Error + 'static)) -> bool {
    match error.downcast_ref() {
        Some(TrainError::Fsdp(FsdpError::Comm(CommError::RankFailed { .. }))) => true,
        Some(TrainError::Rank(failure) | TrainError::Waited { failure, .. }) => match &**failure {
            RankFailure::Failed { source, .. } => is_consequence(source),
            _ => false,
        },
        _ => false,
    }
}

/// Returns the communicator of a rank, with the engine that the configuration asks for.
pub(crate) fn engine(comm: Communicator, config: &CommConfig) -> Result<Communicator, TrainError> {
    if !config.nccl {
        return Ok(comm);
    }
    #[cfg(feature = "nccl")]
    return Ok(comm.by_nccl(config.timeouts()).map_err(fsdp::FsdpError::from)?);
    #[cfg(not(feature = "nccl"))]
    Err(TrainError::Config(
        "comm.nccl is true, and this build has no NCCL: build with `--features nccl`, or set comm.nccl=false".into(),
    ))
}

/// The number of this process among several that a launcher has started, from 0; `None` if there is only one.
pub(crate) fn number_among_several() -> Option<usize> {
    started_by(&|name| env::var(name).ok()).map(|by| by.number)
}

/// The launcher that started this process as one of several.
struct StartedBy {
    launcher: &'static str,
    processes: usize,
    /// Index of this process, from 0.
    number: usize,
}

/// Reads the environment variables of launchers; `None` for a standalone process. A script started by Slurm is
/// standalone, however many tasks its job has: only `srun` sets the variables of a step.
fn started_by(variable: &dyn Fn(&str) -> Option<String>) -> Option<StartedBy> {
    const LAUNCHERS: [(&str, &str, &str); 4] = [
        ("mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
        ("mpirun", "PMI_SIZE", "PMI_RANK"),
        ("srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
        ("torchrun", "WORLD_SIZE", "RANK"),
    ];
    let number = |name| variable(name)?.parse::<usize>().ok();
    LAUNCHERS.into_iter().find_map(|(launcher, processes, rank)| {
        let (processes, number) = (number(processes)?, number(rank)?);
        (processes > 1).then_some(StartedBy { launcher, processes, number })
    })
}

/// A stand-in for MPI in builds without it, which returns an error where MPI is needed.
#[cfg(not(feature = "mpi"))]
mod without_mpi {
    use comm::{CommError, Communicator, RankFailure, Timeouts};
    use std::{env, error::Error};

    pub enum MpiWorld {}

    impl MpiWorld {
        pub fn start() -> Result<Option<Self>, CommError> {
            match super::started_by(&|name| env::var(name).ok()) {
                Some(by) if by.launcher == "mpirun" => Err(CommError::Engine(format!(
                    "mpirun has started {0} processes, but this build has no MPI; build it with `--features mpi`, or start \
                     one process with --gpus {0}",
                    by.processes
                ))),
                _ => Ok(None),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_of_a_launcher_are_told_from_a_job_that_could_have_several() {
        let by = |variables: &[(&str, &str)]| {
            let variable =
                |name: &str| variables.iter().find(|(of, _)| *of == name).map(|(_, value)| value.to_string());
            started_by(&variable).map(|by| (by.launcher, by.processes, by.number))
        };
        let srun = [("SLURM_STEP_NUM_TASKS", "4"), ("SLURM_PROCID", "3"), ("SLURM_NTASKS", "4")];
        assert_eq!(by(&srun), Some(("srun", 4, 3)));
        assert_eq!(by(&srun[1..]), None, "a script, which runs once");
        assert_eq!(by(&[("OMPI_COMM_WORLD_SIZE", "2"), ("OMPI_COMM_WORLD_RANK", "0")]), Some(("mpirun", 2, 0)));
        assert_eq!(by(&[("PMI_SIZE", "2"), ("PMI_RANK", "1")]), Some(("mpirun", 2, 1)));
        assert_eq!(by(&[("WORLD_SIZE", "8"), ("RANK", "7")]), Some(("torchrun", 8, 7)));
        assert_eq!(by(&[("WORLD_SIZE", "1"), ("RANK", "0")]), None);
        assert_eq!(by(&[("WORLD_SIZE", "many"), ("RANK", "0")]), None);
    }
}
