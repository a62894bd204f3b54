//! The body of a function as it is decoded: operands, and steps as they are made.

use std::collections::HashMap;

use super::builder::{Builder, Symbol};
use super::names::{Names, Register};
use super::operands::{Result, bits, literal, special};
use super::target;
use crate::code::{Address, CONST, Inst, LOCAL_BASE, NONE, NOT, Space, Special, Src, Step};
use crate::lanes::{Map, lanes};
use crate::options::Class;
use crate::parse::ast::{self, Function, Index, Operand, Statement, Value};

pub(super) struct Body<'a, 't> {
    pub builder: &'a mut Builder<'t>,
    pub entry: bool,
    pub names: Names<'t>,
    pub scope: usize,
    /// Offsets of variables in local memory, or in shared memory, by number.
    offsets: Vec<(ast::Space, u32)>,
    /// Parameters and results: offset in local memory, or in the kernel's parameters.
    pub params: HashMap<&'t str, (u32, u32)>,
    /// Bytes of local memory.
    pub local: u32,
    pub guard: u32,
    /// Line of the instruction.
    pub line: u32,
    /// Rows that only one instruction uses.
    pub temporaries: u32,
    pub most_temporaries: u32,
    /// Rows that the instruction reads so far.
    pub reads: Vec<(u32, u32)>,
    /// Steps whose targets are labels.
    pub jumps: Vec<(usize, Option<usize>, usize)>,
}

impl<'a, 't> Body<'a, 't> {
    pub fn new(builder: &'a mut Builder<'t>, function: &'t Function<'t>, body: &'t [Statement<'t>]) -> Self {
        let names = Names::new(body);
        let mut made = Self {
            builder,
            entry: function.entry,
            names,
            scope: 0,
            offsets: Vec::new(),
            params: HashMap::new(),
            local: 0,
            guard: NONE,
            line: function.line,
            temporaries: 0,
            most_temporaries: 0,
            reads: Vec::new(),
            jumps: Vec::new(),
        };
        let mut at = 0;
        for declared in function.results.iter().chain(&function.params) {
            at = u32::next_multiple_of(at, declared.align.max(1));
            made.params.insert(declared.name, (at, declared.size as u32));
            at += declared.size as u32;
        }
        if !function.entry {
            made.local = at;
        }
        for variable in made.names.variables.clone() {
            let offset = match variable.space {
                ast::Space::Shared => made.builder.shared_offset(function.name, variable.name),
                _ => {
                    let offset = made.local.next_multiple_of(variable.align.max(1));
                    made.local = offset.saturating_add(variable.size as u32).min(u32::MAX - 16);
                    offset
                }
            };
            made.offsets.push((variable.space, offset));
        }
        made
    }

    pub fn emit(&mut self, class: Class, inst: Inst) {
        self.builder.code.push(Step { guard: self.guard, class, counts: false, inst });
        self.builder.lines.push(self.line);
    }

    /// A row (two if `wide`) for this instruction only.
    pub fn temporary(&mut self, wide: bool) -> u32 {
        let row = self.names.rows + self.temporaries;
        self.temporaries += if wide { 2 } else { 1 };
        self.most_temporaries = self.most_temporaries.max(self.temporaries);
        row
    }

    /// A function on lanes.
    pub fn map(&mut self, class: Class, (f, imm): (Map, u32), (d, wide): (u32, bool), args: &[Src]) {
        let arg = |i: usize| args.get(i).copied().unwrap_or(CONST);
        let end = d + if wide { 2 } else { 1 };
        let alias = self.reads.iter().any(|&(row, rows)| row & CONST == 0 && row < end && d < row + rows);
        self.emit(class, Inst::Map { f, d, a: arg(0), b: arg(1), c: arg(2), imm, wide, alias });
    }

    pub fn register(&self, name: &str) -> Result<Register> {
        self.names.register(self.scope, name).ok_or_else(|| format!("'{name}' is no register"))
    }

    /// A predicate by name.
    pub fn predicate_name(&self, name: &str) -> Result<u32> {
        let register = self.register(name)?;
        if register.bits == 1 { Ok(register.row) } else { Err(format!("'{name}' is no predicate")) }
    }

    /// A predicate as an operand, maybe negated. True is the negation of no register.
    pub fn predicate(&mut self, operand: &Operand<'t>) -> Result<u32> {
        match operand {
            Operand::Name(name, 0) => self.predicate_name(name),
            Operand::Not(name) => Ok(self.predicate_name(name)? ^ NOT),
            Operand::Value(Value::Int(value)) => Ok(if *value != 0 { NONE } else { NONE ^ NOT }),
            _ => Err("a predicate is expected".to_owned()),
        }
    }

    /// A predicate that is written; `_` is none.
    pub fn predicate_out(&self, name: &str) -> Result<u32> {
        if name == "_" { Ok(NONE) } else { self.predicate_name(name) }
    }

    /// The row of a register that is written, which has to have the type's size; `_` is a spare row.
    pub fn dst(&mut self, operand: &Operand<'t>, of: &str) -> Result<u32> {
        let Operand::Name(name, 0) = operand else { return Err("a register is expected first".to_owned()) };
        if *name == "_" {
            return Ok(self.temporary(true));
        }
        let register = self.register(name)?;
        if register.bits == 1 || register.bits.max(16) != bits(of).max(16) {
            return Err(format!("'{name}' has {} bits where .{of} is expected", register.bits));
        }
        Ok(register.row)
    }

    /// An operand whose register has to have the type's size.
    pub fn exact(&mut self, operand: &Operand<'t>, of: &str) -> Result<Src> {
        if let Operand::Name(name, _) = operand
            && let Some(register) = self.names.register(self.scope, name)
            && register.bits.max(16) != bits(of).max(16)
        {
            return Err(format!("'{name}' has {} bits where .{of} is expected", register.bits));
        }
        self.src(operand, of)
    }

    /// An operand whose register may be wider than the type.
    pub fn wide_enough(&mut self, operand: &Operand<'t>, of: &str) -> Result<Src> {
        if let Operand::Name(name, _) = operand
            && let Some(register) = self.names.register(self.scope, name)
            && register.bits < bits(of)
        {
            return Err(format!("'{name}' has only {} bits", register.bits));
        }
        self.src(operand, of)
    }

    /// An operand of a type.
    pub fn src(&mut self, operand: &Operand<'t>, of: &str) -> Result<Src> {
        let wide = bits(of) == 64;
        match operand {
            Operand::Name(name, offset) => self.named(name, *offset, wide),
            Operand::Value(value) => {
                // Registers of less than 32 bits have zeros above, and so have their constants.
                let mask = 1u64.checked_shl(bits(of)).map_or(u64::MAX, |above| above - 1);
                Ok(self.builder.constant(literal(*value, of)? & mask, wide))
            }
            _ => Err("a register or a number is expected".to_owned()),
        }
    }

    fn named(&mut self, name: &str, offset: i64, wide: bool) -> Result<Src> {
        if let Some(register) = self.names.register(self.scope, name) {
            if register.bits == 1 {
                return Err(format!("'{name}' is a predicate"));
            }
            self.reads.push((register.row, register.rows()));
            return Ok(self.resize(register.row, register.bits == 64, wide));
        }
        if name == "WARP_SZ" {
            return Ok(self.builder.constant(32, wide));
        }
        if name.starts_with('%') {
            return self.special(name, wide);
        }
        let (base, at) = self.variable(name)?;
        let at = at.wrapping_add(offset as u64);
        match base {
            Base::Constant => Ok(self.builder.constant(at, wide)),
            Base::Local => {
                let (d, at) = (self.temporary(false), self.builder.constant(at, false));
                self.map(
                    Class::Integer,
                    (lanes!(a: u32, b: u32 => u32: a.wrapping_add(b)), 0),
                    (d, false),
                    &[LOCAL_BASE, at],
                );
                Ok(self.resize(d, false, wide))
            }
            Base::Dynamic => {
                let (d, sum) = (self.temporary(false), self.temporary(false));
                self.emit(Class::Integer, Inst::Special { d, what: Special::DynamicShared });
                let at = self.builder.constant(at, false);
                self.map(Class::Integer, (lanes!(a: u32, b: u32 => u32: a.wrapping_add(b)), 0), (sum, false), &[d, at]);
                Ok(self.resize(sum, false, wide))
            }
        }
    }

    /// A row as one of another width.
    pub fn resize(&mut self, row: u32, from: bool, to: bool) -> Src {
        if from == to {
            return row;
        }
        let d = self.temporary(to);
        let map = if to { lanes!(a: u32 => u64: u64::from(a)) } else { lanes!(a: u64 => u32: a as u32) };
        self.map(Class::Integer, (map, 0), (d, to), &[row]);
        d
    }

    fn special(&mut self, name: &str, wide: bool) -> Result<Src> {
        let d = self.temporary(wide);
        if matches!(name, "%clock" | "%clock64" | "%globaltimer" | "%globaltimer_lo" | "%clock_hi" | "%globaltimer_hi")
        {
            if !name.ends_with("_hi") {
                self.emit(Class::Integer, Inst::Clock { d, wide });
                return Ok(d);
            }
            let now = self.temporary(true);
            self.emit(Class::Integer, Inst::Clock { d: now, wide: true });
            let high = self.temporary(false);
            self.map(Class::Integer, (lanes!(a: u64 => u32: (a >> 32) as u32), 0), (high, false), &[now]);
            return Ok(self.resize(high, false, wide));
        }
        let what =
            special(name).ok_or_else(|| format!("'{name}' is no register and no special register that is emulated"))?;
        if name.contains("cluster") {
            target::check(self.builder.target, target::SM_90)?;
        }
        self.builder.workspace |= matches!(what, Special::Workspace { .. });
        let row = if wide { self.temporary(false) } else { d };
        self.emit(Class::Integer, Inst::Special { d: row, what });
        Ok(self.resize(row, false, wide))
    }

    /// The address of a variable or function in its space.
    fn variable(&mut self, name: &str) -> Result<(Base, u64)> {
        if let Some(number) = self.names.variable(self.scope, name) {
            let (space, offset) = self.offsets[number];
            let base = match space {
                ast::Space::Shared if self.names.variables[number].external => Base::Dynamic,
                ast::Space::Shared => Base::Constant,
                _ => Base::Local,
            };
            return Ok((base, if base == Base::Dynamic { 0 } else { offset.into() }));
        }
        if let Some((offset, _)) = self.params.get(name) {
            return Ok((if self.entry { Base::Constant } else { Base::Local }, (*offset).into()));
        }
        match self.builder.symbol(name) {
            Some(Symbol::Shared { offset }) => Ok((Base::Constant, offset.into())),
            Some(Symbol::DynamicShared) => Ok((Base::Dynamic, 0)),
            Some(Symbol::Address(address)) => Ok((Base::Constant, address)),
            None => Err(format!("'{name}' is not declared")),
        }
    }

    /// Whether a name is a `.param` variable of a call, or a parameter of a function that is no kernel: these lie in
    /// local memory.
    pub fn in_frame(&self, name: &str) -> bool {
        let variable =
            self.names.variable(self.scope, name).is_some_and(|number| self.offsets[number].0 == ast::Space::Param);
        variable || !self.entry && self.params.contains_key(name)
    }

    /// Offset in local memory and size of a `.param` variable.
    pub fn frame_slot(&self, name: &str) -> Option<(u32, u32, u32)> {
        let number = self.names.variable(self.scope, name)?;
        let declared = self.names.variables[number];
        Some((self.offsets[number].1, declared.size as u32, declared.align))
    }

    /// `[...]` as an address.
    pub fn address(&mut self, operand: &Operand<'t>, space: Space) -> Result<Address> {
        let Operand::Address { base, index, offset, .. } = operand else {
            return Err("an address is expected".to_owned());
        };
        if let (Some(array), Some(index)) = (base, index) {
            return self.element(array, *index, *offset, space);
        }
        let Some(name) = base else {
            return Ok(Address { space, base: NONE, wide: true, offset: *offset });
        };
        if let Some(register) = self.names.register(self.scope, name) {
            if !matches!(register.bits, 32 | 64) {
                return Err(format!("'{name}' has {} bits, which is no address", register.bits));
            }
            self.reads.push((register.row, register.rows()));
            let wide = register.bits == 64;
            return Ok(Address { space, base: register.row, wide, offset: *offset });
        }
        match self.variable(name)? {
            (Base::Constant, at) => {
                Ok(Address { space, base: NONE, wide: true, offset: (at as i64).wrapping_add(*offset) })
            }
            (Base::Local, at) => {
                let space = if space == Space::Param { Space::Local } else { space };
                Ok(Address { space, base: LOCAL_BASE, wide: false, offset: at as i64 + offset })
            }
            (Base::Dynamic, _) => {
                let d = self.temporary(false);
                self.emit(Class::Integer, Inst::Special { d, what: Special::DynamicShared });
                Ok(Address { space, base: d, wide: false, offset: *offset })
            }
        }
    }

    /// The address of the element of an array `offset` behind the one that `index` names, as Dr.Jit looks functions up.
    fn element(&mut self, array: &'t str, index: Index<'t>, offset: i64, space: Space) -> Result<Address> {
        let own = self.names.variable(self.scope, array).map(|number| self.names.variables[number].stride);
        let Some(stride) = own.or_else(|| self.builder.strides.get(array).copied()) else {
            return Err(format!("'{array}' is no array"));
        };
        let offset = offset.wrapping_mul(stride.into());
        let Index::Register(index) = index else {
            let plain = Operand::Address { base: Some(array), index: None, offset, rest: Vec::new() };
            return self.address(&plain, space);
        };
        let start = self.src(&Operand::Name(array, 0), "u64")?;
        let index = self.src(&Operand::Name(index, 0), "u64")?;
        let (base, stride) = (self.temporary(true), self.builder.constant(stride.into(), true));
        let map = lanes!(start: u64, index: u64, stride: u64 => u64: start.wrapping_add(index.wrapping_mul(stride)));
        self.map(Class::Integer, (map, 0), (base, true), &[start, index, stride]);
        Ok(Address { space, base, wide: true, offset })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Base {
    Constant,
    /// Behind the start of the frame's local memory.
    Local,
    /// Behind static shared memory.
    Dynamic,
}
