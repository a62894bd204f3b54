//! What a warp knows of the others: the events that it is ordered behind.

/// Warps of a block at most.
pub(super) const WARPS: usize = 32;

/// Times up to which the warps of a block are known, and what is known of other blocks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Clock {
    /// Up to which time each warp's accesses are before what comes now.
    pub seen: [u32; WARPS],
    /// Up to which time each warp's accesses are behind a fence, so that a strong write releases them to other blocks.
    pub fenced: [u32; WARPS],
    /// Number of the last release of any block that a strong read may have observed.
    pub acquired: u64,
}

impl Clock {
    /// Knows from now on what `other` knows, too.
    pub fn join(&mut self, other: &Self) {
        let most = |into: &mut [u32; WARPS], other: &[u32; WARPS]| {
            into.iter_mut().zip(other).for_each(|(into, other)| *into = (*into).max(*other));
        };
        most(&mut self.seen, &other.seen);
        most(&mut self.fenced, &other.fenced);
        self.acquired = self.acquired.max(other.acquired);
    }

    /// A fence of the warp `number` at a time: all that it knows can be released.
    pub fn fence(&mut self, number: usize, time: u32) {
        self.fenced = self.seen;
        self.fenced[number] = time;
    }
}
