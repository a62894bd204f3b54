//! Asynchronous copies, `mbarrier` objects, and addresses within a cluster.

use super::access::elements;
use super::body::Body;
use super::operands::{Op, Result, bits, space};
use crate::code::{
    Address, Copy, Inst, MbarrierOp, MbarrierStep, NONE, SHARED_RANK, SHARED_WINDOW, Space, Special, Src,
};
use crate::lanes::lanes;
use crate::options::Class;
use crate::parse::ast::{Operand, Value};
use crate::tensor::{BulkTensor, Direction, Element, Offsets, Operation, Reduction};

fn number(operand: &Operand<'_>) -> Result<u32> {
    match operand {
        Operand::Value(Value::Int(value)) => Ok(*value as u32),
        _ => Err("a number is expected".to_owned()),
    }
}

impl<'t> Body<'_, 't> {
    pub fn asynchronous(&mut self, op: &Op<'t>, args: &[Operand<'t>]) -> Result<bool> {
        match op.name {
            "mbarrier" => self.mbarrier(op, args)?,
            "st" | "red" => {
                let copy = self.remote_store(op, args)?;
                self.emit(Class::Copy, Inst::Copy(Box::new(copy)));
            }
            "mapa" | "getctarank" => self.cluster_address(op, args)?,
            "cp" => match self.copy_step(op, args)? {
                Some(copy) => self.emit(Class::Copy, Inst::Copy(Box::new(copy))),
                None => self.emit(Class::Copy, Inst::Nop),
            },
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn cluster_address(&mut self, op: &Op<'t>, args: &[Operand<'t>]) -> Result<()> {
        let of = op.of()?;
        let wide = of.ends_with("64");
        let generic = space(op) == Space::Generic;
        let (first, rest) = args.split_first().ok_or("operands are missing")?;
        let mut a = self.src(
            rest.first().ok_or("an operand is missing")?,
            if op.name == "mapa" {
                of
            } else if generic {
                "u64"
            } else {
                "u32"
            },
        )?;
        if op.name == "mapa" {
            let rank = self.src(rest.get(1).ok_or("an operand is missing")?, "u32")?;
            let d = self.dst(first, of)?;
            if wide {
                let window = if generic { 1 } else { 0 };
                let map = lanes!(imm; a: u64, b: u32 => u64: {
                    let window = if imm != 0 { SHARED_WINDOW } else { 0 };
                    window | a & ((1 << SHARED_RANK) - 1) | u64::from(b.wrapping_add(1)) << SHARED_RANK
                });
                self.map(Class::Integer, (map, window), (d, true), &[a, rank]);
            } else {
                let map =
                    lanes!(a: u32, b: u32 => u32: a & ((1 << SHARED_RANK) - 1) | b.wrapping_add(1) << SHARED_RANK);
                self.map(Class::Integer, (map, 0), (d, false), &[a, rank]);
            }
            return Ok(());
        }
        a = self.resize(a, generic, false);
        let own = self.temporary(false);
        self.emit(Class::Integer, Inst::Special { d: own, what: Special::ClusterCtarank });
        let d = self.dst(first, "u32")?;
        let map = lanes!(a: u32, b: u32 => u32: if a >> SHARED_RANK == 0 { b } else { (a >> SHARED_RANK) - 1 });
        self.map(Class::Integer, (map, 0), (d, false), &[a, own]);
        Ok(())
    }

    fn mbarrier(&mut self, op: &Op<'t>, args: &[Operand<'t>]) -> Result<()> {
        let drop = op.has("arrive_drop");
        let what = match op.words.first().copied().unwrap_or_default() {
            "init" => MbarrierOp::Init,
            "inval" => MbarrierOp::Invalidate,
            "expect_tx" => MbarrierOp::Expect,
            "complete_tx" => MbarrierOp::Complete,
            "arrive" | "arrive_drop" => {
                let (expect, no_complete) = (op.has("expect_tx"), op.has("noComplete"));
                MbarrierOp::Arrive { expect, no_complete, drop, release: !op.has("relaxed") }
            }
            "test_wait" => MbarrierOp::Test { parity: op.has("parity"), try_wait: false },
            "try_wait" => MbarrierOp::Test { parity: op.has("parity"), try_wait: true },
            "pending_count" => MbarrierOp::PendingCount,
            _ => return Err("this form is not emulated".to_owned()),
        };
        let space = space(op);
        let nowhere = Address { space, base: NONE, wide: true, offset: 0 };
        let mut step = MbarrierStep { op: what, address: nowhere, d: NONE, p: NONE, a: NONE };
        match (what, args) {
            (MbarrierOp::Init | MbarrierOp::Expect | MbarrierOp::Complete, [address, count]) => {
                step.address = self.address(address, space)?;
                step.a = self.src(count, "u32")?;
            }
            (MbarrierOp::Invalidate, [address]) => step.address = self.address(address, space)?,
            (MbarrierOp::Arrive { .. }, args) => {
                let (state, rest) = match args {
                    [Operand::Address { .. }, ..] => (None, args),
                    [state, rest @ ..] => (Some(state), rest),
                    [] => return Err("operands are missing".to_owned()),
                };
                if let Some(state) = state.filter(|state| **state != Operand::Name("_", 0)) {
                    step.d = self.dst(state, "b64")?;
                }
                step.address = self.address(rest.first().ok_or("an address is expected")?, space)?;
                match rest.get(1) {
                    Some(count) => step.a = self.src(count, "u32")?,
                    None if op.has("expect_tx") || op.has("noComplete") => {
                        return Err("the count is missing".to_owned());
                    }
                    None => {}
                }
            }
            (MbarrierOp::Test { parity, try_wait }, [Operand::Name(p, 0), address, state, hint @ ..])
                if hint.len() <= usize::from(try_wait) =>
            {
                step.p = self.predicate_out(p)?;
                step.address = self.address(address, space)?;
                step.a = self.src(state, if parity { "u32" } else { "b64" })?;
            }
            (MbarrierOp::PendingCount, [d, state]) => {
                step.a = self.src(state, "b64")?;
                step.d = self.dst(d, "u32")?;
            }
            _ => return Err("another number of operands is expected".to_owned()),
        }
        self.emit(Class::Sync, Inst::Mbarrier(Box::new(step)));
        Ok(())
    }

    fn copy_step(&mut self, op: &Op<'t>, args: &[Operand<'t>]) -> Result<Option<Copy>> {
        let words = op.words.as_slice();
        if op.has("tensor") {
            return self.tensor_copy(op, args);
        }
        Ok(Some(match words {
            ["async", "commit_group"] => Copy::Commit,
            ["async", "wait_group"] => Copy::Wait(number(args.first().ok_or("a number is expected")?)?),
            ["async", "wait_all"] => Copy::WaitAll,
            ["async", "mbarrier", "arrive", ..] => {
                let barrier = self.address(args.first().ok_or("an address is expected")?, space(op))?;
                Copy::Arrive { barrier, increment: !op.has("noinc") }
            }
            ["async", "bulk", "commit_group"] => Copy::BulkCommit,
            ["async", "bulk", "wait_group", ..] => Copy::BulkWait(number(args.first().ok_or("a number is expected")?)?),
            ["async", "bulk", "prefetch", ..] => return Ok(None),
            [_, "async", "bulk", ..] | ["async", "bulk", ..] => self.bulk_copy(op, args)?,
            ["async", "ca" | "cg", ..] => self.small_copy(op, args)?,
            _ => return Err("this form is not emulated".to_owned()),
        }))
    }

    /// `cp.async.ca.shared.global [to], [from], size {, source size or ignore} {, policy}`
    fn small_copy(&mut self, op: &Op<'t>, args: &[Operand<'t>]) -> Result<Copy> {
        let [to, from, size, rest @ ..] = args else { return Err("3 operands are expected".to_owned()) };
        if op.words.get(2) == Some(&"global") {
            return Err("these copies go from global to shared memory".to_owned());
        }
        let to = self.address(to, Space::Shared)?;
        let from = self.address(from, Space::Global)?;
        let bytes = number(size)?;
        if !matches!(bytes, 4 | 8 | 16) || op.has("cg") && bytes != 16 {
            return Err(format!("a size of {bytes} is not 4, 8 or 16, or with '.cg' not 16"));
        }
        let rest = if op.has("L2::cache_hint") { &rest[..rest.len().saturating_sub(1)] } else { rest };
        let (mut source, mut ignore) = (NONE, NONE ^ crate::code::NOT);
        match rest.first() {
            Some(operand @ Operand::Name(name, 0)) if self.predicate_name(name).is_ok() => {
                ignore = self.predicate(operand)?
            }
            Some(operand @ Operand::Not(_)) => ignore = self.predicate(operand)?,
            Some(operand) => source = self.src(operand, "u32")?,
            None => {}
        }
        Ok(Copy::Async { to, from, bytes, source, ignore })
    }

    fn bulk_copy(&mut self, op: &Op<'t>, args: &[Operand<'t>]) -> Result<Copy> {
        let is_space = |word: &&str| matches!(*word, "global" | "shared::cta" | "shared::cluster");
        let spaces: Vec<&str> = op.words.iter().copied().filter(is_space).collect();
        let (to_space, from_space) = match (&spaces[..], op.has("bulk_group")) {
            (["global", "shared::cta"], true) => (Space::Global, Space::Shared),
            (["shared::cta" | "shared::cluster", "global"], false) => (Space::Shared, Space::Global),
            (["shared::cluster", "shared::cta"], false) => (Space::Shared, Space::Shared),
            _ => return Err("these state spaces do not go together".to_owned()),
        };
        let [to, from, size, rest @ ..] = args else { return Err("3 operands are expected".to_owned()) };
        let to = self.address(to, to_space)?;
        let from = self.address(from, from_space)?;
        let size = self.src(size, "u32")?;
        let rest = if op.has("L2::cache_hint") { &rest[..rest.len().saturating_sub(1)] } else { rest };
        let (barrier, rest) = match rest {
            [address @ Operand::Address { .. }, rest @ ..] => (Some(self.address(address, Space::Shared)?), rest),
            rest => (None, rest),
        };
        let mask = if op.has("multicast::cluster") {
            self.src(rest.first().ok_or("the mask is missing")?, "u16")?
        } else {
            NONE
        };
        let reduce = if op.words.first() == Some(&"reduce") {
            let operation =
                op.words.iter().find_map(|word| Operation::parse(word)).ok_or("its operation is not emulated")?;
            let element = match op.of()? {
                "u32" | "b32" => Element::U32,
                "s32" => Element::S32,
                "u64" | "b64" => Element::U64,
                "s64" => Element::S64,
                "f16" => Element::F16,
                "bf16" => Element::Bf16,
                "f32" => Element::F32,
                "f64" => Element::F64,
                _ => return Err("this type is not emulated".to_owned()),
            };
            Some(Reduction::new(operation, element).map_err(|refused| refused.0)?)
        } else {
            None
        };
        Ok(Copy::Bulk { to, from, size, barrier, mask, reduce })
    }

    /// `st.async` and `red.async`: registers to shared memory of any block of the cluster.
    fn remote_store(&mut self, op: &Op<'t>, args: &[Operand<'t>]) -> Result<Copy> {
        let [to, from, barrier] = args else { return Err("3 operands are expected".to_owned()) };
        let of = op.of()?;
        let reduce = if op.name == "red" {
            let operation = op.words.iter().find_map(|word| Operation::parse(word));
            let (operation, element) = match (operation.ok_or("the operation is missing")?, of) {
                (operation @ Operation::Add, "u64" | "s64") => (operation, Element::U64),
                (operation @ (Operation::Add | Operation::Min | Operation::Max), "s32") => (operation, Element::S32),
                (operation @ (Operation::And | Operation::Or | Operation::Xor), "b32") => (operation, Element::U32),
                (Operation::And | Operation::Or | Operation::Xor, _) => return Err("'.b32' is expected".to_owned()),
                (operation, "u32") => (operation, Element::U32),
                _ => return Err("this operation does not go with this type".to_owned()),
            };
            Some(Reduction::new(operation, element).map_err(|refused| refused.0)?)
        } else {
            if !matches!(of, "b32" | "u32" | "s32" | "f32" | "b64" | "u64" | "s64" | "f64") {
                return Err("this type is not stored asynchronously".to_owned());
            }
            None
        };
        let from = elements(op, of, from)?.iter().map(|source| self.src(source, of)).collect::<Result<Vec<_>>>()?;
        let (to, barrier) = (self.address(to, Space::Shared)?, self.address(barrier, Space::Shared)?);
        Ok(Copy::Store { to, from, wide: bits(of) == 64, barrier, reduce })
    }

    fn coordinates(&mut self, operand: &Operand<'t>) -> Result<Vec<Src>> {
        let Operand::Address { rest, .. } = operand else { return Err("a tensor is expected".to_owned()) };
        match rest.as_slice() {
            [Operand::Vector(all)] => all.iter().map(|one| self.src(one, "s32")).collect(),
            all => all.iter().map(|one| self.src(one, "s32")).collect(),
        }
    }

    fn tensor_copy(&mut self, op: &Op<'t>, args: &[Operand<'t>]) -> Result<Option<Copy>> {
        let parsed = BulkTensor::parse(&op.words).map_err(|refused| refused.0)?;
        let (to, from) = match (parsed.direction, args) {
            (Direction::Prefetch, _) => return Ok(None),
            (Direction::Load, [shared, tensor, ..]) => (tensor, shared),
            (_, [tensor, shared, ..]) => (tensor, shared),
            _ => return Err("2 operands are expected".to_owned()),
        };
        let map = self.address(to, Space::Generic)?;
        let coordinates = self.coordinates(to)?;
        if coordinates.len() != parsed.dimensions {
            return Err(format!("{} coordinates, not {}", coordinates.len(), parsed.dimensions));
        }
        let shared = self.address(from, Space::Shared)?;
        let mut rest = &args[2..];
        if parsed.cache_hint {
            rest = &rest[..rest.len().saturating_sub(1)];
        }
        let mut barrier = None;
        if parsed.direction == Direction::Load {
            let (first, others) = rest.split_first().ok_or("an mbarrier is expected")?;
            barrier = Some(self.address(first, Space::Shared)?);
            rest = others;
        }
        let mut offsets = Vec::new();
        if parsed.mode == Offsets::Im2col {
            let (first, others) = rest.split_first().ok_or("offsets are expected")?;
            let Operand::Vector(all) = first else { return Err("offsets are expected".to_owned()) };
            offsets = all.iter().map(|one| self.src(one, "u16")).collect::<Result<_>>()?;
            rest = others;
        }
        let mask = if parsed.multicast { self.src(rest.first().ok_or("the mask is missing")?, "u16")? } else { NONE };
        Ok(Some(Copy::Tensor { op: parsed, map, shared, coordinates, barrier, offsets, mask }))
    }
}
