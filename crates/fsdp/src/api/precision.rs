//! Types of parameters and gradients, and the scale of fp16 losses.

use crate::shard::state::LossScale;
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
    /// Returns Burn's type.
    pub fn dtype(self) -> DType {
        match self {
            Self::Fp32 => DType::F32,
            Self::Bf16 => DType::BF16,
            Self::Fp16 => DType::F16,
        }
    }
}

/// The types in which parameters are gathered and used, and in which gradients are reduced. Values at rest (masters,
/// gradients, the optimizer's moments) are fp32: in bf16, 1.0 + 0.003 is 1.0. There is no type for buffers as in
/// PyTorch's `MixedPrecision`, because modules with buffers are refused; constants such as rotation tables are created
/// in fp32 where they are used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Precision {
    /// Type of gathered parameters, and so of the activations.
    pub param: FloatType,
    /// Type of gradients in flight between ranks.
    pub reduce: FloatType,
}

/// Scales the losses of a run that computes or reduces in fp16, like PyTorch's `GradScaler`. If a gradient overflows,
/// the factor is halved and the step skipped; after 2000 steps without overflow the factor is doubled. The factor is at
/// least 1: a number that is not finite with factor 1 is not caused by the scale.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LossScaling(Option<LossScale>);

impl LossScaling {
    const GROWTH_INTERVAL: u64 = 2000;

    pub fn new(precision: Precision) -> Self {
        let scales = precision.param == FloatType::Fp16 || precision.reduce == FloatType::Fp16;
        Self(scales.then_some(LossScale { factor: 65536.0, good_steps: 0 }))
    }

    /// Returns the factor of losses: 1 if they are not scaled.
    pub fn factor(&self) -> f64 {
        self.0.map_or(1.0, |scale| scale.factor)
    }

    /// Returns the state from which a run resumes; `None` if losses are not scaled.
    pub fn state(&self) -> Option<LossScale> {
        self.0
    }

    /// Resumes from this scale, if losses are scaled now and were before.
    pub fn resume(&mut self, state: Option<LossScale>) {
        if let (Some(scale), Some(state)) = (&mut self.0, state) {
            *scale = state;
        }
    }

    /// Returns whether the gradients of a step with this norm have overflowed, and if so halves the factor for the next
    /// step. NaN may result from an overflow (infinity minus infinity), so it counts as one until the factor is 1.
    pub fn update(&mut self, grad_norm: f64) -> bool {
        let Some(scale) = &mut self.0 else { return false };
        let overflown = !grad_norm.is_finite() && scale.factor > 1.0;
        scale.good_steps = if grad_norm.is_finite() { scale.good_steps + 1 } else { 0 };
        if overflown {
            scale.factor = (scale.factor / 2.0).max(1.0);
        } else if scale.good_steps == Self::GROWTH_INTERVAL {
            *scale = LossScale { factor: scale.factor * 2.0, good_steps: 0 };
        }
        overflown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FP16: Precision = Precision { param: FloatType::Fp16, reduce: FloatType::Fp32 };

    #[test]
    fn the_scale_is_halved_by_an_overflow_and_doubled_after_two_thousand_good_steps() {
        let mut scale = LossScaling::new(FP16);
        assert!(scale.update(f64::INFINITY) && scale.update(f64::NAN));
        assert_eq!(scale.factor(), 16384.0);
        assert!((0..1999).all(|_| !scale.update(1.0)));
        assert_eq!(scale.factor(), 16384.0);
        scale.update(1.0);
        assert_eq!(scale.factor(), 32768.0);
    }

    #[test]
    fn a_run_goes_on_with_its_scale_whatever_it_is() {
        let mut before = LossScaling::new(FP16);
        (0..20).for_each(|_| _ = before.update(f64::INFINITY));
        assert_eq!(before.state(), Some(LossScale { factor: 1.0, good_steps: 0 }), "halved until it is 1");
        for state in [before.state().unwrap(), LossScale { factor: 4.0, good_steps: 7 }] {
            let mut scale = LossScaling::new(FP16);
            scale.resume(Some(state));
            assert_eq!(scale.state(), Some(state));
        }
        let mut none = LossScaling::new(Precision { param: FloatType::Bf16, reduce: FloatType::Fp32 });
        none.resume(before.state());
        assert!(!none.update(f64::NAN) && none.factor() == 1.0, "bf16 has the range of fp32");
        let mut scale = LossScaling::new(FP16);
        scale.resume(none.state());
        assert_eq!(scale.factor(), 65536.0, "a run without scaling says nothing");
    }
}
