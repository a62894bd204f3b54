//! Launches of graphs that record events or wait for them.
//!
//! Other graphs are one piece of work. Here, each node is queued as work of its own, so that an event is passed when its node is,
//! and only the nodes behind a wait are held up.

use crate::abi::CUevent;
use crate::contexts::Context;
use crate::engine::nodes::Nodes;
use crate::engine::work::{Stamp, Work};
use crate::engine::{Point, engine};
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

/// Queues nodes after the points `begin`, and returns the points that are the end of them all.
fn queue(nodes: &Nodes, context: &Arc<Context>, begin: &[Point], uses: &Uses) -> Answer<Vec<Point>> {
    let mut ends: Vec<Vec<Point>> = vec![Vec::new(); nodes.len()];
    for index in nodes.in_order() {
        let node = &nodes[index];
        let mut after: Vec<_> = node.after.iter().flat_map(|&before| ends[before].iter().copied()).collect();
        if node.after.is_empty() {
            after.extend(begin);
        }
        let submit = |after: &[Point], work| engine().submit_alone(context.clone(), after, work);
        ends[index] = match &node.work {
            Work::Graph(inner) => queue(inner, context, &after, uses)?,
            Work::RecordEvent(event) => {
                let stamp = Arc::new(Stamp::default());
                let point = submit(&after, Work::Record(stamp.clone()))?;
                uses.recorded[event].set(point, stamp);
                vec![point]
            }
            Work::WaitEvent(event) => {
                after.extend(uses.awaited[event]);
                vec![submit(&after, Work::Nothing)?]
            }
            work => vec![submit(&after, work.clone())?],
        };
    }
    let ends: Vec<_> = ends.into_iter().flatten().collect();
    Ok(if ends.is_empty() { begin.to_vec() } else { ends })
}

/// Launches a graph in a stream after its last launch, and returns the point of its end; a capture has none.
///
/// # Errors
/// An event of the graph is destroyed, of another card, or was recorded in a capture; the stream's own errors.
pub fn launch(stream: &Stream, last: Option<Point>, nodes: Arc<Nodes>) -> Answer<Option<Point>> {
    let mut uses = Uses::default();
    if !stream.is_capturing() {
        uses.collect(&nodes, &stream.context)?;
    }
    if uses.is_empty() {
        return stream.submit(last.as_slice(), Work::Graph(nodes));
    }
    // Places in the stream before and after all nodes, which bring the order of the default stream along.
    let Some(begin) = stream.submit(last.as_slice(), Work::Nothing)? else { return Ok(None) };
    let ends = queue(&nodes, &stream.context, &[begin], &uses)?;
    stream.submit(&ends, Work::Nothing)
}
