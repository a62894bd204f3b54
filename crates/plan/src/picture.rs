//! A timeline as a picture.

use crate::{Activity, Timeline};
use schedule::{Kind, Op};
use std::fmt::Write;

// Pixels: the height of a rank's row and of its transfers, and the width of the timeline and of its labels.
const ROW: f64 = 22.0;
const TRANSFERS: f64 = 7.0;
const WIDTH: f64 = 1200.0;
const LABELS: f64 = 110.0;

impl Timeline {
    /// Draws the timeline as SVG: one row for each rank, with transfers below, and a scale.
    pub fn svg(&self) -> String {
        let (end, height) = (self.end().max(f64::MIN_POSITIVE), ROW + TRANSFERS + 6.0);
        let rows = self.ranks().count() as f64;
        let (width, below) = (LABELS + WIDTH + 20.0, rows * height + 34.0);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {below}\" font-family=\"sans-serif\" font-size=\"12\">\n"
        );
        for (i, (rank, stage)) in self.ranks().enumerate() {
            let y = i as f64 * height + ROW * 0.7;
            let _ = writeln!(svg, "<text x=\"0\" y=\"{y:.1}\" fill=\"currentColor\">rank {rank}, stage {stage}</text>");
        }
        for span in self.spans() {
            let (x, w) = (LABELS + WIDTH * span.start / end, WIDTH * (span.end - span.start) / end);
            let top = span.rank as f64 * height;
            let (y, h) =
                if let Activity::Transfer(_) = span.activity { (top + ROW + 1.0, TRANSFERS) } else { (top, ROW) };
            let color = color(span.activity, span.op);
            let title = format!("{}: {:.3} ms", span.op, 1e3 * (span.end - span.start));
            let _ = writeln!(
                svg,
                "<rect x=\"{x:.2}\" y=\"{y:.1}\" width=\"{w:.2}\" height=\"{h}\" fill=\"{color}\"><title>{}</title></rect>",
                title.replace('<', "&lt;").replace('>', "&gt;")
            );
        }
        for part in 0..=4 {
            let (x, ms) = (LABELS + WIDTH * f64::from(part) / 4.0, 1e3 * end * f64::from(part) / 4.0);
            let y = below - 12.0;
            let _ = writeln!(
                svg,
                "<text x=\"{x}\" y=\"{y}\" fill=\"currentColor\" text-anchor=\"middle\">{ms:.1} ms</text>"
            );
        }
        svg + "</svg>\n"
    }
}

/// Blue computes forward, green backward, grey optimizes; orange transfers, red waits for them; a bubble has no colour.
fn color(activity: Activity, op: Op) -> &'static str {
    match (activity, op) {
        (Activity::Transfer(_), _) => "#f5a623",
        (Activity::Exposed(_), _) => "#d0021b",
        (Activity::Bubble, _) => "none",
        (Activity::Compute, Op::Run { kind: Kind::Forward(_), .. }) => "#4a90d9",
        (Activity::Compute, Op::Run { kind: Kind::Recompute, .. }) => "#9cc3ea",
        (Activity::Compute, Op::Run { kind: Kind::Weights, .. }) => "#a5d6a7",
        (Activity::Compute, Op::Run { .. }) => "#4caf50",
        (Activity::Compute, _) => "#9e9e9e",
    }
}
