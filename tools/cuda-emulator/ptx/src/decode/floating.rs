//! Floating-point arithmetic and conversions.

use super::body::Body;
use super::operands::{Op, Result};
use crate::code::{Inst, NONE};
use crate::lanes::convert::{How, Kind, convert, finite, from_fp8_pair, pair, tf32, to_fp8_pair};
use crate::lanes::round::{RM, RN, RNA, RP, RZ};
use crate::lanes::{Map, approx, compare, double, float, half, lanes, single};
use crate::options::Class;
use crate::parse::ast::Operand;

const CLASS: Class = Class::Float;
/// In the immediate of `cvt.pack`, beside the bits of a value.
const SIGNED: u32 = 64;

fn mode(op: &Op<'_>) -> (u32, bool) {
    for (word, mode, integral) in [
        ("rn", RN, false),
        ("rz", RZ, false),
        ("rm", RM, false),
        ("rp", RP, false),
        ("rna", RNA, false),
        ("rni", RN, true),
        ("rzi", RZ, true),
        ("rmi", RM, true),
        ("rpi", RP, true),
    ] {
        if op.has(word) {
            return (mode, integral);
        }
    }
    (RN, false)
}

impl<'t> Body<'_, 't> {
    pub fn floating(&mut self, op: &Op<'t>, args: &[Operand<'t>]) -> Result<bool> {
        let of = op.of().unwrap_or_default();
        let known = || format!("'{}' of .{of} is not emulated", op.name);
        let (ftz, sat, (mode, _)) = (op.has("ftz"), op.has("sat"), mode(op));
        let extremes =
            if op.has("NaN") { single::NAN } else { 0 } | if op.has("xorsign") { single::XORSIGN } else { 0 };
        let name = if op.name == "mad" { "fma" } else { op.name };
        if matches!(name, "min" | "max") && op.has("abs") != op.has("xorsign") {
            return Err("'.xorsign' and '.abs' go together".to_owned());
        }
        if op.name == "testp" {
            let Some(Operand::Name(p, 0)) = args.first() else { return Err("a predicate is expected".to_owned()) };
            let p = self.predicate_name(p)?;
            let property = op.words.first().copied().unwrap_or_default();
            let f = compare::property(property, of == "f64").ok_or_else(known)?;
            let a = self.exact(args.get(1).ok_or("an operand is missing")?, of)?;
            let combine = crate::code::Combine::None;
            self.emit(CLASS, Inst::Test { f, a, b: a, p, q: NONE, combine, c: NONE });
            return Ok(true);
        }
        let special = matches!(name, "div" | "rcp" | "sqrt" | "rsqrt" | "ex2" | "lg2" | "sin" | "cos" | "tanh");
        if !special && !matches!(name, "add" | "sub" | "mul" | "fma" | "min" | "max" | "neg" | "abs" | "copysign") {
            return Ok(false);
        }
        let class = if special { Class::Special } else { CLASS };
        let (map, imm): (Map, u32) = match of {
            "f32" => match name {
                "min" | "max" | "neg" | "abs" | "copysign" => (float::simple(name, ftz).ok_or_else(known)?, extremes),
                "ex2" | "lg2" | "sin" | "cos" | "tanh" | "rsqrt" => (approx::f32(name, ftz).ok_or_else(known)?, 0),
                "div" if op.has("approx") => (approx::divide(ftz), 0),
                "rcp" | "sqrt" if op.has("approx") => (approx::f32(name, ftz).ok_or_else(known)?, 0),
                _ => float::arithmetic(name, mode, ftz, sat).ok_or_else(known)?,
            },
            "f64" if op.has("approx") => (approx::f64(name, ftz).ok_or_else(known)?, 0),
            "f64" => (double::arithmetic(name, mode).ok_or_else(known)?, mode),
            "f16" | "bf16" | "f16x2" | "bf16x2" => {
                if mode != RN {
                    return Err("formats of 16 bits are rounded to the nearest".to_owned());
                }
                let (bf16, packed) = (of.starts_with('b'), of.ends_with("x2"));
                let flags = extremes
                    | if ftz && !bf16 { half::FTZ } else { 0 }
                    | if sat { half::SAT } else { 0 }
                    | if op.has("relu") { half::RELU } else { 0 };
                let flags = flags | if ftz && bf16 { half::FTZ_F32 } else { 0 };
                let sign = if packed { 0x8000_8000 } else { 0x8000 };
                let imm = if matches!(name, "neg" | "abs") { sign | flags & half::FTZ } else { flags };
                (half::arithmetic(name, bf16, packed).ok_or_else(known)?, imm)
            }
            _ => return Ok(false),
        };
        // Three operands of `min` and `max`: two steps.
        if matches!(name, "min" | "max") && args.len() == 4 {
            let sources = [self.exact(&args[1], of)?, self.exact(&args[2], of)?, self.exact(&args[3], of)?];
            let (t, d) = (self.temporary(of == "f64"), self.dst(&args[0], of)?);
            self.map(class, (map, imm), (t, of == "f64"), &sources[..2]);
            self.map(class, (map, imm), (d, of == "f64"), &[t, sources[2]]);
            return Ok(true);
        }
        self.plain(class, (map, imm), args, of, of)?;
        Ok(true)
    }

    pub fn conversion(&mut self, op: &Op<'t>, args: &[Operand<'t>]) -> Result<bool> {
        if op.name != "cvt" || op.has("pack") {
            return if op.name == "cvt" { self.pack_integers(op, args).map(|()| true) } else { Ok(false) };
        }
        let types = op.types();
        let [to, from] = types[..] else { return Err("two types are expected".to_owned()) };
        let (mode, integral) = mode(op);
        let how =
            How { mode, integral, ftz: op.has("ftz"), sat: op.has("sat") || op.has("satfinite"), relu: op.has("relu") };
        if let ("f16" | "bf16", "f32", true) = (to, from, op.has("satfinite")) {
            return self.plain(CLASS, finite(to == "bf16", how), args, "b16", from).map(|()| true);
        }
        let fp8 = |of: &str| matches!(of, "e4m3x2" | "e5m2x2");
        match (to, from) {
            ("f16x2" | "bf16x2", "f32") => {
                return self.plain(CLASS, pair(to == "bf16x2", how), args, to, from).map(|()| true);
            }
            ("tf32", "f32") => return self.plain(CLASS, tf32(how), args, "b32", "b32").map(|()| true),
            (to, "f32" | "f16x2") if fp8(to) => {
                let imm = u32::from(to == "e5m2x2") | u32::from(how.relu) << 1;
                return self.plain(CLASS, (to_fp8_pair(from == "f16x2"), imm), args, "b16", from).map(|()| true);
            }
            ("f16x2", from) if fp8(from) => {
                let imm = u32::from(from == "e5m2x2") | u32::from(how.relu) << 1;
                return self.plain(CLASS, (from_fp8_pair(), imm), args, to, "b16").map(|()| true);
            }
            _ => {}
        }
        let (Some(to_kind), Some(from_kind)) = (Kind::parse(to), Kind::parse(from)) else {
            return Err("these types are not emulated".to_owned());
        };
        let [Operand::Name(d, 0), source] = args else { return Err("2 operands are expected".to_owned()) };
        let source_type = match from_kind.bits() {
            64 => from,
            bits if bits < 32 && !from_kind.is_float() => "b16",
            _ if from_kind.is_float() => from,
            _ => "b32",
        };
        let a = self.wide_enough(source, source_type)?;
        if op.has("satfinite") {
            return Err("'.satfinite' is not emulated with these types".to_owned());
        }
        let (map, imm) = convert(to_kind, from_kind, how);
        let register = self.register(d)?;
        let class = if to_kind.is_float() || from_kind.is_float() { CLASS } else { Class::Integer };
        let wide = to_kind.bits() == 64;
        let needed = to_kind.bits().max(if wide { 64 } else { 16 });
        if register.bits <= 32 && !wide && (register.bits <= needed || !to_kind.signed()) {
            self.map(class, (map, imm), (register.row, false), &[a]);
            return Ok(true);
        }
        if wide && register.bits == 64 {
            self.map(class, (map, imm), (register.row, true), &[a]);
            return Ok(true);
        }
        if register.bits < to_kind.bits() {
            return Err(format!("'{d}' has only {} bits", register.bits));
        }
        // A wider register gets the sign or zeros.
        let t = self.temporary(false);
        self.map(class, (map, imm), (t, false), &[a]);
        let extend = match (to_kind.signed(), to_kind.bits(), register.bits == 64) {
            (true, 32, _) => lanes!(a: i32 => i64: i64::from(a)),
            (true, 8, true) => lanes!(a: i8 => i64: i64::from(a)),
            (true, 8, false) => lanes!(a: i8 => i32: i32::from(a)),
            (true, _, true) => lanes!(a: i16 => i64: i64::from(a)),
            (true, _, false) => lanes!(a: i16 => i32: i32::from(a)),
            (false, ..) => lanes!(a: u32 => u64: u64::from(a)),
        };
        self.map(class, (extend, 0), (register.row, register.bits == 64), &[t]);
        Ok(true)
    }

    /// `cvt.pack.sat`
    fn pack_integers(&mut self, op: &Op<'t>, args: &[Operand<'t>]) -> Result<()> {
        let to = op.words.iter().find_map(|word| match *word {
            "u16" => Some((16, 0)),
            "s16" => Some((16, SIGNED)),
            "u8" => Some((8, 0)),
            "s8" => Some((8, SIGNED)),
            "u4" => Some((4, 0)),
            "s4" => Some((4, SIGNED)),
            "u2" => Some((2, 0)),
            "s2" => Some((2, SIGNED)),
            _ => None,
        });
        let (Some((size, signed)), true) = (to, op.has("sat")) else {
            return Err("this form is not emulated".to_owned());
        };
        let limits = size | signed;
        let map = lanes!(imm; a: i32, b: i32, c: u32 => u32: {
            let bits = imm & !SIGNED;
            let mask = (1u32 << bits) - 1;
            let (least, most) = if imm & SIGNED != 0 { (-1 << (bits - 1), mask as i32 >> 1) } else { (0, mask as i32) };
            let (a, b) = (a.clamp(least, most) as u32 & mask, b.clamp(least, most) as u32 & mask);
            let low = b | a << bits;
            if bits == 16 { low } else { low | c << (2 * bits) }
        });
        if args.len() == 3 {
            self.plain(Class::Integer, (map, limits), args, "b32", "s32")
        } else {
            self.mixed(Class::Integer, (map, limits), args, "b32", &["s32", "s32", "b32"])
        }
    }
}
