//! Branches, calls and the end.

use std::collections::HashMap;

use super::body::Body;
use super::operands::{Op, Result};
use crate::code::{Access, Address, Call, Element, Inst, LOCAL_BASE, NONE, Space, Target};
use crate::options::Class;
use crate::parse::ast::{Operand, Value};

const CLASS: Class = Class::Control;

impl<'t> Body<'_, 't> {
    pub fn control(&mut self, op: &Op<'t>, args: &[Operand<'t>]) -> Result<bool> {
        match (op.name, args) {
            ("bra", [Operand::Name(label, 0)]) => {
                let label = self.names.label(self.scope, label).ok_or_else(|| format!("'{label}' is no label"))?;
                self.jumps.push((self.builder.code.len(), None, label));
                self.emit(CLASS, Inst::Jump { target: 0 });
            }
            ("brx", [index, Operand::Name(table, 0)]) => {
                let labels =
                    self.names.table(self.scope, table).ok_or_else(|| format!("'{table}' is no list of labels"))?;
                let a = self.src(index, "u32")?;
                let step = self.builder.code.len();
                for (entry, label) in labels.iter().enumerate() {
                    let label = self.names.label(self.scope, label).ok_or_else(|| format!("'{label}' is no label"))?;
                    self.jumps.push((step, Some(entry), label));
                }
                self.emit(CLASS, Inst::Switch { a, targets: vec![0; labels.len()].into() });
            }
            ("call", args) => self.call(args)?,
            ("ret", []) => self.emit(CLASS, Inst::Return),
            ("exit", []) => self.emit(CLASS, Inst::Exit),
            ("trap" | "brkpt", []) => self.emit(CLASS, Inst::Trap),
            ("setmaxnreg", [Operand::Value(Value::Int(count))]) if count % 8 != 0 || !(24..=256).contains(count) => {
                return Err(format!("{count} registers are not a multiple of 8 from 24 to 256"));
            }
            ("pmevent" | "setmaxnreg" | "griddepcontrol", _) => self.emit(CLASS, Inst::Nop),
            ("nanosleep", _) => self.emit(Class::Sync, Inst::Sleep),
            ("membar" | "fence", _) => {
                // Those for a block alone, those between proxies and those for `mbarrier.init` order no other accesses before
                // another block.
                let proxies = op.words.iter().any(|word| word.starts_with("proxy"));
                let within = op.has("cta") || op.has("mbarrier_init") || proxies && !op.has("release");
                self.emit(Class::Sync, if within { Inst::Nop } else { Inst::Fence });
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// `call (results), function, (parameters), prototype`
    fn call(&mut self, args: &[Operand<'t>]) -> Result<()> {
        let (results, rest) = match args {
            [Operand::List(results), rest @ ..] => (results.as_slice(), rest),
            rest => (&[][..], rest),
        };
        let (name, params) = match rest {
            [Operand::Name(name, 0), Operand::List(params), ..] => (*name, params.as_slice()),
            [Operand::Name(name, 0), ..] => (*name, &[][..]),
            _ => return Err("a function is expected".to_owned()),
        };
        let target = if let Some(external) = self.builder.externals.get(name) {
            Target::Extern(*external)
        } else if let Some(number) = self.builder.functions.get(name) {
            Target::Function(*number)
        } else {
            let operand = Operand::Name(name, 0);
            Target::Register(self.src(&operand, "u64")?)
        };
        // The callee's results and parameters lie at the start of its local memory, as its own declaration has them. A caller of another
        // text may declare a result that the function does not return, or none where it returns one: each then goes its own way.
        let returned = self.builder.returns.get(name).cloned();
        let agreed = returned.as_ref().is_none_or(|returned| returned.is_empty() == results.is_empty());
        let results = if agreed { results } else { &[] };
        let mut at = 0;
        if let Some(returned) = returned.filter(|_| !agreed) {
            at = returned.iter().fold(0u32, |at, (size, align)| at.next_multiple_of(*align) + size);
        }
        let spilled = self.spill(params)?;
        let mut place = |body: &Self, operand: &Operand<'t>| -> Result<(u32, u32, u32)> {
            let Operand::Name(name, 0) = operand else { return Err("a '.param' variable is expected".to_owned()) };
            let passed = spilled.get(name).copied().or_else(|| body.frame_slot(name));
            let (own, size, align) = passed.ok_or_else(|| format!("'{name}' is no '.param' variable"))?;
            at = u32::next_multiple_of(at, align.max(1));
            let slot = (own, at, size);
            at += size;
            Ok(slot)
        };
        let results = results.iter().map(|operand| place(self, operand)).collect::<Result<Vec<_>>>()?;
        let params = params.iter().map(|operand| place(self, operand)).collect::<Result<Vec<_>>>()?;
        let external = matches!(target, Target::Extern(_));
        // The frame's size is known at the end.
        let call = Call {
            target: target.clone(),
            copies: if external { [results.clone(), params].concat() } else { params },
            rows: 0,
        };
        self.emit(CLASS, Inst::Call(Box::new(call)));
        if !external && !results.is_empty() {
            self.emit(CLASS, Inst::Results(Box::new(Call { target, copies: results, rows: 0 })));
        }
        Ok(())
    }

    /// Stores the registers among a call's parameters in local memory: slot, size and alignment of each.
    #[allow(clippy::type_complexity)]
    fn spill(&mut self, params: &[Operand<'t>]) -> Result<HashMap<&'t str, (u32, u32, u32)>> {
        let mut slots = HashMap::new();
        for operand in params {
            let Operand::Name(name, 0) = operand else { continue };
            let Some(bits) = self.names.register(self.scope, name).map(|register| register.bits) else { continue };
            if bits < 32 || slots.contains_key(name) {
                continue;
            }
            let (of, size) = if bits == 64 { ("b64", 8) } else { ("b32", 4) };
            let slot = self.local.next_multiple_of(size);
            self.local = slot + size;
            let mut regs = [NONE; 8];
            regs[0] = self.src(operand, of)?;
            let address = Address { space: Space::Local, base: LOCAL_BASE, wide: false, offset: slot.into() };
            let element = Element { bytes: size as u8, signed: 0, wide: bits == 64 };
            self.emit(
                CLASS,
                Inst::Store(Box::new(Access { address, element, regs, count: 1, strong: false, release: false })),
            );
            slots.insert(*name, (slot, size, size));
        }
        Ok(slots)
    }
}
