//! Moves, integer arithmetic, logic, comparisons and selections.

use super::body::Body;
use super::operands::{Op, Result, bits};
use crate::code::{Carry, CarryOp, Combine, Inst, NONE, NOT};
use crate::lanes::compare::{self, Kind};
use crate::lanes::int::{self, Int};
use crate::lanes::{Map, bits as logic, lanes};
use crate::options::Class;
use crate::parse::ast::Operand;

const CLASS: Class = Class::Integer;

/// An integer type by name; `.b` types count as unsigned.
pub(super) fn int_type(of: &str) -> Option<Int> {
    Some(match of {
        "u16" | "b16" => Int::U16,
        "s16" => Int::S16,
        "u32" | "b32" => Int::U32,
        "s32" => Int::S32,
        "u64" | "b64" => Int::U64,
        "s64" => Int::S64,
        _ => return None,
    })
}

impl<'t> Body<'_, 't> {
    /// `f` of the operands behind the first, all of one type.
    pub fn plain(&mut self, class: Class, f: (Map, u32), args: &[Operand<'t>], to: &str, of: &str) -> Result<()> {
        let types = vec![of; args.len().saturating_sub(1)];
        self.mixed(class, f, args, to, &types)
    }

    /// `f` of operands of different types.
    pub fn mixed(&mut self, class: Class, f: (Map, u32), args: &[Operand<'t>], to: &str, of: &[&str]) -> Result<()> {
        if args.len() != of.len() + 1 {
            return Err(format!("{} operands, not {}", args.len(), of.len() + 1));
        }
        let mut sources = Vec::with_capacity(3);
        for (arg, of) in args[1..].iter().zip(of) {
            sources.push(self.exact(arg, of)?);
        }
        let d = self.dst(&args[0], to)?;
        self.map(class, f, (d, bits(to) == 64), &sources);
        Ok(())
    }

    pub fn arithmetic(&mut self, op: &Op<'t>, args: &[Operand<'t>]) -> Result<bool> {
        let of = op.of().unwrap_or_default();
        match op.name {
            "mov" => return self.mov(of, args).map(|()| true),
            "slct" => return self.choose(op, args).map(|()| true),
            "setp" | "set" => return self.compare(op, args).map(|()| true),
            "selp" => {
                let [_, a, b, p] = args else { return Err("4 operands are expected".to_owned()) };
                let (a, b) = (self.exact(a, of)?, self.exact(b, of)?);
                let p = self.predicate(p)?;
                let d = self.dst(&args[0], of)?;
                self.emit(CLASS, Inst::Select { d, a, b, p, wide: bits(of) == 64 });
                return Ok(true);
            }
            "and" | "or" | "xor" | "not" if of == "pred" => return self.logic(op.name, args).map(|()| true),
            _ => {}
        }
        if op.has("relu") {
            let map = match of {
                "s32" | "s16x2" => int::relu(op.name, of == "s16x2"),
                _ => None,
            };
            // Of floating-point numbers only `fma` has it.
            return match map {
                Some(map) => self.plain(CLASS, (map, 0), args, of, of).map(|()| true),
                None if op.name == "fma" || op.name == "cvt" => Ok(false),
                None => Err("'.relu' is for .s32 and .s16x2".to_owned()),
            };
        }
        let wide = bits(of) == 64;
        if let ("add" | "sub" | "min" | "max", "u16x2" | "s16x2") = (op.name, of) {
            let map = int::packed(op.name, of == "s16x2").ok_or("this is not emulated")?;
            return self.plain(CLASS, (map, 0), args, of, of).map(|()| true);
        }
        let map = match op.name {
            "and" | "or" | "xor" => logic::logic(op.name, wide).ok_or("this is not emulated")?,
            "not" => logic::not(bits(of)),
            "cnot" => logic::cnot(wide),
            "shl" => return self.mixed(CLASS, (logic::shl(bits(of)), 0), args, of, &[of, "u32"]).map(|()| true),
            "shr" => {
                let map = logic::shr(bits(of), of.starts_with('s'));
                return self.mixed(CLASS, (map, 0), args, of, &[of, "u32"]).map(|()| true);
            }
            "shf" => logic::funnel(op.has("l"), op.has("wrap")),
            "lop3" => return self.lop3(op, args).map(|()| true),
            "prmt" => {
                let modes = ["f4e", "b4e", "rc8", "ecl", "ecr", "rc16"];
                let mode = modes.iter().position(|mode| op.has(mode)).map_or(0, |at| at + 1);
                return self.plain(CLASS, (logic::permute(), mode as u32), args, of, of).map(|()| true);
            }
            "bfe" => {
                let map = logic::extract(bits(of), of.starts_with('s'));
                return self.mixed(CLASS, (map, 0), args, of, &[of, "u32", "u32"]).map(|()| true);
            }
            "bfi" => return self.bfi(of, args).map(|()| true),
            "bfind" => {
                let shift = u32::from(op.has("shiftamt"));
                let map = logic::find(bits(of), of.starts_with('s'));
                return self.mixed(CLASS, (map, shift), args, "u32", &[of]).map(|()| true);
            }
            "popc" | "clz" => {
                let map = logic::count(op.name, wide).ok_or("this is not emulated")?;
                return self.mixed(CLASS, (map, 0), args, "u32", &[of]).map(|()| true);
            }
            "brev" => logic::count("brev", wide).ok_or("this is not emulated")?,
            "fns" => logic::find_nth(),
            "szext" => {
                let imm = u32::from(op.has("wrap")) | u32::from(of == "s32") << 1;
                return self.mixed(CLASS, (logic::extend(), imm), args, of, &[of, "u32"]).map(|()| true);
            }
            "bmsk" => {
                return self.plain(CLASS, (logic::mask(), u32::from(op.has("wrap"))), args, of, of).map(|()| true);
            }
            "dp4a" | "dp2a" => {
                let types = op.types();
                let [a, b] = types[..] else { return Err("two types are expected".to_owned()) };
                let signs = u32::from(a == "s32") | u32::from(b == "s32") << 1 | u32::from(op.has("hi")) << 2;
                let map = if op.name == "dp4a" { int::dp4a() } else { int::dp2a() };
                return self.plain(CLASS, (map, signs), args, "u32", "u32").map(|()| true);
            }
            "vabsdiff2" | "vabsdiff4" => {
                let adds = u32::from(op.has("add"));
                let signed = match op.types()[..] {
                    ["u32", "u32", "u32"] => 0,
                    ["s32", "s32", "s32"] | ["u32", "s32", "s32"] => 2,
                    _ => return Err("these types are not emulated".to_owned()),
                };
                if args.iter().any(|arg| matches!(arg, Operand::Name(name, 0) if name.contains('.'))) || op.has("sat") {
                    return Err("this form is not emulated".to_owned());
                }
                let map = if op.name == "vabsdiff2" { int::vabsdiff2() } else { int::vabsdiff4() };
                return self.plain(CLASS, (map, adds | signed), args, "u32", "u32").map(|()| true);
            }
            "mad24" if op.has("sat") => {
                if of != "s32" || !op.has("hi") {
                    return Err("'.sat' is for '.hi' of .s32".to_owned());
                }
                int::mad24_saturating()
            }
            "mul24" | "mad24" => int::mul24(of == "s32", op.has("hi"), op.name == "mad24"),
            "add" | "sub" | "addc" | "subc" | "mul" | "mad" | "madc" | "div" | "rem" | "min" | "max" | "abs"
            | "neg" | "sad" => {
                let Some(t) = int_type(of) else { return Ok(false) };
                return self.integer(op, of, t, args).map(|()| true);
            }
            _ => return Ok(false),
        };
        self.plain(CLASS, (map, 0), args, of, of)?;
        Ok(true)
    }

    fn integer(&mut self, op: &Op<'t>, of: &str, t: Int, args: &[Operand<'t>]) -> Result<()> {
        if op.has("cc") || op.name.ends_with('c') {
            return self.carry(op, of, args);
        }
        let known = || format!("'{}' of .{of} is not emulated", op.name);
        let map = if op.has("wide") {
            let to = match of {
                "u16" | "s16" => "u32",
                _ => "u64",
            };
            let (map, types) =
                if op.name == "mul" { (int::mul_wide(t), vec![of, of]) } else { (int::mad_wide(t), vec![of, of, to]) };
            return self.mixed(CLASS, (map.ok_or_else(known)?, 0), args, to, &types);
        } else if op.has("sat") {
            if of != "s32" || op.name == "mad" && !op.has("hi") {
                return Err("'.sat' is for .s32".to_owned());
            }
            int::saturating(op.name).ok_or_else(known)?
        } else if op.has("hi") && op.name == "mul" {
            int::mul_high(t)
        } else if op.has("hi") {
            let [_, a, b, c] = args else { return Err("4 operands are expected".to_owned()) };
            let (a, b, c) = (self.exact(a, of)?, self.exact(b, of)?, self.exact(c, of)?);
            let wide = bits(of) == 64;
            let (high, d) = (self.temporary(wide), self.dst(&args[0], of)?);
            self.map(CLASS, (int::mul_high(t), 0), (high, wide), &[a, b]);
            self.map(CLASS, (int::arithmetic("add", t).ok_or_else(known)?, 0), (d, wide), &[high, c]);
            return Ok(());
        } else {
            int::arithmetic(op.name, t).ok_or_else(known)?
        };
        let class = if matches!(op.name, "div" | "rem") { Class::Special } else { CLASS };
        self.plain(class, (map, 0), args, of, of)
    }

    fn carry(&mut self, op: &Op<'t>, of: &str, args: &[Operand<'t>]) -> Result<()> {
        let kind = match (op.name, op.has("hi")) {
            ("add" | "addc", _) => CarryOp::Add,
            ("sub" | "subc", _) => CarryOp::Sub,
            (_, false) => CarryOp::MadLow,
            (_, true) => CarryOp::MadHigh { signed: of.starts_with('s') },
        };
        let operands = if matches!(kind, CarryOp::Add | CarryOp::Sub) { 3 } else { 4 };
        if args.len() != operands {
            return Err(format!("{} operands, not {operands}", args.len()));
        }
        let zero = self.builder.constant(0, true);
        let mut sources = [zero; 3];
        for (source, arg) in sources.iter_mut().zip(&args[1..]) {
            *source = self.exact(arg, of)?;
        }
        let d = self.dst(&args[0], of)?;
        let [a, b, c] = sources;
        let (carry_in, carry_out) = (op.name.ends_with('c'), op.has("cc"));
        let wide = bits(of) == 64;
        self.emit(CLASS, Inst::Carry(Box::new(Carry { op: kind, d, a, b, c, wide, carry_in, carry_out })));
        Ok(())
    }

    fn lop3(&mut self, op: &Op<'t>, args: &[Operand<'t>]) -> Result<()> {
        let combines = op.has("or") || op.has("and");
        let (Some(Operand::Value(crate::parse::ast::Value::Int(table))), true) =
            (args.get(4), args.len() == if combines { 6 } else { 5 })
        else {
            return Err("5 operands, or 6 with a predicate, are expected, and the table has to be a number".to_owned());
        };
        let f = (logic::lop3(), *table as u32);
        if !combines {
            return self.plain(CLASS, f, &args[..4], "b32", "b32");
        }
        let Operand::Pair(d, p) = args[0] else { return Err("a register and a predicate are expected".to_owned()) };
        let (p, q) = (self.predicate_name(p)?, self.predicate(&args[5])?);
        let (a, b, c) = (self.exact(&args[1], "b32")?, self.exact(&args[2], "b32")?, self.exact(&args[3], "b32")?);
        let (row, d) = (self.temporary(false), self.dst(&Operand::Name(d, 0), "b32")?);
        self.map(CLASS, f, (row, false), &[a, b, c]);
        self.copy(d, row, false);
        let zero = self.builder.constant(0, false);
        let not_zero = compare::compare("ne", Kind::Int(Int::U32), false).ok_or("this is not emulated")?;
        let combine = if op.has("or") { Combine::Or } else { Combine::And };
        self.emit(CLASS, Inst::Test { f: not_zero, a: row, b: zero, p, q: NONE, combine, c: q });
        Ok(())
    }

    fn bfi(&mut self, of: &str, args: &[Operand<'t>]) -> Result<()> {
        let [_, a, b, at, len] = args else { return Err("5 operands are expected".to_owned()) };
        let wide = bits(of) == 64;
        let (a, b, at, len) = (self.exact(a, of)?, self.exact(b, of)?, self.exact(at, "u32")?, self.exact(len, "u32")?);
        let (mask, shifted, d) = (self.temporary(wide), self.temporary(wide), self.dst(&args[0], of)?);
        self.map(CLASS, (logic::field_mask(wide), 0), (mask, wide), &[at, len]);
        self.map(CLASS, (logic::field_shift(wide), 0), (shifted, wide), &[a, at]);
        self.map(CLASS, (logic::blend(wide), 0), (d, wide), &[shifted, b, mask]);
        Ok(())
    }

    /// `and`, `or`, `xor` and `not` of predicates.
    fn logic(&mut self, name: &str, args: &[Operand<'t>]) -> Result<()> {
        let Some(Operand::Name(d, 0)) = args.first() else { return Err("a predicate is expected".to_owned()) };
        let d = self.predicate_name(d)?;
        let a = self.predicate(args.get(1).ok_or("an operand is missing")?)?;
        if name == "not" {
            self.emit(CLASS, Inst::Logic { d, a: a ^ NOT, b: NONE, table: 0b1000 });
            return Ok(());
        }
        let b = self.predicate(args.get(2).ok_or("an operand is missing")?)?;
        let table = match name {
            "and" => 0b1000,
            "or" => 0b1110,
            _ => 0b0110,
        };
        self.emit(CLASS, Inst::Logic { d, a, b, table });
        Ok(())
    }

    /// `slct`: the first operand where the third is at least 0, otherwise the second.
    fn choose(&mut self, op: &Op<'t>, args: &[Operand<'t>]) -> Result<()> {
        let (types, ftz) = (op.types(), op.has("ftz"));
        let ([of, by], [to, a, b, c]) = (&types[..], args) else { return Err("4 operands are expected".to_owned()) };
        let kind = if *by == "f32" { Kind::F32 } else { Kind::Int(Int::S32) };
        let f = compare::compare("ge", kind, ftz).ok_or("this type is not emulated")?;
        let (a, b, c) = (self.exact(a, of)?, self.exact(b, of)?, self.exact(c, by)?);
        let (p, zero) = (self.names.predicates, self.builder.constant(0, false));
        self.names.predicates += 1;
        self.emit(CLASS, Inst::Test { f, a: c, b: zero, p, q: NONE, combine: Combine::None, c: NONE });
        let d = self.dst(to, of)?;
        self.emit(CLASS, Inst::Select { d, a, b, p, wide: bits(of) == 64 });
        Ok(())
    }

    /// The upper halves of two registers.
    fn upper_halves(&mut self, a: u32, b: u32) -> (u32, u32) {
        let (x, y) = (self.temporary(false), self.temporary(false));
        let high = lanes!(a: u32 => u32: a >> 16);
        self.map(CLASS, (high, 0), (x, false), &[a]);
        self.map(CLASS, (high, 0), (y, false), &[b]);
        (x, y)
    }

    fn compare(&mut self, op: &Op<'t>, args: &[Operand<'t>]) -> Result<()> {
        let of = op.of()?;
        let (packed, of) = match of {
            "f16x2" | "bf16x2" => (true, of),
            _ => (false, of),
        };
        let kind = match of {
            "f16" | "f16x2" => Kind::F16,
            "bf16" | "bf16x2" => Kind::BF16,
            "f32" => Kind::F32,
            "f64" => Kind::F64,
            _ => Kind::Int(int_type(of).ok_or("this type is not emulated")?),
        };
        let test = op.words.iter().find_map(|name| compare::compare(name, kind, op.has("ftz")));
        let test = test.ok_or("the comparison is missing")?;
        let combine = match () {
            () if op.has("and") => Combine::And,
            () if op.has("or") => Combine::Or,
            () if op.has("xor") => Combine::Xor,
            () => Combine::None,
        };
        let [to, a, b, rest @ ..] = args else { return Err("3 operands are expected".to_owned()) };
        let c = match rest {
            [] => NONE,
            [c] => self.predicate(c)?,
            _ => return Err("too many operands".to_owned()),
        };
        let (a, b) = (self.exact(a, of)?, self.exact(b, of)?);
        let class = if matches!(kind, Kind::Int(_)) { CLASS } else { Class::Float };
        if op.name == "set" {
            let to_type = op.types()[0];
            let (p, d) = (self.names.predicates, self.dst(to, to_type)?);
            self.names.predicates += 1;
            let value: u32 = match to_type {
                "f32" => 1f32.to_bits(),
                "f16" | "f16x2" => 0x3c00,
                "bf16" | "bf16x2" => 0x3f80,
                _ if packed => 0xffff,
                "u16" | "s16" => 0xffff,
                _ => u32::MAX,
            };
            self.emit(class, Inst::Test { f: test, a, b, p, q: NONE, combine, c });
            if !packed {
                self.emit(CLASS, Inst::Spread { d, p, value });
                return Ok(());
            }
            let (x, y) = self.upper_halves(a, b);
            let (low, high) = (self.temporary(false), self.temporary(false));
            self.emit(CLASS, Inst::Spread { d: low, p, value });
            self.emit(class, Inst::Test { f: test, a: x, b: y, p, q: NONE, combine, c });
            self.emit(CLASS, Inst::Spread { d: high, p, value: value << 16 });
            self.map(CLASS, (lanes!(a: u32, b: u32 => u32: a | b), 0), (d, false), &[low, high]);
            return Ok(());
        }
        let (p, q) = match to {
            Operand::Name(p, 0) => (self.predicate_out(p)?, NONE),
            Operand::Pair(..) if matches!(of, "f16" | "bf16") => return Err("one predicate is expected".to_owned()),
            Operand::Pair(p, q) => (self.predicate_out(p)?, self.predicate_out(q)?),
            _ => return Err("a predicate is expected first".to_owned()),
        };
        if packed {
            // The low and the high halves, each with its predicate. Either may be the third operand or guard this.
            let (x, y) = self.upper_halves(a, b);
            let (low, high) = (self.names.predicates, self.names.predicates + 1);
            self.names.predicates += 2;
            self.emit(class, Inst::Test { f: test, a, b, p: low, q: NONE, combine, c });
            self.emit(class, Inst::Test { f: test, a: x, b: y, p: high, q: NONE, combine, c });
            let mut both = [(p, low), (q, high)];
            if self.guard != NONE && self.guard & !NOT == p {
                both.reverse();
            }
            for (d, a) in both.into_iter().filter(|(d, _)| *d != NONE) {
                self.emit(CLASS, Inst::Logic { d, a, b: NONE, table: 0b1000 });
            }
            return Ok(());
        }
        self.emit(class, Inst::Test { f: test, a, b, p, q, combine, c });
        Ok(())
    }
}
