//! What each rank did in a step, and when.

use crate::Exchange;
use schedule::Op;
use serde::Serialize;

/// What a rank does in a span of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activity {
    /// It computes.
    Compute,
    /// It waits for communication over these axes, an index of [`Timeline::axis_names`].
    Exposed(usize),
    /// It waits for another stage.
    Bubble,
    /// Beside what it does otherwise, it communicates over these axes.
    Transfer(usize),
}

/// What a rank does at the same time, in the order in which it is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lane {
    /// What it computes and waits for.
    Computation,
    /// Parameters on their way.
    Gathers,
    /// Gradients on their way.
    Reductions,
}

impl Lane {
    pub const ALL: [(Self, &str); 3] =
        [(Self::Computation, "computation"), (Self::Gathers, "gathers"), (Self::Reductions, "reductions")];
}

/// A span of a rank's time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Span {
    /// Index of the rank among those that were simulated.
    pub rank: usize,
    /// Seconds from the start of the step.
    pub start: f64,
    /// The same.
    pub end: f64,
    /// What it does.
    pub activity: Activity,
    /// The operation that it does it for.
    pub op: Op,
}

impl Span {
    pub(crate) fn lane(&self) -> Lane {
        match (self.activity, self.op) {
            (Activity::Transfer(_), Op::Gather { .. }) => Lane::Gathers,
            (Activity::Transfer(_), _) => Lane::Reductions,
            _ => Lane::Computation,
        }
    }
}

/// The spans of all ranks.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Timeline {
    ranks: Vec<(usize, usize, usize)>,
    axes: Vec<String>,
    spans: Vec<Span>,
}

/// The time of a step, divided. Each part is a mean over all ranks, in seconds; they add up to the step.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Summary {
    /// From the start of the step to its end.
    pub step: f64,
    /// Computation, with what slows it down.
    pub compute: f64,
    /// Waiting for another stage, or for the slowest rank at the end.
    pub bubble: f64,
    /// Waiting for communication, by the axes of its group.
    pub exposed: Vec<(String, f64)>,
}

impl Summary {
    /// Returns a step that is longer than this one by `times` the difference from a shorter one.
    pub fn extended(&self, shorter: &Self, times: f64) -> Self {
        let extend = |now: f64, before: f64| now + times * (now - before);
        let before =
            |axes: &str| shorter.exposed.iter().find(|(name, _)| name == axes).map_or(0.0, |(_, seconds)| *seconds);
        let exposed = self.exposed.iter().map(|(axes, now)| (axes.clone(), extend(*now, before(axes)).max(0.0)));
        Self {
            step: extend(self.step, shorter.step),
            compute: extend(self.compute, shorter.compute),
            bubble: extend(self.bubble, shorter.bubble).max(0.0),
            exposed: exposed.collect(),
        }
    }
}

impl Timeline {
    /// A timeline of ranks: their numbers, their stages, and how many each stands for.
    pub(crate) fn new(ranks: Vec<(usize, usize, usize)>) -> Self {
        Self { ranks, ..Self::default() }
    }

    /// A timeline that was measured: the numbers of the ranks with their stages, the names that
    /// [`Activity::Exposed`] and [`Activity::Transfer`] refer to, and the spans of all ranks, by index.
    ///
    /// # Panics
    /// If a span names a rank or axes that there are not.
    pub fn measured(ranks: Vec<(usize, usize)>, axes: Vec<String>, spans: Vec<Span>) -> Self {
        for span in &spans {
            let known = match span.activity {
                Activity::Exposed(of) | Activity::Transfer(of) => of < axes.len(),
                Activity::Compute | Activity::Bubble => true,
            };
            assert!(known && span.rank < ranks.len(), "a span of a rank and axes that there are");
        }
        Self { ranks: ranks.into_iter().map(|(rank, stage)| (rank, stage, 1)).collect(), axes, spans }
    }

    /// Returns the index of a group's axes.
    pub(crate) fn axes(&mut self, axes: &str) -> usize {
        self.axes.iter().position(|known| known == axes).unwrap_or_else(|| {
            self.axes.push(axes.into());
            self.axes.len() - 1
        })
    }

    pub(crate) fn add(&mut self, span: Span) {
        if span.end > span.start {
            self.spans.push(span);
        }
    }

    /// Adds exchanges that these ranks make one after another, and returns when the last one ends, and its axes.
    pub(crate) fn transfer(&mut self, ranks: &[usize], start: f64, op: Op, exchanges: &[Exchange]) -> (f64, usize) {
        let (mut end, mut axes) = (start, 0);
        for exchange in exchanges {
            let start = end;
            (end, axes) = (start + exchange.seconds, self.axes(&exchange.axes));
            for rank in ranks {
                self.add(Span { rank: *rank, start, end, activity: Activity::Transfer(axes), op });
            }
        }
        (end, axes)
    }

    /// Returns the number and the stage of each rank that was simulated.
    pub fn ranks(&self) -> impl Iterator<Item = (usize, usize)> {
        self.ranks.iter().map(|(rank, stage, _)| (*rank, *stage))
    }

    /// Returns the axes of all groups that communicate.
    pub fn axis_names(&self) -> &[String] {
        &self.axes
    }

    /// Returns all spans.
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// Returns the time of the step.
    pub fn end(&self) -> f64 {
        self.spans.iter().map(|span| span.end).fold(0.0, f64::max)
    }

    /// Divides the time of the step.
    pub fn summary(&self) -> Summary {
        let step = self.end();
        let all: f64 = self.ranks.iter().map(|(.., ranks)| *ranks as f64).sum();
        let mean = |of: &dyn Fn(Activity) -> bool| {
            let spans = self.spans.iter().filter(|span| of(span.activity));
            spans.map(|span| (span.end - span.start) * self.ranks[span.rank].2 as f64).sum::<f64>() / all
        };
        let compute = mean(&|activity| activity == Activity::Compute);
        let exposed: Vec<(String, f64)> = (0..self.axes.len())
            .map(|axes| (self.axes[axes].clone(), mean(&|activity| activity == Activity::Exposed(axes))))
            .filter(|(_, seconds)| *seconds > 0.0)
            .collect();
        let last = |rank| {
            let own =
                self.spans.iter().filter(|span| span.rank == rank && !matches!(span.activity, Activity::Transfer(_)));
            own.map(|span| span.end).fold(0.0, f64::max)
        };
        let idle: f64 = (0..self.ranks.len()).map(|rank| (step - last(rank)) * self.ranks[rank].2 as f64).sum();
        let bubble = mean(&|activity| activity == Activity::Bubble) + idle / all;
        Summary { step, compute, bubble, exposed }
    }
}
