//! Blocks and clusters: whose turn it is, and what holds them up.

use super::Env;
use super::barrier::{ClusterBarrier, Phase, WARPS, lanes_text};
use super::copies::{Later, Pending};
use super::machine::{Machine, Stop};
use super::releases::Releases;
use super::shared::Shared;
use super::warp::Warp;
use super::watch::Role;
use super::wgmma::Products;
use super::worker::Worker;
use crate::fault::{Fault, FaultKind, Location};
use crate::lanes::LANES;
use crate::options::{Class, Counts};
use std::sync::{Arc, Mutex};

/// Backward jumps until another warp has its turn.
const FUEL: u32 = 4096;

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

    /// Runs for about `budget` warp instructions; whether all blocks are done.
    pub fn run(&mut self, env: &Env<'_>, worker: &mut Worker, budget: u64) -> Result<bool, Fault> {
        let end = worker.counts.total() + (budget >> (3 * self.calm));
        let before = work_of(&worker.counts);
        loop {
            let (mut ran, mut left) = (false, false);
            let count = self.ctas.len() * env.warps;
            let first = if env.options.seed.is_some() { worker.below(count as u32) as usize } else { 0 };
            for turn in 0..count {
                let turn = (first + turn) % count;
                let (cta, number) = (turn / env.warps, turn % env.warps);
                let Some(warp) = &self.ctas[cta].warps[number] else { continue };
                if warp.live == 0 {
                    continue;
                }
                left = true;
                if warp.ready == 0 && warp.waiting == 0 {
                    continue;
                }
                ran |= self.turn(env, worker, cta, number)? != Stop::Blocked;
            }
            if !left {
                return Ok(true);
            }
            if !ran && !self.can_run() {
                return Err(self.deadlock(env));
            }
            if worker.counts.total() > end {
                self.calm = if work_of(&worker.counts) == before { (self.calm + 1).min(3) } else { 0 };
                return Ok(false);
            }
        }
    }

    fn can_run(&self) -> bool {
        self.ctas.iter().flat_map(|cta| cta.warps.iter().flatten()).any(|warp| warp.ready != 0)
    }

    fn turn(&mut self, env: &Env<'_>, worker: &mut Worker, cta: usize, number: usize) -> Result<Stop, Fault> {
        let Some(mut warp) = self.ctas[cta].warps[number].take() else { return Ok(Stop::Done) };
        let mut fuel = FUEL >> (3 * self.calm);
        let frame = warp.rows.as_mut_ptr();
        let predicates = warp.predicates.as_mut_ptr();
        let before = worker.counts.total();
        let mut machine = Machine {
            env,
            worker,
            cluster: self,
            cta,
            warp: &mut warp,
            frame,
            predicates,
            mask: 0,
            pc: 0,
            base: 0,
            lane: LANES,
            lenient: false,
            role: Role::Own,
            suspects: Vec::new(),
        };
        let stop = machine.run(&mut fuel).map_err(|fault| machine.locate(fault))?;
        // What it did before it blocked counts as progress.
        let stop = if stop == Stop::Blocked && worker.counts.total() != before { Stop::Slice } else { stop };
        let steps = worker.counts.total() - before;
        // A wait in vain is no event; all else may be what others wait for.
        self.events += u64::from(steps > 0 && !std::mem::take(&mut self.in_vain));
        env.count(steps)?;
        let block = &mut self.ctas[cta];
        block.live[number] = warp.live;
        let phase = self.barrier.phase;
        for lane in (0..LANES).filter(|lane| warp.cluster_phase[*lane] < phase) {
            let late = warp.cluster_waiting & 1 << lane;
            warp.ready |= late & warp.live;
            warp.cluster_waiting &= !late;
        }
        block.warps[number] = Some(warp);
        if block.changed {
            block.changed = false;
            let open = block.open;
            for id in (0..16).filter(|id| open >> id & 1 != 0) {
                block.settle(id, env)?;
            }
            self.settle();
        }
        let block = &mut self.ctas[cta];
        for done in std::mem::take(&mut block.released) {
            for warp in block.warps.iter_mut().flatten() {
                done.release(&block.shared, warp);
            }
        }
        Ok(stop)
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

    /// A fault that says who waits where, when nobody can run.
    fn deadlock(&self, env: &Env<'_>) -> Fault {
        let line = |pc: u32| {
            let line = env.program.lines.get(pc as usize).copied().unwrap_or(0);
            format!("line {line}: {}", env.program.line(line))
        };
        for cta in &self.ctas {
            for warp in cta.warps.iter().flatten() {
                if warp.waiting == 0 {
                    continue;
                }
                let lane = warp.waiting.trailing_zeros() as usize;
                let here = warp.together(lane);
                let missing = warp.members[lane] & warp.live & !here;
                let other = missing.trailing_zeros() as usize % LANES;
                // A lane at a barrier has its next step noted.
                let at = if warp.waiting >> other & 1 != 0 { warp.pc[other] } else { warp.pc[other].saturating_sub(1) };
                let what = format!(
                    "lanes {} wait here for lanes {}, which their mask {:#010x} names and which are at {}",
                    lanes_text(here),
                    lanes_text(missing),
                    warp.members[lane],
                    line(at),
                );
                let fault = Fault::new(FaultKind::Mask, what).advice(
                    "let all lanes of the mask reach the same instruction, or take only those into the mask that do",
                );
                return fault.at(place(env, cta.index, warp, lane, warp.pc[lane]));
            }
        }
        for cta in &self.ctas {
            for (id, phase) in cta.barriers.iter().enumerate().filter(|(_, phase)| !phase.is_empty()) {
                let Some(warp) = cta.warps.iter().flatten().find(|warp| phase.waits(warp.number)) else { continue };
                let pc = phase.pc[warp.number];
                let others = phase.missing(&cta.live);
                let missing = others.first().and_then(|number| cta.warps[*number].as_ref());
                let at = missing.map_or(String::new(), |warp| {
                    let lane = warp.live.trailing_zeros() as usize % LANES;
                    format!("; warp {} is at {}", warp.number, line(warp.pc[lane].saturating_sub(1)))
                });
                let what = format!("barrier {id} is never complete: {}{at}", phase.state(&cta.live));
                let lane = warp.live.trailing_zeros() as usize % LANES;
                let fault = Fault::new(FaultKind::Barrier, what)
                    .advice("let all threads that the barrier is for reach it, equally often");
                return fault.at(place(env, cta.index, warp, lane, pc));
            }
        }
        let fault = Fault::new(FaultKind::Barrier, "no thread of the block can go on");
        let Some((cta, warp)) = self
            .ctas
            .iter()
            .find_map(|cta| cta.warps.iter().flatten().find(|warp| warp.live != 0).map(|warp| (cta, warp)))
        else {
            return fault;
        };
        let lane = warp.live.trailing_zeros() as usize;
        fault.at(place(env, cta.index, warp, lane, warp.pc[lane]))
    }
}

/// Changes unless code only computes integers, loads and jumps, as loops do that wait for another block.
fn work_of(counts: &Counts) -> u64 {
    let classes = [Class::Float, Class::Special, Class::Shared, Class::Local, Class::Tensor, Class::Copy];
    classes.iter().map(|class| counts.instructions[*class as usize]).sum::<u64>() + counts.global_written
}

fn place(env: &Env<'_>, block: [u32; 3], warp: &Warp, lane: usize, pc: u32) -> Location {
    let thread = warp.number as u32 * 32 + lane as u32;
    let line = env.program.lines.get(pc as usize).copied().unwrap_or(0);
    Location { kernel: env.kernel.name.clone(), block, thread: env.thread(thread), line, text: env.program.line(line) }
}

impl Machine<'_, '_> {
    /// Adds the place to a fault.
    fn locate(&self, fault: Fault) -> Fault {
        let lane = if self.lane < LANES { self.lane } else { self.mask.trailing_zeros() as usize % LANES };
        fault.at(place(self.env, self.cluster.ctas[self.cta].index, self.warp, lane, self.pc))
    }
}
