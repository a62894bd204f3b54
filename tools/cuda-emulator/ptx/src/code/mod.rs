//! Decoded instructions: what `decode` makes of the text and `exec` runs.
//!
//! A function's registers are rows of a frame, counted from its start; predicates are lane masks, counted likewise. The first rows of
//! a frame hold what a return needs.

mod operations;

use std::fmt;

use crate::lanes::{Map, Row, Test};
use crate::options::Class;
pub(crate) use operations::{
    Access, Address, Atom, AtomOp, AtomType, Barrier, BarrierKind, Call, Copy, Element, Exchange, ExchangeOp, External,
    MbarrierOp, MbarrierStep, Target, Tensor,
};

/// A row of the frame, or of the constants if [`CONST`] is set.
pub(crate) type Src = u32;
/// Marks a row of constants.
pub(crate) const CONST: u32 = 1 << 31;
/// Marks a negated predicate.
pub(crate) const NOT: u32 = 1 << 31;
/// No register.
pub(crate) const NONE: u32 = u32::MAX;

/// Rows of a frame that calls use.
pub(crate) const RETURN_PC: u32 = 0;
pub(crate) const RETURN_BASE: u32 = 1;
/// First byte of the frame's local memory.
pub(crate) const LOCAL_BASE: u32 = 2;
/// First free byte of local memory.
pub(crate) const LOCAL_TOP: u32 = 3;
pub(crate) const HEADER: u32 = 4;
/// The predicate that holds carries.
pub(crate) const CARRY: u32 = 0;

/// Generic addresses of shared memory: [`rank`](SHARED_RANK) of the block plus 1, then the offset; rank 0 is the own block.
pub(crate) const SHARED_WINDOW: u64 = 0x8000_0000_0000;
/// Bits of an offset in shared memory; above it an address names the block of the cluster.
pub(crate) const SHARED_RANK: u32 = 24;
pub(crate) const LOCAL_WINDOW: u64 = 0x8100_0000_0000;
pub(crate) const PARAM_WINDOW: u64 = 0x8200_0000_0000;
/// Bytes of addresses of each window.
pub(crate) const WINDOW: u64 = 1 << 32;
/// Addresses of functions: this plus their number times 16.
pub(crate) const FUNCTION_BASE: u64 = 0x100;

/// An instruction, or a part of one.
#[derive(Debug)]
pub(crate) struct Step {
    /// The predicate that guards it, with [`NOT`], or [`NONE`].
    pub guard: u32,
    pub class: Class,
    /// Whether it stands for its instruction in the counts: one of the instruction's steps does.
    pub counts: bool,
    pub inst: Inst,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    Generic,
    Global,
    Shared,
    Local,
    /// A kernel's parameters.
    Param,
}

#[derive(Debug)]
pub(crate) enum Inst {
    Map {
        f: Map,
        d: u32,
        a: Src,
        b: Src,
        c: Src,
        imm: u32,
        wide: bool,
        /// `d` is also an operand.
        alias: bool,
    },
    /// A carry goes in or out.
    Carry(Box<Carry>),
    Test {
        f: Test,
        a: Src,
        b: Src,
        p: u32,
        q: u32,
        combine: Combine,
        c: u32,
    },
    /// `d = table[a, b]` on predicates; bit `2 b + a` of the table.
    Logic {
        d: u32,
        a: u32,
        b: u32,
        table: u8,
    },
    Select {
        d: u32,
        a: Src,
        b: Src,
        p: u32,
        wide: bool,
    },
    /// A predicate as 0 or `value` in a row.
    Spread {
        d: u32,
        p: u32,
        value: u32,
    },
    Special {
        d: u32,
        what: Special,
    },
    /// A kernel parameter at a constant offset.
    Param {
        d: u32,
        offset: u32,
        element: Element,
    },
    Load(Box<Access>),
    Store(Box<Access>),
    Atom(Box<Atom>),
    /// Which space a generic address is of.
    IsSpace {
        p: u32,
        a: Src,
        space: Space,
        cluster: bool,
    },
    Jump {
        target: u32,
    },
    Switch {
        a: Src,
        targets: Box<[u32]>,
    },
    Call(Box<Call>),
    /// Copies results behind a call.
    Results(Box<Call>),
    Return,
    Exit,
    Trap,
    Nop,
    Alloca {
        d: u32,
        size: Src,
        align: u32,
        wide: bool,
    },
    StackSave {
        d: u32,
        wide: bool,
    },
    StackRestore {
        a: Src,
        wide: bool,
    },
    Exchange(Box<Exchange>),
    Barrier(Box<Barrier>),
    Clock {
        d: u32,
        wide: bool,
    },
    Sleep,
    /// A fence for other blocks, too.
    Fence,
    Tensor(Box<Tensor>),
    Copy(Box<Copy>),
    Mbarrier(Box<MbarrierStep>),
    Unknown(Box<str>),
}

/// How `setp` combines with a third predicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Combine {
    None,
    And,
    Or,
    Xor,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CarryOp {
    Add,
    Sub,
    /// Low half of a product and a sum.
    MadLow,
    MadHigh {
        signed: bool,
    },
}

#[derive(Debug)]
pub(crate) struct Carry {
    pub op: CarryOp,
    pub d: u32,
    pub a: Src,
    pub b: Src,
    pub c: Src,
    pub wide: bool,
    pub carry_in: bool,
    pub carry_out: bool,
}

/// Special registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Special {
    Tid(usize),
    Ntid(usize),
    Ctaid(usize),
    Nctaid(usize),
    LaneId,
    WarpId,
    NWarpId,
    SmId,
    NSmId,
    GridId,
    MaskEq,
    MaskLt,
    MaskLe,
    MaskGt,
    MaskGe,
    DynamicShared,
    TotalShared,
    ClusterId(usize),
    NClusterId(usize),
    ClusterCtaid(usize),
    ClusterNctaid(usize),
    ClusterCtarank,
    ClusterNctarank,
    IsExplicitCluster,
    DynamicSize,
    /// Half of the address of memory by which the blocks of a cooperative launch wait for each other.
    Workspace {
        high: bool,
    },
    Zero,
}

/// A function's frame.
#[derive(Clone, Debug, Default)]
pub(crate) struct Frame {
    pub name: String,
    /// Number of its first step; [`NONE`] without a body.
    pub entry: u32,
    /// Rows and predicates.
    pub rows: u32,
    /// Bytes of local memory, with those of parameters.
    pub local: u32,
}

/// A module's code.
pub(crate) struct Program {
    pub code: Vec<Step>,
    /// The line of each step.
    pub lines: Vec<u32>,
    pub constants: Vec<Row>,
    pub functions: Vec<Frame>,
    pub text: String,
    /// Alignment of dynamic shared memory; 0 if the module has none.
    pub dynamic_align: u32,
    /// Whether it asks for the memory of a cooperative launch.
    pub workspace: bool,
}

impl Program {
    /// A line of the text, counted from 1.
    pub fn line(&self, number: u32) -> String {
        self.text.lines().nth(number.saturating_sub(1) as usize).unwrap_or_default().trim().to_owned()
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program").field("steps", &self.code.len()).finish_non_exhaustive()
    }
}
