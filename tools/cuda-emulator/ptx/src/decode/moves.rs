//! `mov`, with its packing and unpacking of registers.

use super::body::Body;
use super::operands::{Result, bits};
use super::target;
use crate::code::{CONST, Combine, Inst, NONE, Special};
use crate::lanes::compare::{Kind, compare};
use crate::lanes::int::Int;
use crate::lanes::{Map, lanes};
use crate::options::Class;
use crate::parse::ast::Operand;

const CLASS: Class = Class::Integer;

/// Bits of a type and of each part of it. Of 128 bits there are halves and quarters.
fn shares(of: &str, parts: &[Operand<'_>]) -> Result<(u32, u32)> {
    let (all, count) = (bits(of), parts.len());
    let fits = if all == 128 { matches!(count, 2 | 4) } else { count > 0 };
    if fits { Ok((all, all / count as u32)) } else { Err(format!("{count} parts of .{of}")) }
}

impl<'t> Body<'_, 't> {
    /// A copy of rows.
    pub fn copy(&mut self, d: u32, from: u32, wide: bool) {
        let map = if wide { lanes!(a: u64 => u64: a) } else { lanes!(a: u32 => u32: a) };
        self.map(CLASS, (map, 0), (d, wide), &[from]);
    }

    pub fn mov(&mut self, of: &str, args: &[Operand<'t>]) -> Result<()> {
        let [to, from] = args else { return Err("2 operands are expected".to_owned()) };
        match (to, from) {
            (Operand::Name(name, 0), Operand::Name("%is_explicit_cluster", 0)) if of == "pred" => {
                target::check(self.builder.target, target::SM_90)?;
                let (row, zero) = (self.temporary(false), self.builder.constant(0, false));
                let p = self.predicate_name(name)?;
                let f = compare("ne", Kind::Int(Int::U32), false).ok_or("this is not emulated")?;
                self.emit(CLASS, Inst::Special { d: row, what: Special::IsExplicitCluster });
                self.emit(CLASS, Inst::Test { f, a: row, b: zero, p, q: NONE, combine: Combine::None, c: NONE });
                Ok(())
            }
            _ if of == "pred" => {
                let p = self.predicate(from)?;
                let Operand::Name(name, 0) = to else { return Err("a predicate is expected".to_owned()) };
                let d = self.predicate_name(name)?;
                self.emit(CLASS, Inst::Logic { d, a: p, b: NONE, table: 0b1000 });
                Ok(())
            }
            (Operand::Vector(parts), from) => self.unpack(of, parts, from),
            (to, Operand::Vector(parts)) => self.pack(of, to, parts),
            _ if of == "b128" => {
                let rows = [to, from].map(|operand| match operand {
                    Operand::Name(name, 0) => self.register(name).map(|register| register.row),
                    _ => Err("a register is expected".to_owned()),
                });
                let [to, from] = rows;
                let (to, from) = (to?, from?);
                self.copy(to, from, true);
                self.copy(to + 2, from + 2, true);
                Ok(())
            }
            _ => {
                let a = self.exact(from, of)?;
                let d = self.dst(to, of)?;
                self.copy(d, a, bits(of) == 64);
                Ok(())
            }
        }
    }

    /// `mov.b64 {a, b}, c`
    pub fn unpack(&mut self, of: &str, parts: &[Operand<'t>], from: &Operand<'t>) -> Result<()> {
        let (all, each) = shares(of, parts)?;
        if all == 128 {
            let Operand::Name(name, 0) = from else { return Err("a register is expected".to_owned()) };
            let row = self.register(name)?.row;
            for (i, part) in parts.iter().enumerate().filter(|(_, part)| **part != Operand::Name("_", 0)) {
                let d = self.dst(part, if each == 64 { "b64" } else { "b32" })?;
                if each == 64 {
                    self.copy(d, row + 2 * i as u32, true);
                } else {
                    let map = lanes!(imm; a: u64 => u32: (a >> imm) as u32);
                    self.map(CLASS, (map, 32 * (i as u32 % 2)), (d, false), &[row + 2 * (i as u32 / 2)]);
                }
            }
            return Ok(());
        }
        let mut source = self.exact(from, of)?;
        // The source may be one of the parts.
        if parts.len() > 1 && source & CONST == 0 {
            let kept = self.temporary(all == 64);
            self.copy(kept, source, all == 64);
            source = kept;
        }
        for (i, part) in parts.iter().enumerate().filter(|(_, part)| **part != Operand::Name("_", 0)) {
            let shift = each * i as u32;
            let d = self.dst(part, if each == 32 { "b32" } else { "b16" })?;
            let map = match (all, each) {
                (64, 32) => lanes!(imm; a: u64 => u32: (a >> imm) as u32),
                (64, 16) => lanes!(imm; a: u64 => u16: (a >> imm) as u16),
                (64, 8) => lanes!(imm; a: u64 => u8: (a >> imm) as u8),
                (32, 16) => lanes!(imm; a: u32 => u16: (a >> imm) as u16),
                (_, 8) => lanes!(imm; a: u32 => u8: (a >> imm) as u8),
                _ => return Err("this split is not emulated".to_owned()),
            };
            self.map(CLASS, (map, shift), (d, false), &[source]);
        }
        Ok(())
    }

    /// `mov.b64 c, {a, b}`
    pub fn pack(&mut self, of: &str, to: &Operand<'t>, parts: &[Operand<'t>]) -> Result<()> {
        let (all, each) = shares(of, parts)?;
        let part_type = match each {
            64 => "b64",
            32 => "b32",
            _ => "b16",
        };
        let mut sources = Vec::with_capacity(parts.len());
        for part in parts {
            sources.push(self.exact(part, part_type)?);
        }
        if all == 128 {
            let Operand::Name(name, 0) = to else { return Err("a register is expected".to_owned()) };
            let row = self.register(name)?.row;
            for half in 0..2 {
                let d = row + 2 * half as u32;
                if each == 64 {
                    self.copy(d, sources[half], true);
                } else {
                    let map = lanes!(a: u32, b: u32 => u64: u64::from(a) | u64::from(b) << 32);
                    self.map(CLASS, (map, 0), (d, true), &sources[2 * half..2 * half + 2]);
                }
            }
            return Ok(());
        }
        let d = self.dst(to, of)?;
        let wide = all == 64;
        if parts.len() == 2 {
            let map = match each {
                32 => lanes!(a: u32, b: u32 => u64: u64::from(a) | u64::from(b) << 32),
                16 => lanes!(a: u16, b: u16 => u32: u32::from(a) | u32::from(b) << 16),
                _ => lanes!(a: u8, b: u8 => u16: u16::from(a) | u16::from(b) << 8),
            };
            self.map(CLASS, (map, 0), (d, wide), &sources);
            return Ok(());
        }
        if parts.len() != 4 || wide && each != 16 {
            return Err("this combination is not emulated".to_owned());
        }
        let (low, high) = (self.temporary(false), self.temporary(false));
        let map: Map = if each == 16 {
            lanes!(a: u16, b: u16 => u32: u32::from(a) | u32::from(b) << 16)
        } else {
            lanes!(a: u8, b: u8 => u32: u32::from(a) | u32::from(b) << 8)
        };
        self.map(CLASS, (map, 0), (low, false), &sources[..2]);
        self.map(CLASS, (map, 0), (high, false), &sources[2..]);
        let join: Map = if wide {
            lanes!(a: u32, b: u32 => u64: u64::from(a) | u64::from(b) << 32)
        } else {
            lanes!(a: u32, b: u32 => u32: a | b << 16)
        };
        self.map(CLASS, (join, 0), (d, wide), &[low, high]);
        Ok(())
    }
}
