//! A module as it is decoded: its code, constants and symbols.

use std::collections::{HashMap, HashSet};

use crate::code::{CONST, External, FUNCTION_BASE, Frame, Program, Src, Step};
use crate::lanes::{LANES, Row};
use crate::parse::ast::{Ast, Declaration, Function, Instruction, Operand, Space, Statement};

/// What a name of the module stands for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Symbol {
    Shared {
        offset: u32,
    },
    DynamicShared,
    /// A device address, or that of a function.
    Address(u64),
}

pub(super) struct Builder<'t> {
    pub code: Vec<Step>,
    pub lines: Vec<u32>,
    constants: Vec<Row>,
    known: HashMap<(u64, bool), Src>,
    pub symbols: HashMap<&'t str, Symbol>,
    /// Offsets in shared memory by variable, and by function and its variable.
    shared: HashMap<(&'t str, &'t str), u32>,
    /// Numbers of functions by name.
    pub functions: HashMap<&'t str, u32>,
    /// Sizes and alignments of what functions with a body return.
    pub returns: HashMap<&'t str, Vec<(u32, u32)>>,
    pub externals: HashMap<&'t str, External>,
    /// Bytes from one element to the next by variable of the module.
    pub strides: HashMap<&'t str, u32>,
    /// Static shared memory of kernels.
    pub statics: HashMap<&'t str, u32>,
    dynamic_align: u32,
    pub workspace: bool,
    /// The card that the module is for.
    pub target: super::target::Target,
}

impl<'t> Builder<'t> {
    pub fn new(ast: &Ast<'t>) -> Self {
        let mut builder = Self {
            code: Vec::new(),
            lines: Vec::new(),
            constants: vec![Row::ZERO; 2],
            known: HashMap::new(),
            symbols: HashMap::new(),
            shared: HashMap::new(),
            functions: HashMap::new(),
            returns: HashMap::new(),
            externals: HashMap::new(),
            strides: ast.variables.iter().map(|declared| (declared.name, declared.stride)).collect(),
            statics: HashMap::new(),
            dynamic_align: 0,
            workspace: false,
            target: u32::MAX,
        };
        for function in &ast.functions {
            if function.body.is_some() {
                let returned = function.results.iter().map(|result| (result.size as u32, result.align.max(1)));
                builder.returns.insert(function.name, returned.collect());
            }
            let external = match function.name {
                "vprintf" => External::Vprintf,
                "__assertfail" => External::Assertfail,
                "malloc" => External::Malloc,
                "free" => External::Free,
                _ => {
                    let number = builder.functions.len() as u32;
                    let number = *builder.functions.entry(function.name).or_insert(number);
                    let address = FUNCTION_BASE + u64::from(number) * 16;
                    builder.symbols.insert(function.name, Symbol::Address(address));
                    continue;
                }
            };
            builder.externals.insert(function.name, external);
        }
        for (name, of) in &ast.aliases {
            if let Some(returned) = builder.returns.get(of).cloned() {
                builder.returns.insert(name, returned);
            }
        }
        builder.lay_out_shared(ast);
        builder
    }

    /// A constant in all lanes.
    pub fn constant(&mut self, bits: u64, wide: bool) -> Src {
        let bits = if wide { bits } else { bits & 0xffff_ffff };
        *self.known.entry((bits, wide)).or_insert_with(|| {
            let at = self.constants.len() as u32;
            if wide {
                let (low, high) = (bits as u32, (bits >> 32) as u32);
                let row = Row(std::array::from_fn(|i| if i % 2 == 0 { low } else { high }));
                self.constants.extend([row, row]);
            } else {
                self.constants.push(Row([bits as u32; LANES]));
                // A function that reads 64 bits may follow.
                self.constants.push(Row([0; LANES]));
            }
            at | CONST
        })
    }

    pub fn symbol(&self, name: &str) -> Option<Symbol> {
        self.symbols.get(name).copied()
    }

    /// Offset of a shared variable that a function's body declares.
    pub fn shared_offset(&self, function: &str, name: &str) -> u32 {
        self.shared.get(&(function, name)).copied().unwrap_or(0)
    }

    /// Gives shared variables offsets. Those of several kernels come first, then each kernel's own.
    fn lay_out_shared(&mut self, ast: &Ast<'t>) {
        let mut uses: HashMap<&str, HashSet<&str>> = ast.functions.iter().map(|f| (f.name, names(f))).collect();
        uses.extend(ast.aliases.iter().map(|&(name, of)| (name, HashSet::from([of]))));
        // Functions that a kernel reaches by names.
        let reached: Vec<(&str, HashSet<&str>)> = ast
            .functions
            .iter()
            .filter(|function| function.entry)
            .map(|kernel| {
                let (mut all, mut open) = (HashSet::from([kernel.name]), vec![kernel.name]);
                while let Some(name) = open.pop() {
                    for &used in uses.get(name).into_iter().flatten() {
                        if uses.contains_key(used) && all.insert(used) {
                            open.push(used);
                        }
                    }
                }
                (kernel.name, all)
            })
            .collect();
        let users_of = |function: Option<&str>, name: &str| -> Vec<&str> {
            let uses_it = |reached: &HashSet<&str>| match function {
                Some(function) => reached.contains(function),
                None => reached.iter().any(|function| uses.get(function).is_some_and(|names| names.contains(name))),
            };
            reached.iter().filter(|(_, reached)| uses_it(reached)).map(|(kernel, _)| *kernel).collect()
        };
        let mut common = 0u32;
        let mut variables: Vec<(Option<&'t str>, Declaration<'t>, Vec<&str>)> = Vec::new();
        for variable in ast.variables.iter().filter(|variable| variable.space == Space::Shared) {
            let users = users_of(None, variable.name);
            variables.push((None, variable.clone(), users));
        }
        for function in &ast.functions {
            for variable in shared_of(function) {
                let users = users_of(Some(function.name), variable.name);
                variables.push((Some(function.name), variable.clone(), users));
            }
        }
        let mut tops: HashMap<&str, u32> = HashMap::new();
        for several in [true, false] {
            for (function, variable, users) in &variables {
                if (users.len() > 1) != several || variable.external && variable.size == 0 {
                    continue;
                }
                let top = if several {
                    &mut common
                } else {
                    users.first().map_or(&mut common, |user| tops.entry(user).or_insert(0))
                };
                let offset = top.next_multiple_of(variable.align.max(1));
                *top = offset.saturating_add(variable.size as u32);
                match function {
                    Some(function) => {
                        self.shared.insert((function, variable.name), offset);
                    }
                    None => {
                        self.symbols.insert(variable.name, Symbol::Shared { offset });
                    }
                }
            }
            if several {
                for (kernel, _) in &reached {
                    let uses_common = variables.iter().any(|(.., users)| users.len() > 1 && users.contains(kernel));
                    tops.insert(kernel, if uses_common { common } else { 0 });
                }
            }
        }
        for (_, variable, _) in variables.iter().filter(|(_, variable, _)| variable.external && variable.size == 0) {
            self.symbols.insert(variable.name, Symbol::DynamicShared);
            self.dynamic_align = self.dynamic_align.max(variable.align).max(16);
        }
        for function in ast.functions.iter().filter(|function| function.entry) {
            self.statics.insert(function.name, tops.get(function.name).copied().unwrap_or(0));
        }
    }

    pub fn finish(self, functions: Vec<Frame>, text: &str) -> Program {
        Program {
            code: self.code,
            lines: self.lines,
            constants: self.constants,
            functions,
            text: text.to_owned(),
            dynamic_align: self.dynamic_align,
            workspace: self.workspace,
        }
    }
}

fn shared_of<'f, 't>(function: &'f Function<'t>) -> Vec<&'f Declaration<'t>> {
    let body = function.body.iter().flatten();
    body.filter_map(|statement| match statement {
        Statement::Variable(variable) if variable.space == Space::Shared => Some(variable),
        _ => None,
    })
    .collect()
}

/// All names in a function's operands.
fn names<'t>(function: &Function<'t>) -> HashSet<&'t str> {
    fn visit<'t>(operand: &Operand<'t>, found: &mut HashSet<&'t str>) {
        match operand {
            Operand::Name(name, _) => {
                found.insert(name);
            }
            Operand::Vector(all) | Operand::List(all) => all.iter().for_each(|operand| visit(operand, found)),
            Operand::Address { base, rest, .. } => {
                found.extend(base);
                rest.iter().for_each(|operand| visit(operand, found));
            }
            Operand::Value(_) | Operand::Not(_) | Operand::Pair(..) => {}
        }
    }
    let mut found = HashSet::new();
    for statement in function.body.iter().flatten() {
        if let Statement::Instruction(Instruction { operands, .. }) = statement {
            operands.iter().for_each(|operand| visit(operand, &mut found));
        }
    }
    found
}
