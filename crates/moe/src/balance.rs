use crate::Routing;
use burn::tensor::Tensor;

/// The balance loss of each sequence, averaged over sequences: `[1]`, without its coefficient.
///
/// For one sequence of T tokens: `sum over experts i of f_i * P_i`, where `f_i = E / (k T)` times the tokens that chose i, and
/// `P_i` is the mean of i's normalised score (DeepSeek-V3, arXiv 2412.19437, eq. 17 to 20). It is 1 when loads are even.
/// Gradients flow through `P` only.
pub fn sequence_balance_loss(routing: &Routing, sequences: usize) -> Tensor<1> {
    let [n, e] = routing.scores_ne.dims();
    let [_, k] = routing.experts_nk.dims();
    let (b, t) = (sequences, n / sequences);

    let expert = Tensor::arange(0..e as i64, &routing.experts_nk.device()).reshape([1, 1, e]);
    let chosen = routing.experts_nk.clone().reshape([b, t * k, 1]).equal(expert).float();
    let load_b1e = chosen.sum_dim(1) * (e as f64 / (k * t) as f64);

    let total_n1 = routing.scores_ne.clone().sum_dim(1);
    let share_b1e = (routing.scores_ne.clone() / total_n1).reshape([b, t, e]).mean_dim(1);
    (load_b1e * share_b1e).sum() / b as f64
}
