//! Opcodes, literals and special registers.

use crate::code::{Space, Special};
use crate::parse::ast::Value;

/// What is wrong with an instruction, where decoding it fails.
pub(super) type Result<T, E = String> = std::result::Result<T, E>;

/// The words of an opcode.
#[derive(Clone, Debug)]
pub(super) struct Op<'t> {
    pub name: &'t str,
    pub words: Vec<&'t str>,
}

impl<'t> Op<'t> {
    pub fn new(opcode: &'t str) -> Self {
        let mut words = opcode.split('.');
        Self { name: words.next().unwrap_or_default(), words: words.collect() }
    }

    pub fn has(&self, word: &str) -> bool {
        self.words.contains(&word)
    }

    /// The words that are types.
    pub fn types(&self) -> Vec<&'t str> {
        self.words.iter().copied().filter(|word| ast_type(word)).collect()
    }

    /// The last type.
    pub fn of(&self) -> Result<&'t str> {
        self.words.iter().rev().copied().find(|word| ast_type(word)).ok_or_else(|| "it has no type".to_owned())
    }
}

fn ast_type(word: &str) -> bool {
    crate::parse::ast::type_bits(word).is_some()
}

/// The space that an opcode's words name.
pub(super) fn space(op: &Op<'_>) -> Space {
    for word in &op.words {
        match *word {
            "global" | "const" => return Space::Global,
            "shared" | "shared::cta" | "shared::cluster" => return Space::Shared,
            "local" => return Space::Local,
            "param" | "param::entry" | "param::func" => return Space::Param,
            _ => {}
        }
    }
    Space::Generic
}

/// Bits of a type's name.
pub(super) fn bits(of: &str) -> u32 {
    crate::parse::ast::type_bits(of).unwrap_or(32)
}

/// The bits of a literal where a type is expected.
pub(super) fn literal(value: Value, of: &str) -> Result<u64> {
    Ok(match (value, of) {
        (Value::Int(bits), "f32" | "f64") => {
            if bits != 0 {
                return Err("an integer where a floating-point number is expected".to_owned());
            }
            0
        }
        (Value::Int(bits), _) => bits,
        (Value::F32(bits), "f64" | "b64") => f64::from(f32::from_bits(bits)).to_bits(),
        (Value::F32(bits), _) => bits.into(),
        (Value::F64(bits), "f64" | "b64" | "u64" | "s64") => bits,
        (Value::F64(bits), "f32" | "b32") => (f64::from_bits(bits) as f32).to_bits().into(),
        (Value::F64(bits), "f16") => half::f16::from_f64(f64::from_bits(bits)).to_bits().into(),
        (Value::F64(bits), "bf16") => half::bf16::from_f64(f64::from_bits(bits)).to_bits().into(),
        (Value::F64(_), _) => return Err("a floating-point number where an integer is expected".to_owned()),
    })
}

/// A special register by name.
pub(super) fn special(name: &str) -> Option<Special> {
    let (stem, axis) = match name.rsplit_once('.') {
        Some((stem, axis)) => (stem, ["x", "y", "z", "w"].iter().position(|known| *known == axis)?),
        None => (name, 0),
    };
    if axis == 3 {
        return Some(Special::Zero);
    }
    Some(match stem {
        "%tid" => Special::Tid(axis),
        "%ntid" => Special::Ntid(axis),
        "%ctaid" => Special::Ctaid(axis),
        "%nctaid" => Special::Nctaid(axis),
        "%laneid" => Special::LaneId,
        "%warpid" => Special::WarpId,
        "%nwarpid" => Special::NWarpId,
        "%smid" => Special::SmId,
        "%nsmid" => Special::NSmId,
        "%gridid" => Special::GridId,
        "%lanemask_eq" => Special::MaskEq,
        "%lanemask_lt" => Special::MaskLt,
        "%lanemask_le" => Special::MaskLe,
        "%lanemask_gt" => Special::MaskGt,
        "%lanemask_ge" => Special::MaskGe,
        "%dynamic_smem_size" => Special::DynamicSize,
        "%envreg1" => Special::Workspace { high: true },
        "%envreg2" => Special::Workspace { high: false },
        "%total_smem_size" | "%aggr_smem_size" => Special::TotalShared,
        "%clusterid" => Special::ClusterId(axis),
        "%nclusterid" => Special::NClusterId(axis),
        "%cluster_ctaid" => Special::ClusterCtaid(axis),
        "%cluster_nctaid" => Special::ClusterNctaid(axis),
        "%cluster_ctarank" => Special::ClusterCtarank,
        "%cluster_nctarank" => Special::ClusterNctarank,
        // 0 in kernels that no graph of the device has launched.
        "%current_graph_exec" => Special::Zero,
        _ => return None,
    })
}
