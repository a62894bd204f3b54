//! Cores that ranks share.

/// Cores that ranks share, as threads on CPUs do.
///
/// Each rank has an equal number of threads, at least one. Durations of tasks are those of all cores of a node together:
/// of 4 ranks on 2 cores, one that computes alone takes twice as long, and four at once take 4 times as long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedCores {
    /// Cores of a node.
    pub of_node: usize,
    /// Nodes that the ranks fill.
    pub nodes: usize,
}

impl SharedCores {
    /// Returns the part of a node's speed that each of `ranks` ranks has while `computing` of them compute: that of its
    /// threads, and at most an equal share of all nodes.
    pub(crate) fn rate(self, ranks: usize, computing: f64) -> f64 {
        let Self { of_node, nodes } = self;
        let threads = (of_node / ranks.div_ceil(nodes).max(1)).max(1) as f64 / of_node as f64;
        threads.min(nodes as f64 / computing.max(1.0))
    }
}
