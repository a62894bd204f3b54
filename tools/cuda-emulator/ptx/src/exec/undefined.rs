//! Values that come from memory that nothing has written.
//!
//! To read such memory is no fault by itself: a kernel may load the padding of a row and throw it away. So registers
//! and predicates know which of their lanes are undefined, results of undefined operands are undefined, and memory to
//! which such a value is stored counts as not written. A fault is what depends on one: an address, a branch, a vote,
//! an atomic operation. None of this is looked at in a warp that has read nothing undefined.

use super::machine::Machine;
use super::span::{Addresses, each};
use crate::code::{
    Access, Address, CARRY, CONST, Combine, Exchange, ExchangeOp, Inst, LOCAL_WINDOW, NONE, NOT, PARAM_WINDOW,
    SHARED_WINDOW, Space, Src, Target, Tensor, WINDOW,
};
use crate::fault::{Fault, FaultKind};
use crate::lanes::LANES;

/// Lanes in which each byte of an access is undefined.
pub(super) type Missing = [u32; 32];

/// The place in a lane's local memory that an address means.
fn local(space: Space, address: u64) -> Option<u64> {
    match space {
        Space::Local => Some(address),
        Space::Generic => Some(address.wrapping_sub(LOCAL_WINDOW)).filter(|at| *at < WINDOW),
        _ => None,
    }
}

impl Machine<'_, '_> {
    pub fn undefined_row(&self, source: Src) -> u32 {
        // `NONE` has the bit, too.
        if source & CONST != 0 { 0 } else { self.warp.undefined.row((self.base + source) as usize) }
    }

    fn undefined_predicate(&self, p: u32) -> u32 {
        if p | NOT == NONE { 0 } else { self.warp.undefined.predicate((self.base + (p & !NOT)) as usize) }
    }

    pub fn set_undefined_row(&mut self, row: u32, mask: u32, lanes: u32) {
        if row != NONE {
            self.warp.undefined.set_row((self.base + row) as usize, mask, lanes);
        }
    }

    fn set_undefined_predicate(&mut self, p: u32, mask: u32, lanes: u32) {
        if p != NONE {
            self.warp.undefined.set_predicate((self.base + p) as usize, mask, lanes);
        }
    }

    /// The lanes of a mask in which each of `size` bytes at these addresses is undefined; they are noted as the origin.
    pub fn missing(&mut self, space: Space, at: &Addresses, mask: u32, size: u32, why: &Fault) -> Missing {
        let mut missing = [0; 32];
        each(mask, |lane| {
            for byte in 0..size.min(32) {
                let written = self.is_written(space, at[lane] + u64::from(byte), lane);
                missing[byte as usize] |= u32::from(!written) << lane;
            }
        });
        self.has_undefined(why);
        missing
    }

    /// The bytes of a load from local memory to which something undefined has been stored, if there are any.
    #[cold]
    pub fn missing_local(&self, access: &Access, mask: u32, size: u32) -> Option<Missing> {
        if self.warp.undefined.locals.is_empty() {
            return None;
        }
        let at = self.addresses(&access.address);
        let mut missing = [0; 32];
        each(mask, |lane| {
            for byte in 0..size.min(32) {
                let address = local(access.address.space, at[lane] + u64::from(byte));
                missing[byte as usize] |= address.map_or(0, |address| self.warp.undefined.local(address) & 1 << lane);
            }
        });
        missing.iter().any(|lanes| *lanes != 0).then_some(missing)
    }

    /// Whether a lane finds a byte written.
    pub fn is_written(&mut self, space: Space, address: u64, lane: usize) -> bool {
        let window = match space {
            Space::Shared => 0,
            Space::Generic if address.wrapping_sub(SHARED_WINDOW) < WINDOW => SHARED_WINDOW,
            _ if local(space, address).is_some_and(|at| self.warp.undefined.local(at) >> lane & 1 != 0) => {
                return false;
            }
            Space::Generic if (SHARED_WINDOW..PARAM_WINDOW + WINDOW).contains(&address) => return true,
            Space::Generic | Space::Global => {
                return self.find(address, 1).is_none_or(|region| region.written(address, 1));
            }
            Space::Local | Space::Param => return true,
        };
        match self.shared_place(address - window, 1) {
            Ok((cta, offset)) => self.cluster.ctas[cta].shared.is_written(offset),
            Err(_) => true,
        }
    }

    /// Marks what a store of undefined values has written as not written. `at` are the addresses before they are
    /// resolved.
    pub fn store_undefined(&mut self, access: &Access, at: &Addresses, mask: u32) {
        let size = u64::from(access.element.bytes);
        for (i, &reg) in access.regs[..access.count.into()].iter().enumerate() {
            let lanes = self.undefined_row(reg) & mask;
            let tracked = if self.warp.undefined.locals.is_empty() { 0 } else { mask & !lanes };
            for lane in (0..LANES).filter(|lane| (lanes | tracked) >> lane & 1 != 0) {
                for address in (0..size).map(|byte| at[lane] + i as u64 * size + byte) {
                    if lanes >> lane & 1 != 0 {
                        self.unwrite(access.address.space, address, lane);
                    } else if let Some(at) = local(access.address.space, address) {
                        self.warp.undefined.set_local(at, lane, false);
                    }
                }
            }
        }
    }

    /// Takes back that a byte is written; a byte of local memory is a lane's own.
    pub fn unwrite(&mut self, space: Space, address: u64, lane: usize) {
        if let Some(at) = local(space, address) {
            return self.warp.undefined.set_local(at, lane, true);
        }
        let window = match space {
            Space::Shared => 0,
            Space::Generic if address.wrapping_sub(SHARED_WINDOW) < WINDOW => SHARED_WINDOW,
            Space::Generic if (SHARED_WINDOW..PARAM_WINDOW + WINDOW).contains(&address) => return,
            Space::Generic | Space::Global => {
                if let Some(region) = self.find(address, 1) {
                    region.unmark(address);
                }
                return;
            }
            Space::Local | Space::Param => return,
        };
        if let Ok((cta, offset)) = self.shared_place(address - window, 1) {
            self.cluster.ctas[cta].shared.unwrite(offset);
        }
    }

    #[cold]
    fn depends(&mut self, what: &str, lanes: u32) -> Fault {
        self.lane = lanes.trailing_zeros() as usize;
        let (read, pc) = &self.warp.undefined.origin;
        let line = self.env.program.lines.get(*pc as usize).copied().unwrap_or(0);
        let text = self.env.program.line(line);
        let what = format!("{what} depends on memory that nothing has written, read at line {line}, {text}: {read}");
        Fault::new(FaultKind::Uninitialised, what)
    }

    pub fn defined(&mut self, what: &str, lanes: u32) -> Result<(), Fault> {
        if lanes == 0 { Ok(()) } else { Err(self.depends(what, lanes)) }
    }

    fn defined_address(&mut self, address: &Address, mask: u32) -> Result<(), Fault> {
        let lanes = if address.base == NONE { 0 } else { self.undefined_row(address.base) & mask };
        self.defined("an address", lanes)
    }

    /// Whether the lanes that execute a step depend on undefined values.
    pub fn check_guard(&mut self, guard: u32) -> Result<(), Fault> {
        let lanes = self.undefined_predicate(guard) & self.mask;
        self.defined("whether this is executed", lanes)
    }

    /// Notes which results of a step are undefined, before it is executed.
    ///
    /// # Errors
    /// What it does depends on an undefined value.
    pub fn shade(&mut self, inst: &Inst, mask: u32) -> Result<(), Fault> {
        match inst {
            Inst::Map { d, a, b, c, .. } => {
                let lanes = self.undefined_row(*a) | self.undefined_row(*b) | self.undefined_row(*c);
                self.set_undefined_row(*d, mask, lanes);
            }
            Inst::Carry(carry) => {
                let mut lanes =
                    [carry.a, carry.b, carry.c].iter().fold(0, |lanes, row| lanes | self.undefined_row(*row));
                if carry.carry_in {
                    lanes |= self.undefined_predicate(CARRY);
                }
                self.set_undefined_row(carry.d, mask, lanes);
                if carry.carry_out {
                    self.set_undefined_predicate(CARRY, mask, lanes);
                }
            }
            Inst::Test { a, b, p, q, combine, c, .. } => {
                let of_c = self.undefined_predicate(*c);
                let decided = match combine {
                    Combine::And => !of_c & !self.predicate(*c),
                    Combine::Or => !of_c & self.predicate(*c),
                    Combine::None | Combine::Xor => 0,
                };
                let of_c = if *combine == Combine::None { 0 } else { of_c };
                let lanes = (self.undefined_row(*a) | self.undefined_row(*b) | of_c) & !decided;
                self.set_undefined_predicate(*p, mask, lanes);
                self.set_undefined_predicate(*q, mask, lanes);
            }
            Inst::Logic { d, a, b, table } => {
                let (of_a, of_b) = (self.undefined_predicate(*a), self.undefined_predicate(*b));
                let (a, b) = (self.predicate(*a), self.predicate(*b));
                let value = |a: u32, b: u32| {
                    let bit = |i: u8| 0u32.wrapping_sub(u32::from(table >> i & 1));
                    bit(0) & !a & !b | bit(1) & a & !b | bit(2) & !a & b | bit(3) & a & b
                };
                // An undefined operand counts where the other one does not decide.
                let by_a = of_a & !of_b & (value(0, b) ^ value(u32::MAX, b));
                let by_b = of_b & !of_a & (value(a, 0) ^ value(a, u32::MAX));
                self.set_undefined_predicate(*d, mask, by_a | by_b | of_a & of_b);
            }
            Inst::Select { d, a, b, p, .. } => {
                let chosen = self.predicate(*p);
                let lanes = chosen & self.undefined_row(*a) | !chosen & self.undefined_row(*b);
                self.set_undefined_row(*d, mask, lanes | self.undefined_predicate(*p));
            }
            Inst::Spread { d, p, .. } => {
                let lanes = self.undefined_predicate(*p);
                self.set_undefined_row(*d, mask, lanes);
            }
            Inst::Special { d, .. }
            | Inst::Param { d, .. }
            | Inst::Clock { d, .. }
            | Inst::Alloca { d, .. }
            | Inst::StackSave { d, .. } => self.set_undefined_row(*d, mask, 0),
            Inst::IsSpace { p, .. } => self.set_undefined_predicate(*p, mask, 0),
            Inst::Load(access) => {
                self.defined_address(&access.address, mask)?;
                access.regs[..access.count.into()].iter().for_each(|row| self.set_undefined_row(*row, mask, 0));
            }
            Inst::Store(access) => self.defined_address(&access.address, mask)?,
            Inst::Atom(atom) => {
                self.defined_address(&atom.address, mask)?;
                let operands = atom.b[..atom.count.into()]
                    .iter()
                    .fold(self.undefined_row(atom.c), |lanes, row| lanes | self.undefined_row(*row));
                self.defined("an atomic operation", operands & mask)?;
                atom.d[..atom.count.into()].iter().for_each(|row| self.set_undefined_row(*row, mask, 0));
            }
            Inst::Switch { a, .. } => {
                let lanes = self.undefined_row(*a) & mask;
                self.defined("a branch", lanes)?;
            }
            Inst::Call(call) => {
                if let Target::Register(row) = call.target {
                    let lanes = self.undefined_row(row) & mask;
                    self.defined("a call", lanes)?;
                }
            }
            Inst::Exchange(exchange) => self.shade_exchange(exchange, mask)?,
            Inst::Barrier(barrier) => {
                let lanes = self.undefined_predicate(barrier.pred) & mask;
                self.defined("a barrier", lanes)?;
                self.set_undefined_row(barrier.d, mask, 0);
            }
            Inst::Tensor(tensor) => self.shade_tensor(tensor),
            Inst::Mbarrier(step) => {
                self.set_undefined_row(step.d, mask, 0);
                self.set_undefined_predicate(step.p, mask, 0);
            }
            _ => {}
        }
        Ok(())
    }

    /// A shuffle of anything undefined gives every lane something undefined: lanes are not told apart.
    fn shade_exchange(&mut self, exchange: &Exchange, mask: u32) -> Result<(), Fault> {
        use ExchangeOp as E;
        let votes = self.undefined_predicate(exchange.pred) & mask;
        self.defined("a vote", votes)?;
        let operands = if matches!(exchange.op, E::ActiveMask | E::WarpSync | E::Elect) {
            0
        } else {
            self.undefined_row(exchange.a) | self.undefined_row(exchange.b) | self.undefined_row(exchange.c)
        };
        let lanes = if operands & mask == 0 { 0 } else { u32::MAX };
        self.set_undefined_row(exchange.d, mask, lanes);
        // Of a shuffle it says whether the other lane is in range.
        let of_match = matches!(exchange.op, E::MatchAll | E::MatchAny);
        self.set_undefined_predicate(exchange.p, mask, if of_match { lanes } else { 0 });
        Ok(())
    }

    /// A product of anything undefined is undefined as a whole.
    fn shade_tensor(&mut self, tensor: &Tensor) {
        let (d, operands): (&[u32], _) = match tensor {
            Tensor::Mma { d, a, b, c, .. } | Tensor::WmmaMma { d, a, b, c, .. } => (d, [&a[..], b, c].concat()),
            Tensor::Movmatrix { d, a } => (std::slice::from_ref(d), vec![*a]),
            Tensor::Ldmatrix { d, .. } | Tensor::WmmaLoad { d, .. } => (d, Vec::new()),
            _ => return,
        };
        let lanes = operands.iter().fold(0, |lanes, row| lanes | self.undefined_row(*row));
        d.iter().for_each(|row| self.set_undefined_row(*row, u32::MAX, if lanes == 0 { 0 } else { u32::MAX }));
    }
}
