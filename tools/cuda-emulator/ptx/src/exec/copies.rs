//! Asynchronous copies. Data arrives as late as a card may let it: when it is waited for.
//!
//! Copies of `cp.async` and bulk copies to global memory wait with the warp; bulk copies that complete bytes of an
//! `mbarrier` object wait with the cluster, until someone waits for such an object in vain.

use super::access::{Kind, Role};
use super::cta::Cluster;
use super::machine::{Flow, Machine};
use super::pending::{Later, Small};
use super::span::each;
use super::unwritten::Bytes;
use crate::code::{Address, Copy, NONE, Space, Src};
use crate::fault::{Fault, FaultKind};
use crate::lanes::LANES;
use crate::tensor::{Mbarrier, Refused};

impl Cluster {
    /// Lets `cp.async` copies of a warp arrive that `done` names by lane and group. Without a writer a barrier orders
    /// them.
    fn land(&mut self, cta: usize, warp: usize, writer: Option<usize>, done: impl Fn(usize, u32) -> bool) {
        let block = &mut self.ctas[cta];
        let start = block.shared.start();
        let pending = &mut block.pending[warp];
        for small in &mut pending.small {
            let mut landed = 0;
            each(small.mask, |lane| landed |= u32::from(done(lane, small.group)) << lane);
            each(landed, |lane| {
                block.shared.set_filled(small.to[lane], small.bytes, writer);
                // SAFETY: the range was checked when the copy began.
                unsafe {
                    let to = (start + u64::from(small.to[lane])) as *mut u8;
                    std::ptr::copy_nonoverlapping((&raw const small.data[lane]).cast(), to, small.bytes as usize);
                }
            });
            for (lane, byte) in small.missing.iter().filter(|(lane, _)| landed >> lane & 1 != 0) {
                block.shared.unwrite(small.to[*lane] + byte);
            }
            small.mask &= !landed;
        }
        let mut kept = Vec::with_capacity(pending.small.len());
        for small in pending.small.drain(..) {
            if small.mask == 0 { pending.spare.push(small.data) } else { kept.push(small) }
        }
        pending.small = kept;
    }

    /// Does what was put off. Whether there was something.
    pub fn catch_up(&mut self) -> Result<bool, Fault> {
        let later = std::mem::take(&mut self.later);
        let any = !later.is_empty();
        for one in later {
            match one {
                Later::Bytes { cta, to, data, barrier, complete, reduce } => {
                    let shared = &mut self.ctas[cta].shared;
                    let Bytes { data, missing } = data;
                    shared.set_filled(to, data.len() as u32, None);
                    missing.iter().for_each(|byte| shared.unwrite(to + byte));
                    let to = shared.start() + u64::from(to);
                    // SAFETY: the range was checked when the copy began.
                    unsafe {
                        match reduce {
                            Some(reduce) => super::atomic::reduce_bytes(reduce, to, &data),
                            None => std::ptr::copy_nonoverlapping(data.as_ptr(), to as *mut u8, data.len()),
                        }
                    }
                    if let Some(barrier) = barrier {
                        self.update(barrier, |object| object.complete(complete))?;
                    }
                }
                Later::Arrive { cta, warp, lane, barrier, group } => {
                    self.land(cta, warp, None, |other, of| other == lane && of <= group);
                    self.update(barrier, |object| object.arrive(1).map(|_| ()))?;
                }
            }
        }
        if any {
            self.events += 1;
        }
        Ok(any)
    }

    /// Changes an `mbarrier` object.
    pub fn update<T, E: std::fmt::Display>(
        &mut self,
        (cta, at): (usize, u32),
        change: impl FnOnce(&mut Mbarrier) -> Result<T, E>,
    ) -> Result<T, Fault> {
        let fail =
            |what: String| Fault::new(FaultKind::Barrier, format!("mbarrier at {at:#x} of shared memory: {what}"));
        let cell = (self.ctas[cta].shared.start() + u64::from(at)) as *mut u64;
        // SAFETY: the address of the object was checked.
        let mut object = Mbarrier::decode(unsafe { *cell }).map_err(|bad| fail(bad.to_string()))?;
        let result = change(&mut object).map_err(|bad| fail(bad.to_string()))?;
        // SAFETY: as above.
        unsafe { *cell = object.encode() };
        self.events += 1;
        Ok(result)
    }
}

impl Machine<'_, '_> {
    pub fn refused(refused: Refused) -> Fault {
        Fault::new(FaultKind::Misaligned, refused.0)
    }

    pub fn copy(&mut self, copy: &Copy, mask: u32) -> Result<Flow, Fault> {
        let number = self.warp.number;
        match copy {
            Copy::Async { to, from, bytes, source, ignore } => {
                self.copy_small(to, from, *bytes, *source, *ignore, mask)?
            }
            Copy::Commit => {
                let pending = &mut self.cluster.ctas[self.cta].pending[number];
                each(mask, |lane| pending.committed[lane] += 1);
            }
            Copy::Wait(count) => {
                let committed = self.cluster.ctas[self.cta].pending[number].committed;
                let done = |lane: usize, group: u32| mask >> lane & 1 != 0 && group + count < committed[lane];
                self.cluster.land(self.cta, number, Some(number), done);
            }
            Copy::WaitAll => self.cluster.land(self.cta, number, Some(number), |lane, _| mask >> lane & 1 != 0),
            Copy::Arrive { barrier, increment } => {
                let at = self.addresses(barrier);
                for lane in (0..LANES).filter(|lane| mask >> lane & 1 != 0) {
                    self.lane = lane;
                    let barrier = self.barrier_at(barrier.space, at[lane])?;
                    if *increment {
                        self.cluster.update(barrier, Mbarrier::add_pending)?;
                    }
                    let group = self.cluster.ctas[self.cta].pending[number].committed[lane];
                    let later = Later::Arrive { cta: self.cta, warp: number, lane, barrier, group };
                    self.cluster.later.push(later);
                }
            }
            Copy::Bulk { to, from, size, barrier, mask: ctas, reduce } => {
                for lane in (0..LANES).filter(|lane| mask >> lane & 1 != 0) {
                    self.lane = lane;
                    self.copy_bulk((to, from), *size, barrier.as_ref(), *ctas, *reduce, lane)?;
                }
            }
            Copy::Store { .. } => {
                for lane in (0..LANES).filter(|lane| mask >> lane & 1 != 0) {
                    self.lane = lane;
                    self.store_remote(copy, lane)?;
                }
            }
            Copy::Tensor { .. } => {
                for lane in (0..LANES).filter(|lane| mask >> lane & 1 != 0) {
                    self.lane = lane;
                    self.copy_tensor(copy, lane)?;
                }
            }
            Copy::BulkCommit => {
                let pending = &mut self.cluster.ctas[self.cta].pending[number];
                each(mask, |lane| pending.bulk_committed[lane] += 1);
            }
            Copy::BulkWait(count) => {
                let committed = self.cluster.ctas[self.cta].pending[number].bulk_committed;
                self.send(|out| mask >> out.lane & 1 != 0 && out.group + count < committed[out.lane])?;
            }
        }
        Ok(Flow::Next)
    }

    fn copy_small(
        &mut self,
        to: &Address,
        from: &Address,
        bytes: u32,
        source: Src,
        ignore: u32,
        mask: u32,
    ) -> Result<(), Fault> {
        let (targets, mut sources) = (self.addresses(to), self.addresses(from));
        let window = if to.space == Space::Generic { crate::code::SHARED_WINDOW } else { 0 };
        let ignored = self.predicate(ignore);
        let number = self.warp.number;
        let mut data = self.cluster.ctas[self.cta].pending[number].spare.pop().unwrap_or_else(|| Box::new([0; LANES]));
        data.fill(0);
        let sizes = if source == NONE { [bytes; LANES] } else { *self.row(source) };
        let (mut whole, mut missing) = (0, Vec::new());
        each(mask & !ignored, |lane| whole |= u32::from(sizes[lane] >= bytes) << lane);
        if whole != 0 {
            let asked = sources;
            let ((), fault) = self.with_role(Role::Strong, |machine| {
                machine.lenient(|machine| {
                    sources = asked;
                    machine.resolve(Space::Global, &mut sources, whole, bytes, Kind::Read, false)
                })
            })?;
            if fault.is_some() {
                let mut find =
                    |lane: usize, byte: u32| !self.is_written(Space::Global, asked[lane] + u64::from(byte), 0);
                each(whole, |lane| {
                    missing.extend((0..bytes).filter(|byte| find(lane, *byte)).map(|byte| (lane, byte)))
                });
            }
            each(whole, |lane| {
                // SAFETY: `resolve` has checked the address.
                unsafe {
                    let into = (&raw mut data[lane]).cast::<u8>();
                    std::ptr::copy_nonoverlapping(sources[lane] as *const u8, into, bytes as usize);
                }
            });
        }
        for lane in (0..LANES).filter(|lane| mask & !ignored & !whole & 1 << lane != 0) {
            self.lane = lane;
            let start = self.addresses(from)[lane];
            if sizes[lane] > 0 && !start.is_multiple_of(bytes.into()) {
                return Err(self.misaligned(&[start; LANES], 1 << lane, bytes, Kind::Read, ""));
            }
            for byte in 0..sizes[lane] {
                let address = start + u64::from(byte);
                let (at, none) = self.with_role(Role::Strong, |machine| machine.range(Space::Global, address, 1))?;
                missing.extend(none.iter().map(|_| (lane, byte)));
                // SAFETY: `range` has checked the address.
                data[lane] |= u128::from(unsafe { *(at as *const u8) }) << (8 * byte);
            }
        }
        let mut offsets = [0; LANES];
        for lane in (0..LANES).filter(|lane| mask >> lane & 1 != 0) {
            self.lane = lane;
            let address = targets[lane].wrapping_sub(window);
            let (cta, at) = self.shared_place(address, bytes)?;
            if at % bytes != 0 {
                let what = format!("cp.async of {bytes} bytes to {at:#x} of shared memory: no multiple of {bytes}");
                return Err(Fault::new(FaultKind::Misaligned, what));
            }
            if cta != self.cta {
                return Err(Fault::new(FaultKind::OutOfBounds, "cp.async to shared memory of another block"));
            }
            self.claim(cta, at, bytes)?;
            offsets[lane] = at;
        }
        let pending = &mut self.cluster.ctas[self.cta].pending[number];
        // Lanes may have committed unequal numbers of groups.
        let mut left = mask;
        while left != 0 {
            let group = pending.committed[left.trailing_zeros() as usize];
            let mut same = 0;
            each(left, |lane| same |= u32::from(pending.committed[lane] == group) << lane);
            left &= !same;
            let copy = if left == 0 { std::mem::take(&mut data) } else { data.clone() };
            pending.small.push(Small { mask: same, group, bytes, to: offsets, data: copy, missing: missing.clone() });
        }
        Ok(())
    }

    /// A range of shared memory that a copy of this warp is to fill.
    pub fn claim(&mut self, cta: usize, at: u32, bytes: u32) -> Result<(), Fault> {
        let checks = self.checks();
        let shared = &mut self.cluster.ctas[cta].shared;
        if cta == self.cta {
            shared.write(self.warp, at, bytes, checks)?;
        }
        shared.set_pending(at, bytes);
        Ok(())
    }

    /// The block and offset of an address of shared memory, of a generic one too.
    pub fn shared_at(&mut self, space: Space, address: u64, bytes: u32) -> Result<(usize, u32), Fault> {
        let address = if space == Space::Generic { address.wrapping_sub(crate::code::SHARED_WINDOW) } else { address };
        self.shared_place(address, bytes)
    }
}
