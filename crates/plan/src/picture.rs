//! A timeline as a picture.

use crate::timeline::Lane;
use crate::{Activity, Span, Timeline};
use schedule::{Kind, Op};
use std::collections::BTreeMap;
use std::fmt::Write;

// Pixels: the heights of a rank's row, of its gathers and of its reductions, and the width of the timeline and of its
// labels.
const ROW: f64 = 22.0;
const TRANSFERS: f64 = 5.0;
const WIDTH: f64 = 1200.0;
const LABELS: f64 = 110.0;
/// Shorter spans are not drawn one by one.
const FINEST: f64 = 1.0;

impl Timeline {
    /// Draws the timeline as SVG: one row for each rank, with its gathers and its reductions below, and a scale.
    pub fn svg(&self) -> String {
        let (end, height) = (self.end().max(f64::MIN_POSITIVE), ROW + 2.0 * TRANSFERS + 7.0);
        let rows = self.ranks().count() as f64;
        let (width, below) = (LABELS + WIDTH + 40.0, rows * height + 34.0);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {below}\" font-family=\"sans-serif\" font-size=\"12\">\n"
        );
        for (i, (rank, stage)) in self.ranks().enumerate() {
            let y = i as f64 * height + ROW * 0.7;
            let _ = writeln!(svg, "<text x=\"0\" y=\"{y:.1}\" fill=\"currentColor\">rank {rank}, stage {stage}</text>");
        }
        for (span, count) in self.visible(end * FINEST / WIDTH) {
            let (x, w) = (LABELS + WIDTH * span.start / end, WIDTH * (span.end - span.start) / end);
            let top = span.rank as f64 * height;
            let (y, h) = match span.lane() {
                Lane::Computation => (top, ROW),
                Lane::Gathers => (top + ROW + 1.0, TRANSFERS),
                Lane::Reductions => (top + ROW + TRANSFERS + 2.0, TRANSFERS),
            };
            let color = color(span.activity, span.op);
            let what = if count == 1 { span.op.to_string() } else { format!("{count} operations") };
            let title = format!("{what}: {:.3} ms", 1e3 * (span.end - span.start));
            let _ = writeln!(
                svg,
                "<rect x=\"{x:.2}\" y=\"{y:.1}\" width=\"{w:.2}\" height=\"{h}\" fill=\"{color}\"><title>{}</title></rect>",
                title.replace('<', "&lt;").replace('>', "&gt;")
            );
        }
        for part in 0..=4 {
            let (x, time) = (LABELS + WIDTH * f64::from(part) / 4.0, shown(end * f64::from(part) / 4.0));
            let y = below - 12.0;
            let _ =
                writeln!(svg, "<text x=\"{x}\" y=\"{y}\" fill=\"currentColor\" text-anchor=\"middle\">{time}</text>");
        }
        svg + "</svg>\n"
    }

    /// Returns the spans to draw, each with the number of spans that it stands for: those shorter than `least` seconds
    /// are joined until they are as long, and look like the kind that takes most of the time.
    fn visible(&self, least: f64) -> Vec<(Span, usize)> {
        let mut rows = BTreeMap::<(usize, Lane), Vec<Vec<Span>>>::new();
        for span in self.spans().iter().filter(|span| span.activity != Activity::Bubble) {
            let row = rows.entry((span.rank, span.lane())).or_default();
            let joins = |group: &&mut Vec<Span>| {
                let (start, end) = (group[0].start, group[group.len() - 1].end);
                end - start < least && span.end - span.start < least && span.start - end < least
            };
            match row.last_mut().filter(joins) {
                Some(group) => group.push(*span),
                None => row.push(vec![*span]),
            }
        }
        let joined = |group: Vec<Span>| {
            let mut times = BTreeMap::<&str, f64>::new();
            for span in &group {
                *times.entry(color(span.activity, span.op)).or_default() += span.end - span.start;
            }
            let time = |span: &Span| times[color(span.activity, span.op)];
            let most = group.iter().max_by(|a, b| time(a).total_cmp(&time(b))).expect("a group is not empty");
            (Span { start: group[0].start, end: group[group.len() - 1].end, ..*most }, group.len())
        };
        rows.into_values().flatten().map(joined).collect()
    }
}

/// A time for a reader, in milliseconds or in seconds.
pub fn shown(seconds: f64) -> String {
    if seconds < 10.0 { format!("{:.1} ms", 1e3 * seconds) } else { format!("{seconds:.1} s") }
}

/// The colours of a timeline, in CSS, and what they mean. A bubble has no colour.
pub const LEGEND: [(&str, &str); 7] = [
    (FORWARD, "forward"),
    (RECOMPUTATION, "recomputation"),
    (BACKWARD, "backward"),
    (WEIGHTS, "gradients of weights"),
    (OTHER, "other operations"),
    (EXPOSED, "waiting for communication"),
    (TRANSFER, "gathers and reductions, below"),
];

const FORWARD: &str = "#4a90d9";
const RECOMPUTATION: &str = "#9cc3ea";
const BACKWARD: &str = "#4caf50";
const WEIGHTS: &str = "#a5d6a7";
const OTHER: &str = "#9e9e9e";
const EXPOSED: &str = "#d0021b";
const TRANSFER: &str = "#f5a623";

fn color(activity: Activity, op: Op) -> &'static str {
    match (activity, op) {
        (Activity::Transfer(_), _) => TRANSFER,
        (Activity::Exposed(_), _) => EXPOSED,
        (Activity::Bubble, _) => "none",
        (Activity::Compute, Op::Run { kind: Kind::Forward(_), .. }) => FORWARD,
        (Activity::Compute, Op::Run { kind: Kind::Recompute, .. }) => RECOMPUTATION,
        (Activity::Compute, Op::Run { kind: Kind::Weights, .. }) => WEIGHTS,
        (Activity::Compute, Op::Run { .. }) => BACKWARD,
        (Activity::Compute, _) => OTHER,
    }
}
