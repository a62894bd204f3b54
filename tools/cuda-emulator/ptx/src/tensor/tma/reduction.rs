//! What `cp.reduce.async.bulk` does with the elements that it finds.

use super::super::{Refused, convert};
use super::map::Element;
use half::{bf16, f16};

/// Operation of a reduction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// `.add`
    Add,
    /// `.min`
    Min,
    /// `.max`
    Max,
    /// `.inc`: one more, or 0 from the operand on
    Inc,
    /// `.dec`: one less, or the operand from 0 or above the operand
    Dec,
    /// `.and`
    And,
    /// `.or`
    Or,
    /// `.xor`
    Xor,
}

impl Operation {
    /// The operation that PTX names with this word.
    pub fn parse(word: &str) -> Option<Self> {
        Some(match word {
            "add" => Self::Add,
            "min" => Self::Min,
            "max" => Self::Max,
            "inc" => Self::Inc,
            "dec" => Self::Dec,
            "and" => Self::And,
            "or" => Self::Or,
            "xor" => Self::Xor,
            _ => return None,
        })
    }
}

/// An operation on elements of one type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Reduction {
    operation: Operation,
    element: Element,
}

impl Reduction {
    /// The operation on these elements, if the hardware has it.
    pub fn new(operation: Operation, element: Element) -> Result<Self, Refused> {
        use Element::{Bf16, F16, F32, F64, S32, S64, U32, U64};
        let goes = match operation {
            Operation::Add => matches!(element, U32 | S32 | U64 | S64 | F16 | Bf16 | F32 | F64),
            Operation::Min | Operation::Max => matches!(element, U32 | S32 | U64 | S64 | F16 | Bf16),
            Operation::Inc | Operation::Dec => element == U32,
            Operation::And | Operation::Or | Operation::Xor => matches!(element, U32 | S32 | U64 | S64),
        };
        if goes {
            Ok(Self { operation, element })
        } else {
            Err(Refused(format!("{operation:?} of {element:?} is not known here")))
        }
    }

    /// Bytes of an element.
    pub fn size(self) -> usize {
        self.element.size()
    }

    /// The element that replaces `old`, the bits of both in the low ones.
    pub fn apply(self, old: u64, new: u64) -> u64 {
        match self.element {
            Element::F16 => {
                let [old, new] = [old, new].map(|bits| f16::from_bits(bits as u16).to_f32());
                u64::from(convert::to_f16_bits(self.float(old, new)))
            }
            Element::Bf16 => {
                let [old, new] = [old, new].map(|bits| bf16::from_bits(bits as u16).to_f32());
                u64::from(convert::to_bf16_bits(self.float(old, new)))
            }
            Element::F32 => {
                // Subnormal numbers are flushed, as by red.global.add.f32.
                let flush = |value: f32| if value.is_subnormal() { 0f32.copysign(value) } else { value };
                let [old, new] = [old, new].map(|bits| flush(f32::from_bits(bits as u32)));
                u64::from(convert::to_f32_bits(flush(old + new)))
            }
            Element::F64 => convert::to_f64_bits(f64::from_bits(old) + f64::from_bits(new)),
            Element::S32 => self.signed(i64::from(old as i32), i64::from(new as i32)) as u32 as u64,
            Element::S64 => self.signed(old as i64, new as i64) as u64,
            Element::U32 => u64::from(self.unsigned(old & 0xffff_ffff, new & 0xffff_ffff) as u32),
            _ => self.unsigned(old, new),
        }
    }

    fn float(self, old: f32, new: f32) -> f32 {
        match self.operation {
            Operation::Min => old.min(new),
            Operation::Max => old.max(new),
            _ => old + new,
        }
    }

    fn signed(self, old: i64, new: i64) -> i64 {
        match self.operation {
            Operation::Min => old.min(new),
            Operation::Max => old.max(new),
            _ => self.unsigned(old as u64, new as u64) as i64,
        }
    }

    fn unsigned(self, old: u64, new: u64) -> u64 {
        match self.operation {
            Operation::Add => old.wrapping_add(new),
            Operation::Min => old.min(new),
            Operation::Max => old.max(new),
            Operation::Inc => {
                if old >= new {
                    0
                } else {
                    old + 1
                }
            }
            Operation::Dec => {
                if old == 0 || old > new {
                    new
                } else {
                    old - 1
                }
            }
            Operation::And => old & new,
            Operation::Or => old | new,
            Operation::Xor => old ^ new,
        }
    }
}
