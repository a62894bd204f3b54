//! Exchanges within a warp, and barriers.

use super::body::Body;
use super::operands::{Op, Result, bits};
use super::target;
use crate::code::{Barrier, BarrierKind, Exchange, ExchangeOp, Inst, NONE, Src};
use crate::options::Class;
use crate::parse::ast::Operand;

/// An exchange without operands.
fn exchange(op: ExchangeOp) -> Exchange {
    Exchange { op, members: NONE, d: NONE, p: NONE, a: NONE, b: NONE, c: NONE, pred: NONE, wide: false }
}

impl<'t> Body<'_, 't> {
    pub fn warp(&mut self, op: &Op<'t>, args: &[Operand<'t>]) -> Result<bool> {
        match op.name {
            "shfl" | "vote" | "match" | "redux" | "activemask" | "elect" => self.exchange(op, args)?,
            "bar" | "barrier" => self.barrier(op, args)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn exchange(&mut self, op: &Op<'t>, args: &[Operand<'t>]) -> Result<()> {
        use ExchangeOp as E;
        let with_mask = op.has("sync") || op.name == "activemask";
        if !with_mask && self.builder.target >= target::SM_70 {
            return Err("without '.sync', this is for targets before sm_70".to_owned());
        }
        let of = op.of().unwrap_or("b32");
        let signed = of == "s32";
        let kind = match op.name {
            "shfl" if op.has("up") => E::ShflUp,
            "shfl" if op.has("down") => E::ShflDown,
            "shfl" if op.has("bfly") => E::ShflBfly,
            "shfl" if op.has("idx") => E::ShflIdx,
            "vote" if op.has("all") => E::VoteAll,
            "vote" if op.has("any") => E::VoteAny,
            "vote" if op.has("uni") => E::VoteUni,
            "vote" if op.has("ballot") => E::VoteBallot,
            "match" if op.has("any") => E::MatchAny,
            "match" if op.has("all") => E::MatchAll,
            "redux" if of == "f32" => return Err("on floating-point numbers this is not emulated".to_owned()),
            "redux" if op.has("add") => E::ReduxAdd,
            "redux" if op.has("min") => E::ReduxMin { signed },
            "redux" if op.has("max") => E::ReduxMax { signed },
            "redux" if op.has("and") => E::ReduxAnd,
            "redux" if op.has("or") => E::ReduxOr,
            "redux" if op.has("xor") => E::ReduxXor,
            "activemask" => E::ActiveMask,
            "elect" => E::Elect,
            _ => return Err("this form is not emulated".to_owned()),
        };
        let mut made = Exchange { wide: bits(of) == 64, ..exchange(kind) };
        let (first, rest) = args.split_first().ok_or("operands are missing")?;
        if matches!(first, Operand::Pair(..)) && !matches!(op.name, "shfl" | "elect") && kind != E::MatchAll {
            return Err("one result is expected".to_owned());
        }
        let value = match first {
            Operand::Pair(d, p) => {
                made.p = self.predicate_out(p)?;
                Operand::Name(d, 0)
            }
            other => other.clone(),
        };
        match (op.name, rest) {
            ("shfl", [a, b, c, members @ ..]) => {
                made.d = self.dst(&value, "b32")?;
                (made.a, made.b) = (self.src(a, "b32")?, self.src(b, "b32")?);
                (made.c, made.members) = (self.src(c, "b32")?, self.members(with_mask, members)?);
            }
            ("vote", [pred, members @ ..]) => {
                if kind == E::VoteBallot {
                    made.d = self.dst(&value, "b32")?;
                } else {
                    let Operand::Name(p, 0) = value else { return Err("a predicate is expected".to_owned()) };
                    made.p = self.predicate_out(p)?;
                }
                made.pred = self.predicate(pred)?;
                made.members = self.members(with_mask, members)?;
            }
            ("match", [a, members]) => {
                made.d = self.dst(&value, "b32")?;
                made.a = self.src(a, of)?;
                made.members = self.src(members, "b32")?;
            }
            ("redux", [a, members]) => {
                made.d = self.dst(&value, of)?;
                (made.a, made.members) = (self.src(a, of)?, self.src(members, "b32")?);
            }
            ("activemask", []) => made.d = self.dst(&value, "b32")?,
            ("elect", [members]) if matches!(first, Operand::Pair(..)) => {
                made.d = self.dst(&value, "b32")?;
                made.members = self.src(members, "b32")?;
            }
            _ => return Err("another number of operands is expected".to_owned()),
        }
        self.emit(Class::Warp, Inst::Exchange(Box::new(made)));
        Ok(())
    }

    /// The lanes that take part: those of the mask, or, in forms without one, those that execute the instruction.
    fn members(&mut self, with_mask: bool, args: &[Operand<'t>]) -> Result<Src> {
        match args {
            [mask] if with_mask => self.src(mask, "b32"),
            [] if !with_mask => {
                let row = self.temporary(false);
                // Of integers, like all that prepares operands.
                self.emit(
                    Class::Integer,
                    Inst::Exchange(Box::new(Exchange { d: row, ..exchange(ExchangeOp::ActiveMask) })),
                );
                Ok(row)
            }
            _ => Err("another number of operands is expected".to_owned()),
        }
    }

    fn barrier(&mut self, op: &Op<'t>, args: &[Operand<'t>]) -> Result<()> {
        let zero = self.builder.constant(0, false);
        if op.has("warp") {
            let members = self.src(args.first().ok_or("a mask is expected")?, "b32")?;
            let made = Exchange { members, ..exchange(ExchangeOp::WarpSync) };
            self.emit(Class::Sync, Inst::Exchange(Box::new(made)));
            return Ok(());
        }
        let aligned = op.name == "bar" || op.has("aligned");
        let mut made = Barrier { kind: BarrierKind::Sync, aligned, id: zero, count: NONE, d: NONE, pred: NONE };
        if op.has("cluster") {
            let release = !op.has("relaxed");
            made.kind =
                if op.has("arrive") { BarrierKind::ClusterArrive { release } } else { BarrierKind::ClusterWait };
            self.emit(Class::Sync, Inst::Barrier(Box::new(made)));
            return Ok(());
        }
        let mut rest = args;
        if op.has("red") {
            made.kind = match () {
                () if op.has("popc") => BarrierKind::Popc,
                () if op.has("and") => BarrierKind::And,
                () => BarrierKind::Or,
            };
            let (first, others) = rest.split_first().ok_or("operands are missing")?;
            let Operand::Name(name, 0) = first else { return Err("a result is expected".to_owned()) };
            made.d = if made.kind == BarrierKind::Popc { self.dst(first, "b32")? } else { self.predicate_name(name)? };
            let (last, others) = others.split_last().ok_or("a predicate is expected")?;
            made.pred = self.predicate(last)?;
            rest = others;
        } else if op.has("arrive") {
            made.kind = BarrierKind::Arrive;
        }
        made.id = self.src(rest.first().ok_or("the barrier's number is missing")?, "b32")?;
        if let Some(count) = rest.get(1) {
            made.count = self.src(count, "b32")?;
        }
        if made.kind == BarrierKind::Arrive && made.count == NONE {
            return Err("'.arrive' needs the number of threads".to_owned());
        }
        self.emit(Class::Sync, Inst::Barrier(Box::new(made)));
        Ok(())
    }
}
