//! The state of the barriers of a block and of a cluster.

use super::clock::{Clock, WARPS};
use super::shared::Shared;
use super::span::each;
use super::warp::Warp;
use crate::code::BarrierKind;

/// One of a block's 16 barriers, in the phase that is not complete.
#[derive(Clone, Debug, Default)]
pub(super) struct Phase {
    /// Lanes of each warp that have arrived, and those that wait.
    pub arrived: [u32; WARPS],
    pub waiting: [u32; WARPS],
    /// Steps at which they did.
    pub pc: [u32; WARPS],
    pub count: Option<u32>,
    pub popc: u32,
    pub and: bool,
    pub or: bool,
    pub clock: Clock,
    /// Results that are due: warp, lanes, kind, register, frame.
    pub results: Vec<(usize, u32, BarrierKind, u32, u32)>,
}

impl Phase {
    pub fn is_empty(&self) -> bool {
        self.arrived.iter().all(|lanes| *lanes == 0)
    }

    /// Whether all have come; `live` are the lanes of each warp that have not exited.
    pub fn is_complete(&self, live: &[u32; WARPS]) -> bool {
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
    pub fn release(&self, cta: &Shared, warp: &mut Warp) {
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

/// The barrier of a cluster.
#[derive(Debug, Default)]
pub(super) struct ClusterBarrier {
    /// Lanes that have arrived, by block and warp.
    pub arrived: Vec<[u32; WARPS]>,
    pub phase: u64,
}
