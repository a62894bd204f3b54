//! Function bodies: declarations, labels and instructions.

use super::ast::{Index, Instruction, Operand, Space, Statement, Value, type_bits};
use super::lexer::Token;
use super::parser::{Parser, Result};

/// Registers of one declaration.
const MOST_REGISTERS: u32 = 1 << 22;

impl<'t> Parser<'t> {
    /// Statements up to the closing brace.
    pub(super) fn body(&mut self) -> Result<Vec<Statement<'t>>> {
        let (mut found, mut depth) = (Vec::new(), 0);
        loop {
            if self.eat(b'{') {
                depth += 1;
                found.push(Statement::Open);
            } else if self.eat(b'}') {
                if depth == 0 {
                    return Ok(found);
                }
                depth -= 1;
                found.push(Statement::Close);
            } else if self.eat(b';') {
                continue;
            } else if self.peek() == Some(Token::Sign(b'@')) {
                found.push(Statement::Instruction(self.instruction()?));
            } else {
                self.statement(&mut found)?;
            }
        }
    }

    fn statement(&mut self, found: &mut Vec<Statement<'t>>) -> Result<()> {
        let line = self.line();
        let word = self.word()?;
        if self.skip_directive(word, line)? {
            return Ok(());
        }
        match word {
            ".reg" => self.registers(found)?,
            ".param" | ".local" | ".shared" => {
                let space = match word {
                    ".param" => Space::Param,
                    ".local" => Space::Local,
                    _ => Space::Shared,
                };
                let mut variables = Vec::new();
                self.declarations(space, false, &mut variables)?;
                found.extend(variables.into_iter().map(Statement::Variable));
            }
            ".noreturn" => {}
            _ if word.starts_with('.') => return self.fail(format!("directive '{word}' in a body is not emulated")),
            _ if self.eat(b':') => {
                if self.eat_word(".branchtargets") {
                    let mut labels = vec![self.word()?];
                    while self.eat(b',') {
                        labels.push(self.word()?);
                    }
                    self.expect(b';')?;
                    found.push(Statement::Targets { name: word, labels });
                } else if self.eat_word(".callprototype") || self.eat_word(".calltargets") {
                    while !self.eat(b';') {
                        self.next()?;
                    }
                } else {
                    found.push(Statement::Label(word));
                }
            }
            _ => {
                self.at -= 1;
                found.push(Statement::Instruction(self.instruction()?));
            }
        }
        Ok(())
    }

    fn registers(&mut self, found: &mut Vec<Statement<'t>>) -> Result<()> {
        let mut word = self.word()?;
        if matches!(word, ".v2" | ".v4") {
            return self.fail("vector registers are not emulated");
        }
        let Some(bits) = word.strip_prefix('.').and_then(type_bits) else {
            return self.fail(format!("register type '{word}' is not emulated"));
        };
        loop {
            word = self.word()?;
            let count = if self.eat(b'<') {
                let count = self.int()?;
                let Some(count) = u32::try_from(count).ok().filter(|count| *count <= MOST_REGISTERS) else {
                    return self.fail(format!("{count} registers in one declaration"));
                };
                self.expect(b'>')?;
                Some(count)
            } else {
                None
            };
            found.push(Statement::Register { bits, name: word, count });
            if !self.eat(b',') {
                return self.expect(b';');
            }
        }
    }

    fn instruction(&mut self) -> Result<Instruction<'t>> {
        let line = self.line();
        let guard = if self.eat(b'@') {
            let negated = self.eat(b'!');
            Some((self.word()?, negated))
        } else {
            None
        };
        let opcode = self.word()?;
        let mut operands = Vec::new();
        while !self.eat(b';') {
            if !operands.is_empty() {
                self.expect(b',')?;
            }
            operands.push(self.operand()?);
        }
        Ok(Instruction { guard, opcode, operands, line })
    }

    fn operand(&mut self) -> Result<Operand<'t>> {
        if self.eat(b'!') {
            return Ok(Operand::Not(self.word()?));
        }
        if self.eat(b'{') {
            return Ok(Operand::Vector(self.list(b'}')?));
        }
        if self.eat(b'(') {
            return Ok(Operand::List(self.list(b')')?));
        }
        if self.eat(b'[') {
            let base = match self.peek() {
                Some(Token::Word(word)) => {
                    self.at += 1;
                    Some(word)
                }
                _ => None,
            };
            let mut offset = if base.is_none() { self.int()? } else { 0 };
            loop {
                if self.eat(b'+') || self.peek() == Some(Token::Sign(b'-')) {
                    offset += self.int()?;
                } else {
                    break;
                }
            }
            let rest = if self.eat(b',') {
                self.list(b']')?
            } else {
                self.expect(b']')?;
                Vec::new()
            };
            return Ok(Operand::Address { base, index: None, offset, rest });
        }
        if let Some(Token::Word(word)) = self.peek() {
            self.at += 1;
            if self.eat(b'|') {
                return Ok(Operand::Pair(word, self.word()?));
            }
            if self.eat(b'[') {
                return self.indexed(word);
            }
            if self.eat(b'+') || self.peek() == Some(Token::Sign(b'-')) {
                return Ok(Operand::Name(word, self.int()?));
            }
            return Ok(Operand::Name(word, 0));
        }
        Ok(Operand::Value(self.value()?))
    }

    /// `array[4]` or `array[%r1 + 4]`, from behind the bracket.
    fn indexed(&mut self, array: &'t str) -> Result<Operand<'t>> {
        let (index, offset) = match self.within(Self::operand)? {
            Operand::Name(register, offset) => (Index::Register(register), offset),
            Operand::Value(Value::Int(offset)) => (Index::Constant, offset as i64),
            _ => return self.fail(format!("the index of '{array}' is neither a register nor an integer")),
        };
        self.expect(b']')?;
        Ok(Operand::Address { base: Some(array), index: Some(index), offset, rest: Vec::new() })
    }

    fn list(&mut self, close: u8) -> Result<Vec<Operand<'t>>> {
        let mut found = Vec::new();
        while !self.eat(close) {
            if !found.is_empty() {
                self.expect(b',')?;
            }
            found.push(self.within(Self::operand)?);
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::super::ast::Function;
    use super::*;
    use crate::parse::parse;

    const TEXT: &str = r#"
.version 8.3
.target sm_80
.address_size 64
.file 1 "x.cu"
.extern .shared .align 16 .b8 dynamic[];
.const .align 4 .f32 table[2] = {0f3F800000, 2.0};
.global .u64 pointer = generic(table)+4;
.func (.param .b32 r) twice(.param .b32 a);
.visible .entry k(.param .u64 .ptr .global .align 16 p, .param .align 64 .b8 q[128])
.maxntid 128, 2
.minnctapersm 1
{
  .reg .pred %p<3>;
  .reg .b32 x, %r<4>;
  .loc 1 2 3
  T: .branchtargets L, M;
L:
  @!%p1 ld.global.v2.u32 {%r1, _}, [%rd1+-8];
  { .shared .align 8 .b8 s[2][4]; }
M: setp.lt.s32 %p1|%p2, -5, %r1;
  call.uni (r0), twice, (a0, a1);
}
"#;

    #[test]
    fn a_module_of_all_parts() {
        let ast = parse(TEXT).unwrap();
        let names: Vec<_> = ast.variables.iter().map(|v| (v.name, v.size, v.align, v.initial.len())).collect();
        assert_eq!(names, [("dynamic", 0, 16, 0), ("table", 8, 4, 2), ("pointer", 8, 8, 1)]);
        let [twice, kernel] = &ast.functions[..] else { panic!("two functions") };
        assert!(twice.body.is_none() && !twice.entry);
        let Function { name, entry: true, params, max_threads, body: Some(body), .. } = kernel else { panic!() };
        assert_eq!((*name, params.len(), *max_threads), ("k", 2, Some([128, 2, 1])));
        assert_eq!((params[0].size, params[0].align, params[1].size, params[1].align), (8, 8, 128, 64));
        let instructions: Vec<_> = body
            .iter()
            .filter_map(|statement| match statement {
                Statement::Instruction(instruction) => Some(instruction),
                _ => None,
            })
            .collect();
        assert_eq!(instructions[0].guard, Some(("%p1", true)));
        let address = Operand::Address { base: Some("%rd1"), index: None, offset: -8, rest: vec![] };
        assert_eq!(instructions[0].operands[1], address);
        assert_eq!(instructions[1].operands[0], Operand::Pair("%p1", "%p2"));
        assert_eq!(instructions[1].operands[1], Operand::Value(Value::Int(-5i64 as u64)));
        assert!(matches!(&instructions[2].operands[2], Operand::List(list) if list.len() == 2));
    }

    #[test]
    fn errors_name_the_line() {
        let error = parse(".version 8.0\n.target sm_80\n.entry k()\n{\n  mov.u32 %r1 %r2;\n}").unwrap_err();
        assert_eq!((error.line, error.message.as_str()), (5, "expected ',', found '%r2'"));
    }
}
