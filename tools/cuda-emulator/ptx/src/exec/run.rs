//! The loop that runs a warp.

use super::machine::{Flow, Machine, Stop};
use super::warp::Group;
use crate::code::{Combine, Inst, LOCAL_TOP, LOCAL_WINDOW, NONE, SHARED_RANK, SHARED_WINDOW, Space, WINDOW};
use crate::fault::{Fault, FaultKind};
use crate::lanes::{LANES, Row};

impl Machine<'_, '_> {
    /// Runs until no lane can go on, or for `fuel` backward jumps.
    pub fn run(&mut self, fuel: &mut u32) -> Result<Stop, Fault> {
        loop {
            let seeded = self.env.options.seed.is_some();
            let worker = &mut *self.worker;
            let group = self.warp.select(seeded.then_some(|count| worker.below(count)));
            let Some(mut group) = group else {
                return Ok(if self.warp.live == 0 { Stop::Done } else { Stop::Blocked });
            };
            let mut patience = if group.alone { u32::MAX } else { 256 };
            if seeded && !group.alone {
                group.limit = u32::MAX;
                patience = 1 + self.worker.below(64);
            }
            (self.mask, self.pc, self.base) = (group.mask, group.pc, group.base);
            self.frame = self.warp.rows.as_mut_ptr().wrapping_add(group.base as usize);
            self.predicates = self.warp.predicates.as_mut_ptr().wrapping_add(group.base as usize);
            match self.group(group, fuel, patience)? {
                Flow::Yield => return Ok(Stop::Slice),
                _ if *fuel == 0 => return Ok(Stop::Slice),
                _ => {}
            }
        }
    }

    /// Runs one group until it meets another, parts, waits or exits.
    fn group(&mut self, group: Group, fuel: &mut u32, mut patience: u32) -> Result<Flow, Fault> {
        let program = self.env.program;
        let code = &program.code[..];
        loop {
            if self.pc >= group.limit {
                self.warp.place(self.mask, self.pc);
                return Ok(Flow::Select);
            }
            let step = &code[self.pc as usize];
            let mask = if step.guard == NONE { self.mask } else { self.mask & self.predicate(step.guard) };
            let counts = &mut self.worker.counts;
            counts.instructions[step.class as usize] += u64::from(step.counts);
            counts.diverged += u64::from(step.counts & (mask != self.warp.live));
            if self.warp.undefined.any {
                self.check_guard(step.guard)?;
            }
            // A jump is not skipped: the lanes it is not for go on, too.
            if mask == 0 {
                self.pc += 1;
                continue;
            }
            if self.warp.undefined.any {
                self.shade(&step.inst, mask)?;
            }
            match self.step(&step.inst, mask)? {
                Flow::Next => self.pc += 1,
                Flow::Jump(target) => {
                    if target <= self.pc {
                        *fuel -= 1;
                        patience -= 1;
                        if *fuel == 0 || patience == 0 {
                            self.warp.place(self.mask, target);
                            self.warp.tired = self.mask;
                            return Ok(Flow::Select);
                        }
                    }
                    self.pc = target;
                }
                other => return Ok(other),
            }
        }
    }

    #[inline(always)]
    fn step(&mut self, inst: &Inst, mask: u32) -> Result<Flow, Fault> {
        match inst {
            Inst::Map { f, d, a, b, c, imm, wide, alias } => {
                let (a, b, c) = (self.pointer(*a), self.pointer(*b), self.pointer(*c));
                let to = self.row_mut(*d);
                // SAFETY: the rows are those that the function needs; without `alias` the result is none of them.
                unsafe {
                    if mask == self.warp.live && !alias {
                        f(to, a, b, c, *imm);
                    } else {
                        let mut rows = [const { std::mem::MaybeUninit::<Row>::uninit() }; 2];
                        let result = rows.as_mut_ptr().cast::<Row>();
                        f(result, a, b, c, *imm);
                        (self.worker.blend)(to, result, mask, *wide);
                    }
                }
            }
            Inst::Test { f, a, b, p, q, combine, c } => {
                // SAFETY: the rows are those that the function needs.
                let found = unsafe { f(self.pointer(*a), self.pointer(*b)) };
                let (mut yes, mut no) = (found, !found);
                if *combine != Combine::None {
                    let c = self.predicate(*c);
                    let join = |value: u32| match combine {
                        Combine::And => value & c,
                        Combine::Or => value | c,
                        _ => value ^ c,
                    };
                    (yes, no) = (join(yes), join(no));
                }
                self.set_predicate(*p, mask, yes);
                self.set_predicate(*q, mask, no);
            }
            Inst::Load(access) => self.load(access, mask)?,
            Inst::Store(access) => self.store(access, mask)?,
            Inst::Jump { target } => return Ok(self.part(mask, *target)),
            Inst::Select { d, a, b, p, wide } => {
                let chosen = self.predicate(*p);
                let (a, b, to) = (self.pointer(*a), self.pointer(*b), self.row_mut(*d));
                // SAFETY: rows of the frame; each has two where `wide`.
                unsafe {
                    let blend = self.worker.blend;
                    if a != to.cast_const() {
                        if b != to.cast_const() {
                            blend(to, b, mask & !chosen, *wide);
                        }
                        blend(to, a, mask & chosen, *wide);
                    } else {
                        blend(to, b, mask & !chosen, *wide);
                    }
                }
            }
            Inst::Logic { d, a, b, table } => {
                let (a, b) = (self.predicate(*a), self.predicate(*b));
                let bit = |i: u8| 0u32.wrapping_sub(u32::from(table >> i & 1));
                let value = bit(0) & !a & !b | bit(1) & a & !b | bit(2) & !a & b | bit(3) & a & b;
                self.set_predicate(*d, mask, value);
            }
            Inst::Param { d, offset, element } => self.parameter(*d, *offset, element.bytes, element.wide, mask)?,
            Inst::Special { d, what } => {
                let values = self.special(*what);
                self.set(*d, mask, &values);
            }
            Inst::Nop => {}
            other => return self.rare(other, mask),
        }
        Ok(Flow::Next)
    }

    #[inline(never)]
    fn rare(&mut self, inst: &Inst, mask: u32) -> Result<Flow, Fault> {
        match inst {
            Inst::Atom(atom) => self.atom(atom, mask)?,
            Inst::Carry(carry) => self.carry(carry, mask),
            Inst::Spread { d, p, value } => {
                let bits = self.predicate(*p);
                let values = std::array::from_fn(|lane| if bits >> lane & 1 != 0 { *value } else { 0 });
                self.set(*d, mask, &values);
            }
            Inst::IsSpace { p, a, space, cluster } => {
                let at = *self.wide(*a);
                let inside = |address: u64, window: u64| address.wrapping_sub(window) < WINDOW;
                let mut found = 0;
                for (lane, &address) in at.iter().enumerate() {
                    let is = match space {
                        Space::Shared => {
                            let rank = (address.wrapping_sub(SHARED_WINDOW) >> SHARED_RANK) as usize;
                            inside(address, SHARED_WINDOW) && (*cluster || rank == 0 || rank == self.cta + 1)
                        }
                        Space::Local => inside(address, LOCAL_WINDOW),
                        Space::Param => inside(address, crate::code::PARAM_WINDOW),
                        // A kernel's parameters count as global.
                        _ => !(SHARED_WINDOW..LOCAL_WINDOW + WINDOW).contains(&address),
                    };
                    found |= u32::from(is) << lane;
                }
                self.set_predicate(*p, mask, found);
            }
            Inst::Switch { a, targets } => {
                let index = *self.row(*a);
                let first = index[mask.trailing_zeros() as usize];
                let mut same = 0;
                super::span::each(mask, |lane| same |= u32::from(index[lane] == first) << lane);
                let Some(&target) = targets.get(first as usize) else {
                    self.lane = same.trailing_zeros() as usize;
                    let what = format!("brx.idx with index {first} and {} targets", targets.len());
                    return Err(Fault::new(FaultKind::OutOfBounds, what));
                };
                self.warp.place(same, target);
                // The others come here again.
                self.warp.place(mask & !same, self.pc);
                self.warp.place(self.mask & !mask, self.pc + 1);
                if same == self.mask {
                    return Ok(Flow::Jump(target));
                }
                return Ok(Flow::Select);
            }
            Inst::Call(call) => return self.call(call, mask),
            Inst::Results(call) => self.results(call, mask)?,
            Inst::Return => return self.give_back(mask),
            Inst::Exit => return self.exit(mask),
            Inst::Trap => {
                self.lane = mask.trailing_zeros() as usize;
                return Err(Fault::new(FaultKind::Trap, "the kernel ended itself with 'trap'"));
            }
            Inst::Alloca { d, size, align, wide } => self.alloca(*d, *size, *align, *wide, mask)?,
            Inst::StackSave { d, wide } => {
                let top = *self.row(LOCAL_TOP);
                if *wide {
                    self.set_wide(*d, mask, &top.map(u64::from));
                } else {
                    self.set(*d, mask, &top);
                }
            }
            Inst::StackRestore { a, wide } => {
                let top = if *wide { self.wide(*a).map(|top| top as u32) } else { *self.row(*a) };
                // Calls and `alloca` go on from there.
                let mut wrong = 0;
                super::span::each(mask, |lane| wrong |= u32::from(top[lane] as usize > self.warp.stride) << lane);
                if wrong != 0 {
                    self.lane = wrong.trailing_zeros() as usize;
                    let what = format!("stackrestore to {:#x}, which is no top of the stack", top[self.lane]);
                    return Err(Fault::new(FaultKind::OutOfBounds, what));
                }
                self.set(LOCAL_TOP, mask, &top);
            }
            Inst::Exchange(exchange) => return self.exchange(exchange, mask),
            Inst::Barrier(barrier) => return self.barrier(barrier, mask),
            Inst::Clock { d, wide } => {
                let now = self.worker.counts.total();
                if *wide {
                    self.set_wide(*d, mask, &[now; LANES]);
                } else {
                    self.set(*d, mask, &[now as u32; LANES]);
                }
            }
            Inst::Fence => self.fence(),
            Inst::Sleep => {
                self.warp.place(self.mask, self.pc + 1);
                self.warp.tired = self.mask;
                return Ok(Flow::Yield);
            }
            Inst::Unknown(message) => {
                self.lane = mask.trailing_zeros() as usize;
                return Err(Fault::new(FaultKind::Unsupported, message.to_string()));
            }
            Inst::Tensor(step) => return self.tensor(step, mask),
            Inst::Copy(copy) => return self.copy(copy, mask),
            Inst::Mbarrier(step) => return self.mbarrier(step, mask),
            _ => {}
        }
        Ok(Flow::Next)
    }
}
