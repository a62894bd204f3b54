//! `train launch`: a run whose ranks are processes, on one machine or several.

mod hosts;
mod segments;

use crate::commands::train::TrainArgs;
use crate::config::Config;
use crate::error::TrainError;
use crate::format::count;
use crate::host::attempt;
use crate::host::faults::FAULTS;
use crate::program;
use crate::run::folder::RunFolder;
use crate::run::memory::held::{Answer, Request, answer_here};
use crate::supervisor::{self, Environment, Start};
use crate::terminal::{say, to_stderr};
use clap::{Args, Parser};
use hosts::{Host, Probe};
use segments::Segments;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

/// Asks for no password, and waits ten seconds for an answer.
const RSH: &str = "ssh -o BatchMode=yes -o ConnectTimeout=10";

/// Start a run as processes, on one machine or several, with Open MPI's mpirun. Checks the machines first. With
/// `--restarts N`, restarts a failed run on the machines that answer
#[derive(Debug, Args)]
pub struct LaunchArgs {
    /// The machines, a line `NAME slots=N` for each; by default this one
    #[arg(long, value_name = "FILE")]
    hosts: Option<PathBuf>,
    /// Number of processes, a rank each; by default all slots of the machines, or parallel.gpus
    #[arg(short = 'n', long, value_name = "N")]
    processes: Option<usize>,
    /// The command that runs another one on a machine
    #[arg(long, value_name = "COMMAND", default_value = RSH)]
    rsh: String,
    /// More options of mpirun, such as `--mca btl_tcp_if_include eth0`
    #[arg(long, value_name = "OPTIONS", allow_hyphen_values = true)]
    mpirun: Option<String>,
    /// Say what this machine is, for another one
    #[arg(long, value_name = "FILE", hide = true)]
    probe: Option<PathBuf>,
    /// Do something with this machine's checkpoints in memory
    #[arg(long, value_name = "REQUEST", hide = true)]
    memory: Option<String>,
    /// The arguments of the run, after `--`: `train launch -n 4 -- --model deepseek`
    #[arg(last = true, value_name = "ARGUMENTS")]
    run: Vec<OsString>,
}

/// The arguments of a run, parsed by themselves.
#[derive(Debug, Parser)]
#[command(name = "train launch --", styles = crate::terminal::HELP)]
struct Run {
    #[command(flatten)]
    args: TrainArgs,
}

pub fn run(args: &LaunchArgs) -> Result<ExitCode, TrainError> {
    let program = env::current_exe().map_err(|source| TrainError::Supervisor { what: "find the program", source })?;
    if let Some(file) = &args.probe {
        let probe = Probe::here(&program, file);
        let probe = probe.map_err(|source| TrainError::Supervisor { what: "read the program", source })?;
        say(&serde_json::to_string(&probe).expect("plain fields"));
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(request) = &args.memory {
        let request: Request = serde_json::from_str(request).map_err(|error| TrainError::Config(error.to_string()))?;
        say(&serde_json::to_string(&request.answer()).expect("plain data"));
        return Ok(ExitCode::SUCCESS);
    }
    let refused = |why: &str| Err(TrainError::Config(why.into()));
    if cfg!(not(feature = "mpi")) {
        return refused("this build has no MPI, which `launch` needs: build it with `--features mpi`");
    }
    if attempt::is_supervised() {
        return refused("`launch` within `launch`: start it once");
    }
    if !is_open_mpi() {
        return refused(
            "there is no mpirun of Open MPI in PATH, which `launch` starts: install it (Debian: openmpi-bin)",
        );
    }
    let of_run = Run::try_parse_from([OsString::from("train launch --")].iter().chain(&args.run));
    let of_run = of_run.unwrap_or_else(|error| error.exit()).args;
    if of_run.is_dry_run() {
        return refused("--dry-run starts no run: leave out `launch`, and give `--gpus N` instead");
    }
    if of_run.downloads_anywhere() {
        return refused("--resume URL downloads a checkpoint: name a folder that all machines share with --out");
    }
    let hosts = args.hosts.as_deref().map(hosts::read).transpose().map_err(TrainError::Config)?;
    let slots = hosts.iter().flatten().map(|host| host.slots).sum::<usize>();
    let processes = match args.processes.or((slots > 0).then_some(slots)) {
        Some(processes) => processes,
        None => of_run.resolve(None)?.0.parallel.gpus,
    };
    let (config, options) = of_run.resolve(Some(processes))?;
    if hosts.is_some() && processes > slots {
        return refused(&format!(
            "{processes} processes, and the machines have {}: give more slots",
            count(slots, "slot")
        ));
    }
    let rsh: Vec<String> = args.rsh.split_whitespace().map(String::from).collect();
    if rsh.is_empty() {
        return refused("--rsh is empty: give a command such as ssh");
    }
    let has_own_rsh = args.rsh != RSH;
    let own_folder = args.mpirun.as_ref().is_some_and(|options| options.contains("backing_directory"));
    let segments = if hosts.is_none() && !own_folder { Segments::new() } else { None };
    let host_file = args.hosts.as_ref().map(|file| file.display().to_string());
    let mpirun = args.mpirun.clone();
    let mpi = Mpi { program, hosts, processes, rsh, has_own_rsh, mpirun, host_file, segments };
    // An attempt may have fewer processes, and must know how many there are meant to be.
    let gpus = ["--gpus".into(), processes.to_string().into()];
    supervisor::supervise(&config, &options, [&args.run[..], &gpus].concat(), &mpi)
}

/// Starts attempts with mpirun.
struct Mpi {
    program: PathBuf,
    hosts: Option<Vec<Host>>,
    processes: usize,
    rsh: Vec<String>,
    /// Whether `rsh` was given.
    has_own_rsh: bool,
    /// More options of mpirun.
    mpirun: Option<String>,
    /// The file with the hosts.
    host_file: Option<String>,
    /// Where the ranks share memory, if they are on this machine and it has such a place.
    segments: Option<Segments>,
}

impl Start for Mpi {
    fn command(&self, config: &Config, run: &Path, environment: &Environment) -> Result<Vec<OsString>, TrainError> {
        let mut words: Vec<OsString> = ["mpirun", "--bind-to", "none"].map(OsString::from).to_vec();
        let mut processes = self.processes;
        match &self.hosts {
            None => {
                words.push("--oversubscribe".into());
                words.extend(self.segments.iter().flat_map(Segments::options));
            }
            Some(hosts) => {
                let able = self.able(hosts, run)?;
                let slots = able.iter().map(|host| host.slots).sum::<usize>();
                processes = ranks_on(config, processes, slots)?;
                let file = hosts::write(&able, RunFolder::at(run).supervisor().join("hosts"));
                let file = file.map_err(|source| TrainError::Supervisor { what: "write the host file", source })?;
                words.extend(["--hostfile".into(), file.into_os_string()]);
                if self.has_own_rsh {
                    words.extend(["--mca", "plm_rsh_agent", &self.rsh.join(" ")].map(OsString::from));
                }
            }
        }
        // mpirun warns of variables that are not set.
        let faults = env::var_os(FAULTS).map(|_| FAULTS);
        for name in environment.iter().map(|(name, _)| *name).chain(faults) {
            words.extend(["-x", name].map(OsString::from));
        }
        if config.checkpoint.upload.is_some() || config.data.is_in_store() {
            words.extend(store::variables().flat_map(|name| ["-x".into(), name]));
        }
        words.extend(self.mpirun.iter().flat_map(|options| options.split_whitespace()).map(OsString::from));
        words.extend(["-n".into(), processes.to_string().into(), self.program.clone().into_os_string()]);
        Ok(words)
    }

    /// mpirun kills the processes soon after a signal.
    fn stops_by_signal(&self) -> bool {
        false
    }

    fn is_on_this_machine(&self) -> bool {
        self.hosts.is_none()
    }

    fn resume_command(&self, run: &str) -> String {
        let mut words = vec!["launch".to_owned(), "-n".into(), self.processes.to_string()];
        let given = [("--hosts", &self.host_file), ("--mpirun", &self.mpirun)];
        words.extend(given.iter().filter_map(|(flag, value)| Some([flag.to_string(), (*value).clone()?])).flatten());
        if self.has_own_rsh {
            words.extend(["--rsh".into(), self.rsh.join(" ")]);
        }
        words.extend(["--", "--resume", run].map(String::from));
        program::command(&words.iter().map(String::as_str).collect::<Vec<_>>())
    }

    fn machines(&self) -> usize {
        self.hosts.as_ref().map_or(1, Vec::len)
    }

    fn ask(&self, requests: &[(usize, Request)], limit: Duration) -> Vec<Result<Answer, String>> {
        match &self.hosts {
            None => answer_here(requests),
            Some(hosts) => hosts::ask(hosts, &self.rsh, &self.program, requests, limit),
        }
    }
}

impl Mpi {
    /// The machines that can take part. Says why the others cannot.
    fn able(&self, hosts: &[Host], run: &Path) -> Result<Vec<Host>, TrainError> {
        let file = RunFolder::at(run).supervisor().join("seen-by-all");
        let file = fs::write(&file, "").and_then(|()| file.canonicalize());
        let file = file.map_err(|source| TrainError::Supervisor { what: "write to the run's folder", source })?;
        let (able, lost) = hosts::probe(hosts, &self.rsh, &self.program, &file);
        let _ = fs::remove_file(file);
        lost.iter().for_each(|line| to_stderr(&format!("warning: {line}")));
        Ok(able)
    }
}

/// The number of ranks on machines with this many slots.
fn ranks_on(config: &Config, processes: usize, slots: usize) -> Result<usize, TrainError> {
    if slots >= processes {
        return Ok(processes);
    }
    let least = config.resilience.min_gpus.unwrap_or(processes);
    let fewer = config.on_fewer_ranks(slots).map(|config| config.parallel.gpus).filter(|ranks| *ranks >= least);
    fewer.ok_or(TrainError::TooFewRanks { available: slots, asked: processes, least })
}

/// Whether there is an mpirun of Open MPI in PATH.
fn is_open_mpi() -> bool {
    let output = Command::new("mpirun").arg("--version").output();
    output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("Open MPI"))
}
