//! A function, statement by statement: each instruction goes to those who decode its kind.

use super::body::Body;
use super::operands::{Op, Result};
use super::{legal, order, target};
use crate::code::{HEADER, Inst, NONE, NOT};
use crate::options::Class;
use crate::parse::ast::{Instruction, Statement};

impl<'t> Body<'_, 't> {
    /// Decodes all statements; returns rows and predicates of the frame.
    pub fn decode(mut self, body: &'t [Statement<'t>]) -> (u32, u32) {
        let first = self.builder.code.len();
        let mut places = vec![0; self.names.labels.len()];
        let (mut next_scope, mut next_label) = (1, 0);
        for statement in body {
            self.scope = self.names.enter(statement, self.scope, &mut next_scope);
            match statement {
                Statement::Label(_) => {
                    places[next_label] = self.builder.code.len() as u32;
                    next_label += 1;
                }
                Statement::Instruction(instruction) => self.step(instruction),
                _ => {}
            }
        }
        self.guard = NONE;
        self.emit(Class::Control, Inst::Return);
        for (step, entry, label) in std::mem::take(&mut self.jumps) {
            match (&mut self.builder.code[step].inst, entry) {
                (Inst::Jump { target }, _) => *target = places[label],
                (Inst::Switch { targets, .. }, Some(entry)) => targets[entry] = places[label],
                _ => {}
            }
        }
        order::sort(self.builder, first);
        let rows = (self.names.rows + self.most_temporaries).max(self.names.predicates).max(HEADER);
        (rows, self.local.next_multiple_of(16))
    }

    fn step(&mut self, instruction: &Instruction<'t>) {
        self.line = instruction.line;
        self.temporaries = 0;
        self.reads.clear();
        let first = self.builder.code.len();
        let done = match instruction.guard.map(|(name, negated)| (self.predicate_name(name), negated)) {
            Some((Ok(guard), negated)) => {
                self.guard = if negated { guard ^ NOT } else { guard };
                self.instruction(instruction)
            }
            Some((Err(message), _)) => {
                self.guard = NONE;
                Err(message)
            }
            None => {
                self.guard = NONE;
                self.instruction(instruction)
            }
        };
        if let Err(message) = done {
            self.builder.code.truncate(first);
            self.builder.lines.truncate(first);
            let message = format!("'{}': {message}", instruction.opcode);
            self.emit(Class::Control, Inst::Unknown(message.into()));
        }
        // Steps before or behind that prepare operands are of integers.
        let steps = &mut self.builder.code[first..];
        let main = steps.iter().position(|step| step.class != Class::Integer);
        if let Some(step) = steps.get_mut(main.unwrap_or(0)) {
            step.counts = true;
        }
    }

    fn instruction(&mut self, instruction: &Instruction<'t>) -> Result<()> {
        let op = Op::new(instruction.opcode);
        legal::check(&op)?;
        let args = &instruction.operands[..];
        target::check(self.builder.target, target::needed(&op, args))?;
        let decoders = [
            Self::arithmetic,
            Self::floating,
            Self::conversion,
            Self::access,
            Self::control,
            Self::warp,
            Self::tensor,
            Self::asynchronous,
        ];
        for decoder in decoders {
            if decoder(self, &op, args)? {
                return Ok(());
            }
        }
        Err("this instruction is not emulated".to_owned())
    }
}
