//! What happens in a run, drawn from a seed.

use crate::common::{TINY, TINY_EXPERTS};
use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

/// What the ranks of a run are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Engine {
    /// Threads of one process.
    Threads,
    /// Processes that `train launch` starts.
    Processes,
    /// Threads with a CUDA card each.
    Cards,
}

impl Engine {
    /// Steps of a run.
    pub fn steps(self) -> usize {
        if self == Self::Cards { 7 } else { 14 }
    }

    /// Seconds that no run takes but one that hangs.
    pub fn longest(self) -> u64 {
        if self == Self::Cards { 900 } else { 300 }
    }
}

/// Arguments of a model, and of its layout on four ranks.
pub struct Layout {
    pub model: &'static [&'static str],
    pub args: &'static [&'static str],
    /// Whether each rank's parameters have a copy on another one.
    has_copies: bool,
}

const fn gpt2(args: &'static [&'static str], has_copies: bool) -> Layout {
    Layout { model: TINY, args, has_copies }
}

const fn experts(args: &'static [&'static str], has_copies: bool) -> Layout {
    Layout { model: TINY_EXPERTS, args, has_copies }
}

/// Layouts over all axes.
pub const LAYOUTS: &[Layout] = &[
    gpt2(&[], false),
    gpt2(&["--strategy=ddp"], true),
    gpt2(&["--strategy=zero1"], false),
    gpt2(&["--strategy=hybrid_shard"], true),
    gpt2(&["--set=parallel.tp=2"], false),
    gpt2(&["--set=parallel.tp=2", "--strategy=hybrid_shard"], true),
    gpt2(&["--set=parallel.pp=2"], false),
    gpt2(&["--set=parallel.pp=2", "--set=parallel.tp=2"], false),
    gpt2(&["--set=parallel.cp=2"], false),
    gpt2(&["--set=parallel.pp=4", "--set=parallel.schedule=zero_bubble"], false),
    experts(&["--set=parallel.ep=4"], false),
    experts(&["--set=parallel.ep=2", "--strategy=ddp"], true),
    experts(&["--set=parallel.ep=2", "--strategy=hybrid_shard"], true),
    experts(&["--set=parallel.pp=2", "--set=parallel.ep=2"], false),
    experts(&["--set=parallel.tp=2", "--set=parallel.ep=4"], false),
    experts(&["--set=parallel.cp=2", "--set=parallel.tp=2"], false),
];

/// When something happens to a run from outside.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum When {
    /// Once it has made this step.
    Step(u64),
    /// Once it has made this step, and no other one for a while.
    HungAfter(u64),
    /// When the supervisor announces this restart.
    Restart(usize),
    /// When it says that it skips a checkpoint.
    Skipped,
}

/// What happens to a run from outside.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum What {
    /// The supervisor receives SIGTERM.
    Terminate,
    /// Its disk becomes full.
    Fill,
    /// Its disk has room again.
    Free,
    /// A file of its newest checkpoint is damaged: the `file`th, around its byte `at`, both modulo their number.
    Checkpoint { how: Damage, file: usize, at: usize },
    /// A file of each checkpoint in memory is damaged.
    Memory { how: Damage, file: usize, at: usize },
    /// `metrics.jsonl` is damaged.
    Metrics { how: Damage, at: usize },
}

/// How a file is damaged.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Damage {
    /// All bits of a byte are flipped.
    Flip,
    /// The file ends earlier.
    Cut,
}

/// Where the run's folder is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Disk {
    /// On a disk with room.
    Large,
    /// On one of its own, which [`What::Fill`] fills.
    Small,
    /// Where no file may become as large as a checkpoint's.
    Limited,
}

/// What happens in a run, and what may come of it.
pub struct Plan {
    pub layout: &'static Layout,
    /// Settings, apart from those of the layout.
    pub settings: Vec<String>,
    /// Settings on which the losses depend.
    pub of_losses: Vec<String>,
    /// Faults for `KILN_FAULTS`.
    pub faults: Vec<String>,
    /// Those that strike in each attempt and change the losses.
    pub lasting: Vec<String>,
    pub outside: Vec<(When, What)>,
    pub disk: Disk,
    /// What the error says if the run may end with one.
    pub may_end: Vec<&'static str>,
    /// Whether the losses must be the same to the last bit.
    pub is_exact: bool,
    /// The kinds of faults, for a table.
    pub kinds: Vec<&'static str>,
}

/// Draws a plan.
pub fn plan(random: &mut StdRng, engine: Engine) -> Plan {
    let layout = LAYOUTS.choose(random).expect("there are layouts");
    let memory_every: usize = *[0, 0, 1, 2].choose(random).expect("four");
    let mut plan = Plan {
        layout,
        settings: vec![],
        of_losses: vec![],
        faults: vec![],
        lasting: vec![],
        outside: vec![],
        disk: Disk::Large,
        may_end: vec![],
        is_exact: true,
        kinds: vec![],
    };
    let extra = ["none", "none", "nan", "skip", "terminate", "full", "limit", "damage", "damage", "metrics", "memory"];
    let extra = *extra.choose(random).expect("eleven");
    // mpirun itself hangs if its files may not be large.
    let extra = if engine == Engine::Processes && extra == "limit" { "none" } else { extra };
    let attempts = random.random_range(1..=3);
    for attempt in 1..=attempts {
        for _ in 0..if random.random_bool(0.25) { 2 } else { 1 } {
            plan.draw_fault(random, attempt, engine, extra);
        }
    }
    plan.draw_extra(random, extra, attempts, engine.steps());
    if !plan.of_losses.is_empty() && plan.kinds.iter().filter(|kind| **kind == "oom").count() > 1 {
        plan.may_end.push("does not fit into memory with one sequence at a time");
    }
    let memory_every = if extra == "memory" { 1 } else { memory_every };
    plan.settings.push(format!("--set=resilience.memory_every={memory_every}"));
    if engine == Engine::Cards && random.random_bool(0.5) {
        plan.of_losses.push("--set=comm.nccl=true".into()); // its sums have another order
        plan.kinds.push("by NCCL");
    }
    plan
}

impl Plan {
    /// Draws a fault of an attempt.
    fn draw_fault(&mut self, random: &mut StdRng, attempt: usize, engine: Engine, extra: &str) {
        let mut kinds = vec!["panic", "error", "kill", "hang", "slow", "nan once", "oom"];
        // With other ranks, a rank's lasting fault may be gone.
        let may_lose = engine != Engine::Processes && !["nan", "skip"].contains(&extra);
        if self.layout.has_copies && !self.kinds.contains(&"lost") {
            kinds.push("flip");
        }
        if may_lose && !self.kinds.contains(&"flip") {
            kinds.push("lost");
        }
        if engine == Engine::Processes {
            kinds.push("stop"); // with threads, the supervisor waits for a minute
        }
        let kind = *kinds.choose(random).expect("there are kinds");
        let (step, rank) = (random.random_range(1..=engine.steps()), random.random_range(0..4));
        let more = match kind {
            "slow" => format!(",ms={}", random.random_range(1..100)),
            "lost" => {
                self.is_exact = false; // fewer ranks add in another order
                format!(",back={}", attempt + random.random_range(2..4))
            }
            "oom" if random.random_bool(0.5) => {
                self.is_exact = false;
                self.of_losses = vec!["--set=train.micro_batch_size=3".into()];
                self.settings.push("--set=resilience.dynamic_batch=true".into());
                String::new()
            }
            _ => String::new(),
        };
        let name = if kind == "nan once" { "nan" } else { kind };
        self.faults.push(format!("{name}:step={step},rank={rank},attempt={attempt}{more}"));
        self.kinds.push(kind);
    }

    /// Draws what lasts, or comes from outside.
    fn draw_extra(&mut self, random: &mut StdRng, extra: &'static str, attempts: usize, steps: usize) {
        let damage = |random: &mut StdRng| {
            let how = *[Damage::Flip, Damage::Cut].choose(random).expect("two");
            (how, random.random_range(0..1000), random.random_range(0..1 << 20))
        };
        let (step, rank) = (random.random_range(2..steps as u64), random.random_range(0..4));
        match extra {
            "nan" | "skip" => {
                let fault = format!("nan:step={step},rank={rank}");
                self.faults.push(fault.clone());
                if extra == "skip" {
                    self.settings.push("--set=resilience.skip_non_finite=true".into());
                    self.lasting.push(fault);
                } else {
                    self.may_end.push("NaN");
                }
            }
            "terminate" => self.outside.push((When::Step(step), What::Terminate)),
            "full" => {
                self.disk = Disk::Small;
                self.faults.push("slow:step=1,ms=500".into()); // until the checkpoint is skipped
                let fill = When::Step(random.random_range(1..6));
                let free = *[When::Skipped, When::Restart(1), When::Restart(2)].choose(random).expect("three");
                self.outside.extend([(fill, What::Fill), (free, What::Free)]);
                self.may_end.push("No space left on device");
            }
            "limit" => {
                self.disk = Disk::Limited;
                self.settings.push("--set=checkpoint.every=100".into()); // each one is tried for 5 s
                self.may_end.push("File too large");
            }
            "damage" => {
                for restart in 1..=attempts {
                    let (how, file, at) = damage(random);
                    self.outside.push((When::Restart(restart), What::Checkpoint { how, file, at }));
                }
                self.may_end.extend(super::DAMAGED); // if there is no other one
            }
            "metrics" => {
                let (how, _, at) = damage(random);
                self.outside.push((When::Restart(1), What::Metrics { how, at }));
            }
            "memory" => {
                let (how, file, at) = damage(random);
                let step = random.random_range(4..steps as u64);
                self.faults.insert(0, format!("hang:step={step},rank={rank},attempt=1"));
                self.outside.push((When::HungAfter(step - 1), What::Memory { how, file, at }));
            }
            _ => return,
        }
        self.kinds.push(extra);
    }
}
