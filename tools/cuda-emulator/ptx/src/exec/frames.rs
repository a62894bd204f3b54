//! Frames: calls and returns, local memory that grows, kernel parameters and carries.

use super::machine::{Flow, Machine};
use crate::code::{CARRY, Carry, CarryOp, HEADER, LOCAL_BASE, LOCAL_TOP, NONE, RETURN_BASE, RETURN_PC, Src};
use crate::fault::{Fault, FaultKind};
use crate::lanes::{LANES, Row};

impl Machine<'_, '_> {
    pub fn parameter(&mut self, d: u32, offset: u32, bytes: u8, wide: bool, mask: u32) -> Result<(), Fault> {
        let (at, params) = (offset as usize, self.env.params());
        let Some(found) = params.get(at..at + usize::from(bytes)) else {
            let what = format!("read of {bytes} bytes at {at:#x} of the parameters, which have {} bytes", params.len());
            return Err(Fault::new(FaultKind::OutOfBounds, what));
        };
        let mut value = [0; 8];
        value[..found.len()].copy_from_slice(found);
        let value = u64::from_le_bytes(value);
        let source = if wide {
            let (low, high) = (value as u32, (value >> 32) as u32);
            [Row(std::array::from_fn(|i| if i % 2 == 0 { low } else { high })); 2]
        } else {
            [Row([value as u32; LANES]); 2]
        };
        let (to, blend) = (self.row_mut(d), self.worker.blend);
        // SAFETY: rows of the frame.
        unsafe { blend(to, source.as_ptr(), mask, wide) };
        Ok(())
    }

    pub fn carry(&mut self, carry: &Carry, mask: u32) {
        let flags = self.predicate(CARRY);
        let mut out = 0;
        let mut results = [0u64; LANES];
        let value = |machine: &Self, source: Src, lane: usize| {
            if carry.wide { machine.wide(source)[lane] } else { machine.row(source)[lane].into() }
        };
        super::span::each(mask, |lane| {
            let (a, b, c) = (value(self, carry.a, lane), value(self, carry.b, lane), value(self, carry.c, lane));
            let set = flags >> lane & 1 != 0;
            let flag = carry.carry_in && set;
            // A difference sets the flag unless it borrows: it is a + !b + 1 on a card. `addc` after `sub.cc` sees that.
            let borrow = carry.carry_in && !set;
            let (a, b) = match carry.op {
                CarryOp::Add | CarryOp::Sub => (a, b),
                CarryOp::MadLow if carry.wide => (a.wrapping_mul(b), c),
                CarryOp::MadLow => (u64::from((a as u32).wrapping_mul(b as u32)), c),
                CarryOp::MadHigh { signed: false } if carry.wide => (((u128::from(a) * u128::from(b)) >> 64) as u64, c),
                CarryOp::MadHigh { .. } if carry.wide => {
                    (((i128::from(a as i64) * i128::from(b as i64)) >> 64) as u64, c)
                }
                CarryOp::MadHigh { signed: false } => ((a * b) >> 32, c),
                CarryOp::MadHigh { .. } => (u64::from(((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32), c),
            };
            let (result, carried) = match (carry.op, carry.wide) {
                (CarryOp::Sub, true) => {
                    let (x, first) = a.overflowing_sub(b);
                    let (x, second) = x.overflowing_sub(borrow.into());
                    (x, !(first || second))
                }
                (CarryOp::Sub, false) => {
                    let x = a.wrapping_sub(b).wrapping_sub(borrow.into());
                    (x & 0xffff_ffff, x >> 32 == 0)
                }
                (_, true) => {
                    let (x, first) = a.overflowing_add(b);
                    let (x, second) = x.overflowing_add(flag.into());
                    (x, first || second)
                }
                (_, false) => {
                    let x = a + b + u64::from(flag);
                    (x & 0xffff_ffff, x >> 32 != 0)
                }
            };
            results[lane] = result;
            out |= u32::from(carried) << lane;
        });
        if carry.wide {
            self.set_wide(carry.d, mask, &results);
        } else {
            self.set(carry.d, mask, &results.map(|result| result as u32));
        }
        if carry.carry_out {
            self.set_predicate(CARRY, mask, out);
        }
    }

    /// Ends lanes.
    pub fn exit(&mut self, mask: u32) -> Result<Flow, Fault> {
        self.warp.live &= !mask;
        self.warp.ready &= !mask;
        self.warp.wake();
        self.cluster.ctas[self.cta].changed = true;
        self.cluster.ctas[self.cta].live[self.warp.number] = self.warp.live;
        if self.warp.live == 0 {
            let shared = &mut self.cluster.ctas[self.cta].shared;
            let mut clock = shared.publish(self.warp);
            // It does no more.
            clock.seen[self.warp.number] = u32::MAX;
            shared.exited.join(&clock);
            self.send_all()?;
        }
        self.warp.place(self.mask & !mask, self.pc + 1);
        Ok(Flow::Select)
    }

    /// `ret`: back to the caller, or the end of a kernel.
    pub fn give_back(&mut self, mask: u32) -> Result<Flow, Fault> {
        if self.base == 0 {
            return self.exit(mask);
        }
        let (pc, base) = (*self.row(RETURN_PC), *self.row(RETURN_BASE));
        super::span::each(mask, |lane| {
            self.warp.pc[lane] = pc[lane];
            self.warp.base[lane] = base[lane];
        });
        self.warp.place(self.mask & !mask, self.pc + 1);
        Ok(Flow::Select)
    }

    pub fn alloca(&mut self, d: u32, size: Src, align: u32, wide: bool, mask: u32) -> Result<(), Fault> {
        let (size, top) = (*self.row(size), *self.row(LOCAL_TOP));
        let (mut at, mut tops, mut most) = ([0; LANES], [0; LANES], 0);
        super::span::each(mask, |lane| {
            at[lane] = top[lane].next_multiple_of(align.max(1));
            tops[lane] = at[lane].saturating_add(size[lane]).min(u32::MAX - 64).next_multiple_of(16);
            most = most.max(tops[lane]);
        });
        if most as usize > super::warp::MOST_LOCAL || !self.warp.need_local(most as usize) {
            return Err(Fault::new(
                FaultKind::OutOfBounds,
                format!("alloca: {most} bytes of local memory are too many"),
            ));
        }
        self.set(LOCAL_TOP, mask, &tops);
        if wide {
            self.set_wide(d, mask, &at.map(u64::from));
        } else {
            self.set(d, mask, &at);
        }
        Ok(())
    }

    /// Enters a function with the lanes of a mask.
    pub fn enter(&mut self, number: u32, call: &crate::code::Call, mask: u32) -> Result<(), Fault> {
        let callee = &self.env.program.functions[number as usize];
        if callee.entry == NONE {
            let what = format!("a call of '{}', which has no body in this module", callee.name);
            return Err(Fault::new(FaultKind::Unsupported, what));
        }
        let base = self.base + call.rows;
        let tops = self.row(LOCAL_TOP).map(|top| top.next_multiple_of(16));
        let mut most = 0;
        // The arguments as the call has them, which a callee that was reached by its address may not expect.
        let ends = call.copies.iter().map(|&(_, target, bytes)| u64::from(target) + u64::from(bytes));
        let needed = ends.fold(u64::from(callee.local), u64::max);
        super::span::each(mask, |lane| most = most.max(u64::from(tops[lane]) + needed));
        let rows = (base + callee.rows.max(HEADER)) as usize;
        if !self.warp.need_rows(rows) || !self.warp.need_local(most as usize) {
            return Err(Fault::new(FaultKind::OutOfBounds, "calls are nested too deeply: the stack is full"));
        }
        // The rows may have moved.
        self.frame = self.warp.rows.as_mut_ptr().wrapping_add(self.base as usize);
        self.predicates = self.warp.predicates.as_mut_ptr().wrapping_add(self.base as usize);
        let own = *self.row(LOCAL_BASE);
        super::span::each(mask, |lane| {
            let from = self.warp.local_at(lane);
            for &(source, target, bytes) in &call.copies {
                let (source, target) = (own[lane] + source, tops[lane] + target);
                self.warp.undefined.copy_local(lane, source.into(), target.into(), bytes);
                // SAFETY: both ranges lie in the lane's local memory, which has just been made large enough.
                unsafe {
                    let source = (from + u64::from(source)) as *const u8;
                    let target = (from + u64::from(target)) as *mut u8;
                    std::ptr::copy(source, target, bytes as usize);
                }
            }
            let rows = &mut self.warp.rows[base as usize..];
            rows[RETURN_PC as usize].0[lane] = self.pc + 1;
            rows[RETURN_BASE as usize].0[lane] = self.base;
            rows[LOCAL_BASE as usize].0[lane] = tops[lane];
            rows[LOCAL_TOP as usize].0[lane] = tops[lane] + callee.local;
            self.warp.pc[lane] = callee.entry;
            self.warp.base[lane] = base;
        });
        Ok(())
    }
}
