//! Simulation of the ranks of a step in time.
//!
//! ```text
//! computation    | F0 | F1 |wait| B1 | B0 |        one task after another
//! gathers         | +1 | +2 |     | +0 |           in order, beside it
//! reductions                       | reduce1 |      the same; gathers do not queue behind them
//! scatters                         | ... | scatter1 |  once all ranks have come to it
//! exchanges             s>  ──────────> r>          arrive at the other stage's rank
//! ```

use crate::task::{Exchange, RankProgram, Task};
use crate::timeline::{Activity, Span, Timeline};
use crate::{PlanError, SharedCores};
use schedule::{Op, Peer, Value};
use std::collections::HashMap;

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
    /// The first task of the optimizer.
    first_step: Option<usize>,
    state: State,
    /// When its state began.
    since: f64,
    /// Whether the copies of its task are done, and how many of its exchanges.
    copied: bool,
    exchanges: usize,
    /// When its gathers and its reductions so far have ended: each kind has a queue of its own.
    gathers_end: f64,
    reductions_end: f64,
    /// When each slot has its parameters, and over which axes.
    slots: HashMap<usize, (f64, usize)>,
    /// The latest reduction of each unit.
    reduced: HashMap<usize, Reduction>,
    /// Number of scatters that it has come to.
    scatters: usize,
}

/// The gradients of a unit on their way.
#[derive(Clone, Copy)]
enum Reduction {
    /// When they have arrived, and over which axes.
    Ends(f64, usize),
    /// With a scatter, counted over the step.
    Scatter(usize),
}

/// Gradients on their way from the one rank that has computed them: all ranks take part, and none ends before another.
#[derive(Default)]
struct Scatter<'a> {
    arrived: usize,
    /// Those of the rank for which they take longest.
    exchanges: &'a [Exchange],
    /// Once all ranks have come: from when to when, and over which axes.
    ends: Option<([f64; 2], usize)>,
}

struct Simulation<'a> {
    now: f64,
    ranks: Vec<Rank<'a>>,
    /// When values were sent, by receiving rank.
    sent: HashMap<(usize, Value), f64>,
    /// Which ranks have reached a sum over stages or the first optimizer step.
    met: HashMap<Meeting, Vec<f64>>,
    /// In the order in which all ranks come to them.
    scatters: Vec<Scatter<'a>>,
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

/// Runs the ranks of a step; each has a processor of its own unless they share cores.
///
/// # Errors
/// If ranks wait for each other.
pub fn simulate(steps: &[RankProgram], cores: Option<SharedCores>) -> Result<Timeline, PlanError> {
    let rank = |step| Rank {
        step,
        next: 0,
        first_step: step.tasks.iter().position(|task| matches!(task.op, Op::Step { .. })),
        state: State::Ready,
        since: 0.0,
        copied: false,
        exchanges: 0,
        gathers_end: 0.0,
        reductions_end: 0.0,
        slots: HashMap::new(),
        reduced: HashMap::new(),
        scatters: 0,
    };
    let mut simulation = Simulation {
        now: 0.0,
        ranks: steps.iter().map(rank).collect(),
        sent: HashMap::new(),
        met: HashMap::new(),
        scatters: vec![],
        timeline: Timeline::new(steps.iter().map(|step| (step.rank, step.stage, step.ranks)).collect()),
    };
    let ranks: usize = steps.iter().map(|step| step.ranks).sum();
    let all = |task: &Task| task.copies.iter().chain(&task.exchanges).map(|exchange| exchange.seconds).sum::<f64>();
    let seconds = |task: &Task| all(task) + task.compute;
    let tasks = || steps.iter().flat_map(|step| &step.tasks);
    if let Some(task) = tasks().find(|task| !(0.0..LONGEST).contains(&seconds(task))) {
        return Err(PlanError::Duration { op: task.op.to_string(), seconds: seconds(task) });
    }
    let rate = |computing: f64| cores.map_or(1.0, |cores| cores.rate(ranks, computing));
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

impl<'a> Simulation<'a> {
    fn computing(&self) -> impl Iterator<Item = &Rank<'a>> {
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
        let ready = match task.op {
            Op::Run { slot: Some(slot), .. } => rank.slots.get(&slot).map(|(end, axes)| (*end, Some(*axes))),
            Op::Wait { unit } => match rank.reduced.get(&unit) {
                Some(Reduction::Ends(end, axes)) => Some((*end, Some(*axes))),
                Some(Reduction::Scatter(i)) => self.scatters[*i].ends.map(|([_, end], axes)| (end, Some(axes))),
                None => None,
            },
            Op::Recv { value, .. } => {
                let takes: f64 = task.exchanges.iter().map(|exchange| exchange.seconds).sum();
                self.sent.get(&(i, value)).map(|sent| (sent + takes, None))
            }
            Op::Tie { unit, stages } => self.meet(i, Meeting::Tie(unit), stages),
            Op::Step { .. } if rank.first_step == Some(rank.next) => {
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
            let begun = match task.op {
                Op::Wait { unit } => rank.begun(unit, &self.scatters).clamp(rank.since, now),
                _ => rank.since,
            };
            let waited = axes.map_or(Activity::Bubble, Activity::Exposed);
            let span = |start, end, activity| Span { rank: i, start, end, activity, op: task.op };
            self.timeline.add(span(rank.since, begun, Activity::Bubble));
            self.timeline.add(span(begun, now, waited));
        }
        self.begin(i, task);
        true
    }

    /// Begins a task that need not wait.
    fn begin(&mut self, i: usize, task: &Task) {
        let now = self.now;
        let rank = &mut self.ranks[i];
        (rank.state, rank.since, rank.copied, rank.exchanges) = (State::Ready, now, false, 0);
        match task.op {
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
            _ if task.compute > 0.0 => rank.state = State::Computes(task.compute),
            _ => self.computed(i),
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
        match &task.copies {
            Some(copies) => {
                let rank = &mut self.ranks[i];
                (rank.state, rank.since) = (State::Communicates(self.now + copies.seconds), self.now);
            }
            None => self.exchange(i, task),
        }
    }

    /// Begins what a rank's task receives.
    fn exchange(&mut self, i: usize, task: &'a Task) {
        match task.op {
            Op::Gather { .. } | Op::Reduce { .. } => self.transfer(i, task),
            Op::Scatter { unit, .. } => self.scatter(i, unit, task),
            _ => self.communicate(i),
        }
    }

    /// Begins a gather or a reduction, beside the rank's next task.
    fn transfer(&mut self, i: usize, task: &Task) {
        let rank = &mut self.ranks[i];
        (rank.state, rank.next) = (State::Ready, rank.next + 1);
        // What sends nothing waits for nothing.
        let sends = !task.exchanges.is_empty();
        let queue = if let Op::Gather { .. } = task.op { &mut rank.gathers_end } else { &mut rank.reductions_end };
        let start = if sends { queue.max(self.now) } else { self.now };
        let (end, axes) = self.timeline.transfer(&[i], start, task.op, &task.exchanges);
        *queue = queue.max(end);
        match task.op {
            Op::Gather { slot, .. } => _ = rank.slots.insert(slot, (end, axes)),
            Op::Reduce { unit, .. } => _ = rank.reduced.insert(unit, Reduction::Ends(end, axes)),
            _ => {}
        }
    }

    /// Notes that a rank has come to a scatter. The last rank begins it: it waits for the one that computes the gradients.
    fn scatter(&mut self, i: usize, unit: usize, task: &'a Task) {
        let rank = &mut self.ranks[i];
        let number = rank.scatters;
        (rank.state, rank.next, rank.scatters) = (State::Ready, rank.next + 1, number + 1);
        rank.reduced.insert(unit, Reduction::Scatter(number));
        if number == self.scatters.len() {
            self.scatters.push(Scatter::default());
        }
        let scatter = &mut self.scatters[number];
        let seconds = |exchanges: &[Exchange]| exchanges.iter().map(|exchange| exchange.seconds).sum::<f64>();
        scatter.arrived += 1;
        if seconds(&task.exchanges) > seconds(scatter.exchanges) {
            scatter.exchanges = &task.exchanges;
        }
        if scatter.arrived == self.ranks.len() {
            let start = self.ranks.iter().map(|rank| rank.reductions_end).fold(self.now, f64::max);
            let all: Vec<usize> = (0..self.ranks.len()).collect();
            let (end, axes) = self.timeline.transfer(&all, start, task.op, scatter.exchanges);
            scatter.ends = Some(([start, end], axes));
            self.ranks.iter_mut().for_each(|rank| rank.reductions_end = end);
        }
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

    /// Ends the copies or an exchange that a rank's task has waited for.
    fn communicated(&mut self, i: usize) {
        let rank = &mut self.ranks[i];
        let task = &rank.step.tasks[rank.next];
        let copies = task.copies.as_ref().filter(|_| !rank.copied);
        let done = copies.unwrap_or_else(|| &task.exchanges[rank.exchanges]);
        let axes = self.timeline.axes(&done.axes);
        let span = Span { rank: i, start: rank.since, end: self.now, activity: Activity::Exposed(axes), op: task.op };
        self.timeline.add(span);
        if copies.is_some() {
            rank.copied = true;
            return self.exchange(i, task);
        }
        rank.exchanges += 1;
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
    /// When the latest reduction of a unit has begun, if that is a scatter that has.
    fn begun(&self, unit: usize, scatters: &[Scatter]) -> f64 {
        match self.reduced.get(&unit) {
            Some(Reduction::Scatter(i)) => scatters[*i].ends.map_or(0.0, |([start, _], _)| start),
            _ => 0.0,
        }
    }

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
