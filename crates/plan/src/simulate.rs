//! Simulation of the ranks of a step in time.
//!
//! ```text
//! computation    | F0 | F1 |wait| B1 | B0 |        one task after another
//! gathers         | +1 | +2 |     | +0 |           in order, beside it
//! reductions                       | reduce1 |      the same; gathers do not queue behind them
//! exchanges             s>  ──────────> r>          arrive at the other stage's rank
//! ```

use crate::PlanError;
use crate::timeline::{Activity, Span, Timeline};
use schedule::{Op, Peer, Value};
use std::collections::HashMap;

/// An operation with its durations.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// The operation.
    pub op: Op,
    /// Seconds of computation, on a device that computes nothing else.
    pub compute: f64,
    /// What the rank receives. Gathers, reductions and values of other stages come beside computations; a run of a call
    /// and the optimizer's step wait for theirs.
    pub exchanges: Vec<Exchange>,
}

/// One exchange of a task.
#[derive(Debug, Clone, PartialEq)]
pub struct Exchange {
    /// The axes of its group.
    pub axes: String,
    /// Seconds that it takes.
    pub seconds: f64,
}

/// The tasks of a rank, which also stands for others that do the same at the same time.
#[derive(Debug, Clone, PartialEq)]
pub struct RankProgram {
    /// Stage of the pipeline.
    pub stage: usize,
    /// The rank.
    pub rank: usize,
    /// Number of ranks that it stands for.
    pub ranks: usize,
    /// What it does, in order.
    pub tasks: Vec<Task>,
}

/// What a rank does at present.
#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    /// It looks at its next task.
    Ready,
    /// Seconds of computation that are left.
    Computes(f64),
    /// It communicates until this time.
    Communicates(f64),
    /// It waits for something that has a known end, or not.
    Waits(Option<f64>),
    Done,
}

struct Rank<'a> {
    step: &'a RankProgram,
    next: usize,
    state: State,
    /// When its state began.
    since: f64,
    /// Exchanges of the task that are still to come.
    exchanges: usize,
    /// When its gathers and its reductions so far have ended: each kind has a queue of its own.
    gathers_end: f64,
    reductions_end: f64,
    /// When each slot has its parameters, and over which axes.
    slots: HashMap<usize, (f64, usize)>,
    /// When the reduction of each unit has ended, and over which axes.
    reduced: HashMap<usize, (f64, usize)>,
}

struct Simulation<'a> {
    now: f64,
    ranks: Vec<Rank<'a>>,
    /// When values were sent, by receiving rank.
    sent: HashMap<(usize, Value), f64>,
    /// Which ranks have reached a sum over stages or the first optimizer step.
    met: HashMap<Meeting, Vec<f64>>,
    timeline: Timeline,
}

/// Seconds of a task that cannot be meant: 30 years.
const LONGEST: f64 = 1e9;

/// Where ranks wait for each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Meeting {
    /// The sum of a unit's gradients over stages.
    Tie(usize),
    /// The norm of all gradients, before the optimizer's steps.
    Norm,
}

/// Cores that ranks share, as threads on CPUs do.
///
/// Each rank has an equal number of threads, at least one. Durations of tasks are those of all cores of a node together:
/// of 4 ranks on 2 cores, one that computes alone takes twice as long, and four at once take 4 times as long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedCores {
    /// Cores of a node.
    pub of_node: usize,
    /// Nodes that the ranks fill.
    pub nodes: usize,
}

/// Runs the ranks of a step; each has a processor of its own unless they share cores.
///
/// # Errors
/// If ranks wait for each other.
pub fn simulate(steps: &[RankProgram], cores: Option<SharedCores>) -> Result<Timeline, PlanError> {
    let rank = |step| Rank {
        step,
        next: 0,
        state: State::Ready,
        since: 0.0,
        exchanges: 0,
        gathers_end: 0.0,
        reductions_end: 0.0,
        slots: HashMap::new(),
        reduced: HashMap::new(),
    };
    let mut simulation = Simulation {
        now: 0.0,
        ranks: steps.iter().map(rank).collect(),
        sent: HashMap::new(),
        met: HashMap::new(),
        timeline: Timeline::new(steps.iter().map(|step| (step.rank, step.stage, step.ranks)).collect()),
    };
    let ranks: usize = steps.iter().map(|step| step.ranks).sum();
    let seconds = |task: &Task| task.exchanges.iter().map(|exchange| exchange.seconds).sum::<f64>() + task.compute;
    let tasks = || steps.iter().flat_map(|step| &step.tasks);
    if let Some(task) = tasks().find(|task| !(0.0..LONGEST).contains(&seconds(task))) {
        return Err(PlanError::Duration { op: task.op.to_string(), seconds: seconds(task) });
    }
    // Of a node's speed: a rank's threads, and an equal share of all nodes.
    let rate = |computing: f64| match cores {
        None => 1.0,
        Some(SharedCores { of_node, nodes }) => {
            let threads = (of_node / ranks.div_ceil(nodes).max(1)).max(1) as f64 / of_node as f64;
            threads.min(nodes as f64 / computing.max(1.0))
        }
    };
    loop {
        simulation.settle();
        let computing: f64 = simulation.computing().map(|rank| rank.step.ranks as f64).sum();
        let rate = rate(computing);
        let ends = simulation.ranks.iter().filter_map(|rank| match rank.state {
            State::Computes(left) => Some(simulation.now + left / rate),
            State::Communicates(end) | State::Waits(Some(end)) => Some(end),
            _ => None,
        });
        let Some(next) = ends.reduce(f64::min) else { break };
        simulation.pass(next, rate);
    }
    let stuck = simulation.ranks.iter().filter(|rank| rank.state != State::Done);
    let stuck: Vec<String> =
        stuck.map(|rank| format!("rank {} waits at {}", rank.step.rank, rank.step.tasks[rank.next].op)).collect();
    if stuck.is_empty() { Ok(simulation.timeline) } else { Err(PlanError::Deadlock(stuck.join(", "))) }
}

impl Simulation<'_> {
    fn computing(&self) -> impl Iterator<Item = &Rank<'_>> {
        self.ranks.iter().filter(|rank| matches!(rank.state, State::Computes(_)))
    }

    /// Lets time pass until `next`.
    fn pass(&mut self, next: f64, rate: f64) {
        let passed = (next - self.now).max(0.0) * rate;
        self.now = next;
        for i in 0..self.ranks.len() {
            match &mut self.ranks[i].state {
                State::Computes(left) => {
                    *left -= passed;
                    // What rounding leaves of a duration does not move the clock.
                    if next + *left / rate <= next * (1.0 + f64::EPSILON) {
                        self.computed(i);
                    }
                }
                State::Communicates(end) if *end <= next => self.communicated(i),
                State::Waits(Some(end)) if *end <= next => self.ranks[i].state = State::Waits(None),
                _ => {}
            }
        }
    }

    /// Starts whatever can start now.
    fn settle(&mut self) {
        loop {
            let mut moved = false;
            for i in 0..self.ranks.len() {
                while matches!(self.ranks[i].state, State::Ready | State::Waits(None)) && self.start(i) {
                    moved = true;
                }
            }
            if !moved {
                return;
            }
        }
    }

    /// Starts the next task of a rank, and returns whether anything has changed.
    fn start(&mut self, i: usize) -> bool {
        let Some(task) = self.ranks[i].step.tasks.get(self.ranks[i].next) else {
            self.ranks[i].state = State::Done;
            return true;
        };
        let (rank, now) = (&mut self.ranks[i], self.now);
        let first_step = || !rank.step.tasks[..rank.next].iter().rev().any(|task| matches!(task.op, Op::Step { .. }));
        let ready = match task.op {
            Op::Run { slot: Some(slot), .. } => rank.slots.get(&slot).map(|(end, axes)| (*end, Some(*axes))),
            Op::Wait { unit } => rank.reduced.get(&unit).map(|(end, axes)| (*end, Some(*axes))),
            Op::Recv { value, .. } => {
                let takes: f64 = task.exchanges.iter().map(|exchange| exchange.seconds).sum();
                self.sent.get(&(i, value)).map(|sent| (sent + takes, None))
            }
            Op::Tie { unit, stages } => self.meet(i, Meeting::Tie(unit), stages),
            Op::Step { .. } if first_step() => {
                let all = self.ranks.len();
                self.meet(i, Meeting::Norm, all)
            }
            _ => Some((now, None)),
        };
        let rank = &mut self.ranks[i];
        match ready {
            Some((end, _)) if end <= now => {}
            Some((end, _)) => {
                return rank.waits(Some(end), now);
            }
            None => return rank.waits(None, now),
        }
        if let State::Waits(_) = rank.state {
            let axes = ready.and_then(|(_, axes)| axes);
            let waited = match axes {
                Some(axes) => Activity::Exposed(axes),
                None => Activity::Bubble,
            };
            self.timeline.add(Span { rank: i, start: rank.since, end: now, activity: waited, op: task.op });
        }
        self.begin(i, task);
        true
    }

    /// Begins a task that need not wait.
    fn begin(&mut self, i: usize, task: &Task) {
        let now = self.now;
        let rank = &mut self.ranks[i];
        (rank.state, rank.since, rank.exchanges) = (State::Ready, now, 0);
        match task.op {
            Op::Gather { .. } | Op::Reduce { .. } | Op::Scatter { .. } => {
                // What sends nothing waits for nothing.
                let sends = !task.exchanges.is_empty();
                let is_gather = matches!(task.op, Op::Gather { .. });
                let queue = if is_gather { &mut rank.gathers_end } else { &mut rank.reductions_end };
                let mut end = if sends { queue.max(now) } else { now };
                let mut axes = 0;
                for exchange in &task.exchanges {
                    axes = self.timeline.axes(&exchange.axes);
                    let span = Span {
                        rank: i,
                        start: end,
                        end: end + exchange.seconds,
                        activity: Activity::Transfer(axes),
                        op: task.op,
                    };
                    end = span.end;
                    self.timeline.add(span);
                }
                *queue = queue.max(end);
                match task.op {
                    Op::Gather { slot, .. } => _ = rank.slots.insert(slot, (end, axes)),
                    Op::Reduce { unit, .. } | Op::Scatter { unit, .. } => _ = rank.reduced.insert(unit, (end, axes)),
                    _ => {}
                }
                rank.next += 1;
            }
            Op::Send { value, to } => {
                rank.next += 1;
                let to = self.ranks.iter().position(|rank| match to {
                    Peer::Stage(stage) => rank.step.stage == stage,
                    Peer::Rank(number) => rank.step.rank == number,
                });
                if let Some(to) = to {
                    self.sent.insert((to, value), now);
                }
            }
            Op::Free { .. } | Op::Recv { .. } | Op::Wait { .. } => rank.next += 1,
            Op::Run { .. } | Op::Flatten { .. } | Op::Add { .. } | Op::Tie { .. } | Op::Step { .. } => {
                if task.compute > 0.0 {
                    rank.state = State::Computes(task.compute);
                } else {
                    self.computed(i);
                }
            }
        }
    }

    /// Ends the computation of a rank's task.
    fn computed(&mut self, i: usize) {
        let rank = &self.ranks[i];
        let task = &rank.step.tasks[rank.next];
        if self.now > rank.since {
            let span = Span { rank: i, start: rank.since, end: self.now, activity: Activity::Compute, op: task.op };
            self.timeline.add(span);
        }
        self.communicate(i);
    }

    /// Begins the next exchange of a rank's task, or ends the task.
    fn communicate(&mut self, i: usize) {
        let rank = &mut self.ranks[i];
        rank.since = self.now;
        rank.state = match rank.step.tasks[rank.next].exchanges.get(rank.exchanges) {
            Some(exchange) => State::Communicates(self.now + exchange.seconds),
            None => {
                rank.next += 1;
                State::Ready
            }
        };
    }

    /// Ends an exchange that a rank's task has waited for.
    fn communicated(&mut self, i: usize) {
        let rank = &mut self.ranks[i];
        let task = &rank.step.tasks[rank.next];
        let axes = self.timeline.axes(&task.exchanges[rank.exchanges].axes);
        rank.exchanges += 1;
        let span = Span { rank: i, start: rank.since, end: self.now, activity: Activity::Exposed(axes), op: task.op };
        self.timeline.add(span);
        self.communicate(i);
    }

    /// Notes that a rank has come to a meeting, and returns when all have, if so.
    fn meet(&mut self, i: usize, meeting: Meeting, wanted: usize) -> Option<(f64, Option<usize>)> {
        let is_new = self.ranks[i].state == State::Ready;
        let arrived = self.met.entry(meeting).or_default();
        if is_new {
            arrived.push(self.now);
        }
        (arrived.len() >= wanted).then(|| (arrived.iter().copied().fold(0.0, f64::max), None))
    }
}

impl Rank<'_> {
    /// Waits, and returns whether that is new.
    fn waits(&mut self, end: Option<f64>, now: f64) -> bool {
        let before = self.state;
        if self.state == State::Ready {
            self.since = now;
        }
        self.state = State::Waits(end);
        before != self.state
    }
}
