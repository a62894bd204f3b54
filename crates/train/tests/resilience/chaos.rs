//! Random faults at random moments under random layouts: in the ranks (`KILN_FAULTS`), in their files, on their disk.
//!
//! | Variable | Meaning |
//! |---|---|
//! | `KILN_CHAOS_SEED=N` | the first seed; a failure prints its own |
//! | `KILN_CHAOS_RUNS=N` | the number of runs, each with the next seed |
//! | `KILN_CHAOS_ENGINE=mpi` | ranks are processes that `train launch` starts; needs the feature `mpi` |
//! | `KILN_CHAOS_ENGINE=cards` | ranks are threads with a CUDA card each, and some use NCCL; needs the feature `nccl` |
//!
//! Each run must end with the losses of one that is not disturbed, or with an error that names the cause. Then it is
//! resumed by hand without the fault, which must lead to these losses. It leaves no process, no lock and no temporary file,
//! and its newest checkpoint can be read.

mod draw;
pub mod outside;

use super::RUN;
use crate::common::{folder_with_text, program, succeed};
use draw::{Disk, Engine, Plan, What};
use outside::{Ended, SmallDisk, in_memory, processes_in, watch};
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

/// The loss of each step that has one.
type Losses = BTreeMap<u64, f64>;

/// Runs in a folder, with the losses of those that were not disturbed, by their arguments.
struct Chaos<'a> {
    folder: &'a Path,
    undisturbed: HashMap<Vec<String>, Losses>,
    engine: Engine,
}

/// The device, and a dtype for whose products CubeCL does not measure the card, which takes minutes if it is emulated.
const CARDS: &[&str] = &["--device=cuda", "--set=parallel.precision.param=fp32"];
/// Ranks compile kernels while others wait for them.
const ON_CARDS: &str = "--set=comm.timeout_seconds=60";

/// What a run says that finds no other checkpoint than a damaged one: any rank may find it.
const DAMAGED: [&str; 3] = ["is damaged", "are damaged", "the checkpoint cannot be trusted"];

impl Chaos<'_> {
    /// Makes a run with faults, and checks what comes of it. Returns the kinds of faults, and how it has ended.
    fn run(&mut self, seed: u64) -> (Vec<&'static str>, String) {
        let plan = draw::plan(&mut StdRng::seed_from_u64(seed), self.engine);
        let out = format!("chaos-{seed}");
        let run = self.folder.join(&out);
        let small = (plan.disk == Disk::Small).then(|| SmallDisk::new(&run));
        if let Some(None) = small {
            return (vec![], "skipped: a small disk cannot be mounted on this machine".into());
        }
        let args = self.arguments(&plan, &out);
        let faults = plan.faults.join("; ");
        let engine = match self.engine {
            Engine::Threads => "",
            Engine::Processes => "KILN_CHAOS_ENGINE=mpi ",
            Engine::Cards => "KILN_CHAOS_ENGINE=cards ",
        };
        let outside = &plan.outside;
        let case = format!("{engine}KILN_CHAOS_SEED={seed}: KILN_FAULTS=\"{faults}\" {} {outside:?}", args.join(" "));
        let log = |name: &str| self.folder.join(format!("{out}.{name}"));
        let command = self.command(&args, &faults, plan.disk == Disk::Limited);
        let longest = Duration::from_secs(self.engine.longest());
        let Ended { code, told } = watch(command, &run, &log("log"), outside, longest);
        let is_stopped = outside.iter().any(|(_, what)| *what == What::Terminate);
        let cause = plan.may_end.iter().find(|cause| told.contains(**cause)).filter(|_| code == Some(1));
        let mut outcome = match code {
            Some(0) => "the same losses".to_string(),
            Some(130) | Some(1) if is_stopped => "stopped".into(),
            _ => format!("ended: {}", cause.unwrap_or_else(|| panic!("{case}\n{code:?}: {told}"))),
        };
        // What cannot be copied to a full disk stays in memory until the run is resumed.
        let keeps_memory = code != Some(0) && told.contains("a newer checkpoint may still be in memory");
        self.check_left(&run, &case, keeps_memory);
        if code != Some(0) {
            let by_hand = [&args[..], &["--resume=auto".into()]].concat();
            let command = self.command(&by_hand, &plan.lasting.join("; "), false);
            let again = watch(command, &run, &log("resumed"), &[], longest);
            let is_damaged = |told: &str| DAMAGED.iter().any(|cause| told.contains(cause));
            if cause.is_some_and(|cause| is_damaged(cause)) && again.code == Some(1) && is_damaged(&again.told) {
                return (plan.kinds, outcome + ", the only one"); // it must be removed by hand
            }
            assert!(again.code == Some(0), "{case}\n{told}\n--- resumed by hand:\n{}", again.told);
            outcome += ", and the same losses when resumed by hand";
            self.check_left(&run, &case, false);
        }
        self.compare(&plan, &run, &case, &told);
        succeed(self.folder, &["inspect", &out]); // which verifies all digests
        if told.contains("skipped: ") && !plan.lasting.is_empty() {
            outcome = outcome.replace("the same losses", "the losses of a run that skips the step");
        }
        (plan.kinds, outcome)
    }

    /// The arguments of a disturbed run.
    fn arguments(&self, plan: &Plan, out: &str) -> Vec<String> {
        // A process that has lost another one fails after the timeout; a thread that hangs is left after twice that and 5 s.
        let timeout = if self.engine == Engine::Cards { ON_CARDS } else { "--set=comm.timeout_seconds=4" };
        let more = ["--restarts=9", "--set=resilience.min_gpus=1", timeout, "--out", out];
        let own = plan.settings.iter().cloned();
        self.of_losses(plan).into_iter().chain(more.map(String::from)).chain(own).collect()
    }

    /// The arguments on which the losses depend.
    fn of_losses(&self, plan: &Plan) -> Vec<String> {
        let steps = format!("--steps={}", self.engine.steps());
        let device = if self.engine == Engine::Cards { CARDS } else { &[] };
        let fixed = [plan.layout.model, RUN, plan.layout.args, &[&steps], device].concat();
        fixed.into_iter().map(String::from).chain(plan.of_losses.iter().cloned()).collect()
    }

    /// The program; if its disk is `limited`, no file of it may have more than 24 KiB.
    fn command(&self, args: &[String], faults: &str, limited: bool) -> Command {
        let launch = ["launch", "-n", "4", "--"];
        let of_engine = if self.engine == Engine::Processes { &launch[..] } else { &[] };
        let args: Vec<&str> = of_engine.iter().copied().chain(args.iter().map(String::as_str)).collect();
        let mut command = program(self.folder, &args);
        if limited {
            let mut shell = Command::new("sh");
            shell.args(["-c", "ulimit -f 48; exec \"$0\" \"$@\""]).arg(command.get_program()).args(command.get_args());
            shell.envs(command.get_envs().filter_map(|(key, value)| Some((key, value?)))).current_dir(self.folder);
            shell.env_remove("RUST_BACKTRACE"); // the limit holds for what is printed, too
            command = shell;
        }
        command.env("KILN_FAULTS", faults).envs(test_kit::OPEN_MPI);
        command
    }

    /// Compares the losses with those of a run that was not disturbed, whose ranks are threads.
    fn compare(&mut self, plan: &Plan, run: &Path, case: &str, told: &str) {
        let mut key = self.of_losses(plan);
        if !plan.lasting.is_empty() {
            key.extend(["--set=train.on_non_finite=skip".into(), plan.lasting.join("; ")]);
        }
        if !self.undisturbed.contains_key(&key) {
            let out = format!("undisturbed-{}", self.undisturbed.len());
            let args: Vec<&str> =
                key.iter().map(String::as_str).filter(|arg| arg.starts_with("--")).chain(["--out", &out]).collect();
            let mut command = program(self.folder, &args);
            let output = command.env("KILN_FAULTS", plan.lasting.join("; ")).output().unwrap();
            assert!(output.status.success(), "{key:?}\n{}", super::said(&output));
            self.undisturbed.insert(key.clone(), losses(&self.folder.join(out)));
        }
        let (expected, found) = (&self.undisturbed[&key], losses(run));
        // A line that was damaged is gone, and so is the first one that a full disk has refused, if the process ends before
        // the ranks agree to save nothing more in memory.
        let may_lose =
            |what| matches!(what, What::Metrics { .. }) || matches!(what, What::Fill) && told.contains("from memory");
        let may_miss = plan.outside.iter().filter(|(_, what)| may_lose(*what)).count();
        let missing: Vec<_> = expected.keys().filter(|step| !found.contains_key(step)).collect();
        // So are all of a course that ended on a full disk, if its checkpoint in memory was recovered after a later restart.
        let is_full = plan.outside.iter().any(|(_, what)| matches!(what, What::Fill));
        let starts_over = is_full && told.contains("no checkpoint is recovered from memory");
        assert!(starts_over || missing.len() <= may_miss, "{case}\nno losses of steps {missing:?}\n{told}");
        for (step, found) in found {
            let expected = *expected.get(&step).unwrap_or(&f64::NAN);
            let is_right = match plan.is_exact {
                true => found == expected,
                false => (found - expected).abs() <= 1e-5 * expected,
            };
            assert!(is_right, "{case}\nstep {step}: {found}, not {expected}\n{told}");
        }
    }

    /// Nothing is left of processes and supervisors, unless a checkpoint stays in memory.
    fn check_left(&self, run: &Path, case: &str, keeps_memory: bool) {
        let started = Instant::now();
        while !processes_in(self.folder).is_empty() && started.elapsed() < Duration::from_secs(10) {
            thread::sleep(Duration::from_millis(20));
        }
        let processes = processes_in(self.folder);
        assert!(processes.is_empty(), "{case}\nthere is still {processes:?}");
        let names = |folder: &Path| {
            let entries = fs::read_dir(folder).into_iter().flatten().flatten();
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect::<Vec<_>>()
        };
        let stays = |name: &str| name == ".lock" || keeps_memory && name == ".supervisor";
        let is_left = |name: &String| name.contains("partial") || name.starts_with('.') && !stays(name);
        let left: Vec<_> = [run, &run.join("checkpoints")].into_iter().flat_map(names).filter(is_left).collect();
        assert!(left.is_empty(), "{case}\nthere is still {left:?}");
        assert!(keeps_memory || in_memory(run).is_empty(), "{case}\nmemory is left full: {:?}", in_memory(run));
    }
}

/// The losses of a run; each step may be there once.
fn losses(run: &Path) -> Losses {
    let mut found = Losses::new();
    for line in crate::common::metrics(run) {
        if let (Some(step), Some(loss)) = (line["step"].as_u64(), line.get("loss").and_then(Value::as_f64)) {
            assert!(found.insert(step, loss).is_none(), "{}: step {step} twice", run.display());
        }
    }
    found
}

#[cfg(target_os = "linux")]
#[test]
fn runs_with_random_faults_end_with_the_losses_of_undisturbed_ones_or_say_why() {
    let number = |name: &str| env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    // These have many kinds of faults, and few that take long.
    let seeds = match (number("KILN_CHAOS_SEED"), number("KILN_CHAOS_RUNS")) {
        (None, None) => vec![3, 6, 103, 107],
        (first, runs) => (first.unwrap_or(1)..).take(runs.unwrap_or(1) as usize).collect(),
    };
    let folder = folder_with_text();
    let engine = match env::var("KILN_CHAOS_ENGINE").as_deref() {
        Ok("mpi") => Engine::Processes,
        Ok("cards") => Engine::Cards,
        Ok(other) => panic!("KILN_CHAOS_ENGINE={other}: it may be mpi or cards"),
        Err(_) => Engine::Threads,
    };
    let mut chaos = Chaos { folder: folder.path(), undisturbed: HashMap::new(), engine };
    for seed in seeds {
        let started = Instant::now();
        let (kinds, outcome) = chaos.run(seed);
        println!("seed {seed} | {} | {outcome} | {:.0} s", kinds.join(", "), started.elapsed().as_secs_f64());
        let run = folder.path().join(format!("chaos-{seed}"));
        drop(fs::remove_dir_all(run));
    }
}
