use burn::tensor::DType;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A float type of parameters and gradients.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FloatType {
    /// 32 bits.
    #[default]
    #[serde(alias = "f32")]
    Fp32,
    /// 16 bits with the range of fp32 and 8 bits of precision.
    Bf16,
    /// 16 bits with 11 bits of precision and a narrow range: losses are scaled.
    #[serde(alias = "f16")]
    Fp16,
}

impl FloatType {
    /// Burn's name of it.
    pub fn dtype(self) -> DType {
        match self {
            Self::Fp32 => DType::F32,
            Self::Bf16 => DType::BF16,
            Self::Fp16 => DType::F16,
        }
    }
}

/// In which types parameters are gathered and computed with, and gradients are reduced. What rests (masters, gradients, the
/// optimizer's moments) is fp32: in bf16 1.0 + 0.003 is 1.0. There is no type for buffers as in PyTorch's `MixedPrecision`: Burn's modules
/// have none, and constants such as rotation tables are made in fp32 where they are used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Precision {
    /// Of gathered parameters, and so of the activations.
    pub param: FloatType,
    /// Of gradients on their way between ranks.
    pub reduce: FloatType,
}

/// The factor by which losses are scaled so that fp16 gradients do not vanish, as PyTorch's `GradScaler`: halved, and the step skipped,
/// when a gradient overflows; doubled after 2000 steps without. It is 1 at least: what is not finite at 1 is no matter of scale.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LossScale {
    pub factor: f64,
    pub good_steps: usize,
    dynamic: bool,
}

impl LossScale {
    const GROWTH_INTERVAL: usize = 2000;

    pub fn new(precision: Precision) -> Self {
        let dynamic = precision.param == FloatType::Fp16 || precision.reduce == FloatType::Fp16;
        Self { factor: if dynamic { 65536.0 } else { 1.0 }, good_steps: 0, dynamic }
    }

    /// Goes on from these values, where losses are scaled, and were: a run without scaling has a factor of 1 and counts no steps.
    pub fn resume(&mut self, factor: f64, good_steps: usize) {
        if self.dynamic && (factor, good_steps) != (1.0, 0) {
            (self.factor, self.good_steps) = (factor, good_steps);
        }
    }

    /// Whether the gradients of a step, with this norm, have overflown; then the next one's are half as large. A gradient that is no
    /// number may be an overflow as well (infinite less infinite): it is one until the factor is 1.
    pub fn update(&mut self, grad_norm: f64) -> bool {
        if !self.dynamic {
            return false;
        }
        let overflown = !grad_norm.is_finite() && self.factor > 1.0;
        self.good_steps = if grad_norm.is_finite() { self.good_steps + 1 } else { 0 };
        if overflown {
            self.factor = (self.factor / 2.0).max(1.0);
        } else if self.good_steps == Self::GROWTH_INTERVAL {
            (self.factor, self.good_steps) = (self.factor * 2.0, 0);
        }
        overflown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_is_halved_by_an_overflow_and_doubled_after_two_thousand_good_steps() {
        let mut scale = LossScale::new(Precision { param: FloatType::Fp16, reduce: FloatType::Fp32 });
        assert!(scale.update(f64::INFINITY) && scale.update(f64::NAN));
        assert_eq!(scale.factor, 16384.0);
        assert!((0..1999).all(|_| !scale.update(1.0)));
        assert_eq!(scale.factor, 16384.0);
        scale.update(1.0);
        assert_eq!(scale.factor, 32768.0);
        scale.resume(1.0, 0);
        assert_eq!(scale.factor, 32768.0, "a run without scaling says nothing");
        scale.resume(4.0, 7);
        assert_eq!((scale.factor, scale.good_steps), (4.0, 7));
        let mut none = LossScale::new(Precision { param: FloatType::Bf16, reduce: FloatType::Fp32 });
        assert!(!none.update(f64::NAN) && none.factor == 1.0, "bf16 has the range of fp32");
    }
}
