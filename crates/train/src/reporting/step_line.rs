//! The line of a training step, with columns aligned from line to line.
//!
//! ```text
//! step  10/300  loss  4.6494  lr 4.8e-4  grad   2.84     5228 tok/s   56.7 MB  epoch  0.011  eta 00:03:49
//! ```

use crate::format::bytes;
use crate::reporting::metrics::StepMetrics;
use indicatif::FormattedDuration;
use std::time::Duration;

/// What comes after a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Then {
    /// The end, or steps of unknown duration.
    Unknown,
    /// Steps that take this long.
    Left(Duration),
    /// The end, on request.
    Stopping,
}

/// The line of a step in a run of `steps` steps, for a terminal of `width` columns (`None` for no limit). If there is
/// no room for everything, the least important columns are left out.
pub(crate) fn step_line(m: &StepMetrics, steps: usize, then: Then, width: Option<usize>) -> String {
    let digits = steps.to_string().len();
    let mut columns = vec![
        Column::new(0, format!("step {:>digits$}/{steps}", m.step)),
        Column::new(0, format!("loss {:>7}", fixed(m.loss, 7, 4))),
        Column::new(4, format!("lr {:.1e}", m.lr)),
        Column::new(5, format!("grad {:>6}", fixed(m.grad_norm, 6, 2))),
        Column::new(1, format!("{:>7.0} tok/s", m.tokens_per_second)),
        Column::new(6, format!("{:>8}", bytes(m.memory))),
    ];
    columns.extend(m.mfu.map(|mfu| Column::new(3, format!("MFU {:>4.1}%", 100.0 * mfu))));
    columns.push(Column::new(7, format!("epoch {:>6.3}", m.epoch)));
    match then {
        Then::Unknown => {}
        Then::Left(left) => columns.push(Column::new(2, format!("eta {}", FormattedDuration(left)))),
        Then::Stopping => columns.push(Column::new(0, "stopping".into())),
    }
    // Room for the last column is reserved in every line.
    const LAST: usize = "  eta 00:00:00".len();
    let has_last = !matches!(then, Then::Unknown);
    let wide = |columns: &[Column]| {
        let sum: usize = columns.iter().map(|column| column.text.len() + 2).sum();
        sum - 2 + if has_last { 0 } else { LAST }
    };
    while width.is_some_and(|width| wide(&columns) > width) {
        let Some(least) = columns.iter().map(|column| column.last).max().filter(|last| *last > 0) else { break };
        columns.retain(|column| column.last != least);
    }
    columns.into_iter().map(|column| column.text).collect::<Vec<_>>().join("  ")
}

struct Column {
    /// Columns with higher values are left out first; 0 is never left out.
    last: u8,
    text: String,
}

impl Column {
    fn new(last: u8, text: String) -> Self {
        Self { last, text }
    }
}

/// Formats a number in `places` characters, with an exponent if it does not fit otherwise.
fn fixed(number: f64, places: usize, digits: usize) -> String {
    let text = format!("{number:.digits$}");
    if text.len() <= places { text } else { format!("{number:.1e}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics(step: usize, loss: f64, grad_norm: f64, mfu: Option<f64>) -> StepMetrics {
        StepMetrics { step, loss, grad_norm, lr: 5e-4, tokens_per_second: 11_619.4, mfu, ..StepMetrics::default() }
    }

    fn line(m: &StepMetrics, left: u64, width: Option<usize>) -> String {
        step_line(m, 300, Then::Left(Duration::from_secs(left)), width)
    }

    #[test]
    fn columns_stay_where_they_are() {
        let first = StepMetrics { memory: 58_200_000, epoch: 0.0123, ..metrics(9, 10.9812, 2.84, None) };
        let first = line(&first, 99, None);
        assert_eq!(
            first,
            "step   9/300  loss 10.9812  lr 5.0e-4  grad   2.84    11619 tok/s   58.2 MB  epoch  0.012  eta 00:01:39"
        );
        let large = |memory, epoch| StepMetrics { memory, epoch, ..metrics(300, 1.5, 123_456.7, None) };
        for (memory, epoch, loss) in [(999_900_000, 12.5, 1.5), (1_230_000_000, 99.0, f64::NAN), (12, 0.0, 123_456.0)] {
            let later = line(&StepMetrics { loss, ..large(memory, epoch) }, 36_000, None);
            for name in ["loss", "lr", "grad", "tok/s", "epoch", "eta"] {
                assert_eq!(first.find(name), later.find(name), "{name}:\n{first}\n{later}");
            }
        }
        assert!(line(&metrics(1, 2.0, 1.0, Some(0.412)), 1, None).contains("  MFU 41.2%  epoch"));
    }

    #[test]
    fn a_narrow_terminal_gets_what_is_looked_at_most_and_the_same_columns_in_every_line() {
        let columns = |line: &str| {
            let names = ["step", "loss", "lr", "grad", "tok/s", "MB", "MFU", "epoch", "eta"];
            names.into_iter().filter(|name| line.contains(name)).collect::<Vec<_>>()
        };
        let m = StepMetrics { memory: 58_200_000, ..metrics(10, 4.6, 2.84, Some(0.4)) };
        let without_mfu = StepMetrics { mfu: None, ..m };
        assert_eq!(columns(&line(&without_mfu, 99, Some(80))), ["step", "loss", "lr", "grad", "tok/s", "eta"]);
        for (width, expected) in [
            (120, vec!["step", "loss", "lr", "grad", "tok/s", "MB", "MFU", "epoch", "eta"]),
            (80, vec!["step", "loss", "lr", "tok/s", "MFU", "eta"]),
            (60, vec!["step", "loss", "tok/s", "eta"]),
            (10, vec!["step", "loss"]),
        ] {
            let full = line(&m, 99, Some(width));
            assert_eq!(columns(&full), expected, "{full}");
            assert!(width == 10 || full.len() <= width, "{full}");
            let last = step_line(&m, 300, Then::Unknown, Some(width));
            assert_eq!(columns(&last), expected.into_iter().filter(|name| *name != "eta").collect::<Vec<_>>());
        }
        let stopping = step_line(&m, 300, Then::Stopping, Some(60));
        assert!(stopping.ends_with("  stopping"), "{stopping}");
    }
}
