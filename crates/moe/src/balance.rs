//! The losses that keep a router balanced.

use burn::tensor::{DType, Int, Tensor};
use comm::SequenceRanks;
use fused::check::Call;

/// Returns the balance loss of each sequence, averaged over sequences: `[1]`, without its coefficient.
///
/// For one sequence of T tokens it is `sum over experts i of f_i * P_i`, where `f_i = E / (k T)` times the number of
/// tokens that chose i, and `P_i` is the mean normalized score of i (DeepSeek-V3, arXiv 2412.19437, eq. 17 to 20). It
/// is 1 if loads are even. Gradients flow only through `P`.
///
/// `scores_ne` holds `b` sequences, one after another; `assigned_be` counts each sequence's choices of each expert.
///
/// # Panics
/// If there are no scores, if they are not f32, if the sequences do not have one length, or if the counts do not match
/// the number of experts.
pub fn sequence_balance_loss(scores_ne: Tensor<2>, assigned_be: Tensor<2, Int>) -> Tensor<1> {
    let (call, [n, e], [b, _]) = (Call("sequence_balance_loss"), scores_ne.dims(), assigned_be.dims());
    call.dtype("scores", scores_ne.dtype(), DType::F32);
    call.not_empty("scores", &[n, e]);
    call.shape("assigned", assigned_be.dims(), [b, e]);
    call.that(b > 0 && n % b == 0, format_args!("{n} tokens in {b} sequences"));
    let score_b1e = normalised(scores_ne).reshape([b, n / b, e]).mean_dim(1);
    loss(score_b1e, assigned_be.float())
}

/// [`sequence_balance_loss`] for sequences whose rows are split among this rank and others. The ranks sum their rows'
/// normalized scores and choices, 2 E numbers per sequence; no rank sees the scores of others.
pub(crate) fn sequence_balance_loss_over(
    scores_ne: Tensor<2>,
    assigned_be: Tensor<2, Int>,
    ranks: &SequenceRanks,
) -> Tensor<1> {
    if ranks.is_alone() {
        return sequence_balance_loss(scores_ne, assigned_be);
    }
    let ([n, e], [b, _]) = (scores_ne.dims(), assigned_be.dims());
    let s = n / b;
    let scores_bse = ranks.fill_padding(normalised(scores_ne).reshape([b, s, e]), 1, 0.0);
    let score_b1e = scores_bse.sum_dim(1);
    let assigned_b1e = Tensor::from_inner(assigned_be.float().unsqueeze_dim::<3>(1));
    let sums_b2e = ranks.sum(Tensor::cat(vec![score_b1e, assigned_b1e], 1));
    let score_b1e = sums_b2e.clone().slice_dim(1, 0..1) / ranks.whole(s) as f64;
    loss(score_b1e, sums_b2e.inner().slice_dim(1, 1..2).squeeze_dim(1))
}

/// Returns the change of each expert's selection bias after a step in which `assigned` tokens went to each expert: up
/// by `speed` if the expert had fewer than the mean, down if it had more (DeepSeek-V3's auxiliary-loss-free balancing,
/// arXiv 2412.19437, section 2.1.2).
pub fn bias_update(assigned: &[f64], speed: f64) -> Vec<f32> {
    let mean = assigned.iter().sum::<f64>() / assigned.len() as f64;
    let step = |load: &f64| if *load == mean { 0.0 } else { (speed * (mean - load).signum()) as f32 };
    assigned.iter().map(step).collect()
}

/// Divides each token's scores by their sum.
fn normalised(scores_ne: Tensor<2>) -> Tensor<2> {
    let total_n1 = scores_ne.clone().sum_dim(1);
    scores_ne / total_n1
}

/// Computes the loss from each sequence's mean normalized scores and choices.
fn loss(score_b1e: Tensor<3>, assigned_be: Tensor<2>) -> Tensor<1> {
    let [b, e] = assigned_be.dims();
    // Each of the T tokens has chosen k experts. A sequence whose tokens have chosen none has a loss of 0.
    let share_be = assigned_be.clone() / assigned_be.sum_dim(1).clamp_min(1.0) * e as f64;
    let load_b1e = share_be.unsqueeze_dim::<3>(1);
    (Tensor::from_inner(load_b1e) * score_b1e).sum() / b as f64
}

/// Returns the router z-loss, `[1]`, without its coefficient: the mean over tokens of
/// `log(sum over experts of exp(logit))^2`, which keeps logits small (ST-MoE, arXiv 2202.08906, eq. 5).
///
/// # Panics
/// If there are no logits, or if they are not f32.
pub fn router_z_loss(logits_ne: Tensor<2>) -> Tensor<1> {
    let call = Call("router_z_loss");
    call.dtype("logits", logits_ne.dtype(), DType::F32);
    call.not_empty("logits", &logits_ne.dims());
    let max_n1 = logits_ne.clone().detach().max_dim(1);
    let log_sum_n1 = (logits_ne - max_n1.clone()).exp().sum_dim(1).log() + max_n1;
    log_sum_n1.powi_scalar(2).mean()
}

/// [`router_z_loss`] for this rank's rows of `b` sequences, without padding. It is scaled so that the mean over ranks
/// is the loss of all rows.
pub(crate) fn router_z_loss_over(logits_ne: Tensor<2>, b: usize, ranks: &SequenceRanks) -> Tensor<1> {
    let [n, e] = logits_ne.dims();
    let (s, filled) = (n / b, ranks.filled(n / b));
    match filled {
        0 => logits_ne.slice_dim(0, 0..1).sum() * 0.0,
        _ if ranks.padding == 0 => router_z_loss(logits_ne),
        _ => {
            let rows = logits_ne.reshape([b, s, e]).slice_dim(1, 0..filled).reshape([b * filled, e]);
            // The mean number of real rows of a sequence per rank.
            let mean = ranks.whole(s) as f64 / ranks.size() as f64;
            router_z_loss(rows) * (filled as f64 / mean)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;

    #[test]
    fn a_sequence_without_choices_has_no_loss() {
        let (device, scores) = (Device::flex(), [[0.5, 0.5], [0.2, 0.8], [0.9, 0.1], [0.4, 0.6]]);
        let loss = |assigned: [[i32; 2]; 2]| -> f32 {
            let assigned = Tensor::<2, Int>::from_data(assigned, (&device, DType::I32));
            sequence_balance_loss(Tensor::from_floats(scores, &device), assigned).into_scalar()
        };
        assert_eq!(loss([[0, 0], [1, 1]]), 0.5);
        assert_eq!(loss([[0, 0], [0, 0]]), 0.0);
    }

    #[test]
    fn the_bias_of_a_busy_expert_falls_and_that_of_an_idle_one_rises() {
        assert_eq!(bias_update(&[4.0, 0.0, 2.0, 2.0], 0.5), [-0.5, 0.5, 0.0, 0.0]);
        assert_eq!(bias_update(&[3.0, 3.0], 0.5), [0.0, 0.0]);
    }
}
