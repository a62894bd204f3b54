//! The syntax tree of a module. Names borrow from the text.

/// A module.
#[derive(Debug, Default)]
pub(crate) struct Ast<'t> {
    pub variables: Vec<Declaration<'t>>,
    pub functions: Vec<Function<'t>>,
    /// `sm_80` of `.target sm_80`.
    pub target: &'t str,
    /// Names and the functions that they stand for.
    pub aliases: Vec<(&'t str, &'t str)>,
}

/// A state space that variables and addresses have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    Global,
    Const,
    Shared,
    Local,
    Param,
}

/// A variable or parameter.
#[derive(Clone, Debug)]
pub(crate) struct Declaration<'t> {
    pub space: Space,
    pub name: &'t str,
    pub align: u32,
    /// Bytes in all; 0 for `.extern .shared x[]`.
    pub size: u64,
    /// Bytes of an element; of one of its values, if it is a vector.
    pub element: u32,
    /// Bytes from one element to the next.
    pub stride: u32,
    pub external: bool,
    pub initial: Vec<Initial<'t>>,
    pub line: u32,
}

/// One element of an initialiser.
#[derive(Clone, Debug)]
pub(crate) enum Initial<'t> {
    Value(Value),
    /// Address of a variable plus an offset; `mask` picks one byte.
    Address {
        name: &'t str,
        offset: i64,
        mask: Option<u64>,
    },
}

/// A literal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value {
    Int(u64),
    F32(u32),
    F64(u64),
}

/// A function or kernel.
#[derive(Debug, Default)]
pub(crate) struct Function<'t> {
    pub name: &'t str,
    pub entry: bool,
    pub results: Vec<Declaration<'t>>,
    pub params: Vec<Declaration<'t>>,
    pub body: Option<Vec<Statement<'t>>>,
    pub max_threads: Option<[u32; 3]>,
    pub required_threads: Option<[u32; 3]>,
    pub cluster: Option<[u32; 3]>,
    pub line: u32,
}

#[derive(Debug)]
pub(crate) enum Statement<'t> {
    /// `.reg .b32 %r<10>` or `.reg .b32 x`.
    Register {
        bits: u32,
        name: &'t str,
        count: Option<u32>,
    },
    Variable(Declaration<'t>),
    Label(&'t str),
    Targets {
        name: &'t str,
        labels: Vec<&'t str>,
    },
    Open,
    Close,
    Instruction(Instruction<'t>),
}

#[derive(Clone, Debug)]
pub(crate) struct Instruction<'t> {
    /// The predicate's name and whether it is negated.
    pub guard: Option<(&'t str, bool)>,
    pub opcode: &'t str,
    pub operands: Vec<Operand<'t>>,
    pub line: u32,
}

/// What stands in the brackets behind the name of an array.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Index<'t> {
    Constant,
    Register(&'t str),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Operand<'t> {
    /// A register, variable, label, or `_`; with an offset for a variable.
    Name(&'t str, i64),
    Value(Value),
    Not(&'t str),
    /// `d|p`.
    Pair(&'t str, &'t str),
    Vector(Vec<Operand<'t>>),
    /// `[base + offset]`, and what follows the base in the brackets; or `base[index + offset]`, counted in elements.
    Address {
        base: Option<&'t str>,
        index: Option<Index<'t>>,
        offset: i64,
        rest: Vec<Operand<'t>>,
    },
    /// The parameters of a call.
    List(Vec<Operand<'t>>),
}

/// Bits of a type's name; 1 for predicates.
pub(crate) fn type_bits(name: &str) -> Option<u32> {
    Some(match name {
        "pred" => 1,
        "b8" | "u8" | "s8" | "e4m3" | "e5m2" => 8,
        "b16" | "u16" | "s16" | "f16" | "bf16" | "e4m3x2" | "e5m2x2" => 16,
        "b32" | "u32" | "s32" | "f32" | "f16x2" | "bf16x2" | "tf32" | "u16x2" | "s16x2" => 32,
        "b64" | "u64" | "s64" | "f64" => 64,
        "b128" => 128,
        _ => return None,
    })
}
