//! The number types in which a run computes and reduces.

use fsdp::{FloatType, Precision};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Types of gathered parameters and of gradients in transit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PrecisionConfig {
    /// Type of gathered parameters, and therefore of activations.
    pub param: ParamType,
    /// Type of gradients in transit between ranks.
    pub reduce: FloatType,
}

/// The type of gathered parameters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ParamType {
    /// bf16 on NVIDIA GPUs, fp32 elsewhere. A run records its choice.
    #[default]
    Auto,
    /// 32 bits.
    #[serde(alias = "f32")]
    Fp32,
    /// 16 bits with the range of fp32 and 8 bits of precision.
    Bf16,
    /// 16 bits with 11 bits of precision and a narrow range; losses are scaled.
    #[serde(alias = "f16")]
    Fp16,
}

impl From<FloatType> for ParamType {
    fn from(of: FloatType) -> Self {
        match of {
            FloatType::Fp32 => Self::Fp32,
            FloatType::Bf16 => Self::Bf16,
            FloatType::Fp16 => Self::Fp16,
        }
    }
}

impl PrecisionConfig {
    /// The type of gathered parameters; `auto` is fp32 until the kind of device is known.
    pub fn param(self) -> FloatType {
        match self.param {
            ParamType::Auto | ParamType::Fp32 => FloatType::Fp32,
            ParamType::Bf16 => FloatType::Bf16,
            ParamType::Fp16 => FloatType::Fp16,
        }
    }

    /// Resolves `auto` for devices of this kind (`cpu`, `cuda`, ...).
    pub(crate) fn choose(&mut self, kind: &str) {
        if self.param == ParamType::Auto {
            self.param = if kind == "cuda" { ParamType::Bf16 } else { ParamType::Fp32 };
        }
    }

    /// The precision of the sharding layer.
    pub(crate) fn of_fsdp(self) -> Precision {
        Precision { param: self.param(), reduce: self.reduce }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_is_bf16_on_nvidia_gpus_and_what_is_given_stays() {
        for (given, kind, chosen) in [
            (ParamType::Auto, "cuda", FloatType::Bf16),
            (ParamType::Auto, "cpu", FloatType::Fp32),
            (ParamType::Auto, "vulkan", FloatType::Fp32),
            (ParamType::Fp32, "cuda", FloatType::Fp32),
            (ParamType::Fp16, "cuda", FloatType::Fp16),
        ] {
            let mut precision = PrecisionConfig { param: given, ..PrecisionConfig::default() };
            precision.choose(kind);
            assert_eq!(precision, PrecisionConfig { param: chosen.into(), ..PrecisionConfig::default() });
        }
    }
}
