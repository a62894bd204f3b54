//! A timeline in the format of Chrome's trace viewer, which Perfetto opens.

use crate::timeline::Lane;
use crate::{Activity, Timeline};
use serde_json::{Value, json};

impl Timeline {
    /// Returns the timeline as a Chrome trace: a process for each rank, with a thread for what it computes and waits
    /// for, one for its gathers and one for its reductions. Times are microseconds.
    ///
    /// The format: "Trace Event Format", <https://www.chromium.org/developers/how-tos/trace-event-profiling-tool/>.
    pub fn chrome_trace(&self) -> Value {
        let mut events = vec![];
        for (i, (rank, stage)) in self.ranks().enumerate() {
            let name = json!({ "name": format!("rank {rank}, stage {stage}") });
            events.push(json!({ "ph": "M", "name": "process_name", "pid": i, "args": name }));
            for (lane, name) in Lane::ALL {
                let args = json!({ "name": name });
                events.push(json!({ "ph": "M", "name": "thread_name", "pid": i, "tid": lane as usize, "args": args }));
            }
        }
        for span in self.spans() {
            let name = match span.activity {
                Activity::Compute => span.op.to_string(),
                Activity::Bubble => format!("waits for a stage: {}", span.op),
                Activity::Exposed(axes) => format!("waits for {}: {}", self.axis_names()[axes], span.op),
                Activity::Transfer(axes) => format!("{}: {}", self.axis_names()[axes], span.op),
            };
            let thread = span.lane() as usize;
            let (start, length) = (1e6 * span.start, 1e6 * (span.end - span.start));
            events
                .push(json!({ "ph": "X", "name": name, "pid": span.rank, "tid": thread, "ts": start, "dur": length }));
        }
        json!({ "traceEvents": events, "displayTimeUnit": "ms" })
    }
}
