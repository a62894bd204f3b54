//! What a check found: the kernel, the thread, the line of PTX, what happened and what to do.

use std::fmt;

/// Class of a [`Fault`]; a driver maps it to an error code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultKind {
    /// An access outside every allocation, or of a space's size.
    OutOfBounds,
    /// An access to an allocation that was freed.
    UseAfterFree,
    /// An address that is not a multiple of the size of the access.
    Misaligned,
    /// A read of bytes that nothing has written.
    Uninitialised,
    /// Two warps access the same bytes, one of them writes, and nothing orders the two.
    Race,
    /// A read or write of shared memory that an asynchronous copy is still filling.
    MissingWait,
    /// A barrier that not all of its threads reach, or that they reach in different ways.
    Barrier,
    /// A `.sync` instruction whose mask does not fit the threads that execute it.
    Mask,
    /// An instruction, operand or directive that is not emulated.
    Unsupported,
    /// `trap` or `brkpt`.
    Trap,
    /// A call of `__assertfail`.
    Assertion,
    /// A launch whose sizes or parameters do not fit the kernel.
    InvalidLaunch,
    /// A call of [`crate::Memory`] with an address it does not know.
    InvalidValue,
    /// A launch that executed more instructions than [`crate::Options::limit`].
    Limit,
}

/// A launch or an access that ended in an error.
///
/// Its [`Display`](fmt::Display) is a message of a few lines for the user.
#[derive(Clone, Debug)]
pub struct Fault(Box<Details>);

#[derive(Clone, Debug)]
struct Details {
    kind: FaultKind,
    what: String,
    advice: Option<String>,
    place: Option<Location>,
}

/// Where a kernel was when a check failed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Location {
    /// Name of the kernel.
    pub kernel: String,
    /// Index of the block in the grid: x, y, z.
    pub block: [u32; 3],
    /// Index of the thread in the block: x, y, z.
    pub thread: [u32; 3],
    /// Line of the PTX text, counted from 1.
    pub line: u32,
    /// The text of that line.
    pub text: String,
}

impl Fault {
    /// A fault of this class; `what` says what happened.
    pub fn new(kind: FaultKind, what: impl Into<String>) -> Self {
        Self(Box::new(Details { kind, what: what.into(), advice: None, place: None }))
    }

    /// Adds what the user can do.
    #[must_use]
    pub fn advice(mut self, advice: impl Into<String>) -> Self {
        self.0.advice = Some(advice.into());
        self
    }

    /// Adds where it happened, unless that is known already.
    #[must_use]
    pub fn at(mut self, place: Location) -> Self {
        self.0.place.get_or_insert(place);
        self
    }

    /// The class of the fault.
    pub fn kind(&self) -> FaultKind {
        self.0.kind
    }

    /// What happened, in one sentence.
    pub fn what(&self) -> &str {
        &self.0.what
    }

    /// The kernel, block, thread and line, if a kernel caused the fault.
    pub fn place(&self) -> Option<&Location> {
        self.0.place.as_ref()
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let details = &self.0;
        write!(f, "{}", details.what)?;
        if let Some(Location { kernel, block: [bx, by, bz], thread: [tx, ty, tz], line, text }) = &details.place {
            write!(f, "\n  in kernel '{kernel}', block ({bx}, {by}, {bz}), thread ({tx}, {ty}, {tz})")?;
            if *line > 0 {
                write!(f, "\n  at line {line} of its PTX: {}", text.trim())?;
            }
        }
        if let Some(advice) = &details.advice {
            write!(f, "\n  {advice}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Fault {}
