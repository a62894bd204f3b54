//! Loads, stores, atomic operations and address arithmetic.

use super::body::Body;
use super::operands::{Op, Result, bits, space};
use crate::code::{
    Access, Address, Atom, AtomOp, AtomType, Element, Inst, LOCAL_WINDOW, NONE, PARAM_WINDOW, SHARED_WINDOW, Space,
};
use crate::lanes::lanes;
use crate::options::Class;
use crate::parse::ast::Operand;

fn class(space: Space) -> Class {
    match space {
        Space::Generic | Space::Global => Class::Global,
        Space::Shared => Class::Shared,
        Space::Local | Space::Param => Class::Local,
    }
}

/// The registers of a vector operand, as many as `.v2`, `.v4` or `.v8` says and 32 bytes at most, or the one of a
/// scalar.
pub(super) fn elements<'o, 't>(op: &Op<'_>, of: &str, operand: &'o Operand<'t>) -> Result<&'o [Operand<'t>]> {
    let expected = [("v2", 2), ("v4", 4), ("v8", 8)].into_iter().find(|(word, _)| op.has(word)).map(|(_, count)| count);
    match (expected, operand) {
        (Some(count), Operand::Vector(parts)) if parts.len() == count && count as u32 * bits(of) <= 256 => Ok(parts),
        (None, Operand::Vector(parts)) if parts.len() == 1 => Ok(parts),
        (None, Operand::Vector(_)) | (Some(_), _) => Err("this vector is not emulated".to_owned()),
        (None, one) => Ok(std::slice::from_ref(one)),
    }
}

impl<'t> Body<'_, 't> {
    pub fn access(&mut self, op: &Op<'t>, args: &[Operand<'t>]) -> Result<bool> {
        match op.name {
            "st" | "red" if op.has("async") => return Ok(false),
            "ld" | "ldu" => self.load(op, args)?,
            "st" => self.store(op, args)?,
            "atom" | "red" => self.atomic(op, args)?,
            "cvta" => self.convert_address(op, args)?,
            "isspacep" => {
                let [Operand::Name(p, 0), a] = args else { return Err("2 operands are expected".to_owned()) };
                if op.has("const") {
                    // Constants lie among other global memory.
                    return Err("'.const' is not emulated here".to_owned());
                }
                let (p, a) = (self.predicate_name(p)?, self.src(a, "u64")?);
                let cluster = op.has("shared::cluster");
                self.emit(Class::Integer, Inst::IsSpace { p, a, space: space(op), cluster });
            }
            "prefetch" | "prefetchu" | "applypriority" | "discard" => self.emit(Class::Global, Inst::Nop),
            "createpolicy" => {
                let d = self.dst(args.first().ok_or("a register is expected")?, "b64")?;
                let zero = self.builder.constant(0, true);
                self.copy(d, zero, true);
            }
            "alloca" => {
                let [to, size, rest @ ..] = args else { return Err("2 operands are expected".to_owned()) };
                let of = op.of()?;
                let size = self.src(size, of)?;
                let size = self.resize(size, bits(of) == 64, false);
                let align = match rest {
                    [Operand::Value(crate::parse::ast::Value::Int(align))] => *align as u32,
                    _ => 8,
                };
                let d = self.dst(to, of)?;
                self.emit(Class::Local, Inst::Alloca { d, size, align, wide: bits(of) == 64 });
            }
            "stacksave" => {
                let of = op.of()?;
                let d = self.dst(args.first().ok_or("a register is expected")?, of)?;
                self.emit(Class::Local, Inst::StackSave { d, wide: bits(of) == 64 });
            }
            "stackrestore" => {
                let of = op.of()?;
                let a = self.src(args.first().ok_or("a register is expected")?, of)?;
                self.emit(Class::Local, Inst::StackRestore { a, wide: bits(of) == 64 });
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Space and address of a memory operand; `.param` variables lie in local memory.
    fn place(&mut self, op: &Op<'t>, operand: &Operand<'t>) -> Result<Address> {
        let mut space = space(op);
        if let (Space::Param, Operand::Address { base: Some(name), .. }) = (space, operand)
            && self.in_frame(name)
        {
            space = Space::Local;
        } else if space == Space::Param && !self.entry {
            // A register with the address of a function's own parameter.
            space = Space::Local;
        }
        self.address(operand, space)
    }

    /// Programs from before the memory model synchronise with the operators of caches.
    fn strong(op: &Op<'_>) -> bool {
        ["volatile", "relaxed", "acquire", "release", "mmio", "cg", "cv", "wt"].iter().any(|word| op.has(word))
    }

    fn release(op: &Op<'_>) -> bool {
        ["release", "acq_rel"].iter().any(|word| op.has(word))
    }

    fn load(&mut self, op: &Op<'t>, args: &[Operand<'t>]) -> Result<()> {
        let [to, from, ..] = args else { return Err("2 operands are expected".to_owned()) };
        let of = op.of()?;
        let address = self.place(op, from)?;
        let each = bits(of).max(8);
        let mut regs = [NONE; 8];
        let (mut count, mut wide, mut register_bits) = (0, each == 64, 0);
        let targets = elements(op, of, to)?;
        if of == "b128" {
            for target in targets {
                let Operand::Name(name, 0) = target else { return Err("a register is expected".to_owned()) };
                let row = self.register(name)?.row;
                (regs[count], regs[count + 1]) = (row, row + 2);
                count += 2;
            }
            wide = true;
        } else {
            for target in targets.iter() {
                let Operand::Name(name, 0) = target else { return Err("a register is expected".to_owned()) };
                if *name != "_" {
                    let register = self.register(name)?;
                    if register.bits < each || register.bits == 1 {
                        return Err(format!("'{name}' has {} bits where .{of} is loaded", register.bits));
                    }
                    if register_bits != 0 && register_bits != register.bits {
                        return Err("registers of different sizes are not emulated here".to_owned());
                    }
                    register_bits = register.bits;
                    regs[count] = register.row;
                }
                count += 1;
            }
            wide |= register_bits == 64;
        }
        let signed = if of.starts_with('s') && register_bits > each { register_bits.max(16) as u8 } else { 0 };
        let element = Element { bytes: each.min(64) as u8 / 8, signed, wide };
        if address.space == Space::Param && address.base == NONE && count == 1 && signed == 0 {
            self.emit(Class::Local, Inst::Param { d: regs[0], offset: address.offset as u32, element });
            return Ok(());
        }
        let access =
            Access { address, element, regs, count: count as u8, strong: Self::strong(op), release: Self::release(op) };
        self.emit(class(address.space), Inst::Load(Box::new(access)));
        Ok(())
    }

    fn store(&mut self, op: &Op<'t>, args: &[Operand<'t>]) -> Result<()> {
        if op.has("bulk") {
            return Err("this form is not emulated".to_owned());
        }
        let [to, from, ..] = args else { return Err("2 operands are expected".to_owned()) };
        let of = op.of()?;
        let address = self.place(op, to)?;
        let each = bits(of).max(8);
        let sources = elements(op, of, from)?;
        let mut regs = [NONE; 8];
        let mut count = 0;
        for source in sources {
            if of == "b128" {
                let Operand::Name(name, 0) = source else { return Err("a register is expected".to_owned()) };
                let row = self.register(name)?.row;
                (regs[count], regs[count + 1]) = (row, row + 2);
                count += 2;
            } else {
                regs[count] = self.wide_enough(source, of)?;
                count += 1;
            }
        }
        let element = Element { bytes: each.min(64) as u8 / 8, signed: 0, wide: each >= 64 };
        let access =
            Access { address, element, regs, count: count as u8, strong: Self::strong(op), release: Self::release(op) };
        self.emit(class(address.space), Inst::Store(Box::new(access)));
        Ok(())
    }

    fn atomic(&mut self, op: &Op<'t>, args: &[Operand<'t>]) -> Result<()> {
        let kind = op
            .words
            .iter()
            .find_map(|word| {
                Some(match *word {
                    "add" => AtomOp::Add,
                    "min" => AtomOp::Min,
                    "max" => AtomOp::Max,
                    "and" => AtomOp::And,
                    "or" => AtomOp::Or,
                    "xor" => AtomOp::Xor,
                    "inc" => AtomOp::Inc,
                    "dec" => AtomOp::Dec,
                    "exch" => AtomOp::Exch,
                    "cas" => AtomOp::Cas,
                    _ => return None,
                })
            })
            .ok_or("its operation is not emulated")?;
        let name = op.of()?;
        let of = match name {
            "u32" | "b32" => AtomType::U32,
            "s32" => AtomType::S32,
            "u64" | "b64" => AtomType::U64,
            "s64" => AtomType::S64,
            "b16" | "u16" => AtomType::B16,
            "f16" => AtomType::F16,
            "bf16" => AtomType::Bf16,
            "f16x2" => AtomType::F16x2,
            "bf16x2" => AtomType::Bf16x2,
            "f32" => AtomType::F32,
            "f64" => AtomType::F64,
            "b128" => AtomType::B128,
            _ => return Err(format!("type .{name} is not emulated")),
        };
        let (small, vector) = (matches!(name, "f16" | "bf16" | "f16x2" | "bf16x2"), ["v2", "v4", "v8"]);
        let vector = vector.iter().any(|word| op.has(word));
        let allowed = small == op.has("noftz")
            && (!vector || matches!(space(op), Space::Global | Space::Generic) && (small || name == "f32"))
            && match kind {
                AtomOp::Add => small || matches!(name, "u32" | "s32" | "u64" | "f32" | "f64"),
                AtomOp::Min | AtomOp::Max => small && vector || matches!(name, "u32" | "s32" | "u64" | "s64"),
                AtomOp::Inc | AtomOp::Dec => name == "u32",
                AtomOp::And | AtomOp::Or | AtomOp::Xor => matches!(name, "b32" | "b64"),
                AtomOp::Exch => op.name == "atom" && matches!(name, "b32" | "b64" | "b128"),
                AtomOp::Cas => op.name == "atom" && matches!(name, "b16" | "b32" | "b64" | "b128"),
            };
        if !allowed {
            return Err("this operation does not go with this type".to_owned());
        }
        let (target, rest) = if op.name == "atom" {
            let (first, rest) = args.split_first().ok_or("operands are missing")?;
            (Some(first), rest)
        } else {
            (None, args)
        };
        let [address, b, rest @ ..] = rest else { return Err("operands are missing".to_owned()) };
        let address = self.address(address, space(op))?;
        if matches!(address.space, Space::Local | Space::Param) {
            return Err("atomic operations are for global and shared memory".to_owned());
        }
        if of == AtomType::B128 {
            let pair = |body: &mut Self, operand: Option<&Operand<'t>>| match operand {
                Some(Operand::Name("_", 0)) => Ok(NONE),
                Some(Operand::Name(name, 0)) => body.register(name).map(|register| register.row),
                _ => Err("a register is expected".to_owned()),
            };
            let (mut rows, mut sources) = ([NONE; 8], [NONE; 8]);
            (rows[0], sources[0]) = (pair(self, target)?, pair(self, Some(b))?);
            let c = if kind == AtomOp::Cas { pair(self, rest.first())? } else { NONE };
            let atom = Atom {
                op: kind,
                of,
                address,
                d: rows,
                b: sources,
                c,
                count: 1,
                release: Self::release(op),
                returns: true,
            };
            self.emit(Class::Atomic, Inst::Atom(Box::new(atom)));
            return Ok(());
        }
        let mut d = [NONE; 8];
        if let Some(target) = target {
            for (d, target) in d.iter_mut().zip(elements(op, name, target)?) {
                if *target != Operand::Name("_", 0) {
                    *d = self.dst(target, name)?;
                }
            }
        }
        let sources = elements(op, name, b)?;
        let mut b = [NONE; 8];
        for (b, source) in b.iter_mut().zip(sources) {
            *b = self.exact(source, name)?;
        }
        let c = match rest.first() {
            Some(c) if kind == AtomOp::Cas => self.exact(c, name)?,
            _ => NONE,
        };
        let (count, returns) = (sources.len() as u8, target.is_some());
        let atom = Atom { op: kind, of, address, d, b, c, count, release: Self::release(op), returns };
        self.emit(Class::Atomic, Inst::Atom(Box::new(atom)));
        Ok(())
    }

    /// `cvta` and `cvta.to`: windows of the generic address space.
    fn convert_address(&mut self, op: &Op<'t>, args: &[Operand<'t>]) -> Result<()> {
        let window = match space(op) {
            Space::Shared => SHARED_WINDOW,
            Space::Local => LOCAL_WINDOW,
            Space::Param if self.entry => PARAM_WINDOW,
            Space::Param => LOCAL_WINDOW,
            Space::Global | Space::Generic => 0,
        };
        let of = op.of()?;
        if bits(of) != 64 {
            return Err("addresses of 32 bits are not emulated".to_owned());
        }
        let [to, from] = args else { return Err("2 operands are expected".to_owned()) };
        // `cvta.local %rd1, %r1`
        let a = self.src(from, of)?;
        let d = self.dst(to, of)?;
        if window == 0 {
            self.copy(d, a, true);
            return Ok(());
        }
        let window = self.builder.constant(window, true);
        let map = if op.has("to") {
            lanes!(a: u64, b: u64 => u64: a.wrapping_sub(b))
        } else {
            lanes!(a: u64, b: u64 => u64: a.wrapping_add(b))
        };
        self.map(Class::Integer, (map, 0), (d, true), &[a, window]);
        Ok(())
    }
}
