//! Barriers of a block and of a cluster.

use super::Env;
use super::clock::Clock;
use super::cta::Cta;
use super::machine::{Flow, Machine};
use super::span::each;
use super::warp::Warp;
use crate::code::{Barrier, BarrierKind, NONE};
use crate::fault::{Fault, FaultKind};
use crate::lanes::LANES;

/// Warps of a block at most.
pub(super) const WARPS: usize = 32;

/// One of a block's 16 barriers, in the phase that is not complete.
#[derive(Clone, Debug, Default)]
pub(super) struct Phase {
    /// Lanes of each warp that have arrived, and those that wait.
    arrived: [u32; WARPS],
    waiting: [u32; WARPS],
    /// Steps at which they did.
    pub pc: [u32; WARPS],
    count: Option<u32>,
    popc: u32,
    and: bool,
    or: bool,
    clock: Clock,
    /// Results that are due: warp, lanes, kind, register, frame.
    results: Vec<(usize, u32, BarrierKind, u32, u32)>,
}

impl Phase {
    pub fn is_empty(&self) -> bool {
        self.arrived.iter().all(|lanes| *lanes == 0)
    }

    /// Whether all have come; `live` are the lanes of each warp that have not exited.
    fn is_complete(&self, live: &[u32; WARPS]) -> bool {
        if self.is_empty() {
            return false;
        }
        match self.count {
            None => self.arrived.iter().zip(live).all(|(arrived, live)| live & !arrived == 0),
            Some(count) => {
                let come = self.arrived.iter().zip(live).map(|(arrived, live)| match arrived {
                    0 => 0,
                    arrived if live & !arrived == 0 => 32,
                    arrived => arrived.count_ones(),
                });
                come.sum::<u32>() >= count
            }
        }
    }

    /// Lets the lanes of a warp go on.
    pub fn release(&self, cta: &super::shared::Shared, warp: &mut Warp) {
        let number = warp.number;
        let lanes = self.waiting[number];
        if lanes == 0 {
            return;
        }
        warp.ready |= lanes & warp.live;
        cta.learn(warp, &self.clock);
        for &(_, lanes, kind, register, base) in self.results.iter().filter(|result| result.0 == number) {
            let at = (base + register) as usize;
            if kind == BarrierKind::Popc {
                each(lanes, |lane| warp.rows[at].0[lane] = self.popc);
            } else {
                let value = if kind == BarrierKind::And { self.and } else { self.or };
                let to = &mut warp.predicates[at];
                *to = if value { *to | lanes } else { *to & !lanes };
            }
        }
    }
}

/// The barrier of a cluster.
#[derive(Debug, Default)]
pub(super) struct ClusterBarrier {
    /// Lanes that have arrived, by block and warp.
    pub arrived: Vec<[u32; WARPS]>,
    pub phase: u64,
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

impl Machine<'_, '_> {
    pub fn barrier(&mut self, barrier: &Barrier, mask: u32) -> Result<Flow, Fault> {
        match barrier.kind {
            BarrierKind::ClusterArrive => return Ok(self.cluster_arrive(mask)),
            BarrierKind::ClusterWait => return Ok(self.cluster_wait(mask)),
            _ => {}
        }
        let first = mask.trailing_zeros() as usize;
        let id = self.row(barrier.id)[first] as usize;
        self.lane = first;
        if id > 15 {
            return Err(Fault::new(FaultKind::Barrier, format!("barrier {id}: a block has barriers 0 to 15")));
        }
        let count = (barrier.count != NONE).then(|| self.row(barrier.count)[first]);
        if let Some(count) = count.filter(|count| count % 32 != 0 || *count == 0) {
            return Err(Fault::new(FaultKind::Barrier, format!("barrier {id} of {count} threads: no multiple of 32")));
        }
        let votes = if barrier.pred == NONE { 0 } else { self.predicate(barrier.pred) };
        let (env, number, pc) = (self.env, self.warp.number, self.pc);
        let all = 32 * env.warps as u32;
        let cta = &mut self.cluster.ctas[self.cta];
        let phase = &mut cta.barriers[id];
        if phase.is_empty() {
            phase.count = count;
            phase.and = true;
        } else if phase.count.unwrap_or(all) == count.unwrap_or(all) {
            // A count of all threads is none.
            phase.count = phase.count.and(count);
        } else {
            let shown = |count: Option<u32>| count.map_or("all".to_owned(), |count| count.to_string());
            let what =
                format!("barrier {id} for {} threads, which others use for {}", shown(count), shown(phase.count));
            return Err(Fault::new(FaultKind::Barrier, what));
        }
        if phase.arrived[number] & mask != 0 {
            let what = format!("warp {number} arrives at barrier {id} twice before others have come");
            return Err(Fault::new(FaultKind::Barrier, what));
        }
        if env.options.divergent_barriers && barrier.aligned && phase.arrived[number] != 0 && phase.pc[number] != pc {
            let line = env.program.lines[phase.pc[number] as usize];
            let what = format!(
                "a warp reaches barrier {id} here and, with other threads, at line {line}: {}",
                env.program.line(line)
            );
            return Err(Fault::new(FaultKind::Barrier, what)
                .advice("let all threads of a warp reach the same barrier, outside of branches that part them"));
        }
        cta.open |= 1 << id;
        let phase = &mut cta.barriers[id];
        phase.arrived[number] |= mask;
        phase.pc[number] = pc;
        phase.popc += (votes & mask).count_ones();
        phase.and &= votes & mask == mask;
        phase.or |= votes & mask != 0;
        let clock = if barrier.kind == BarrierKind::Arrive { cta.shared.publish(self.warp) } else { self.warp.clock };
        cta.barriers[id].clock.join(&clock);
        let phase = &mut cta.barriers[id];
        if barrier.kind != BarrierKind::Arrive {
            phase.waiting[number] |= mask;
            if barrier.d != NONE {
                phase.results.push((number, mask, barrier.kind, barrier.d, self.base));
            }
            self.warp.ready &= !mask;
        }
        cta.settle(id, env)?;
        if barrier.kind == BarrierKind::Arrive {
            return Ok(Flow::Next);
        }
        self.warp.place(self.mask, self.pc + 1);
        Ok(Flow::Select)
    }

    fn cluster_arrive(&mut self, mask: u32) -> Flow {
        self.fence();
        self.release();
        let shared = &mut self.cluster.ctas[self.cta].shared;
        let clock = shared.publish(self.warp);
        shared.at_cluster.join(&clock);
        let barrier = &mut self.cluster.barrier;
        barrier.arrived[self.cta][self.warp.number] |= mask;
        each(mask, |lane| self.warp.cluster_phase[lane] = barrier.phase);
        self.cluster.settle();
        Flow::Next
    }

    fn cluster_wait(&mut self, mask: u32) -> Flow {
        let phase = self.cluster.barrier.phase;
        let mut behind = 0;
        each(mask, |lane| behind |= u32::from(self.warp.cluster_phase[lane] >= phase) << lane);
        if behind == 0 {
            let shared = &self.cluster.ctas[self.cta].shared;
            shared.learn(self.warp, &shared.at_cluster);
            self.acquire();
            return Flow::Next;
        }
        self.warp.place(self.mask, self.pc + 1);
        self.warp.place(behind, self.pc);
        self.warp.ready &= !behind;
        self.warp.cluster_waiting |= behind;
        Flow::Select
    }
}

/// Lanes as text.
pub(super) fn lanes_text(mask: u32) -> String {
    let lanes: Vec<String> = (0..LANES).filter(|lane| mask >> lane & 1 != 0).map(|lane| lane.to_string()).collect();
    if lanes.len() > 8 { format!("{} and {} more", lanes[..4].join(", "), lanes.len() - 4) } else { lanes.join(", ") }
}

impl Phase {
    /// Whether lanes of this warp wait.
    pub fn waits(&self, warp: usize) -> bool {
        self.waiting[warp] != 0
    }

    /// Warps that have not come, or not wholly.
    pub fn missing(&self, live: &[u32; WARPS]) -> Vec<usize> {
        (0..WARPS).filter(|warp| live[*warp] & !self.arrived[*warp] != 0).collect()
    }

    /// Who has come, as text.
    pub fn state(&self, live: &[u32; WARPS]) -> String {
        let come = (0..WARPS).filter(|warp| self.arrived[*warp] != 0).count();
        let missing: Vec<String> = self.missing(live).iter().take(8).map(usize::to_string).collect();
        match self.count {
            Some(count) => format!("threads of {come} warps have come, and {count} threads are expected"),
            None => {
                format!("threads of {come} warps have come, and warps {} have not, or not wholly", missing.join(", "))
            }
        }
    }
}
