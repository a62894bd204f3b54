//! The time of collectives and messages over a cluster's links.

use crate::{Cluster, Link};
use std::collections::BTreeMap;

/// A kind of exchange between the ranks of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Collective {
    /// All ranks get the parts of all.
    AllGather,
    /// Each rank gets the sum of its part.
    ReduceScatter,
    /// All ranks get the sum: a reduce-scatter and an all-gather.
    AllReduce,
    /// Each rank gets a part of every other's.
    AllToAll,
    /// From one rank to another.
    PointToPoint,
}

/// Ranks that exchange data, and how they lie on the nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    ranks: usize,
    nodes: usize,
    /// Ranks on the node that has the fewest of them.
    fewest: usize,
}

impl Group {
    /// A group of these ranks, which fill one node after another.
    pub fn new(ranks: Vec<usize>, cluster: &Cluster) -> Self {
        let mut nodes = BTreeMap::<usize, usize>::new();
        for rank in &ranks {
            *nodes.entry(rank / cluster.devices_per_node).or_default() += 1;
        }
        Self { ranks: ranks.len(), nodes: nodes.len(), fewest: nodes.into_values().min().unwrap_or(0) }
    }

    /// Returns the number of ranks.
    pub fn ranks(&self) -> usize {
        self.ranks
    }
}

impl Cluster {
    /// Returns the seconds until a rank has received `bytes` from the others of its group.
    ///
    /// Collectives pass around rings that enter each node once, over the network links of the group's devices there; the
    /// node with the fewest of them is the slowest. An exchange of all with all sends to other nodes over each device's
    /// own network link, beside what stays in the node.
    ///
    /// ```text
    /// ring          n - 1 hops, nodes - 1 of them between nodes, twice for an all-reduce
    ///               + bytes / min(node link, fewest ranks in a node x network)
    /// all to all    a hop + max(bytes in the node / node link, bytes to other nodes / network)
    /// ```
    pub fn communicate(&self, collective: Collective, bytes: f64, group: &Group) -> f64 {
        let Group { ranks, nodes, fewest } = *group;
        if ranks < 2 {
            return 0.0;
        }
        let Self { node_link, network, .. } = self;
        let here = fewest as f64;
        let between = nodes > 1;
        match collective {
            Collective::AllToAll => {
                let others = ranks as f64 - 1.0;
                let away = if between { (ranks as f64 - here) / others } else { 0.0 };
                let latency = if between { network.latency } else { node_link.latency };
                let inside = bytes * (1.0 - away) / node_link.bandwidth;
                latency + inside.max(bytes * away / network.bandwidth)
            }
            Collective::PointToPoint => {
                let Link { bandwidth, latency } = if between { network } else { node_link };
                latency + bytes / bandwidth
            }
            Collective::AllGather | Collective::ReduceScatter | Collective::AllReduce => {
                let rounds = if collective == Collective::AllReduce { 2.0 } else { 1.0 };
                let hops = (ranks - nodes) as f64 * node_link.latency + (nodes - 1) as f64 * network.latency;
                let ring =
                    if between { node_link.bandwidth.min(here * network.bandwidth) } else { node_link.bandwidth };
                rounds * hops + bytes / ring
            }
        }
    }
}
