//! Blocks and clusters: what they have, and which of their barriers are complete.

use super::clock::WARPS;
use super::env::Env;
use super::pending::{Later, Pending};
use super::phase::{ClusterBarrier, Phase};
use super::products::Products;
use super::releases::Releases;
use super::shared::Shared;
use super::warp::Warp;
use crate::fault::{Fault, FaultKind};
use std::sync::{Arc, Mutex};

/// A block.
#[derive(Debug)]
pub(super) struct Cta {
    pub index: [u32; 3],
    pub warps: Vec<Option<Box<Warp>>>,
    pub shared: Shared,
    pub barriers: [Phase; 16],
    /// Barriers at which threads have arrived, by bit.
    pub open: u16,
    /// Barriers that are complete and whose lanes still sleep.
    pub released: Vec<Phase>,
    /// Lanes of each warp that have not exited, and all.
    pub live: [u32; WARPS],
    pub all: [u32; WARPS],
    /// Lanes have exited since barriers were looked at.
    pub changed: bool,
    /// Copies and products of each warp that are under way.
    pub pending: Vec<Pending>,
    pub products: Vec<Products>,
    /// Its number among all blocks, and what it has released to others.
    pub serial: u64,
    pub releases: Option<Arc<Mutex<Releases>>>,
}

/// The blocks that run together; one, without clusters.
#[derive(Debug)]
pub(super) struct Cluster {
    pub ctas: Vec<Cta>,
    pub barrier: ClusterBarrier,
    /// Changes when an asynchronous operation or an `mbarrier` object does.
    pub events: u64,
    /// Waits in vain since this state of `events`.
    pub vain: u64,
    pub seen_events: u64,
    /// The running warp has waited in vain.
    pub in_vain: bool,
    /// What happens when it is waited for.
    pub later: Vec<Later>,
    /// How much less than usual it runs at a time, because it only waits for other blocks.
    pub calm: u32,
}

impl Cluster {
    /// The cluster of this number in the grid.
    pub fn new(env: &Env<'_>, number: u64) -> Self {
        let [cx, cy, cz] = env.launch.cluster;
        let [gx, gy] = [env.launch.grid[0] / cx, env.launch.grid[1] / cy].map(u64::from);
        let at = [number % gx, number / gx % gy, number / gx / gy].map(|at| at as u32);
        let mut ctas = Vec::with_capacity((cx * cy * cz) as usize);
        for rank in 0..cx * cy * cz {
            let within = [rank % cx, rank / cx % cy, rank / cx / cy];
            let index = std::array::from_fn(|axis| at[axis] * env.launch.cluster[axis] + within[axis]);
            let mut all = [0; WARPS];
            let warps = (0..env.warps)
                .map(|number| {
                    let warp = Warp::new(number, env.threads - 32 * number as u32, env.function);
                    all[number] = warp.live;
                    Some(Box::new(warp))
                })
                .collect();
            ctas.push(Cta {
                index,
                warps,
                shared: Shared::new(env.shared_bytes, env.warps, env.launch.cluster == [1; 3]),
                barriers: Default::default(),
                open: 0,
                released: Vec::new(),
                live: all,
                all,
                changed: false,
                pending: (0..env.warps).map(|_| Pending::default()).collect(),
                products: (0..env.warps).map(|_| Products::default()).collect(),
                serial: env.serial(index),
                releases: None,
            });
        }
        let barrier = ClusterBarrier { arrived: vec![[0; WARPS]; ctas.len()], phase: 0 };
        Self { ctas, barrier, events: 0, vain: 0, seen_events: 0, in_vain: false, later: Vec::new(), calm: 0 }
    }

    /// Starts over as another cluster of the grid.
    pub fn reuse(&mut self, env: &Env<'_>, number: u64) {
        let fresh_index = |rank: u32| {
            let [cx, cy, _] = env.launch.cluster;
            let [gx, gy] = [env.launch.grid[0] / cx, env.launch.grid[1] / cy].map(u64::from);
            let at = [number % gx, number / gx % gy, number / gx / gy].map(|at| at as u32);
            let within = [rank % cx, rank / cx % cy, rank / cx / cy];
            std::array::from_fn(|axis| at[axis] * env.launch.cluster[axis] + within[axis])
        };
        for (rank, cta) in self.ctas.iter_mut().enumerate() {
            cta.index = fresh_index(rank as u32);
            (cta.serial, cta.releases) = (env.serial(cta.index), None);
            cta.live = cta.all;
            cta.changed = false;
            cta.shared.reset();
            for id in (0..16).filter(|id| cta.open >> id & 1 != 0) {
                cta.barriers[id] = Phase::default();
            }
            cta.open = 0;
            cta.released.clear();
            cta.pending.iter_mut().for_each(Pending::restart);
            cta.products.iter_mut().for_each(|products| *products = Products::default());
            for warp in cta.warps.iter_mut().flatten() {
                warp.restart(env.threads - 32 * warp.number as u32, env.function);
            }
        }
        self.later.clear();
        self.calm = 0;
        (self.events, self.vain, self.seen_events) = (0, 0, 0);
        self.barrier = ClusterBarrier { arrived: vec![[0; WARPS]; self.ctas.len()], phase: 0 };
    }

    /// Completes the cluster's barrier if all have come.
    pub fn settle(&mut self) {
        let all = self.ctas.iter().zip(&self.barrier.arrived);
        let mut pairs = all.flat_map(|(cta, arrived)| cta.live.iter().zip(arrived));
        let any = self.barrier.arrived.iter().flatten().any(|lanes| *lanes != 0);
        if !any || pairs.any(|(live, arrived)| live & !arrived != 0) {
            return;
        }
        self.barrier.phase += 1;
        self.barrier.arrived.iter_mut().for_each(|warps| *warps = [0; WARPS]);
        self.wake_cluster();
    }

    /// Lets lanes go on that wait for the cluster's barrier; the running warp looks for itself.
    pub fn wake_cluster(&mut self) {
        for warp in self.ctas.iter_mut().flat_map(|cta| cta.warps.iter_mut().flatten()) {
            warp.ready |= warp.cluster_waiting & warp.live;
            warp.cluster_waiting = 0;
        }
    }
}

impl Cta {
    /// Completes a barrier if all have come.
    pub fn settle(&mut self, id: usize, env: &Env<'_>) -> Result<(), Fault> {
        if !self.barriers[id].is_complete(&self.live) {
            return Ok(());
        }
        let mut done = std::mem::take(&mut self.barriers[id]);
        self.open &= !(1 << id);
        if env.options.exited_barriers && done.count.is_none() && self.live != self.all {
            let what = format!("barrier {id} is complete without threads that have exited");
            return Err(Fault::new(FaultKind::Barrier, what).advice("let all threads of the block reach the barrier"));
        }
        done.clock.join(&self.shared.exited);
        // All that wait are known to each other up to now.
        for warp in (0..WARPS).filter(|warp| done.waiting[*warp] != 0) {
            done.clock.seen[warp] = self.shared.time;
        }
        self.shared.time += 1;
        self.released.push(done);
        Ok(())
    }
}
