//! Barriers of a block and of a cluster.

use super::machine::{Flow, Machine};
use super::span::each;
use crate::code::{Barrier, BarrierKind, NONE};
use crate::fault::{Fault, FaultKind};

impl Machine<'_, '_> {
    pub fn barrier(&mut self, barrier: &Barrier, mask: u32) -> Result<Flow, Fault> {
        match barrier.kind {
            BarrierKind::ClusterArrive { release } => return Ok(self.cluster_arrive(release, mask)),
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

    fn cluster_arrive(&mut self, release: bool, mask: u32) -> Flow {
        // A relaxed arrival hands on what an earlier fence covers.
        if release {
            self.fence();
        }
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
