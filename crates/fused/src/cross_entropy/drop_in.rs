//! [`LinearCrossEntropy`]: a head and Burn's cross entropy with ignored targets, in one operation.

use super::{CrossEntropyRule, losses};
use crate::check::Call;
use burn::config::Config;
use burn::module::Module;
use burn::tensor::{FloatDType, Int, Tensor};

/// Configuration of a [`LinearCrossEntropy`]: the applicable part of the configuration of
/// `burn::nn::loss::CrossEntropyLoss`. There are no class weights, no label smoothing and no probabilities as inputs.
#[derive(Config, Debug)]
pub struct LinearCrossEntropyConfig {
    /// Targets to ignore. A negative target, such as PyTorch's -100, is always ignored.
    pub pad_tokens: Option<Vec<usize>>,
}

impl LinearCrossEntropyConfig {
    /// Makes the loss.
    pub fn init(&self) -> LinearCrossEntropy {
        LinearCrossEntropy { pad_tokens: self.pad_tokens.clone().unwrap_or_default() }
    }
}

/// The mean of `-log softmax(x W)[target]` over targets that are not ignored, without all logits in memory: a linear
/// head without bias and `burn::nn::loss::CrossEntropyLoss` in one. It is [`linear_cross_entropy`], with its types,
/// memory and speed.
///
/// If all targets are ignored, the loss and its gradients are 0. Burn and PyTorch divide by 0 there, and a NaN would
/// reach every parameter from one batch of padding.
///
/// [`linear_cross_entropy`]: crate::linear_cross_entropy
///
/// # Example
///
/// ```
/// use burn::nn::loss::CrossEntropyLossConfig;
/// use burn::nn::{Linear, LinearConfig};
/// use burn::tensor::{Device, Distribution, Int, Tensor, Tolerance};
/// use fused::LinearCrossEntropyConfig;
///
/// let device = Device::flex();
/// let head: Linear = LinearConfig::new(8, 50).with_bias(false).init(&device);
/// let x = Tensor::<2>::random([4, 8], Distribution::Default, &device);
/// let targets = Tensor::<1, Int>::from_data([3, 0, 49, 0], &device);
///
/// let pads = Some(vec![0]);
/// let loss = LinearCrossEntropyConfig::new().with_pad_tokens(pads.clone()).init();
/// let loss = loss.forward(x.clone(), head.weight.val(), targets.clone());
///
/// let of_burn = CrossEntropyLossConfig::new().with_pad_tokens(pads).init(&device);
/// let of_burn = of_burn.forward(head.forward(x), targets);
/// loss.into_data().assert_approx_eq::<f32>(&of_burn.into_data(), Tolerance::absolute(1e-5));
/// ```
#[derive(Module, Debug)]
pub struct LinearCrossEntropy {
    pad_tokens: Vec<usize>,
}

impl LinearCrossEntropy {
    /// Computes the loss, `[1]`, f32, for a weight of `[d, vocab]`, such as that of `burn::nn::Linear`.
    ///
    /// # Shapes
    /// `x`: `[n, d]`; `targets`: `[n]`, each below `vocab` or ignored.
    ///
    /// # Panics
    /// If `x` and the weight do not have one type (f32, bf16 or f16), if targets are not i32 or i64, if shapes differ
    /// from these or are empty, or, on the CPU, if a target is neither in the vocabulary nor ignored.
    pub fn forward(&self, x_nd: Tensor<2>, weight_dv: Tensor<2>, targets_n: Tensor<1, Int>) -> Tensor<1> {
        self.loss(Call("LinearCrossEntropy::forward"), x_nd, weight_dv, targets_n, false)
    }

    /// Computes the same for a weight of `[vocab, d]`, such as that of `burn::nn::Embedding`, for tied embeddings.
    ///
    /// # Panics
    /// Like [`forward`](Self::forward).
    pub fn forward_transposed(&self, x_nd: Tensor<2>, weight_vd: Tensor<2>, targets_n: Tensor<1, Int>) -> Tensor<1> {
        self.loss(Call("LinearCrossEntropy::forward_transposed"), x_nd, weight_vd, targets_n, true)
    }

    fn loss(
        &self,
        call: Call,
        x_nd: Tensor<2>,
        head: Tensor<2>,
        targets_n: Tensor<1, Int>,
        transposed: bool,
    ) -> Tensor<1> {
        call.index("targets", targets_n.dtype());
        let n = x_nd.dims()[0] as f64;
        let pads = self.pad_tokens.iter().map(|token| targets_n.clone().equal_scalar(*token as i64));
        let targets = match pads.reduce(|pads, pad| pads.bool_or(pad)) {
            Some(pads) => targets_n.mask_fill(pads, -1),
            None => targets_n,
        };
        let counted = targets.clone().greater_equal_scalar(0).int().sum().cast(FloatDType::F32);
        let all = losses(call, x_nd, head, targets, CrossEntropyRule { transposed, z_loss_coef: 0.0, ignores: true });
        let factor = counted.clamp_min(1.0).recip() * n;
        let of_all = all.cross_entropy;
        let factor = if of_all.is_autodiff() { factor.autodiff() } else { factor.inner() };
        of_all * factor
    }
}
