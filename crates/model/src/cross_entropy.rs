use burn::tensor::activation::log_softmax;
use burn::tensor::{Int, Tensor};

/// Mean over all positions of `-log softmax(logits)[target]`, in nats: `[1]`.
///
/// # Shapes
/// `logits`: `[b, t, vocab]`; `targets`: `[b, t]`.
pub fn cross_entropy(logits_btv: Tensor<3>, targets_bt: Tensor<2, Int>) -> Tensor<1> {
    let [b, t, v] = logits_btv.dims();
    let log_probabilities = log_softmax(logits_btv.reshape([b * t, v]), 1);
    log_probabilities.gather(1, targets_bt.reshape([b * t, 1])).mean().neg()
}
