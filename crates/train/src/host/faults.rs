//! Faults on purpose, to try what a run does about them: `KILN_FAULTS="panic:step=20,rank=1; kill:step=40"`.

use crate::config::Config;
use crate::error::TrainError;
use crate::format::count;
use crate::host::attempt;
use checkpoint::Parameter;
use fsdp::Fsdp;
use model::Batch;
use std::time::Duration;
use std::{env, thread};

/// The environment variable with the faults.
pub(crate) const FAULTS: &str = "KILN_FAULTS";

/// What happens.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    /// The rank panics.
    Panic,
    /// The rank returns an error.
    Error,
    /// The process of the rank is killed.
    Kill,
    /// The process of the rank is stopped, as by SIGSTOP: it lives, and does nothing.
    Stop,
    /// The rank sleeps for ever.
    Hang,
    /// The rank sleeps for this many milliseconds in each step from this one on.
    Slow(u64),
    /// The rank's gradients are NaN.
    Nan,
    /// An allocation of the rank fails.
    Oom,
    /// The rank finds its memory nearly full.
    NearlyFull,
    /// Numbers of the rank's parameters change, as if its memory had flipped bits.
    Flip,
    /// The rank's device is gone. The rank panics, as CubeCL does, and later attempts have a device less, until the
    /// attempt with this number.
    Lost { back: Option<usize> },
}

/// A fault.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Fault {
    kind: Kind,
    /// The step in which it happens, from 1.
    step: usize,
    rank: usize,
    /// The attempt of a supervised run, from 1; `None` for every attempt that makes this step.
    attempt: Option<usize>,
}

/// What a fault does to a rank's step.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Struck {
    /// Its gradients are to be NaN.
    pub nan: bool,
    /// Numbers of its parameters are to change.
    pub flip: bool,
    /// Its memory counts as nearly full.
    pub nearly_full: bool,
}

/// The faults of this process.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Faults {
    faults: Vec<Fault>,
    attempt: usize,
}

impl Faults {
    /// Reads those of a run of this many ranks from the environment.
    pub fn of_environment(ranks: usize) -> Result<Self, TrainError> {
        let faults = env::var(FAULTS).map_or(Ok(vec![]), |text| parse(&text, ranks))?;
        Ok(Self { faults, attempt: attempt::number() })
    }

    /// A warning if there are any.
    pub fn warning(&self) -> Option<String> {
        let none = self.faults.is_empty();
        (!none).then(|| format!("{FAULTS} is set: this run fails on purpose"))
    }

    /// How many devices are gone in this attempt.
    pub fn devices_lost(&self) -> usize {
        let is_lost = |fault: &&Fault| match fault.kind {
            Kind::Lost { back } => {
                fault.attempt.is_some_and(|at| at < self.attempt) && back.is_none_or(|back| self.attempt < back)
            }
            _ => false,
        };
        self.faults.iter().filter(is_lost).count()
    }

    /// What happens to a rank in a step, which counts from 1. Returns what the caller must do.
    pub fn strike(&self, step: usize, rank: usize) -> Result<Struck, TrainError> {
        let mine = |fault: &&Fault| {
            let in_step = if let Kind::Slow(_) = fault.kind { fault.step <= step } else { fault.step == step };
            in_step && fault.rank == rank && fault.attempt.is_none_or(|attempt| attempt == self.attempt)
        };
        let mut struck = Struck::default();
        for fault in self.faults.iter().filter(mine) {
            match fault.kind {
                Kind::Panic => panic!("{FAULTS} has a panic in step {step}"),
                Kind::Error => return Err(TrainError::Fault(format!("{FAULTS} has an error in step {step}"))),
                Kind::Lost { .. } => panic!("{FAULTS} has the device of this rank lost in step {step}"),
                Kind::Kill => signal(libc::SIGKILL),
                Kind::Stop => signal(libc::SIGSTOP),
                Kind::Hang => loop {
                    thread::sleep(Duration::from_secs(1));
                },
                Kind::Slow(milliseconds) => thread::sleep(Duration::from_millis(milliseconds)),
                Kind::Nan => struck.nan = true,
                Kind::Flip => struck.flip = true,
                Kind::NearlyFull => struck.nearly_full = true,
                Kind::Oom => drop(std::hint::black_box(Vec::<u8>::with_capacity(isize::MAX as usize / 2))),
            }
        }
        Ok(struck)
    }
}

/// Changes one number in a hundred of this rank's parameters, and of no other rank's.
pub(crate) fn flip(fsdp: &mut Fsdp<Batch>, config: &Config) {
    for Parameter { name, shape } in config.parameters() {
        let changed = |i: usize| if i.is_multiple_of(100) { 1e-3 } else { 0.0 };
        let delta: Vec<f32> = (0..shape.iter().product()).map(changed).collect();
        fsdp.add_to_parameter(&name, &delta);
    }
}

/// Sends a signal to this process.
fn signal(number: i32) {
    // SAFETY: a system call without memory.
    unsafe { libc::raise(number) };
}

fn parse(text: &str, ranks: usize) -> Result<Vec<Fault>, TrainError> {
    text.split(';').map(str::trim).filter(|text| !text.is_empty()).map(|text| fault(text, ranks)).collect()
}

fn fault(text: &str, ranks: usize) -> Result<Fault, TrainError> {
    let wrong = |what: &str| {
        TrainError::Fault(format!(
            "{FAULTS} has `{text}`, {what}: give KIND:KEY=N,... separated by `;`, where KIND is panic, error, kill, stop, hang, slow, \
             nan, oom, nearly_full, flip or lost, and KEY is step, rank, attempt, and with slow ms, with lost back; such as \
             `panic:step=20,rank=1,attempt=1`"
        ))
    };
    let (kind, values) = text.split_once(':').unwrap_or((text, ""));
    let (mut step, mut rank, mut attempt, mut ms, mut back) = (None, None, None, None, None);
    for value in values.split(',').map(str::trim).filter(|value| !value.is_empty()) {
        let (key, number) = value.split_once('=').ok_or_else(|| wrong("which has no `=`"))?;
        let number: usize = number.trim().parse().map_err(|_| wrong("where a value is not a whole number"))?;
        let slot = match key.trim() {
            "step" => &mut step,
            "rank" => &mut rank,
            "attempt" => &mut attempt,
            "ms" if kind == "slow" => &mut ms,
            "back" if kind == "lost" => &mut back,
            _ => return Err(wrong("which has an unknown key")),
        };
        *slot = Some(number);
    }
    let kind = match kind.trim() {
        "panic" => Kind::Panic,
        "error" => Kind::Error,
        "kill" => Kind::Kill,
        "stop" => Kind::Stop,
        "hang" => Kind::Hang,
        "slow" => Kind::Slow(ms.unwrap_or(1000) as u64),
        "nan" => Kind::Nan,
        "oom" => Kind::Oom,
        "nearly_full" => Kind::NearlyFull,
        "flip" => Kind::Flip,
        "lost" => {
            attempt = attempt.or(Some(1));
            Kind::Lost { back }
        }
        _ => return Err(wrong("which is an unknown kind")),
    };
    let step = step.filter(|step| *step > 0).ok_or_else(|| wrong("which has no step, from 1"))?;
    if attempt == Some(0) {
        return Err(wrong("and attempts count from 1"));
    }
    let rank = rank.unwrap_or(0);
    if rank >= ranks {
        return Err(wrong(&format!(
            "where there is no rank {rank}: the run has {}, counted from 0",
            count(ranks, "rank")
        )));
    }
    Ok(Fault { kind, step, rank, attempt })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_read_and_happen_in_their_step_rank_and_attempt() {
        let faults = parse("error:step=3,rank=1,attempt=2; nan:step=5;", 2).unwrap();
        let at = |attempt, step, rank| Faults { faults: faults.clone(), attempt }.strike(step, rank);
        assert!(at(2, 3, 1).unwrap_err().to_string().contains("has an error in step 3"));
        assert_eq!([at(1, 3, 1), at(2, 3, 0), at(2, 4, 1)].map(Result::unwrap), [Struck::default(); 3]);
        assert!(at(1, 5, 0).unwrap().nan && at(2, 5, 0).unwrap().nan);
        for (text, what) in [
            ("panic", "which has no step"),
            ("panic:step=0", "which has no step, from 1"),
            ("nan:step=3,attempt=0", "attempts count from 1"),
            ("quake:step=1", "an unknown kind"),
            ("panic:step", "no `=`"),
            ("panic:step=x", "not a whole number"),
            ("panic:step=1,ms=2", "an unknown key"),
            (
                "nan:step=5; panic:step=1,rank=2",
                "`panic:step=1,rank=2`, where there is no rank 2: the run has 2 ranks, counted from 0",
            ),
        ] {
            let error = parse(text, 2).unwrap_err().to_string();
            assert!(error.contains(what) && error.contains("panic:step=20"), "{error}");
        }
    }

    #[test]
    fn a_lost_device_is_gone_until_it_is_back() {
        let faults = parse("lost:step=3,rank=1,back=4; lost:step=9,attempt=2,rank=2", 3).unwrap();
        let lost = |attempt| Faults { faults: faults.clone(), attempt }.devices_lost();
        assert_eq!([1, 2, 3, 4].map(lost), [0, 1, 2, 1]);
    }
}
