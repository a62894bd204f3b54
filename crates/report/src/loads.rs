//! Expert loads as heat maps: rows are experts, columns are steps.

use crate::lines::Layer;
use crate::series::Rounded;
use serde::Serialize;
use std::collections::BTreeMap;

/// Maximum number of cells of all heat maps of a run together, and of columns of one heat map.
const CELLS: usize = 300_000;
const COLUMNS: usize = 200;

/// One layer's experts over the reported steps.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Loads {
    pub layer: u64,
    /// The first step of each column. If there are too many steps, a column is the mean of several.
    pub step: Vec<u64>,
    /// One row per expert: its assignments relative to the mean of all experts.
    pub load: Vec<Vec<Rounded>>,
    pub cv: Vec<Rounded>,
    pub max_ratio: Vec<Rounded>,
    pub dropped: Vec<Rounded>,
}

/// The heat map of each layer, ordered by layer.
pub(crate) fn loads(lines: &[(u64, Vec<Layer>)]) -> Vec<Loads> {
    let mut layers = BTreeMap::<u64, Vec<(u64, &Layer)>>::new();
    for (step, layer) in lines.iter().flat_map(|(step, layers)| layers.iter().map(move |layer| (*step, layer))) {
        layers.entry(layer.layer).or_default().push((step, layer));
    }
    let rows: usize =
        layers.values().filter_map(|lines| lines.iter().map(|(_, layer)| layer.assigned.len()).max()).sum();
    let columns = (CELLS / rows.max(1)).clamp(1, COLUMNS);
    let mut cells = CELLS;
    // No real run has so many experts. Layers beyond the limit are left out.
    let fits = |(layer, lines): (u64, Vec<(u64, &Layer)>)| {
        let experts = lines.iter().map(|(_, layer)| layer.assigned.len()).max().unwrap_or(0);
        cells = cells.checked_sub(experts.max(1) * columns.min(lines.len()))?;
        Some(Loads::new(layer, &lines, columns))
    };
    layers.into_iter().filter_map(fits).collect()
}

impl Loads {
    fn new(layer: u64, lines: &[(u64, &Layer)], columns: usize) -> Self {
        let experts = lines.iter().map(|(_, layer)| layer.assigned.len()).max().unwrap_or(0);
        let columns = columns.min(lines.len());
        let stretch = |column: usize| column * lines.len() / columns..(column + 1) * lines.len() / columns;
        let mean_of = |of: &dyn Fn(usize) -> f64, digits| -> Vec<Rounded> {
            (0..columns).map(|column| rounded(mean(stretch(column).map(of)), digits)).collect()
        };
        let ideal: Vec<f64> = lines.iter().map(|(_, layer)| mean(layer.assigned.iter().copied())).collect();
        let load = |line: usize, expert: usize| {
            lines[line].1.assigned.get(expert).map_or(f64::NAN, |assigned| assigned / ideal[line])
        };
        Self {
            layer,
            step: (0..columns).map(|column| lines[stretch(column).start].0).collect(),
            load: (0..experts).map(|expert| mean_of(&|line| load(line, expert), 2)).collect(),
            cv: mean_of(&|line| lines[line].1.cv, 3),
            max_ratio: mean_of(&|line| lines[line].1.max_ratio, 3),
            dropped: mean_of(&|line| lines[line].1.dropped, 4),
        }
    }
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.filter(|v| v.is_finite()).fold((0.0, 0), |(sum, count), v| (sum + v, count + 1));
    sum / f64::from(count)
}

fn rounded(value: f64, digits: i32) -> Rounded {
    let unit = 10f64.powi(digits);
    Rounded((value * unit).round() / unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(step: u64, assigned: &[f64]) -> (u64, Vec<Layer>) {
        let layer = Layer { layer: 3, assigned: assigned.to_vec(), max_ratio: 1.5, cv: 0.5, dropped: f64::NAN };
        (step, vec![layer])
    }

    #[test]
    fn a_load_is_over_the_mean_of_all_experts() {
        let loads = loads(&[line(1, &[1.0, 3.0]), line(5, &[2.0, 2.0]), line(9, &[0.0, 0.0])]);
        assert_eq!((loads.len(), loads[0].layer, &loads[0].step[..]), (1, 3, &[1, 5, 9][..]));
        let row = |expert: usize| loads[0].load[expert].iter().map(|v| v.0).collect::<Vec<_>>();
        assert_eq!((&row(0)[..2], &row(1)[..2]), (&[0.5, 1.0][..], &[1.5, 1.0][..]));
        assert!(row(0)[2].is_nan() && loads[0].dropped[0].0.is_nan());
    }

    #[test]
    fn many_steps_become_means() {
        let lines: Vec<_> = (0..1000).map(|step| line(step, &[f64::from(step as u32 % 2) * 2.0, 1.0, 2.0])).collect();
        let loads = loads(&lines);
        assert_eq!((loads[0].step.len(), loads[0].step[1]), (COLUMNS, 5));
        assert!(loads[0].load.iter().flatten().all(|load| load.0.is_finite()));
    }

    #[test]
    fn there_are_never_more_cells_than_the_limit() {
        for (layers, experts, lines) in [(1, CELLS + 1, 3), (1000, 1, 3), (3, CELLS / 2, 1), (2000, 256, 2)] {
            let layer = |layer| Layer { layer, assigned: vec![1.0; experts], max_ratio: 1.0, cv: 0.0, dropped: 0.0 };
            let lines: Vec<(u64, Vec<Layer>)> =
                (0..lines).map(|step| (step, (0..layers).map(layer).collect())).collect();
            let loads = loads(&lines);
            let cells: usize = loads.iter().flat_map(|loads| &loads.load).map(Vec::len).sum();
            assert!(cells <= CELLS && (loads.len() as u64 == layers || cells + experts > CELLS / 2), "{cells}");
        }
    }
}
