//! What an access to memory does, and what it is for the checks.

use super::trace::Trace;

/// What an access does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    Write,
    Update,
}

impl Kind {
    pub fn verb(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Update => "atomic operation",
        }
    }

    #[inline(always)]
    pub fn reads(self) -> bool {
        self != Self::Write
    }

    #[inline(always)]
    pub fn writes(self) -> bool {
        self != Self::Read
    }
}

/// What an access is for the check of global memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// What the instruction says.
    Own,
    /// Strong: a reduction, or an asynchronous read, of whose end other warps may learn by themselves, so that it
    /// leaves no trace.
    Strong,
    /// Nothing: it happens later.
    None,
}

/// A write of values at which another access stands in the way: fine if the values are there already.
#[derive(Clone, Copy, Debug)]
pub(super) struct Suspect {
    /// Address of what the trace is for.
    pub address: u64,
    /// The other access, whether that was a write, and the words of both.
    pub other: Trace,
    pub wrote: bool,
    pub words: u64,
}
