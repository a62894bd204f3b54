use burn::tensor::{Int, Tensor};

/// Mean over all positions of `-log softmax(logits)[target]`, in nats: `[1]`.
///
/// # Shapes
/// `logits`: `[b, t, vocab]`; `targets`: `[b, t]`.
pub fn cross_entropy(logits_btv: Tensor<3>, targets_bt: Tensor<2, Int>) -> Tensor<1> {
    let [b, t, v] = logits_btv.dims();
    fused::cross_entropy(logits_btv.reshape([b * t, v]), targets_bt.reshape([b * t]))
}
