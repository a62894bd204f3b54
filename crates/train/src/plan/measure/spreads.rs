//! How even repeated measurements are.

/// Difference of the quartiles, as a part of the median, above which a measurement is uneven.
const UNEVEN: f64 = 0.1;

/// How much the repetitions of each kind of measurement differ.
#[derive(Debug, Default)]
pub struct Spreads(Vec<(&'static str, f64)>);

impl Spreads {
    /// Returns the median of repetitions, and remembers how much they differ.
    ///
    /// # Panics
    /// If there are none.
    pub fn median(&mut self, name: &'static str, mut seconds: Vec<f64>) -> f64 {
        seconds.sort_by(f64::total_cmp);
        let quarter = seconds.len() / 4;
        let (median, last) = (seconds[seconds.len() / 2], seconds.len() - 1);
        let spread = (seconds[last - quarter] - seconds[quarter]) / median;
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            Some((_, most)) => *most = most.max(spread),
            None => self.0.push((name, spread)),
        }
        median
    }

    /// Names what was uneven, and how much.
    pub fn warning(&self) -> Option<String> {
        let uneven = self.0.iter().filter(|(_, spread)| *spread > UNEVEN);
        let uneven: Vec<String> = uneven.map(|(name, spread)| format!("{name} by {:.0}%", 100.0 * spread)).collect();
        (!uneven.is_empty())
            .then(|| format!("repetitions differ ({}): end other programs and measure again", uneven.join(", ")))
    }
}

/// Returns the median, of an even number the upper one.
///
/// # Panics
/// If there are no values.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disturbed_repetition_does_not_count_and_many_are_named() {
        let mut spreads = Spreads::default();
        assert_eq!(spreads.median("memory", vec![1.0, 9.0, 1.01, 1.02, 1.03, 1.0, 1.02, 1.01, 1.0]), 1.01);
        assert_eq!(spreads.warning(), None);
        assert_eq!(spreads.median("gpt2", vec![1.5, 1.0, 1.2]), 1.2);
        assert_eq!(spreads.median("memory", vec![1.0; 9]), 1.0);
        let warning = spreads.warning().unwrap();
        assert_eq!(warning, "repetitions differ (gpt2 by 42%): end other programs and measure again");
    }
}
