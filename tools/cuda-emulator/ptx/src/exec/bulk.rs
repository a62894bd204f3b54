//! Bulk copies, of ranges and of boxes of tensors.

use super::access::{Kind, Role};
use super::machine::Machine;
use super::pending::{Later, Out};
use super::unwritten::Bytes;
use crate::code::{Address, Copy, NONE, SHARED_RANK, Space, Src};
use crate::fault::{Fault, FaultKind};
use crate::lanes::LANES;
use crate::tensor::{Direction, Reduction, Source, TensorMap, check_bulk};

impl Machine<'_, '_> {
    pub fn copy_bulk(
        &mut self,
        (to, from): (&Address, &Address),
        size: Src,
        barrier: Option<&Address>,
        ctas: Src,
        reduce: Option<Reduction>,
        lane: usize,
    ) -> Result<(), Fault> {
        let bytes = self.row(size)[lane];
        let (target, source) = (self.addresses(to)[lane], self.addresses(from)[lane]);
        check_bulk(target, source, bytes.into()).map_err(Self::refused)?;
        if bytes == 0 {
            return Ok(());
        }
        let barrier_address = barrier.map(|barrier| (barrier.space, self.addresses(barrier)[lane]));
        if to.space == Space::Global {
            // As late as may be: shared memory is read when the copy is waited for.
            let (_, at) = self.shared_at(from.space, source, bytes)?;
            let kind = if reduce.is_some() { Kind::Update } else { Kind::Write };
            self.with_role(Role::None, |machine| machine.one(Space::Global, target, bytes, kind))?;
            self.put_off(lane, target, at, bytes, reduce);
            return Ok(());
        }
        let mut data = vec![0; bytes as usize];
        let (at, missing) =
            self.with_role(Role::Strong, |machine| machine.source(from.space, source, bytes, reduce))?;
        // SAFETY: `source` has checked the range.
        unsafe { std::ptr::copy_nonoverlapping(at as *const u8, data.as_mut_ptr(), data.len()) };
        let data = Bytes { data, missing };
        let Some((space, barrier)) = barrier_address else {
            return Err(Fault::new(FaultKind::Unsupported, "a bulk copy to shared memory without mbarrier"));
        };
        if let Some(reduce) = reduce {
            // Combined when they arrive, as others may arrive before.
            let (cta, to) = self.shared_at(to.space, target, bytes)?;
            let barrier = Some(self.barrier_at(space, barrier)?);
            self.cluster.later.push(Later::Bytes { cta, to, data, barrier, complete: bytes, reduce: Some(reduce) });
            return Ok(());
        }
        self.deliver((to.space, target), data, (space, barrier), ctas, lane, bytes)
    }

    /// `st.async` and `red.async` of a lane: the bytes go to shared memory of any block, and complete bytes of a
    /// barrier there.
    pub fn store_remote(&mut self, copy: &Copy, lane: usize) -> Result<(), Fault> {
        let Copy::Store { to, from, wide, barrier, reduce } = copy else { return Ok(()) };
        let mut data = Vec::with_capacity(16);
        for source in from {
            if *wide {
                data.extend(self.wide(*source)[lane].to_le_bytes());
            } else {
                data.extend(self.row(*source)[lane].to_le_bytes());
            }
        }
        let bytes = data.len() as u32;
        let missing = if self.any_undefined(from) {
            let undefined = |source: &Src| self.undefined_row(*source) >> lane & 1 != 0;
            let each = bytes / from.len() as u32;
            let of = |(at, source): (u32, &Src)| if undefined(source) { at * each..(at + 1) * each } else { 0..0 };
            (0..).zip(from).flat_map(of).collect()
        } else {
            Vec::new()
        };
        if reduce.is_some() && !missing.is_empty() {
            self.defined("an atomic operation", 1 << lane)?;
        }
        let data = Bytes { data, missing };
        let (target, barrier_at) = (self.addresses(to)[lane], self.addresses(barrier)[lane]);
        let (cta, at) = self.shared_at(to.space, target, bytes)?;
        if at % bytes != 0 {
            let what =
                format!("asynchronous store of {bytes} bytes to {at:#x} of shared memory: no multiple of {bytes}");
            return Err(Fault::new(FaultKind::Misaligned, what));
        }
        let barrier = self.barrier_at(barrier.space, barrier_at)?;
        if barrier.0 != cta {
            let what = "an asynchronous store with the mbarrier of another block than its destination's";
            return Err(Fault::new(FaultKind::Barrier, what));
        }
        if reduce.is_none() {
            self.claim(cta, at, bytes)?;
        }
        let (barrier, reduce) = (Some(barrier), *reduce);
        self.cluster.later.push(Later::Bytes { cta, to: at, data, barrier, complete: bytes, reduce });
        Ok(())
    }

    /// Puts bytes on their way to shared memory of one block, or of those in the mask.
    pub fn deliver(
        &mut self,
        (space, to): (Space, u64),
        data: Bytes,
        (barrier_space, barrier): (Space, u64),
        ctas: Src,
        lane: usize,
        complete: u32,
    ) -> Result<(), Fault> {
        let bytes = data.data.len() as u32;
        let (cta, at) = self.shared_at(space, to, bytes)?;
        let (barrier_cta, barrier) = self.barrier_at(barrier_space, barrier)?;
        let mask = if ctas == NONE { 0 } else { self.row(ctas)[lane] & 0xffff };
        if ctas == NONE {
            self.claim(cta, at, bytes)?;
            self.cluster.later.push(Later::Bytes {
                cta,
                to: at,
                data,
                barrier: Some((barrier_cta, barrier)),
                complete,
                reduce: None,
            });
            return Ok(());
        }
        for cta in (0..self.cluster.ctas.len()).filter(|cta| mask >> cta & 1 != 0) {
            self.claim(cta, at, bytes)?;
            let data = data.clone();
            let barrier = Some((cta, barrier));
            self.cluster.later.push(Later::Bytes { cta, to: at, data, barrier, complete, reduce: None });
        }
        Ok(())
    }

    pub fn put_off(&mut self, lane: usize, to: u64, from: u32, bytes: u32, reduce: Option<Reduction>) {
        let pending = &mut self.cluster.ctas[self.cta].pending[self.warp.number];
        let group = pending.bulk_committed[lane];
        pending.out.push(Out { lane, group, to, from, bytes, reduce });
    }

    /// Lets copies to global memory happen.
    pub fn send(&mut self, done: impl Fn(&Out) -> bool) -> Result<(), Fault> {
        let number = self.warp.number;
        let all = std::mem::take(&mut self.cluster.ctas[self.cta].pending[number].out);
        let mut kept = Vec::new();
        for out in all {
            if !done(&out) {
                kept.push(out);
                continue;
            }
            self.lane = out.lane;
            let (from, missing) = self.source(Space::Shared, out.from.into(), out.bytes, out.reduce)?;
            let (role, kind) =
                if out.reduce.is_some() { (Role::Strong, Kind::Update) } else { (Role::Own, Kind::Write) };
            let to = self.with_role(role, |machine| machine.one(Space::Global, out.to, out.bytes, kind))?;
            // SAFETY: both ranges have been checked.
            unsafe {
                let source = std::slice::from_raw_parts(from as *const u8, out.bytes as usize);
                if !self.suspects.is_empty() {
                    self.judge(&[out.to; LANES], 1 << out.lane, out.bytes, |_, _, byte| source[byte])?;
                }
                match out.reduce {
                    Some(reduce) => super::atomic::reduce_bytes(reduce, to, source),
                    None => std::ptr::copy_nonoverlapping(source.as_ptr(), to as *mut u8, source.len()),
                }
            }
            missing.iter().for_each(|byte| self.unwrite(Space::Global, out.to + u64::from(*byte), 0));
        }
        self.cluster.ctas[self.cta].pending[number].out = kept;
        Ok(())
    }

    /// What a copy reads, of which a reduction needs all.
    fn source(
        &mut self,
        space: Space,
        address: u64,
        bytes: u32,
        reduce: Option<Reduction>,
    ) -> Result<(u64, Vec<u32>), Fault> {
        match reduce {
            None => self.range(space, address, bytes),
            Some(_) => self.one(space, address, bytes, Kind::Read).map(|at| (at, Vec::new())),
        }
    }

    /// Lets all copies to global memory happen, at the end of a warp.
    pub fn send_all(&mut self) -> Result<(), Fault> {
        if self.cluster.ctas[self.cta].pending[self.warp.number].out.is_empty() { Ok(()) } else { self.send(|_| true) }
    }

    pub fn copy_tensor(&mut self, copy: &Copy, lane: usize) -> Result<(), Fault> {
        let Copy::Tensor { op, map, shared, coordinates, barrier, offsets, mask } = copy else { return Ok(()) };
        let mut bytes = [0; 128];
        let at = self.addresses(map)[lane];
        let host = self.one(Space::Generic, at, 128, Kind::Read)?;
        // SAFETY: `one` has checked the range.
        unsafe { std::ptr::copy_nonoverlapping(host as *const u8, bytes.as_mut_ptr(), 128) };
        let map = TensorMap::decode(&bytes).map_err(Self::refused)?;
        let coordinates: Vec<i32> = coordinates.iter().map(|source| self.row(*source)[lane] as i32).collect();
        let offsets: Vec<u16> = offsets.iter().map(|source| self.row(*source)[lane] as u16).collect();
        let start = self.addresses(shared)[lane];
        let (cta, offset) = self.shared_at(shared.space, start, map.bytes() as u32)?;
        let runs = map.runs(&coordinates, &offsets, offset.into()).map_err(Self::refused)?;
        if op.direction == Direction::Load {
            // The box as it lies in shared memory.
            let total = map.bytes();
            let (mut data, mut missing) = (vec![0; total], Vec::new());
            for run in runs {
                let first = (run.shared - u64::from(offset)) as usize;
                let into = &mut data[first..][..run.bytes];
                match run.source {
                    Source::Outside => map.fill(into),
                    Source::Global(address) => {
                        let bytes = run.bytes as u32;
                        let (from, none) =
                            self.with_role(Role::Strong, |machine| machine.range(Space::Global, address, bytes))?;
                        missing.extend(none.iter().map(|byte| first as u32 + byte));
                        // SAFETY: `range` has checked the range.
                        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, into.as_mut_ptr(), into.len()) };
                        map.element.convert(into);
                    }
                }
            }
            let Some(barrier) = barrier else { return Ok(()) };
            let barrier = (barrier.space, self.addresses(barrier)[lane]);
            // Rank 0 is the own block.
            let to = u64::from(offset) | if cta == self.cta { 0 } else { (cta as u64 + 1) << SHARED_RANK };
            let data = Bytes { data, missing };
            return self.deliver((Space::Shared, to), data, barrier, *mask, lane, total as u32);
        }
        let reduce = match op.direction {
            Direction::Reduce(operation) => Some(Reduction::new(operation, map.element).map_err(Self::refused)?),
            _ => None,
        };
        for run in runs {
            if let Source::Global(address) = run.source {
                let bytes = run.bytes as u32;
                let kind = if reduce.is_some() { Kind::Update } else { Kind::Write };
                self.with_role(Role::None, |machine| machine.one(Space::Global, address, bytes, kind))?;
                self.put_off(lane, address, run.shared as u32, run.bytes as u32, reduce);
            }
        }
        Ok(())
    }
}
