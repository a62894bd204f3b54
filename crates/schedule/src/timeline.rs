//! The timeline of a pipeline: what each stage did when, and how long it waited.

use crate::{Action, Cell};
use std::collections::HashSet;

/// An action with its start and end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// The action.
    pub action: Action,
    /// The time at which it started.
    pub start: u64,
    /// The time at which it ended.
    pub end: u64,
}

/// The actions of each stage over time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timeline {
    stages: Vec<Vec<Event>>,
}

impl Timeline {
    pub(crate) fn new(stages: Vec<Vec<Event>>) -> Self {
        Self { stages }
    }

    /// Returns the events of each stage in order.
    pub fn stages(&self) -> &[Vec<Event>] {
        &self.stages
    }

    /// Returns the time at which the last stage finishes.
    pub fn end(&self) -> u64 {
        self.stages.iter().filter_map(|events| events.last()).map(|event| event.end).max().unwrap_or(0)
    }

    /// Returns the time in which a stage computes nothing.
    pub fn bubble(&self, stage: usize) -> u64 {
        let computes = |event: &&Event| event.action.computes().is_some();
        let busy: u64 = self.stages[stage].iter().filter(computes).map(|event| event.end - event.start).sum();
        self.end() - busy
    }

    /// Returns the maximum number of cells that a stage kept data of at once. A cell counts from its forward to the end
    /// of its backward, including the weight gradient.
    pub fn live(&self, stage: usize) -> usize {
        let (mut live, mut most) = (HashSet::<Cell>::new(), 0);
        for Event { action, .. } in &self.stages[stage] {
            match action.computes() {
                Some(cell) if action.frees() => _ = live.remove(&cell),
                Some(cell) if matches!(action, Action::Forward(_)) => _ = live.insert(cell),
                _ => {}
            }
            most = most.max(live.len());
        }
        most
    }

    /// Draws one line per stage with three characters per unit of time: the computation and its micro-batch. Capital
    /// letters mark a stage's first chunk, `=` continues a computation, and `.` is idle time.
    pub fn picture(&self) -> String {
        let first =
            |stage: &[Event]| stage.iter().filter_map(|event| event.action.computes()).map(|cell| cell.chunk).min();
        let line = |(stage, events): (usize, &Vec<Event>)| {
            let mut cells = vec![String::from("."); self.end() as usize];
            for event in events {
                let Some(cell) = event.action.computes() else { continue };
                let letter = event.action.to_string()[..1].to_string();
                let letter = if first(events) == Some(cell.chunk) { letter } else { letter.to_lowercase() };
                cells[event.start as usize..event.end as usize].fill("=".into());
                if let Some(begin) = cells[event.start as usize..event.end as usize].first_mut() {
                    *begin = format!("{letter}{}", cell.micro_batch);
                }
            }
            let cells: String = cells.iter().map(|cell| format!(" {cell:<2}")).collect();
            format!("{stage} {}\n", cells.trim_end())
        };
        self.stages.iter().enumerate().map(line).collect()
    }
}
