//! [`attention`]: Burn's function of the same name, computed by [`causal_attention`] where the results are the same.

use super::causal_attention;
use crate::backend::has_kernels;
use crate::check::Call;
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{Bool, DType, Tensor};

/// Computes attention with the arguments, the layout and the results of
/// [`burn::tensor::module::attention`](burn::tensor::module::attention), and also for grouped queries (arXiv
/// 2305.13245): with `n` query heads for each head of `key` and `value`, query head `h` reads head `h / n`.
///
/// A call is fused if scores and probabilities need only a positive scale and, if `is_causal`, the causal mask:
///
/// | | fused | computed by Burn |
/// |---|---|---|
/// | `mask`, `attn_bias`, `softcap` | all `None` | any of them |
/// | `is_causal` | `false`, or at least as many keys as queries | fewer keys than queries |
/// | `scale` | positive, or `None` | 0 or less |
/// | dtype | f32, bf16, f16 | others |
/// | backend | with kernels, see [`has_kernels`] | others, such as NdArray |
///
/// Fused calls hold all scores in memory neither in the forward nor in the backward. They copy no input whose last
/// dimension is contiguous, and they return a view. Other calls go to Burn's function, with keys and values copied for
/// each query head if queries are grouped. Gradients flow in both cases. Masks for documents and sliding windows are
/// fused as the `first_keys` of [`causal_attention`].
///
/// # Shapes
/// `query`: `[b, heads, t, d]`; `key`: `[b, kv_heads, s, d]`; `value`: `[b, kv_heads, s, dv]`, with `heads` a multiple
/// of `kv_heads`; `mask` (true: not seen) and `attn_bias`: `[b, heads, t, s]`; the result: `[b, heads, t, dv]`. With
/// `is_causal`, the last query sees all keys.
///
/// # Panics
/// If `query`, `key` and `value` do not have these shapes and one dtype, if a dimension is 0, and where Burn's function
/// panics.
///
/// # Example
///
/// ```
/// use burn::tensor::ops::AttentionModuleOptions;
/// use burn::tensor::{Device, Distribution, Tensor, Tolerance, module};
///
/// let device = Device::flex();
/// let [q, k, v] = [0; 3].map(|_| Tensor::<4>::random([2, 4, 10, 8], Distribution::Default, &device));
/// let options = AttentionModuleOptions { is_causal: true, ..Default::default() };
/// let y = fused::attention(q.clone(), k.clone(), v.clone(), None, None, options);
/// let of_burn = module::attention(q, k, v, None, None, options);
/// y.into_data().assert_approx_eq::<f32>(&of_burn.into_data(), Tolerance::absolute(1e-5));
/// ```
pub fn attention(
    query: Tensor<4>,
    key: Tensor<4>,
    value: Tensor<4>,
    mask: Option<Tensor<4, Bool>>,
    attn_bias: Option<Tensor<4>>,
    options: AttentionModuleOptions,
) -> Tensor<4> {
    let (call, [b, heads, _, d], [_, kv_heads, s, _], [.., dv]) =
        (Call("attention"), query.dims(), key.dims(), value.dims());
    [("query", query.dims()), ("key", key.dims()), ("value", value.dims())]
        .iter()
        .for_each(|(name, dims)| call.not_empty(name, dims));
    call.dtype("key", key.dtype(), query.dtype());
    call.dtype("value", value.dtype(), query.dtype());
    call.shape("key", key.dims(), [b, kv_heads, s, d]);
    call.shape("value", value.dims(), [b, kv_heads, s, dv]);
    call.that(
        heads.is_multiple_of(kv_heads),
        format_args!("query has {heads} heads, expected a multiple of the {kv_heads} of key and value"),
    );
    let scale = options.scale.unwrap_or_else(|| (d as f64).sqrt().recip());
    let has_kernels = has_kernels(&query.device());
    let plain = has_kernels && mask.is_none() && attn_bias.is_none() && options.softcap.is_none() && scale > 0.0;
    match offset(&query, &key, options.is_causal).filter(|_| plain) {
        Some(offset) => causal_attention(query, key, value, scale, offset, None).swap_dims(1, 2),
        None => {
            let [key, value] = [key, value].map(|tensor| for_each_query_head(tensor, heads));
            burn::tensor::module::attention(query, key, value, mask, attn_bias, options)
        }
    }
}

/// The offset with which [`causal_attention`] computes these inputs, if it can. Without a causal mask, the offset lets
/// the first query see all keys.
fn offset(q: &Tensor<4>, k: &Tensor<4>, is_causal: bool) -> Option<usize> {
    let ([_, _, t, _], [_, _, s, _]) = (q.dims(), k.dims());
    if !matches!(q.dtype(), DType::F32 | DType::BF16 | DType::F16) {
        return None;
    }
    if is_causal { s.checked_sub(t) } else { Some(s - 1) }
}

/// Repeats heads of keys or values until there are as many as query heads.
fn for_each_query_head(x_bgsd: Tensor<4>, heads: usize) -> Tensor<4> {
    let [b, kv_heads, s, d] = x_bgsd.dims();
    if kv_heads == heads {
        return x_bgsd;
    }
    let repeated = x_bgsd.unsqueeze_dim::<5>(2).expand([b, kv_heads, heads / kv_heads, s, d]);
    repeated.reshape([b, heads, s, d])
}
