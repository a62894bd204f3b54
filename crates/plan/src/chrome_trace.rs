//! A timeline in the format of Chrome's trace viewer, which Perfetto opens.

use crate::{Activity, Timeline};
use serde_json::{Value, json};

impl Timeline {
    /// Returns the timeline as a Chrome trace: a process for each rank, with a thread for what it computes and waits
    /// for and one for its transfers. Times are microseconds.
    ///
    /// The format: "Trace Event Format", <https://www.chromium.org/developers/how-tos/trace-event-profiling-tool/>.
    pub fn chrome_trace(&self) -> Value {
        let mut events = vec![];
        for (i, (rank, stage)) in self.ranks().enumerate() {
            let name = json!({ "name": format!("rank {rank}, stage {stage}") });
            events.push(json!({ "ph": "M", "name": "process_name", "pid": i, "args": name }));
            for (thread, name) in ["computation", "transfers"].iter().enumerate() {
                let args = json!({ "name": name });
                events.push(json!({ "ph": "M", "name": "thread_name", "pid": i, "tid": thread, "args": args }));
            }
        }
        for span in self.spans() {
            let (thread, name) = match span.activity {
                Activity::Compute => (0, span.op.to_string()),
                Activity::Bubble => (0, format!("waits for a stage: {}", span.op)),
                Activity::Exposed(axes) => (0, format!("waits for {}: {}", self.axis_names()[axes], span.op)),
                Activity::Transfer(axes) => (1, format!("{}: {}", self.axis_names()[axes], span.op)),
            };
            let (start, length) = (1e6 * span.start, 1e6 * (span.end - span.start));
            events
                .push(json!({ "ph": "X", "name": name, "pid": span.rank, "tid": thread, "ts": start, "dur": length }));
        }
        json!({ "traceEvents": events, "displayTimeUnit": "ms" })
    }
}
