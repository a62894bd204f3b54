//! Types and numbers of NCCL's C interface.

use std::ffi::{CStr, c_int, c_uint};

/// The version that the library says it has: 2.28.3.
pub const VERSION: c_int = 2 * 10_000 + 28 * 100 + 3;

/// A result that is not success.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Code(pub c_int);

#[allow(missing_docs, reason = "the names are NCCL's")]
impl Code {
    pub const UNHANDLED_CUDA_ERROR: Self = Self(1);
    pub const SYSTEM_ERROR: Self = Self(2);
    pub const INTERNAL_ERROR: Self = Self(3);
    pub const INVALID_ARGUMENT: Self = Self(4);
    pub const INVALID_USAGE: Self = Self(5);
    pub const REMOTE_ERROR: Self = Self(6);
    pub const IN_PROGRESS: Self = Self(7);
}

/// The text of a result.
pub fn text(code: c_int) -> &'static CStr {
    match code {
        0 => c"no error",
        1 => c"unhandled cuda error",
        2 => c"unhandled system error",
        3 => c"internal error",
        4 => c"invalid argument",
        5 => c"invalid usage",
        6 => c"remote process exited or there was a network error",
        7 => c"NCCL operation in progress",
        _ => c"unknown result code",
    }
}

/// What names a communicator before it exists.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct UniqueId(pub [u8; 128]);

/// The start of `ncclConfig_t`, which all versions share.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs)]
pub struct Config {
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    pub blocking: c_int,
}

/// What stands in `ncclConfig_t::magic`.
pub const MAGIC: c_uint = 0xcafe_beef;
/// A field of `ncclConfig_t` that is not set.
pub const UNDEFINED: c_int = c_int::MIN;
/// The colour of a rank that joins no communicator of a split.
pub const NO_COLOR: c_int = -1;

/// An element type by its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum DType {
    I8,
    U8,
    I32,
    U32,
    I64,
    U64,
    F16,
    F32,
    F64,
    BF16,
    /// One of the two types of 8 bits, which are only moved.
    F8,
}

impl DType {
    /// The type of a number.
    pub fn of(number: c_int) -> Option<Self> {
        use DType::{BF16, F8, F16, F32, F64, I8, I32, I64, U8, U32, U64};
        [I8, U8, I32, U32, I64, U64, F16, F32, F64, BF16, F8, F8].get(usize::try_from(number).ok()?).copied()
    }

    /// Bytes of an element.
    pub fn size(self) -> usize {
        match self {
            Self::I8 | Self::U8 | Self::F8 => 1,
            Self::F16 | Self::BF16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }
}

/// A reduction by its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Reduction {
    Sum,
    Product,
    Max,
    Min,
    Average,
}

impl Reduction {
    /// The reduction of a number. Those that a program makes itself are not emulated.
    pub fn of(number: c_int) -> Option<Self> {
        use Reduction::{Average, Max, Min, Product, Sum};
        [Sum, Product, Max, Min, Average].get(usize::try_from(number).ok()?).copied()
    }
}
