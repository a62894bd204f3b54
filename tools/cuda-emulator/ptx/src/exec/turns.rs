//! Whose turn it is in a cluster, and who waits for whom if nobody can go on.

use super::access::Role;
use super::cta::Cluster;
use super::env::Env;
use super::machine::{Machine, Stop};
use super::products::GROUP;
use super::warp::Warp;
use super::worker::Worker;
use crate::fault::{Fault, FaultKind, Location};
use crate::lanes::LANES;
use crate::options::{Class, Counts};

/// Backward jumps until another warp has its turn.
const FUEL: u32 = 4096;

impl Cluster {
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
                if warp.ready == 0 {
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
            let Some(warp) = cta.warps.iter().flatten().find(|warp| warp.group_waiting != 0) else { continue };
            let first = warp.number / GROUP * GROUP;
            let issued = |number: &usize| cta.products[*number].issued;
            let late = (first..first + GROUP).min_by_key(issued).unwrap_or(first);
            let lane = warp.live.trailing_zeros() as usize % LANES;
            return Machine::not_issued(warp.number, late).at(place(env, cta.index, warp, lane, warp.pc[lane]));
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

/// Lanes as text.
fn lanes_text(mask: u32) -> String {
    let lanes: Vec<String> = (0..LANES).filter(|lane| mask >> lane & 1 != 0).map(|lane| lane.to_string()).collect();
    if lanes.len() > 8 { format!("{} and {} more", lanes[..4].join(", "), lanes.len() - 4) } else { lanes.join(", ") }
}
