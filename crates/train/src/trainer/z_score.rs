//! Detects values that stand out from recent ones.

use std::collections::VecDeque;

/// Number of recent values to compare with.
const WINDOW: usize = 100;
/// Fewer values are not significant.
const ENOUGH: usize = 20;

/// The recent values of a quantity.
#[derive(Debug, Default)]
pub(crate) struct Recent(VecDeque<f64>);

impl Recent {
    /// Standard deviations of `value` above the mean of the recent values; `None` if there are too few of them or they
    /// are all equal. A finite value is then added to them.
    pub fn z_score(&mut self, value: f64) -> Option<f64> {
        let count = self.0.len() as f64;
        let mean = self.0.iter().sum::<f64>() / count;
        let deviation = (self.0.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count).sqrt();
        let z = (self.0.len() >= ENOUGH && deviation > 0.0).then(|| (value - mean) / deviation);
        if value.is_finite() {
            self.0.push_back(value);
            if self.0.len() > WINDOW {
                self.0.pop_front();
            }
        }
        z.filter(|z| z.is_finite())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_compared_with_the_hundred_before_it() {
        let mut recent = Recent::default();
        assert!((0..20).all(|i| recent.z_score(f64::from(i % 2)).is_none()), "too few to tell");
        assert_eq!(recent.z_score(2.5), Some(4.0)); // mean 0.5, deviation 0.5
        assert_eq!(recent.z_score(f64::NAN), None);
        (0..100).for_each(|_| _ = recent.z_score(1.0));
        assert_eq!(recent.z_score(9.0), None, "all the same");
    }
}
