//! Scopes of a function body, and rows for its registers.
//!
//! A register that is used in one straight piece of code only, and written there first, shares its rows with others of
//! the kind: so the frames of code with thousands of registers stay small.

use std::collections::HashMap;

use crate::code::{CARRY, HEADER};
use crate::parse::ast::{Declaration, Index, Instruction, Operand, Statement};

/// A register: its row, or its number among the predicates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Register {
    pub row: u32,
    pub bits: u32,
}

impl Register {
    pub fn rows(self) -> u32 {
        rows(self.bits)
    }
}

fn rows(bits: u32) -> u32 {
    bits.div_ceil(32)
}

#[derive(Debug, Default)]
struct Scope<'t> {
    parent: Option<usize>,
    /// First id, count, bits.
    registers: HashMap<&'t str, (usize, Option<u32>)>,
    labels: HashMap<&'t str, usize>,
    tables: HashMap<&'t str, &'t [&'t str]>,
    variables: HashMap<&'t str, usize>,
}

/// What a body declares.
#[derive(Debug, Default)]
pub(super) struct Names<'t> {
    scopes: Vec<Scope<'t>>,
    registers: Vec<Register>,
    /// Statement of each label.
    pub labels: Vec<usize>,
    /// Variables in the order of the text.
    pub variables: Vec<&'t Declaration<'t>>,
    /// Rows and predicates of the frame so far.
    pub rows: u32,
    pub predicates: u32,
}

impl<'t> Names<'t> {
    /// Declarations of a body, with rows given out.
    pub fn new(body: &'t [Statement<'t>]) -> Self {
        let mut names = Self { scopes: vec![Scope::default()], predicates: CARRY + 1, ..Self::default() };
        let mut scope = 0;
        for (at, statement) in body.iter().enumerate() {
            match statement {
                Statement::Open => {
                    names.scopes.push(Scope { parent: Some(scope), ..Scope::default() });
                    scope = names.scopes.len() - 1;
                }
                Statement::Close => scope = names.scopes[scope].parent.unwrap_or(0),
                Statement::Register { bits, name, count } => {
                    let first = names.registers.len();
                    names.scopes[scope].registers.insert(name, (first, *count));
                    let register = Register { row: u32::MAX, bits: *bits };
                    names.registers.extend((0..count.unwrap_or(1)).map(|_| register));
                }
                Statement::Label(name) => {
                    names.scopes[scope].labels.insert(name, names.labels.len());
                    names.labels.push(at);
                }
                Statement::Targets { name, labels } => {
                    names.scopes[scope].tables.insert(name, labels);
                }
                Statement::Variable(variable) => {
                    names.scopes[scope].variables.insert(variable.name, names.variables.len());
                    names.variables.push(variable);
                }
                Statement::Instruction(_) => {}
            }
        }
        names.place(body);
        names
    }

    fn up<T>(&self, mut scope: usize, find: impl Fn(&Scope<'t>) -> Option<T>) -> Option<T> {
        loop {
            if let Some(found) = find(&self.scopes[scope]) {
                return Some(found);
            }
            scope = self.scopes[scope].parent?;
        }
    }

    fn id(&self, scope: usize, name: &str) -> Option<usize> {
        let digits = name.bytes().rev().take_while(u8::is_ascii_digit).count();
        self.up(scope, |scope| {
            if let Some((id, None)) = scope.registers.get(name) {
                return Some(*id);
            }
            // `%r<5>` declares `%r0` to `%r4`; the prefix may end in digits itself.
            (name.len() - digits..name.len()).find_map(|split| {
                let (first, count) = scope.registers.get(&name[..split])?;
                let number = name[split..].parse::<u32>().ok()?;
                (number < (*count)?).then_some(first + number as usize)
            })
        })
    }

    pub fn register(&self, scope: usize, name: &str) -> Option<Register> {
        self.id(scope, name).map(|id| self.registers[id])
    }

    pub fn label(&self, scope: usize, name: &str) -> Option<usize> {
        self.up(scope, |scope| scope.labels.get(name).copied())
    }

    pub fn table(&self, scope: usize, name: &str) -> Option<&'t [&'t str]> {
        self.up(scope, |scope| scope.tables.get(name).copied())
    }

    /// Number of a variable in the order of the text.
    pub fn variable(&self, scope: usize, name: &str) -> Option<usize> {
        self.up(scope, |scope| scope.variables.get(name).copied())
    }

    /// The scope after `statement`, of which `next` is the number that the next scope gets.
    pub fn enter(&self, statement: &Statement<'_>, scope: usize, next: &mut usize) -> usize {
        match statement {
            Statement::Open => {
                *next += 1;
                *next - 1
            }
            Statement::Close => self.scopes[scope].parent.unwrap_or(0),
            _ => scope,
        }
    }

    /// Gives out rows.
    fn place(&mut self, body: &'t [Statement<'t>]) {
        #[derive(Clone, Copy, Default)]
        struct Use {
            block: usize,
            first: usize,
            last: usize,
            seen: bool,
            shared: bool,
        }
        let mut uses = vec![Use::default(); self.registers.len()];
        let (mut scope, mut next, mut block) = (0, 1, 0);
        for (at, statement) in body.iter().enumerate() {
            scope = self.enter(statement, scope, &mut next);
            match statement {
                Statement::Label(_) => block += 1,
                Statement::Instruction(instruction) => {
                    each_name(instruction, |name, written| {
                        let Some(id) = self.id(scope, name) else { return };
                        let entry = &mut uses[id];
                        if !entry.seen {
                            let kept = !written || instruction.guard.is_some();
                            *entry = Use { block, first: at, last: at, seen: true, shared: kept };
                        }
                        // What `wgmma` writes is written up to its wait, also where nobody reads it.
                        entry.shared |= entry.block != block || instruction.opcode.starts_with("wgmma");
                        entry.last = at;
                    });
                    block += usize::from(ends_block(instruction.opcode));
                }
                _ => {}
            }
        }
        let (mut row, mut predicate) = (HEADER, self.predicates);
        let (mut starts, mut ends) = (vec![Vec::new(); body.len()], vec![Vec::new(); body.len()]);
        for (id, entry) in uses.iter().enumerate() {
            let register = &mut self.registers[id];
            if register.bits == 1 {
                register.row = predicate;
                predicate += 1;
            } else if entry.seen && entry.shared {
                // 64-bit values lie in two rows, wherever these start.
                register.row = row;
                row += register.rows();
            } else if entry.seen {
                starts[entry.first].push(id);
                ends[entry.last].push(id);
            }
        }
        let mut free: [Vec<u32>; 5] = Default::default();
        for (started, ended) in starts.iter().zip(&ends) {
            for &id in started {
                let size = self.registers[id].rows();
                self.registers[id].row = free[size as usize].pop().unwrap_or_else(|| {
                    row += size;
                    row - size
                });
            }
            for &id in ended {
                free[self.registers[id].rows() as usize].push(self.registers[id].row);
            }
        }
        self.rows = row;
        self.predicates = predicate;
    }
}

fn ends_block(opcode: &str) -> bool {
    ["bra", "brx", "call", "ret", "exit", "trap"].contains(&opcode.split('.').next().unwrap_or_default())
}

/// Calls for each name of an instruction, with whether it is written there.
fn each_name<'t>(instruction: &Instruction<'t>, mut visit: impl FnMut(&'t str, bool)) {
    fn names<'t>(operand: &Operand<'t>, written: bool, visit: &mut impl FnMut(&'t str, bool)) {
        match operand {
            Operand::Name(name, _) => visit(name, written),
            Operand::Not(name) => visit(name, false),
            Operand::Pair(a, b) => {
                visit(a, written);
                visit(b, written);
            }
            Operand::Vector(all) | Operand::List(all) => all.iter().for_each(|operand| names(operand, written, visit)),
            Operand::Address { base, index, rest, .. } => {
                base.iter().for_each(|base| visit(base, false));
                if let Some(Index::Register(index)) = index {
                    visit(index, false);
                }
                rest.iter().for_each(|operand| names(operand, false, visit));
            }
            Operand::Value(_) => {}
        }
    }
    if let Some((name, _)) = instruction.guard {
        visit(name, false);
    }
    // Operands are read before the first one is written. What `wgmma` writes is written later.
    let asynchronous = instruction.opcode.starts_with("wgmma");
    for operand in instruction.operands.iter().skip(1) {
        names(operand, false, &mut visit);
    }
    if let Some(first) = instruction.operands.first() {
        names(first, !asynchronous, &mut visit);
    }
}
