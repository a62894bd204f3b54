//! PTX text as a syntax tree.

pub(crate) mod ast;
mod body;
mod expression;
mod lexer;
mod parser;
mod registers;

use crate::module::PtxError;
use ast::{Ast, Declaration, Function, Initial, Space, Value, type_bits};
use lexer::Token;
use parser::{Parser, Result};

/// Parses a module.
pub(crate) fn parse(text: &str) -> Result<Ast<'_>, PtxError> {
    let tokens = lexer::lex(text)?;
    Parser { tokens, at: 0, depth: 0 }.module()
}

/// Most bytes of a variable in local or shared memory, or of a parameter.
const MOST_BYTES: u64 = 1 << 20;

impl<'t> Parser<'t> {
    /// Skips what is for debuggers and the assembler only; whether there was such.
    fn skip_directive(&mut self, word: &str, line: u32) -> Result<bool> {
        match word {
            ".file" | ".loc" => self.skip_line(line),
            ".section" => {
                self.word()?;
                self.skip_block()?;
            }
            ".pragma" => while !matches!(self.next()?, Token::Sign(b';')) {},
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn module(mut self) -> Result<Ast<'t>> {
        let mut ast = Ast::default();
        let mut external = false;
        while self.peek().is_some() {
            let line = self.line();
            let word = self.word()?;
            if self.skip_directive(word, line)? {
                continue;
            }
            match word {
                ".version" | ".address_size" => drop(self.next()?),
                ".target" => self.target(&mut ast)?,
                ".alias" => {
                    let name = self.word()?;
                    self.expect(b',')?;
                    ast.aliases.push((name, self.word()?));
                    self.expect(b';')?;
                }
                ".visible" | ".weak" | ".common" => {}
                ".extern" => external = true,
                ".entry" | ".func" => {
                    let function = self.function(word == ".entry", line)?;
                    ast.functions.push(function);
                    external = false;
                }
                ".global" | ".const" | ".shared" => {
                    let space = match word {
                        ".global" => Space::Global,
                        ".const" => Space::Const,
                        _ => Space::Shared,
                    };
                    self.declarations(space, external, &mut ast.variables)?;
                    external = false;
                }
                _ => {
                    self.at -= 1;
                    return self.fail(format!("directive '{word}' is not emulated"));
                }
            }
        }
        if ast.target.is_empty() {
            return self.fail("no '.target': this is no PTX text");
        }
        Ok(ast)
    }

    /// `sm_80, debug`, in any order.
    fn target(&mut self, ast: &mut Ast<'t>) -> Result<()> {
        loop {
            let word = self.word()?;
            if word.starts_with("sm_") || ast.target.is_empty() {
                ast.target = word;
            }
            if !self.eat(b',') {
                return Ok(());
            }
        }
    }

    fn function(&mut self, entry: bool, line: u32) -> Result<Function<'t>> {
        let mut function = Function { entry, line, ..Function::default() };
        self.skip_attribute()?;
        if self.eat(b'(') {
            function.results = self.parameters()?;
        }
        function.name = self.word()?;
        let mut loads = Vec::new();
        if self.eat(b'(') {
            loads = if entry { Vec::new() } else { self.registers_of_parameters()? };
            function.params.extend(loads.iter().map(|load| load.0.clone()));
            function.params.extend(self.parameters()?);
        }
        loop {
            if self.eat(b';') {
                return Ok(function);
            }
            if self.eat(b'{') {
                let loads = loads.into_iter().flat_map(|load| load.1);
                function.body = Some(loads.chain(self.body()?).collect());
                return Ok(function);
            }
            let line = self.line();
            match self.word()? {
                ".maxntid" => function.max_threads = Some(self.sizes()?),
                ".reqntid" => function.required_threads = Some(self.sizes()?),
                ".reqnctapercluster" => function.cluster = Some(self.sizes()?),
                ".minnctapersm"
                | ".maxnctapersm"
                | ".maxnreg"
                | ".maxclusterrank"
                | ".abi_preserve"
                | ".abi_preserve_control" => {
                    self.int()?;
                }
                ".noreturn" | ".explicitcluster" | ".blocksareclusters" => {}
                word if self.skip_directive(word, line)? => {}
                word => return self.fail(format!("directive '{word}' of a function is not emulated")),
            }
        }
    }

    fn skip_attribute(&mut self) -> Result<()> {
        if self.eat_word(".attribute") {
            // `.attribute(.unified(0, 1))` has parentheses of its own.
            let mut depth = 0;
            loop {
                match self.next()? {
                    Token::Sign(b'(') => depth += 1,
                    Token::Sign(b')') if depth == 1 => break,
                    Token::Sign(b')') => depth -= 1,
                    // The host would read and write it at the card's address, where the host has no memory.
                    Token::Word(".managed") => {
                        return self.fail("a '__managed__' variable is not emulated: allocate with cuMemAllocManaged");
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn sizes(&mut self) -> Result<[u32; 3]> {
        let mut sizes = [1; 3];
        for size in &mut sizes {
            *size = self.int()? as u32;
            if !self.eat(b',') {
                break;
            }
        }
        Ok(sizes)
    }

    fn parameters(&mut self) -> Result<Vec<Declaration<'t>>> {
        let mut found = Vec::new();
        while !self.eat(b')') {
            if !self.eat_word(".param") {
                return self.fail("a parameter that is not in '.param' is not emulated here");
            }
            found.push(self.declaration(Space::Param, false)?);
            self.eat(b',');
        }
        Ok(found)
    }

    /// Variables of one declaration, after the word of its space.
    fn declarations(&mut self, space: Space, external: bool, found: &mut Vec<Declaration<'t>>) -> Result<()> {
        self.skip_attribute()?;
        let first = self.declaration(space, external)?;
        let mut template = first.clone();
        found.push(first);
        while self.eat(b',') {
            // `.shared .b32 a, b;`
            template.name = self.word()?;
            self.extent(&mut template)?;
            found.push(template.clone());
        }
        self.expect(b';')
    }

    fn declaration(&mut self, space: Space, external: bool) -> Result<Declaration<'t>> {
        let (mut align, mut element, mut vector, mut pointer) = (None, 0, 1, false);
        let line = self.line();
        let name = loop {
            let word = self.word()?;
            match word {
                // Behind `.ptr` it is the alignment of what is pointed to.
                ".align" if pointer => drop(self.alignment()?),
                ".align" => align = Some(self.alignment()?),
                ".ptr" => pointer = true,
                ".global" | ".const" | ".shared" | ".local" => {}
                ".v2" => vector = 2,
                ".v4" => vector = 4,
                _ if word.starts_with('.') => match type_bits(&word[1..]) {
                    Some(bits) => element = bits.div_ceil(8),
                    None => return self.fail(format!("type '{word}' of a variable is not emulated")),
                },
                _ => break word,
            }
        };
        let natural = element * vector;
        let align = align.unwrap_or(natural);
        let mut declared = Declaration {
            space,
            name,
            align,
            size: 0,
            element: natural,
            stride: natural,
            external,
            initial: Vec::new(),
            line,
        };
        self.extent(&mut declared)?;
        declared.element = element;
        Ok(declared)
    }

    /// Dimensions and initialiser. `element` is the size of one element with its vector.
    fn extent(&mut self, declared: &mut Declaration<'t>) -> Result<()> {
        let (mut count, mut open) = (1u64, false);
        while self.eat(b'[') {
            if self.eat(b']') {
                open = true;
                continue;
            }
            let Some(product) = u64::try_from(self.int()?).ok().and_then(|size| count.checked_mul(size)) else {
                return self.fail("a size that no array has");
            };
            count = product;
            self.expect(b']')?;
        }
        declared.initial.clear();
        if self.eat(b'=') {
            self.initial(&mut declared.initial)?;
        }
        if open {
            count = declared.initial.len() as u64;
        }
        let most = if matches!(declared.space, Space::Global | Space::Const) { u64::MAX } else { MOST_BYTES };
        match count.checked_mul(declared.element.into()).filter(|size| *size <= most) {
            Some(size) => declared.size = size,
            None => return self.fail(format!("'{}' has more bytes than its state space", declared.name)),
        }
        Ok(())
    }

    fn alignment(&mut self) -> Result<u32> {
        let align = self.int()?;
        match u32::try_from(align).ok().filter(|align| align.is_power_of_two() && *align <= 1 << 16) {
            Some(align) => Ok(align),
            None => self.fail(format!("an alignment of {align} bytes")),
        }
    }

    fn initial(&mut self, found: &mut Vec<Initial<'t>>) -> Result<()> {
        if self.eat(b'{') {
            while !self.eat(b'}') {
                self.within(|parser| parser.initial(found))?;
                self.eat(b',');
            }
            return Ok(());
        }
        let mut mask = None;
        let item = if let Some(Token::Word(_)) = self.peek() {
            self.address_of(mask)?
        } else {
            match self.value()? {
                Value::Int(bits) if self.eat(b'(') => {
                    mask = Some(bits);
                    let item = self.address_of(mask)?;
                    self.expect(b')')?;
                    item
                }
                value => Initial::Value(value),
            }
        };
        found.push(item);
        Ok(())
    }

    fn address_of(&mut self, mask: Option<u64>) -> Result<Initial<'t>> {
        let parenthesised = self.eat_word("generic") && self.eat(b'(');
        let name = self.word()?;
        if parenthesised {
            self.expect(b')')?;
        }
        let has_offset = self.eat(b'+') || self.peek() == Some(Token::Sign(b'-'));
        let offset = if has_offset { self.int()? } else { 0 };
        Ok(Initial::Address { name, offset, mask })
    }
}
