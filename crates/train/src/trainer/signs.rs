//! What ranks tell each other in the sums of a step, so that all of them do the same after it.

/// What one rank finds, or what at least one of them has found.
pub struct Signs {
    /// The user has asked the run to stop.
    pub stops: bool,
    /// A checkpoint is due by the clock.
    pub is_time: bool,
    /// A checkpoint could not be written.
    pub save_has_failed: bool,
    /// Memory is nearly full.
    pub is_nearly_full: bool,
    /// A checkpoint in memory is not complete yet.
    pub writes_memory: bool,
    /// The metrics cannot be written.
    pub lacks_metrics: bool,
}

impl Signs {
    /// How many sums the signs take.
    pub const COUNT: usize = 6;

    /// Returns what a rank adds to the sums.
    pub fn numbers(&self) -> [f64; Self::COUNT] {
        let Self { stops, is_time, save_has_failed, is_nearly_full, writes_memory, lacks_metrics } = *self;
        [stops, is_time, save_has_failed, is_nearly_full, writes_memory, lacks_metrics].map(|sign| sign.into())
    }

    /// Returns what any rank has found.
    ///
    /// # Panics
    /// Panics if there are fewer than [`COUNT`](Self::COUNT) sums.
    pub fn of_any(sums: &[f64]) -> Self {
        let [stops, is_time, save_has_failed, is_nearly_full, writes_memory, lacks_metrics] =
            sums.first_chunk::<{ Self::COUNT }>().expect("each rank adds all signs").map(|sum| sum > 0.0);
        Self { stops, is_time, save_has_failed, is_nearly_full, writes_memory, lacks_metrics }
    }
}
