//! The types of matrix elements.

/// Type of a matrix's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Type {
    /// `.f64`
    F64,
    /// `.f32`, an accumulator
    F32,
    /// `.f16`
    F16,
    /// `.bf16`
    Bf16,
    /// `.tf32`: the upper 19 bits of an f32
    Tf32,
    /// `.e4m3`: 4 bits of exponent and 3 of mantissa, without infinities
    E4m3,
    /// `.e5m2`: 5 bits of exponent and 2 of mantissa
    E5m2,
    /// `.s32`, an accumulator
    S32,
    /// `.s8`
    S8,
    /// `.u8`
    U8,
    /// `.s4`
    S4,
    /// `.u4`
    U4,
}

impl Type {
    /// All types, with the words by which PTX names them.
    const NAMES: [(&'static str, Type); 12] = [
        ("f64", Type::F64),
        ("f32", Type::F32),
        ("f16", Type::F16),
        ("bf16", Type::Bf16),
        ("tf32", Type::Tf32),
        ("e4m3", Type::E4m3),
        ("e5m2", Type::E5m2),
        ("s32", Type::S32),
        ("s8", Type::S8),
        ("u8", Type::U8),
        ("s4", Type::S4),
        ("u4", Type::U4),
    ];

    /// The type that PTX names with this word.
    pub fn parse(word: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(name, _)| *name == word).map(|(_, found)| *found)
    }

    /// The word by which PTX names this type.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, other)| *other == self).map_or("", |(name, _)| name)
    }

    /// Bits of an element in a register and in memory.
    pub fn bits(self) -> usize {
        match self {
            Self::F64 => 64,
            Self::F32 | Self::Tf32 | Self::S32 => 32,
            Self::F16 | Self::Bf16 => 16,
            Self::E4m3 | Self::E5m2 | Self::S8 | Self::U8 => 8,
            Self::S4 | Self::U4 => 4,
        }
    }

    /// Elements of a 32-bit register; 1 for f64, whose registers are 64 bits wide.
    pub(super) fn packed(self) -> usize {
        (32 / self.bits()).max(1)
    }

    /// Whether this is an 8-bit floating-point type.
    pub(super) fn is_fp8(self) -> bool {
        matches!(self, Self::E4m3 | Self::E5m2)
    }

    /// Whether this is an integer of 8 bits.
    pub(super) fn is_int8(self) -> bool {
        matches!(self, Self::S8 | Self::U8)
    }

    /// Whether this is an integer of 4 bits.
    pub(super) fn is_int4(self) -> bool {
        matches!(self, Self::S4 | Self::U4)
    }
}
