//! Tensor core instructions.

use super::body::Body;
use super::operands::{Op, Result, space};
use crate::code::{Inst, NONE, Src, Tensor};
use crate::options::Class;
use crate::parse::ast::{Operand, Value};
use crate::tensor::{Ldmatrix, Mma, Refused, Stmatrix, Type, Wgmma, WmmaLoad, WmmaMma, WmmaStore};

fn refused(refused: Refused) -> String {
    refused.0
}

/// The words of an operand: one, or those of a list.
fn parts<'o, 't>(operand: &'o Operand<'t>) -> &'o [Operand<'t>] {
    match operand {
        Operand::Vector(parts) => parts,
        one => std::slice::from_ref(one),
    }
}

/// The PTX type of registers that hold elements of a type.
fn register_type(of: Type) -> &'static str {
    match of {
        Type::F64 => "f64",
        _ => "b32",
    }
}

/// The type that the words of a load or store name.
fn element(op: &Op<'_>) -> Result<Type> {
    op.words.iter().find_map(|word| Type::parse(word)).ok_or_else(|| "it has no type".to_owned())
}

fn counted<T>(found: Vec<T>, words: usize, of: Type) -> Result<Vec<T>> {
    let expected = if of == Type::F64 { words / 2 } else { words };
    if found.len() == expected { Ok(found) } else { Err(format!("{} registers, not {expected}", found.len())) }
}

impl<'t> Body<'_, 't> {
    fn fragment_in(&mut self, operand: &Operand<'t>, of: Type, words: usize) -> Result<Vec<Src>> {
        let found = parts(operand).iter().map(|part| self.src(part, register_type(of))).collect::<Result<_>>()?;
        counted(found, words, of)
    }

    fn fragment_out(&mut self, operand: &Operand<'t>, of: Type, words: usize) -> Result<Vec<u32>> {
        let found = parts(operand).iter().map(|part| self.dst(part, register_type(of))).collect::<Result<_>>()?;
        counted(found, words, of)
    }

    pub fn tensor(&mut self, op: &Op<'t>, args: &[Operand<'t>]) -> Result<bool> {
        let made = match (op.name, args) {
            ("mma", [d, a, b, c]) => {
                let mma = Mma::parse(&op.words).map_err(refused)?;
                super::target::check(self.builder.target, 10 * mma.minimum_sm().unwrap_or_default())?;
                let [wa, wb, wc, wd] = mma.words();
                Tensor::Mma {
                    op: mma,
                    a: self.fragment_in(a, mma.a, wa)?,
                    b: self.fragment_in(b, mma.b, wb)?,
                    c: self.fragment_in(c, mma.c, wc)?,
                    d: self.fragment_out(d, mma.d, wd)?,
                }
            }
            ("ldmatrix", [d, from]) => {
                let op_ = Ldmatrix::parse(&op.words).map_err(refused)?;
                let address = self.address(from, space(op))?;
                Tensor::Ldmatrix { op: op_, d: self.fragment_out(d, Type::F16, op_.count)?, address }
            }
            ("stmatrix", [to, from]) => {
                let op_ = Stmatrix::parse(&op.words).map_err(refused)?;
                let address = self.address(to, space(op))?;
                Tensor::Stmatrix { op: op_, from: self.fragment_in(from, Type::F16, op_.count)?, address }
            }
            ("movmatrix", [d, a]) => {
                let a = self.src(a, "b32")?;
                Tensor::Movmatrix { d: self.dst(d, "b32")?, a }
            }
            ("wmma", args) => self.wmma(op, args)?,
            ("wgmma", args) => self.wgmma(op, args)?,
            _ => return Ok(false),
        };
        self.emit(Class::Tensor, Inst::Tensor(Box::new(made)));
        Ok(true)
    }

    fn wmma(&mut self, op: &Op<'t>, args: &[Operand<'t>]) -> Result<Tensor> {
        let stride_of = |body: &mut Self, stride: Option<&Operand<'t>>| match stride {
            Some(stride) => body.src(stride, "u32"),
            None => Ok(NONE),
        };
        match (op.words.first(), args) {
            (Some(&"load"), [d, from, rest @ ..]) => {
                let load = WmmaLoad::parse(&op.words).map_err(refused)?;
                let address = self.address(from, space(op))?;
                let stride = stride_of(self, rest.first())?;
                let of = element(op)?;
                Ok(Tensor::WmmaLoad { op: load, d: self.fragment_out(d, of, load.words())?, address, stride })
            }
            (Some(&"store"), [to, from, rest @ ..]) => {
                let store = WmmaStore::parse(&op.words).map_err(refused)?;
                let address = self.address(to, space(op))?;
                let stride = stride_of(self, rest.first())?;
                let of = element(op)?;
                Ok(Tensor::WmmaStore { op: store, from: self.fragment_in(from, of, store.words())?, address, stride })
            }
            (Some(&"mma"), [d, a, b, c]) => {
                let mma = WmmaMma::parse(&op.words).map_err(refused)?;
                let ([wa, wb, wc, wd], [ta, tb, tc, td]) = (mma.words(), mma.types());
                Ok(Tensor::WmmaMma {
                    op: mma,
                    a: self.fragment_in(a, ta, wa)?,
                    b: self.fragment_in(b, tb, wb)?,
                    c: self.fragment_in(c, tc, wc)?,
                    d: self.fragment_out(d, td, wd)?,
                })
            }
            _ => Err("this form is not emulated".to_owned()),
        }
    }

    fn wgmma(&mut self, op: &Op<'t>, args: &[Operand<'t>]) -> Result<Tensor> {
        match (&op.words[..], args) {
            (["fence", "sync", "aligned"], []) => return Ok(Tensor::WgmmaFence),
            (["commit_group", "sync", "aligned"], []) => return Ok(Tensor::WgmmaCommit),
            (["wait_group", "sync", "aligned"], [Operand::Value(Value::Int(count))]) => {
                return Ok(Tensor::WgmmaWait(*count as u32));
            }
            _ => {}
        }
        let wgmma = Wgmma::parse(&op.words).map_err(refused)?;
        let [d, a, b, scale, rest @ ..] = args else { return Err("operands are missing".to_owned()) };
        let mut flags = Vec::new();
        for flag in rest {
            let Operand::Value(Value::Int(flag)) = flag else { return Err("a number is expected".to_owned()) };
            flags.push(*flag as i64);
        }
        let mut flags = flags.into_iter();
        let mut next = |what: &str| flags.next().ok_or_else(|| format!("{what} is missing"));
        let [wa, wd] = wgmma.words();
        let in_registers = matches!(a, Operand::Vector(_));
        let d = self.fragment_out(d, wgmma.d, wd)?;
        let a_registers = if in_registers { self.fragment_in(a, wgmma.a, wa)? } else { Vec::new() };
        let a_descriptor = if in_registers { NONE } else { self.src(a, "b64")? };
        let b_descriptor = self.src(b, "b64")?;
        let scale_d = self.predicate(scale)?;
        let mut negate = [false; 2];
        if wgmma.has_scales() {
            for negate in &mut negate {
                *negate = match next("imm-scale")? {
                    1 => false,
                    -1 => true,
                    _ => return Err("a scale has to be 1 or -1".to_owned()),
                };
            }
        }
        let mut transpose = [false; 2];
        if wgmma.has_transposes() {
            if !in_registers {
                transpose[0] = next("imm-trans-a")? != 0;
            }
            transpose[1] = next("imm-trans-b")? != 0;
        }
        Ok(Tensor::Wgmma { op: wgmma, d, a: a_registers, a_descriptor, b_descriptor, scale_d, negate, transpose })
    }
}
