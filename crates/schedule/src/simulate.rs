//! Simulation of all stages' programs with given durations.

use crate::{Action, Cell, Direction, Event, Pipeline, ScheduleError, Timeline};
use std::collections::{HashMap, HashSet};

/// The properties of the messages between stages; each pair of stages has one mailbox per direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Links {
    /// Time from the end of a send until the message can be received.
    pub latency: u64,
    /// Maximum number of messages that are sent and not yet received; a sender waits while the mailbox is full.
    pub slots: usize,
}

impl Links {
    /// Messages take no time, and a mailbox holds one of them.
    pub const FREE: Self = Self { latency: 0, slots: 1 };
}

/// The messages that have passed through a mailbox.
#[derive(Default)]
struct Mailbox {
    /// Cells, each with the time from which it can be received.
    sent: Vec<(Cell, u64)>,
    /// The times at which cells were received.
    received: Vec<u64>,
}

/// A mailbox's sending stage, receiving stage and direction.
type Way = (usize, usize, Direction);

/// Data of a cell that a stage has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Has {
    /// The input that another stage has computed for it.
    Received(Direction),
    Computed(Action),
}

struct Simulation<'a> {
    pipeline: &'a Pipeline,
    takes: &'a dyn Fn(usize, Action) -> u64,
    links: Links,
    mailboxes: HashMap<Way, Mailbox>,
    has: Vec<HashSet<(Has, Cell)>>,
    /// The time at which each stage finished its latest action.
    now: Vec<u64>,
    events: Vec<Vec<Event>>,
}

/// Runs one program per stage; each action takes the time that `takes` returns for its stage and the action. A stage
/// executes one action at a time.
///
/// # Errors
/// Returns the first fault: stages that wait for each other, a message other than the expected one, or an action that
/// runs before its inputs are available.
pub fn simulate(
    pipeline: &Pipeline,
    program: &[Vec<Action>],
    takes: &dyn Fn(usize, Action) -> u64,
    links: Links,
) -> Result<Timeline, ScheduleError> {
    let stages = program.len();
    let mut simulation = Simulation {
        pipeline,
        takes,
        links,
        mailboxes: HashMap::new(),
        has: vec![HashSet::new(); stages],
        now: vec![0; stages],
        events: vec![vec![]; stages],
    };
    // Start times depend only on the dependencies, so stages may be visited in any order.
    let mut next = vec![0; stages];
    loop {
        let mut moved = false;
        for (stage, actions) in program.iter().enumerate() {
            while let Some(action) = actions.get(next[stage])
                && let Some(start) = simulation.start(stage, *action)?
            {
                simulation.run(stage, *action, start);
                next[stage] += 1;
                moved = true;
            }
        }
        let waiting: Vec<(usize, Action)> =
            (0..stages).filter_map(|stage| Some((stage, *program[stage].get(next[stage])?))).collect();
        if waiting.is_empty() {
            return Ok(Timeline::new(simulation.events));
        }
        if !moved {
            return Err(ScheduleError::Deadlock(waiting));
        }
    }
}

impl Simulation<'_> {
    /// Returns when a stage can start an action, or `None` if other stages must advance first.
    fn start(&self, stage: usize, action: Action) -> Result<Option<u64>, ScheduleError> {
        let now = self.now[stage];
        if !self.is_ready(stage, action) {
            return Err(ScheduleError::Early { stage, action });
        }
        Ok(match action {
            Action::Send(..) => {
                let mailbox = self.mailbox(stage, action);
                let number = mailbox.map_or(0, |mailbox| mailbox.sent.len());
                match number.checked_sub(self.links.slots) {
                    None => Some(now),
                    Some(before) => mailbox.and_then(|mailbox| mailbox.received.get(before)).map(|free| now.max(*free)),
                }
            }
            Action::Recv(way, wanted) => {
                let Some(mailbox) = self.mailbox(stage, action) else { return Ok(None) };
                let Some((found, at)) = mailbox.sent.get(mailbox.received.len()) else { return Ok(None) };
                // A cell's input comes from the previous chunk.
                let from = way.previous(wanted.chunk, self.pipeline.chunks());
                if Some(found.chunk) != from || found.micro_batch != wanted.micro_batch {
                    return Err(ScheduleError::OtherMessage { stage, wanted: action, found: *found });
                }
                Some(now.max(*at))
            }
            _ => Some(now),
        })
    }

    fn run(&mut self, stage: usize, action: Action, start: u64) {
        let end = start + (self.takes)(stage, action);
        self.now[stage] = end;
        self.events[stage].push(Event { action, start, end });
        if let Some(cell) = action.computes() {
            self.has[stage].insert((Has::Computed(action), cell));
        }
        if let Some((way, cell)) = way_of(self.pipeline, stage, action) {
            let mailbox = self.mailboxes.entry(way).or_default();
            match action {
                Action::Send(..) => mailbox.sent.push((cell, end + self.links.latency)),
                _ => {
                    mailbox.received.push(end);
                    self.has[stage].insert((Has::Received(way.2), cell));
                }
            }
        }
    }

    fn mailbox(&self, stage: usize, action: Action) -> Option<&Mailbox> {
        self.mailboxes.get(&way_of(self.pipeline, stage, action)?.0)
    }

    /// Returns whether a stage has all inputs of an action, except messages in flight, and has not executed it yet.
    fn is_ready(&self, stage: usize, action: Action) -> bool {
        let has = |has: Has, cell: Cell| self.has[stage].contains(&(has, cell));
        let computed = |action: Action| action.computes().is_some_and(|cell| has(Has::Computed(action), cell));
        let backward = |cell| computed(Action::Backward(cell)) || computed(Action::BackwardInput(cell));
        let given = |way: Direction, cell: Cell| match way.previous(cell.chunk, self.pipeline.chunks()) {
            None => true,
            Some(chunk) if self.pipeline.stage_of(chunk) != stage => has(Has::Received(way), cell),
            Some(chunk) => {
                let cell = Cell { chunk, ..cell };
                if way == Direction::Forward { computed(Action::Forward(cell)) } else { backward(cell) }
            }
        };
        let is_mine = |cell: Cell| self.pipeline.stage_of(cell.chunk) == stage;
        match action {
            Action::Forward(cell) => is_mine(cell) && given(Direction::Forward, cell) && !computed(action),
            Action::Backward(cell) | Action::BackwardInput(cell) => {
                computed(Action::Forward(cell)) && given(Direction::Backward, cell) && !backward(cell)
            }
            Action::BackwardWeights(cell) => computed(Action::BackwardInput(cell)) && !computed(action),
            Action::Send(Direction::Forward, cell) => computed(Action::Forward(cell)),
            Action::Send(Direction::Backward, cell) => backward(cell),
            Action::Recv(way, cell) => is_mine(cell) && !has(Has::Received(way), cell),
        }
    }
}

/// Returns the mailbox of a message and its cell, or `None` for a computation or a message beyond the ends of the
/// model.
fn way_of(pipeline: &Pipeline, stage: usize, action: Action) -> Option<(Way, Cell)> {
    let chunks = pipeline.chunks();
    match action {
        Action::Send(way, cell) => Some(((stage, pipeline.stage_of(way.next(cell.chunk, chunks)?), way), cell)),
        Action::Recv(way, cell) => Some(((pipeline.stage_of(way.previous(cell.chunk, chunks)?), stage, way), cell)),
        _ => None,
    }
}
