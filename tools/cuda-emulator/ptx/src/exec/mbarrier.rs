//! `mbarrier` objects in shared memory.

use super::access::Kind;
use super::clock::Clock;
use super::machine::{Flow, Machine};
use crate::code::{MbarrierOp, MbarrierStep, NONE, Space};
use crate::fault::{Fault, FaultKind};
use crate::lanes::LANES;
use crate::tensor::Mbarrier;

/// Waits in vain, without any event in the cluster, after which nobody is expected to come.
const PATIENCE: u64 = 1 << 18;

impl Machine<'_, '_> {
    /// The block and the offset of an `mbarrier` object.
    pub fn barrier_at(&mut self, space: Space, address: u64) -> Result<(usize, u32), Fault> {
        let place = self.shared_at(space, address, 8)?;
        if place.1 % 8 != 0 {
            let what = format!("mbarrier at {address:#x} of shared memory: no multiple of 8");
            return Err(Fault::new(FaultKind::Misaligned, what));
        }
        Ok(place)
    }

    pub fn mbarrier(&mut self, step: &MbarrierStep, mask: u32) -> Result<Flow, Fault> {
        let at = self.addresses(&step.address);
        let mut states = [0; LANES];
        let (mut complete, mut vain) = (0, false);
        for lane in (0..LANES).filter(|lane| mask >> lane & 1 != 0) {
            self.lane = lane;
            let wide = matches!(step.op, MbarrierOp::Test { parity: false, .. } | MbarrierOp::PendingCount);
            let a = match () {
                () if step.a == NONE => 1,
                () if wide => self.wide(step.a)[lane],
                () => u64::from(self.row(step.a)[lane]),
            };
            let bad = |what: String| Fault::new(FaultKind::Barrier, what);
            if step.op == MbarrierOp::PendingCount {
                states[lane] = Mbarrier::pending_count(a).map_err(|error| bad(error.to_string()))?.into();
                continue;
            }
            let place = self.barrier_at(step.address.space, at[lane])?;
            match step.op {
                MbarrierOp::Init => {
                    let object = Mbarrier::new(a as u32).map_err(|error| bad(error.to_string()))?;
                    self.overwrite(place, object.encode())?;
                }
                MbarrierOp::Invalidate => self.overwrite(place, 0)?,
                MbarrierOp::Expect => self.cluster.update(place, |object| object.expect(a as u32))?,
                MbarrierOp::Complete => self.cluster.update(place, |object| object.complete(a as u32))?,
                MbarrierOp::Arrive { expect, no_complete, drop, release } => {
                    self.arrives_at(place, release);
                    let count = if expect { 1 } else { a as u32 };
                    states[lane] = self.cluster.update(place, |object| {
                        if expect {
                            object.expect(a as u32)?;
                        }
                        match (no_complete, drop) {
                            (false, false) => object.arrive(count),
                            (true, false) => object.arrive_no_complete(count),
                            (false, true) => object.arrive_drop(count),
                            (true, true) => object.arrive_drop_no_complete(count),
                        }
                    })?;
                }
                MbarrierOp::Test { parity, .. } => {
                    let done = |object: &mut Mbarrier| {
                        if parity { Ok(object.is_parity_complete(a as u32)) } else { object.is_complete(a) }
                    };
                    let mut is = self.look(place, done)?;
                    if !is && self.cluster.catch_up()? {
                        is = self.look(place, done)?;
                    }
                    if is {
                        complete |= 1 << lane;
                        self.has_waited_at(place);
                    } else {
                        vain = true;
                    }
                }
                MbarrierOp::PendingCount => {}
            }
        }
        if step.op == MbarrierOp::PendingCount {
            self.set(step.d, mask, &states.map(|state| state as u32));
        } else {
            self.set_wide(step.d, mask, &states);
        }
        self.set_predicate(step.p, mask, complete);
        if !vain {
            return Ok(Flow::Next);
        }
        self.patience(&at, mask & !complete)?;
        self.cluster.in_vain = true;
        self.warp.place(self.mask, self.pc + 1);
        self.warp.tired = self.mask;
        Ok(Flow::Yield)
    }

    /// Ends the launch if waits in vain go on while nothing happens.
    fn patience(&mut self, at: &[u64; LANES], missing: u32) -> Result<(), Fault> {
        let cluster = &mut *self.cluster;
        if cluster.events != cluster.seen_events {
            (cluster.seen_events, cluster.vain) = (cluster.events, 0);
        }
        cluster.vain += 1;
        if cluster.vain < PATIENCE {
            return Ok(());
        }
        self.lane = missing.trailing_zeros() as usize % LANES;
        let address = at[self.lane];
        let what = format!("the phase of the mbarrier at {address:#x} that is waited for never completes");
        Err(Fault::new(FaultKind::Barrier, what).advice(
            "compare the count of mbarrier.init with the arrivals, and the expected bytes with those that copies move",
        ))
    }

    fn look<T, E: std::fmt::Display>(
        &mut self,
        place: (usize, u32),
        look: impl FnOnce(&mut Mbarrier) -> Result<T, E>,
    ) -> Result<T, Fault> {
        let events = self.cluster.events;
        let found = self.cluster.update(place, look);
        self.cluster.events = events;
        found
    }

    fn overwrite(&mut self, (cta, at): (usize, u32), bits: u64) -> Result<(), Fault> {
        let checks = self.checks();
        let own = cta == self.cta;
        let shared = &mut self.cluster.ctas[cta].shared;
        if own {
            shared.write(self.warp, at, 8, checks)?;
        } else {
            shared.touch(at, 8, false, true, checks)?;
        }
        // SAFETY: the address was checked.
        unsafe { *((shared.start() + u64::from(at)) as *mut u64) = bits };
        self.cluster.events += 1;
        Ok(())
    }

    /// What this warp has done is before what those do that wait for the object; for other blocks, of a relaxed arrival,
    /// what an earlier fence covers.
    fn arrives_at(&mut self, (cta, at): (usize, u32), release: bool) {
        if self.cluster.ctas.len() > 1 {
            if release {
                self.fence();
            }
            self.release();
        }
        if cta == self.cta {
            let shared = &mut self.cluster.ctas[cta].shared;
            let clock = shared.publish(self.warp);
            shared.post(at, &clock);
        }
    }

    fn has_waited_at(&mut self, (cta, at): (usize, u32)) {
        if self.cluster.ctas.len() > 1 {
            self.acquire();
        }
        if cta == self.cta {
            let shared = &self.cluster.ctas[cta].shared;
            if let Some(clock) = shared.posted(at) {
                shared.learn(self.warp, &clock);
            }
        }
    }

    /// The address of a range of one lane on the host, checked.
    pub fn one(&mut self, space: Space, address: u64, bytes: u32, kind: Kind) -> Result<u64, Fault> {
        use crate::code::{SHARED_WINDOW, WINDOW};
        let (space, address) = match space {
            Space::Generic if address.wrapping_sub(SHARED_WINDOW) < WINDOW => (Space::Shared, address - SHARED_WINDOW),
            space => (space, address),
        };
        if space == Space::Shared {
            let (cta, at) = self.shared_place(address, bytes)?;
            let checks = self.checks();
            let own = cta == self.cta;
            let shared = &mut self.cluster.ctas[cta].shared;
            match kind {
                Kind::Read if own => shared.read(self.warp, at, bytes, checks)?,
                Kind::Write if own => shared.write(self.warp, at, bytes, checks)?,
                _ => shared.touch(at, bytes, kind != Kind::Write, kind != Kind::Read, checks)?,
            }
            return Ok(shared.start() + u64::from(at));
        }
        let lane = if self.lane < LANES { self.lane } else { 0 };
        let mut at = [address; LANES];
        self.resolve_range(space, &mut at, 1 << lane, bytes, kind)?;
        Ok(at[lane])
    }
}

impl super::shared::Shared {
    /// What a release at an address has published, joined with earlier ones.
    pub fn post(&mut self, at: u32, clock: &Clock) {
        self.strong.entry(at).or_default().join(clock);
    }

    pub fn posted(&self, at: u32) -> Option<Clock> {
        self.strong.get(&at).copied()
    }
}
