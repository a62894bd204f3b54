//! Launches of graphs that record events or wait for them.
//!
//! Other graphs are one piece of work. Here, each node is queued as work of its own, so that an event is passed when
//! its node is, and only the nodes behind a wait are held up.

use crate::abi::CUevent;
use crate::contexts::Context;
use crate::engine::nodes::Nodes;
use crate::engine::work::{Stamp, Work};
use crate::engine::{Batch, Point};
use crate::errors::Answer;
use crate::event::{Event, events};
use crate::streams::Stream;
use std::collections::HashMap;
use std::sync::Arc;

/// What a graph does with events, as it is when the graph is launched.
#[derive(Default)]
struct Uses {
    recorded: HashMap<CUevent, Arc<Event>>,
    /// Where the events that are waited for were recorded, if they ever were.
    awaited: HashMap<CUevent, Option<Point>>,
}

impl Uses {
    fn collect(&mut self, nodes: &Nodes, context: &Context) -> Answer {
        for node in nodes.iter() {
            match &node.work {
                Work::RecordEvent(handle) => {
                    let event = events().get(*handle)?;
                    event.check(context)?;
                    self.recorded.insert(*handle, event);
                }
                Work::WaitEvent(handle) => {
                    self.awaited.insert(*handle, events().get(*handle)?.point()?);
                }
                Work::Graph(inner) => self.collect(inner, context)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn is_empty(&self) -> bool {
        self.recorded.is_empty() && self.awaited.is_empty()
    }
}

/// A launch in progress.
struct Unfold<'a> {
    batch: &'a mut Batch,
    context: &'a Arc<Context>,
    uses: &'a Uses,
    /// The records of events that are queued.
    records: Vec<(Arc<Event>, Point, Arc<Stamp>)>,
}

impl Unfold<'_> {
    /// Queues nodes after the points `begin`, and returns the points that are the end of them all.
    fn queue(&mut self, nodes: &Nodes, begin: &[Point]) -> Vec<Point> {
        let mut ends: Vec<Vec<Point>> = vec![Vec::new(); nodes.len()];
        for index in nodes.in_order() {
            let node = &nodes[index];
            let mut after: Vec<_> = node.after.iter().flat_map(|&before| ends[before].iter().copied()).collect();
            if node.after.is_empty() {
                after.extend(begin);
            }
            ends[index] = match &node.work {
                Work::Graph(inner) => self.queue(inner, &after),
                Work::RecordEvent(event) => {
                    let stamp = Arc::new(Stamp::default());
                    let point = self.submit(&after, Work::Record(stamp.clone()));
                    self.records.push((self.uses.recorded[event].clone(), point, stamp));
                    vec![point]
                }
                Work::WaitEvent(event) => {
                    after.extend(self.uses.awaited[event]);
                    vec![self.submit(&after, Work::Nothing)]
                }
                work => vec![self.submit(&after, work.clone())],
            };
        }
        let ends: Vec<_> = ends.into_iter().flatten().collect();
        if ends.is_empty() { begin.to_vec() } else { ends }
    }

    fn submit(&mut self, after: &[Point], work: Work) -> Point {
        self.batch.submit_alone(self.context, after, work)
    }
}

/// Launches a graph in a stream after its last launch, and returns the point of its end; a capture has none.
///
/// # Errors
/// An event of the graph is destroyed, of another card, or was recorded in a capture; the stream's own errors.
pub fn launch(stream: &Stream, last: Option<Point>, nodes: Arc<Nodes>) -> Answer<Option<Point>> {
    // Locked to the end: other work of the stream comes before or after the whole graph.
    let capture = stream.capture();
    if let Some(capture) = capture.as_ref() {
        return capture.add(stream.handle, Work::Graph(nodes)).map(|()| None);
    }
    let (mut uses, last) = (Uses::default(), last.as_slice());
    uses.collect(&nodes, &stream.context)?;
    if uses.is_empty() {
        return stream.batch(|batch| batch.submit(stream.handle, last, Work::Graph(nodes))).map(Some);
    }
    let (records, end) = stream.batch(|batch| {
        // Places in the stream before and after all nodes, which bring the order of the default stream along.
        let begin = batch.submit(stream.handle, last, Work::Nothing)?;
        let mut unfold = Unfold { batch, context: &stream.context, uses: &uses, records: Vec::new() };
        let ends = unfold.queue(&nodes, &[begin]);
        let records = unfold.records;
        batch.submit(stream.handle, &ends, Work::Nothing).map(|end| (records, end))
    })?;
    for (event, point, stamp) in records {
        event.set(point, stamp);
    }
    Ok(Some(end))
}
