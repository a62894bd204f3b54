//! Tensor maps, and their 128 bytes.
//!
//! The hardware's encoding is opaque; this one is, little-endian:
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | `TMAP` |
//! | 4, 5, 6, 7 | element, rank, swizzle, flags: 1 NaN fill, 2 im2col, 4 interleaved by 16 and 8 by 32 bytes, then 2 bits L2 promotion |
//! | 8..16 | address |
//! | 16..36 | sizes less 1 |
//! | 36..68 | strides in bytes |
//! | 68..73 | element strides |
//! | 74..84 | tiled: the box; im2col: channels and pixels |
//! | 84..108 | im2col: lower corner, upper corner |
//! | 120..128 | a checksum of the rest |

use super::super::{Refused, Swizzle, convert};
use super::RANK;

/// Type of a tensor's elements: `CUtensorMapDataType`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Element {
    /// `UINT8`
    U8,
    /// `UINT16`
    U16,
    /// `UINT32`
    U32,
    /// `INT32`
    S32,
    /// `UINT64`
    U64,
    /// `INT64`
    S64,
    /// `FLOAT16`
    F16,
    /// `FLOAT32`
    F32,
    /// `FLOAT64`
    F64,
    /// `BFLOAT16`
    Bf16,
    /// `FLOAT32_FTZ`: subnormal numbers become 0
    F32Ftz,
    /// `TFLOAT32`: f32, rounded to tf32 when loaded
    Tf32,
    /// `TFLOAT32_FTZ`
    Tf32Ftz,
}

impl Element {
    /// In the order of the driver's numbers.
    pub(super) const ALL: [Self; 13] = [
        Self::U8,
        Self::U16,
        Self::U32,
        Self::S32,
        Self::U64,
        Self::S64,
        Self::F16,
        Self::F32,
        Self::F64,
        Self::Bf16,
        Self::F32Ftz,
        Self::Tf32,
        Self::Tf32Ftz,
    ];

    /// Bytes of an element.
    pub fn size(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::U16 | Self::F16 | Self::Bf16 => 2,
            Self::U64 | Self::S64 | Self::F64 => 8,
            _ => 4,
        }
    }

    /// Whether this is a floating-point type.
    pub fn is_float(self) -> bool {
        !matches!(self, Self::U8 | Self::U16 | Self::U32 | Self::S32 | Self::U64 | Self::S64)
    }

    /// What happens to whole elements on their way to shared memory: tf32 is rounded to the nearest, ties away from zero.
    pub fn convert(self, bytes: &mut [u8]) {
        let (flush, round) = match self {
            Self::F32Ftz => (true, false),
            Self::Tf32 => (false, true),
            Self::Tf32Ftz => (true, true),
            _ => return,
        };
        for bytes in bytes.as_chunks_mut::<4>().0 {
            let mut bits = u32::from_le_bytes(*bytes);
            if flush && bits & 0x7f80_0000 == 0 {
                bits &= 0x8000_0000;
            }
            *bytes = if round { convert::round_to_tf32(bits) } else { bits }.to_le_bytes();
        }
    }
}

/// What stands for elements outside of the tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fill {
    /// 0.
    Zero,
    /// A NaN, all bits but the sign. The hardware's is not specified.
    Nan,
}

/// What an instruction moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// A box of the tensor.
    Tiled {
        /// Elements of the box in each dimension, before element strides.
        size: [u32; RANK],
    },
    /// Pixels of a convolution's input, `[n, (d, h,) w, c]`.
    Im2col {
        /// Where bounding boxes of pixels start, from the tensor's start, for w, h and d.
        lower: [i32; 3],
        /// Where they end, from the tensor's end.
        upper: [i32; 3],
        /// Elements of a pixel.
        channels: u32,
        /// Pixels.
        pixels: u32,
    },
}

/// A tensor in global memory, and how parts of it are moved. Dimension 0 is the innermost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TensorMap {
    /// Type of the elements.
    pub element: Element,
    /// Dimensions; entries from here on are 1 in sizes and 0 in strides.
    pub rank: usize,
    /// Address of the first element.
    pub address: u64,
    /// Elements in each dimension.
    pub sizes: [u64; RANK],
    /// Bytes from one element to the next in each dimension.
    pub strides: [u64; RANK],
    /// Elements from one that is moved to the next in each dimension.
    pub steps: [u32; RANK],
    /// What is moved.
    pub mode: Mode,
    /// Bytes of an interleaved slice of channels: 0, 16 or 32. Instructions on interleaved tensors are refused.
    pub interleave: u32,
    /// How shared memory is permuted.
    pub swizzle: Swizzle,
    /// `CUtensorMapL2promotion`, without effect.
    pub promotion: u32,
    /// What stands for elements outside of the tensor.
    pub fill: Fill,
}

const MARK: [u8; 4] = *b"TMAP";
const SWIZZLES: [Swizzle; 4] = [Swizzle::None, Swizzle::B32, Swizzle::B64, Swizzle::B128];

impl TensorMap {
    /// The map as a program stores and passes it.
    pub fn encode(&self) -> [u8; 128] {
        let mut to = [0u8; 128];
        let mut put = |at: usize, bytes: &[u8]| to[at..at + bytes.len()].copy_from_slice(bytes);
        let position = |found: Option<usize>| found.unwrap_or(0) as u8;
        let flags = u8::from(self.fill == Fill::Nan)
            | u8::from(matches!(self.mode, Mode::Im2col { .. })) << 1
            | u8::from(self.interleave == 16) << 2
            | u8::from(self.interleave == 32) << 3
            | (self.promotion as u8 & 3) << 4;
        put(0, &MARK);
        put(4, &[position(Element::ALL.iter().position(|other| *other == self.element)), self.rank as u8]);
        put(6, &[position(SWIZZLES.iter().position(|other| *other == self.swizzle)), flags]);
        put(8, &self.address.to_le_bytes());
        for i in 0..RANK {
            put(16 + 4 * i, &((self.sizes[i] - 1) as u32).to_le_bytes());
            put(68 + i, &[self.steps[i] as u8]);
            if i > 0 {
                put(28 + 8 * i, &self.strides[i].to_le_bytes());
            }
        }
        match self.mode {
            Mode::Tiled { size } => {
                size.iter().enumerate().for_each(|(i, size)| put(74 + 2 * i, &(*size as u16).to_le_bytes()));
            }
            Mode::Im2col { lower, upper, channels, pixels } => {
                put(74, &(channels as u16).to_le_bytes());
                put(76, &(pixels as u16).to_le_bytes());
                for (i, corner) in lower.iter().chain(&upper).enumerate() {
                    put(84 + 4 * i, &corner.to_le_bytes());
                }
            }
        }
        let sum = checksum(&to);
        to[120..].copy_from_slice(&sum);
        to
    }

    /// The map that these bytes are.
    pub fn decode(bytes: &[u8; 128]) -> Result<Self, Refused> {
        if bytes[..4] != MARK || bytes[120..] != checksum(bytes) {
            let made = "made by cuTensorMapEncodeTiled or cuTensorMapEncodeIm2col, and not changed since";
            return Err(Refused(format!("these 128 bytes are no tensor map {made}")));
        }
        let short = |at: usize| u32::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let (element, flags) = (Element::ALL[usize::from(bytes[4])], bytes[7]);
        let corner = |at: usize| std::array::from_fn(|i| word(at + 4 * i) as i32);
        Ok(Self {
            element,
            rank: usize::from(bytes[5]),
            address: long(8),
            sizes: std::array::from_fn(|i| u64::from(word(16 + 4 * i)) + 1),
            strides: std::array::from_fn(|i| if i == 0 { element.size() as u64 } else { long(28 + 8 * i) }),
            steps: std::array::from_fn(|i| u32::from(bytes[68 + i])),
            mode: if flags & 2 == 0 {
                Mode::Tiled { size: std::array::from_fn(|i| short(74 + 2 * i)) }
            } else {
                Mode::Im2col { lower: corner(84), upper: corner(96), channels: short(74), pixels: short(76) }
            },
            interleave: u32::from(flags >> 2 & 1) * 16 + u32::from(flags >> 3 & 1) * 32,
            swizzle: SWIZZLES[usize::from(bytes[6])],
            promotion: u32::from(flags >> 4 & 3),
            fill: if flags & 1 == 0 { Fill::Zero } else { Fill::Nan },
        })
    }

    /// Elements that are moved in each dimension, in im2col mode of pixels one after another.
    pub(super) fn counts(&self) -> [u32; RANK] {
        match self.mode {
            // Dimension 0 has no stride unless the tensor is interleaved.
            Mode::Tiled { size } => {
                std::array::from_fn(|i| if i == 0 { size[i] } else { size[i].div_ceil(self.steps[i].max(1)) })
            }
            Mode::Im2col { channels, pixels, .. } => [channels, pixels, 1, 1, 1],
        }
    }

    /// Bytes that an instruction writes to shared memory, whether or not they are inside of the tensor: what it completes of a barrier.
    pub fn bytes(&self) -> usize {
        self.counts().iter().map(|count| *count as usize).product::<usize>() * self.element.size()
    }

    /// What stands for whole elements outside of the tensor.
    pub fn fill(&self, into: &mut [u8]) {
        let nan = self.fill == Fill::Nan;
        into.fill(if nan { 0xff } else { 0 });
        if nan {
            into.chunks_exact_mut(self.element.size()).for_each(|element| element[element.len() - 1] = 0x7f);
        }
    }
}

/// FNV-1a of all but the last 8 bytes.
fn checksum(bytes: &[u8; 128]) -> [u8; 8] {
    let step = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    bytes[..120].iter().fold(0xcbf2_9ce4_8422_2325, step).to_le_bytes()
}
