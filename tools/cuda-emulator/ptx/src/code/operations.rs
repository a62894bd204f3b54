//! The operands of instructions that have more than a step holds.

use super::{Space, Src};
use crate::tensor::{BulkTensor, Ldmatrix, Mma, Reduction, Stmatrix, Wgmma, WmmaLoad, WmmaMma, WmmaStore};

/// Size of one element in memory and what becomes of it in a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Element {
    /// 1, 2, 4 or 8.
    pub bytes: u8,
    /// Sign-extended to this many bits; 0 for unsigned.
    pub signed: u8,
    /// The register has 64 bits.
    pub wide: bool,
}

/// An address operand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address {
    pub space: Space,
    /// [`NONE`]: the offset alone.
    pub base: Src,
    pub wide: bool,
    pub offset: i64,
}

#[derive(Debug)]
pub(crate) struct Access {
    pub address: Address,
    pub element: Element,
    /// Registers, or sources; [`NONE`] for `_`.
    pub regs: [u32; 8],
    pub count: u8,
    /// Volatile, relaxed, acquire or release: orders other accesses.
    pub strong: bool,
    /// Whether it is a fence, too.
    pub release: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtomOp {
    Add,
    Min,
    Max,
    And,
    Or,
    Xor,
    Inc,
    Dec,
    Exch,
    Cas,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtomType {
    U32,
    S32,
    U64,
    S64,
    B16,
    F16,
    Bf16,
    F16x2,
    Bf16x2,
    F32,
    F64,
    /// Exchanged and compared only. The registers are pairs of 64 bits.
    B128,
}

#[derive(Debug)]
pub(crate) struct Atom {
    pub op: AtomOp,
    pub of: AtomType,
    pub address: Address,
    /// [`NONE`] where nothing is returned.
    pub d: [u32; 8],
    pub b: [Src; 8],
    pub c: Src,
    /// Elements of a vector, 1 otherwise.
    pub count: u8,
    /// Whether it is a fence, too, and whether it returns what it finds.
    pub release: bool,
    pub returns: bool,
}

#[derive(Debug)]
pub(crate) struct Call {
    /// Number of the function, or of the extern one, or the register with its address.
    pub target: Target,
    /// Copies between local memories: own offset, the other's offset, bytes.
    pub copies: Vec<(u32, u32, u32)>,
    /// Rows of the own frame, and bytes of its local memory.
    pub rows: u32,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Target {
    Function(u32),
    Extern(External),
    Register(Src),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum External {
    Vprintf,
    Assertfail,
    Malloc,
    Free,
}

/// Instructions in which lanes of a warp exchange values.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub op: ExchangeOp,
    /// The member mask; [`NONE`] for all lanes of the warp, or for those that are there with `activemask`.
    pub members: Src,
    pub d: u32,
    pub p: u32,
    pub a: Src,
    pub b: Src,
    pub c: Src,
    /// The predicate operand of a vote.
    pub pred: u32,
    pub wide: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExchangeOp {
    ShflUp,
    ShflDown,
    ShflBfly,
    ShflIdx,
    VoteAll,
    VoteAny,
    VoteUni,
    VoteBallot,
    MatchAny,
    MatchAll,
    ReduxAdd,
    ReduxMin { signed: bool },
    ReduxMax { signed: bool },
    ReduxAnd,
    ReduxOr,
    ReduxXor,
    ActiveMask,
    WarpSync,
    Elect,
}

#[derive(Debug)]
pub(crate) struct Barrier {
    pub kind: BarrierKind,
    pub aligned: bool,
    /// Number of the barrier.
    pub id: Src,
    /// Threads, or [`NONE`].
    pub count: Src,
    pub d: u32,
    pub pred: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BarrierKind {
    Sync,
    Arrive,
    Popc,
    And,
    Or,
    /// Whether it orders memory: it is not `.relaxed`.
    ClusterArrive {
        release: bool,
    },
    ClusterWait,
}

#[derive(Debug)]
pub(crate) enum Tensor {
    Mma {
        op: Mma,
        d: Vec<u32>,
        a: Vec<Src>,
        b: Vec<Src>,
        c: Vec<Src>,
    },
    Ldmatrix {
        op: Ldmatrix,
        d: Vec<u32>,
        address: Address,
    },
    Stmatrix {
        op: Stmatrix,
        from: Vec<Src>,
        address: Address,
    },
    Movmatrix {
        d: u32,
        a: Src,
    },
    WmmaLoad {
        op: WmmaLoad,
        d: Vec<u32>,
        address: Address,
        stride: Src,
    },
    WmmaStore {
        op: WmmaStore,
        from: Vec<Src>,
        address: Address,
        stride: Src,
    },
    WmmaMma {
        op: WmmaMma,
        d: Vec<u32>,
        a: Vec<Src>,
        b: Vec<Src>,
        c: Vec<Src>,
    },
    WgmmaFence,
    WgmmaCommit,
    WgmmaWait(u32),
    Wgmma {
        op: Wgmma,
        d: Vec<u32>,
        /// Registers; empty if in shared memory.
        a: Vec<Src>,
        a_descriptor: Src,
        b_descriptor: Src,
        /// The predicate `scale-d`, or [`NONE`] for true.
        scale_d: u32,
        negate: [bool; 2],
        transpose: [bool; 2],
    },
}

/// Asynchronous copies.
#[derive(Debug)]
pub(crate) enum Copy {
    Async {
        to: Address,
        from: Address,
        bytes: u32,
        source: Src,
        ignore: u32,
    },
    Commit,
    Wait(u32),
    WaitAll,
    Arrive {
        barrier: Address,
        increment: bool,
    },
    /// `cp.async.bulk` in any direction.
    Bulk {
        to: Address,
        from: Address,
        size: Src,
        barrier: Option<Address>,
        mask: Src,
        reduce: Option<Reduction>,
    },
    /// `st.async` and `red.async`: registers of a lane to shared memory.
    Store {
        to: Address,
        from: Vec<Src>,
        /// They have 64 bits.
        wide: bool,
        barrier: Address,
        reduce: Option<Reduction>,
    },
    Tensor {
        op: BulkTensor,
        map: Address,
        shared: Address,
        coordinates: Vec<Src>,
        barrier: Option<Address>,
        offsets: Vec<Src>,
        mask: Src,
    },
    BulkCommit,
    BulkWait(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MbarrierOp {
    Init,
    Invalidate,
    Expect,
    Complete,
    /// `release`: it orders memory, as it is not `.relaxed`.
    Arrive {
        expect: bool,
        no_complete: bool,
        drop: bool,
        release: bool,
    },
    Test {
        parity: bool,
        try_wait: bool,
    },
    PendingCount,
}

#[derive(Debug)]
pub(crate) struct MbarrierStep {
    pub op: MbarrierOp,
    pub address: Address,
    /// State or nothing.
    pub d: u32,
    pub p: u32,
    pub a: Src,
}
