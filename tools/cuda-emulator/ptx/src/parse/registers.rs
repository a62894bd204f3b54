//! Parameters of functions in registers: passed like those in `.param`, and loaded where the body begins.

use super::ast::{Declaration, Instruction, Operand, Space, Statement, type_bits};
use super::parser::{Parser, Result};

/// Names for the parameters, which no text has.
const NAMES: [&str; 8] = ["(0)", "(1)", "(2)", "(3)", "(4)", "(5)", "(6)", "(7)"];

impl<'t> Parser<'t> {
    /// The parameters in registers before the first one in `.param`: what is passed, and the statements that load it.
    #[allow(clippy::type_complexity)]
    pub(super) fn registers_of_parameters(&mut self) -> Result<Vec<(Declaration<'t>, [Statement<'t>; 2])>> {
        let mut found: Vec<(Declaration<'t>, [Statement<'t>; 2])> = Vec::new();
        while self.eat_word(".reg") {
            let (line, of, name) = (self.line(), self.word()?, self.word()?);
            let (Some(bits @ (32 | 64)), Some(passed)) =
                (type_bits(of.trim_start_matches('.')), NAMES.get(found.len()))
            else {
                return self.fail(format!("a parameter in a register of type '{of}', or the 9th, is not emulated"));
            };
            let size = bits / 8;
            let declared = Declaration {
                space: Space::Param,
                name: passed,
                align: size,
                size: size.into(),
                element: size,
                stride: size,
                external: false,
                initial: Vec::new(),
                line,
            };
            let from = Operand::Address { base: Some(passed), index: None, offset: 0, rest: Vec::new() };
            let load = Instruction {
                guard: None,
                opcode: if bits == 64 { "ld.param.b64" } else { "ld.param.b32" },
                operands: vec![Operand::Name(name, 0), from],
                line,
            };
            found.push((declared, [Statement::Register { bits, name, count: None }, Statement::Instruction(load)]));
            self.eat(b',');
        }
        Ok(found)
    }
}
