//! Tables of rotary positions.

use burn::tensor::Device;
use fused::RopeTable;
use std::sync::{Arc, Mutex, PoisonError};

/// Tables for [`fused::rope`] and [`fused::rope_halves`], which rotate the pairs of a head by `position *
/// frequency[pair]`.
///
/// A table is built once per device, with the requested length, and rebuilt at least twice as long when a longer one is
/// requested. Clones share it.
#[derive(Debug, Clone)]
pub struct Rope {
    /// Radians per position, one per pair.
    frequencies: Vec<f64>,
    /// Factor on cosine and sine.
    amplitude: f64,
    /// Tables of positions from 0 on, one per device.
    tables: Arc<Mutex<Vec<(Device, RopeTable)>>>,
}

impl Rope {
    /// Rotations of heads of width `d` without scaling.
    pub fn plain(d: usize, theta: f64) -> Self {
        Self::new(Self::frequencies(d, theta).collect(), 1.0)
    }

    /// Rotations by these frequencies, in radians per position, one per pair; `amplitude` multiplies cosine and sine.
    pub fn new(frequencies: Vec<f64>, amplitude: f64) -> Self {
        Self { frequencies, amplitude, tables: Arc::default() }
    }

    /// The frequencies `theta^(-2i/d)` of heads of width `d` (RoFormer, arXiv 2104.09864).
    pub fn frequencies(d: usize, theta: f64) -> impl Iterator<Item = f64> + Clone {
        (0..d / 2).map(move |pair| theta.powf(-2.0 * pair as f64 / d as f64))
    }

    /// The table of positions `0..t`.
    pub fn first(&self, t: usize, device: &Device) -> RopeTable {
        self.at_least(t, device).first(t)
    }

    /// The table of these positions.
    pub fn at(&self, positions: &[usize], device: &Device) -> RopeTable {
        let len = positions.iter().max().map_or(0, |last| last + 1);
        self.at_least(len, device).at(positions)
    }

    fn at_least(&self, len: usize, device: &Device) -> RopeTable {
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, table)) = tables.iter().find(|(of, table)| of == device && table.positions() >= len) {
            return table.clone();
        }
        let positions = 0..len.next_power_of_two();
        let angles = positions.flat_map(|position| self.frequencies.iter().map(move |f| position as f64 * f));
        let table = RopeTable::new(angles, self.amplitude, self.frequencies.len(), device);
        tables.retain(|(of, _)| of != device);
        tables.push((device.clone(), table.clone()));
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Tensor;

    #[test]
    fn clones_share_one_table_a_device_which_grows_to_the_longest_that_was_asked_for() {
        let (device, rope) = (Device::flex(), Rope::plain(4, 10000.0));
        let clone = rope.clone();
        for (asked, made) in [(5, 8), (8, 8), (3, 8), (9, 16), (100, 128), (20, 128)] {
            assert_eq!(clone.first(asked, &device.clone().autodiff()).positions(), asked);
            let tables = rope.tables.lock().unwrap();
            assert_eq!(tables.iter().map(|(_, table)| table.positions()).collect::<Vec<_>>(), [made], "after {asked}");
        }
        // Rotating the pairs (1, 0) gives (cos, sin).
        let positions = [60, 0, 7];
        let x = Tensor::<4>::from_data([[[[1.0, 0.0, 1.0, 0.0]; 3]]], &device);
        let found = fused::rope(x, &rope.at(&positions, &device)).into_data().try_to_vec::<f32>().unwrap();
        for (position, found) in positions.into_iter().zip(found.chunks(4)) {
            let angles = [position as f64, position as f64 / 100.0]; // 10000^(-2/4)
            let expected = [angles.map(f64::cos), angles.map(f64::sin)].concat();
            assert_eq!(found, expected.into_iter().map(|value| value as f32).collect::<Vec<_>>(), "at {position}");
        }
    }
}
