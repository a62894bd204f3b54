//! The operations in plain Rust, for the `flex` backend.

use super::FusedOps;
use crate::adamw::{Rates, adamw_cpu};
use crate::attention::{self, AttentionRule, Latent, LatentRule, Lying, Mask, Sizes};
use crate::clip::{ClipRule, clip_factor_cpu};
use crate::cross_entropy::{CrossEntropyRule, cross_entropy_cpu};
use crate::dropout::{DropoutRule, dropout_cpu};
use crate::linear::{Again, Weighted};
use crate::norm::{self, NormRule};
use crate::rope::{self, RopeRule};
use crate::slices::{contiguous, float, slice};
use crate::sum_of_squares::{add_parts_cpu, sum_of_squares_cpu};
use crate::with_float;
use crate::{embedding, gelu, linear, silu_mul};
use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::{DType, Element};

impl FusedOps for Flex {
    fn fused_gelu(x: FloatTensor<Self>) -> FloatTensor<Self> {
        let x = contiguous(&x);
        with_float!(x.dtype(), T => float(gelu::forward_cpu::<T>(slice(&x)), x.shape()))
    }

    fn fused_gelu_backward(x: FloatTensor<Self>, d_y: FloatTensor<Self>) -> FloatTensor<Self> {
        let (x, d_y) = (contiguous(&x), contiguous(&d_y));
        with_float!(x.dtype(), T => float(gelu::backward_cpu::<T>(slice(&x), slice(&d_y)), x.shape()))
    }

    fn fused_silu_mul(gate: FloatTensor<Self>, up: FloatTensor<Self>) -> FloatTensor<Self> {
        let (gate, up) = (contiguous(&gate), contiguous(&up));
        with_float!(gate.dtype(), T => float(silu_mul::forward_cpu::<T>(slice(&gate), slice(&up)), gate.shape()))
    }

    fn fused_silu_mul_backward(
        gate: FloatTensor<Self>,
        up: FloatTensor<Self>,
        d_y: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let (gate, up, d_y) = (contiguous(&gate), contiguous(&up), contiguous(&d_y));
        with_float!(gate.dtype(), T => {
            let (d_gate, d_up) = silu_mul::backward_cpu::<T>(slice(&gate), slice(&up), slice(&d_y));
            (float(d_gate, gate.shape()), float(d_up, gate.shape()))
        })
    }

    fn fused_norm(
        x: FloatTensor<Self>,
        gain: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        rule: NormRule,
    ) -> FloatTensor<Self> {
        let (x, gain, bias) = (contiguous(&x), contiguous(&gain), contiguous(&bias));
        with_float!(x.dtype(), T => {
            float(norm::forward_cpu::<T>(slice(&x), slice(&gain), slice(&bias), rule), x.shape())
        })
    }

    fn fused_norm_backward(
        x: FloatTensor<Self>,
        gain: FloatTensor<Self>,
        d_y: FloatTensor<Self>,
        rule: NormRule,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let (x, gain, d_y) = (contiguous(&x), contiguous(&gain), contiguous(&d_y));
        with_float!(x.dtype(), T => {
            let (d_x, [d_gain, d_bias]) = norm::backward_cpu::<T>(slice(&x), slice(&gain), slice(&d_y), rule);
            (float(d_x, x.shape()), float(d_gain, gain.shape()), float(d_bias, gain.shape()))
        })
    }

    fn fused_rope(
        x: FloatTensor<Self>,
        cos: FloatTensor<Self>,
        sin: FloatTensor<Self>,
        rule: RopeRule,
    ) -> FloatTensor<Self> {
        let ([t, pairs], x) = (cos.shape().dims(), contiguous(&x));
        let (cos, sin) = (contiguous(&cos), contiguous(&sin));
        with_float!(x.dtype(), T => {
            float(rope::rope_cpu::<T>(slice(&x), [slice(&cos), slice(&sin)], [t, pairs], rule), x.shape())
        })
    }

    fn fused_dropout(x: FloatTensor<Self>, rule: DropoutRule) -> FloatTensor<Self> {
        let x = contiguous(&x);
        with_float!(x.dtype(), T => float(dropout_cpu::<T>(slice(&x), rule), x.shape()))
    }

    fn fused_attention(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        starts: IntTensor<Self>,
        rule: AttentionRule,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let ([q, k, v], starts) = ([q, k, v].map(rows_together), contiguous(&starts));
        let sizes = sizes(&q, &v);
        with_float!(q.dtype(), T => {
            let (y, l) = attention::attention_cpu::<T>(sizes, [&q, &k, &v].map(lying), Mask { rule, starts: slice(&starts) });
            (float(y, [sizes.b, sizes.t, sizes.heads, sizes.dv]), float(l, [sizes.b, sizes.heads, sizes.t]))
        })
    }

    fn fused_attention_backward(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        y: FloatTensor<Self>,
        l: FloatTensor<Self>,
        d_y: FloatTensor<Self>,
        starts: IntTensor<Self>,
        rule: AttentionRule,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let ([q, k, v], l, starts) = ([q, k, v].map(rows_together), contiguous(&l), contiguous(&starts));
        let [y, d_y] = [y, d_y].map(|by_position| rows_together(by_position.permute(&[0, 2, 1, 3])));
        let sizes = sizes(&q, &v);
        with_float!(q.dtype(), T => {
            let (inputs, outputs) = ([&q, &k, &v].map(lying), [&y, &d_y].map(lying));
            let mask = Mask { rule, starts: slice(&starts) };
            let [d_q, d_k, d_v] = attention::attention_backward_cpu::<T>(sizes, inputs, outputs, slice(&l), mask);
            let Sizes { b, heads, kv_heads, t, s, d, dv } = sizes;
            let by_head = |values, [rows, heads, width]: [usize; 3]| {
                float(values, [b, rows, heads, width]).permute(&[0, 2, 1, 3])
            };
            (by_head(d_q, [t, heads, d]), by_head(d_k, [s, kv_heads, d]), by_head(d_v, [s, kv_heads, dv]))
        })
    }

    fn fused_self_attention(
        qkv: FloatTensor<Self>,
        starts: IntTensor<Self>,
        heads: usize,
        rule: AttentionRule,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let (qkv, starts, sizes) = (contiguous(&qkv), contiguous(&starts), sizes_of_three(&qkv, heads));
        with_float!(qkv.dtype(), T => {
            let (y, l) = attention::self_attention_cpu::<T>(sizes, slice(&qkv), Mask { rule, starts: slice(&starts) });
            (float(y, [sizes.b, sizes.t, heads * sizes.d]), float(l, [sizes.b, heads, sizes.t]))
        })
    }

    fn fused_self_attention_backward(
        qkv: FloatTensor<Self>,
        y: FloatTensor<Self>,
        l: FloatTensor<Self>,
        d_y: FloatTensor<Self>,
        starts: IntTensor<Self>,
        heads: usize,
        rule: AttentionRule,
    ) -> FloatTensor<Self> {
        let [qkv, y, l, d_y, starts] = [&qkv, &y, &l, &d_y, &starts].map(contiguous);
        let sizes = sizes_of_three(&qkv, heads);
        with_float!(qkv.dtype(), T => {
            let (outputs, mask) = ([slice(&y), slice(&d_y)], Mask { rule, starts: slice(&starts) });
            float(attention::self_attention_backward_cpu::<T>(sizes, slice(&qkv), outputs, slice(&l), mask), qkv.shape())
        })
    }

    fn fused_latent_attention(
        q: FloatTensor<Self>,
        kv: FloatTensor<Self>,
        k_rope: FloatTensor<Self>,
        cos: FloatTensor<Self>,
        sin: FloatTensor<Self>,
        starts: IntTensor<Self>,
        rule: LatentRule,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let inputs = [&q, &kv, &k_rope, &cos, &sin, &starts].map(contiguous);
        with_float!(q.dtype(), T => {
            let latent = latent::<T>(&inputs, rule);
            let (y, l) = attention::latent_attention_cpu(latent);
            (float(y, [latent.b, latent.t, rule.heads * rule.v]), float(l, [latent.b, rule.heads, latent.t]))
        })
    }

    fn fused_latent_attention_backward(
        q: FloatTensor<Self>,
        kv: FloatTensor<Self>,
        k_rope: FloatTensor<Self>,
        cos: FloatTensor<Self>,
        sin: FloatTensor<Self>,
        y: FloatTensor<Self>,
        l: FloatTensor<Self>,
        d_y: FloatTensor<Self>,
        starts: IntTensor<Self>,
        rule: LatentRule,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let inputs = [&q, &kv, &k_rope, &cos, &sin, &starts].map(contiguous);
        let [y, l, d_y] = [&y, &l, &d_y].map(contiguous);
        with_float!(q.dtype(), T => {
            let outputs = [slice(&y), slice(&d_y)];
            let [d_q, d_kv, d_k] = attention::latent_attention_backward_cpu(latent::<T>(&inputs, rule), outputs, slice(&l));
            (float(d_q, q.shape()), float(d_kv, kv.shape()), float(d_k, k_rope.shape()))
        })
    }

    fn fused_linear(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        transposed: bool,
        _: Option<Again>,
    ) -> FloatTensor<Self> {
        let inputs = [&x, &weight, &bias].map(contiguous);
        let ([rows, _], to) = (x.shape().dims(), weight.shape()[usize::from(!transposed)]);
        with_float!(x.dtype(), T => float(weighted::<T>(&inputs, transposed).forward(None), [rows, to]))
    }

    fn fused_linear_gelu(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        _: Option<Again>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let inputs = [&x, &weight, &bias].map(contiguous);
        let ([rows, _], [_, to]) = (x.shape().dims(), weight.shape().dims());
        with_float!(x.dtype(), T => {
            let (y, pre) = weighted::<T>(&inputs, false).gelu();
            (float(y, [rows, to]), float(pre, [rows, to]))
        })
    }

    fn fused_linear_add(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        residual: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        let inputs = [&x, &weight, &bias].map(contiguous);
        let residual = contiguous(&residual);
        with_float!(x.dtype(), T => {
            float(weighted::<T>(&inputs, false).forward(Some(slice(&residual))), residual.shape())
        })
    }

    fn fused_product(a: FloatTensor<Self>, b: FloatTensor<Self>) -> FloatTensor<Self> {
        Self::float_matmul(a, b)
    }

    fn fused_product_into(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: usize,
    ) -> FloatTensor<Self> {
        Self::fused_product(a, b)
    }

    fn fused_linear_add_norm(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        residual: FloatTensor<Self>,
        gain: FloatTensor<Self>,
        norm_bias: FloatTensor<Self>,
        rule: NormRule,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let h = Self::fused_linear_add(x, weight, bias, residual);
        (h.clone(), Self::fused_norm(h, gain, norm_bias, rule))
    }

    fn fused_linear_backward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        d_y: FloatTensor<Self>,
        transposed: bool,
        wanted: [bool; 3],
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let [x, weight, d_y] = [&x, &weight, &d_y].map(contiguous);
        let [rows, to] = d_y.shape().dims();
        // An input of an unwanted gradient may be an empty placeholder.
        let from = if wanted[1] { x.shape()[1] } else { weight.shape()[usize::from(transposed)] };
        with_float!(d_y.dtype(), T => {
            let slices = [slice(&x), slice(&weight), slice(&d_y)];
            let [d_x, d_weight, d_bias] = linear::backward_cpu::<T>(slices, [rows, from, to], transposed, wanted);
            let or_none = |values: Vec<T>, shape: Vec<usize>, wanted: bool| {
                float(values, if wanted { shape } else { vec![0] })
            };
            let of_weight = if transposed { vec![to, from] } else { vec![from, to] };
            (
                or_none(d_x, vec![rows, from], wanted[0]),
                or_none(d_weight, of_weight, wanted[1]),
                or_none(d_bias, vec![to], wanted[2]),
            )
        })
    }

    fn fused_cross_entropy(
        x: FloatTensor<Self>,
        head: FloatTensor<Self>,
        targets: IntTensor<Self>,
        rule: CrossEntropyRule,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let (cross_entropy, z_loss, ..) = cross_entropy(x, head, targets, rule, false);
        (cross_entropy, z_loss)
    }

    fn fused_cross_entropy_with_gradients(
        x: FloatTensor<Self>,
        head: FloatTensor<Self>,
        targets: IntTensor<Self>,
        rule: CrossEntropyRule,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        cross_entropy(x, head, targets, rule, true)
    }

    fn fused_embedding(weight: FloatTensor<Self>, tokens: IntTensor<Self>) -> FloatTensor<Self> {
        let (weight, tokens, d) = (contiguous(&weight), indices(&tokens), weight.shape()[1]);
        with_float!(weight.dtype(), T => {
            float(embedding::forward_cpu::<T>(slice(&weight), &tokens, d), [tokens.len(), d])
        })
    }

    fn fused_embedding_backward(tokens: IntTensor<Self>, d_y: FloatTensor<Self>, rows: usize) -> FloatTensor<Self> {
        let (tokens, d_y, d) = (indices(&tokens), contiguous(&d_y), d_y.shape()[1]);
        with_float!(d_y.dtype(), T => {
            float(embedding::backward_cpu::<T>(&tokens, slice(&d_y), rows, d), [rows, d])
        })
    }

    fn fused_adamw(
        parameter: FloatTensor<Self>,
        mean: FloatTensor<Self>,
        square: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        factor: FloatTensor<Self>,
        mut rates: Rates,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let mut state = [parameter, mean, square].map(|tensor| contiguous(&tensor));
        let gradient = contiguous(&widened(gradient));
        match slice::<f32>(&contiguous(&factor)).first() {
            Some(factor) if *factor < 0.0 => {
                let [parameter, mean, square] = state;
                let copy = match rates.copy {
                    Some(dtype) => Self::float_cast(parameter.clone(), dtype.into()),
                    None => float(Vec::<f32>::new(), [0]),
                };
                return (parameter, mean, square, copy);
            }
            Some(factor) => rates.gradient_scale *= factor,
            None => {}
        }
        let copy = with_float!(rates.copy.unwrap_or(DType::F32), T => {
            let copy = adamw_cpu::<T>(state.each_mut().map(own), slice(&gradient), &rates);
            let len = copy.len();
            float(copy, [len])
        });
        let [parameter, mean, square] = state;
        (parameter, mean, square, copy)
    }

    fn fused_sum_of_squares(x: FloatTensor<Self>) -> FloatTensor<Self> {
        let x = contiguous(&x);
        let parts = with_float!(x.dtype(), T => sum_of_squares_cpu::<T>(slice(&x)));
        let len = parts.len();
        float(parts, [len])
    }

    fn fused_add_parts(sum: FloatTensor<Self>, parts: FloatTensor<Self>, factor: f64) -> FloatTensor<Self> {
        float(add_parts_cpu(slice(&contiguous(&sum)), slice(&contiguous(&parts)), factor).to_vec(), [2])
    }

    fn fused_clip_factor(totals: FloatTensor<Self>, rule: ClipRule) -> FloatTensor<Self> {
        float(vec![clip_factor_cpu(slice(&contiguous(&totals)), rule)], [1])
    }
}

/// Converts to f32.
fn widened(x: FloatTensor<Flex>) -> FloatTensor<Flex> {
    if x.dtype() == DType::F32 { x } else { Flex::float_cast(x, DType::F32.into()) }
}

fn weighted<T: cpu::Element + Element>(
    [x, weight, bias]: &[FloatTensor<Flex>; 3],
    transposed: bool,
) -> Weighted<'_, T> {
    let (from, to) = (x.shape()[1], weight.shape()[usize::from(!transposed)]);
    Weighted { x: slice(x), weight: slice(weight), bias: slice(bias), from, to, transposed }
}

fn cross_entropy(
    x: FloatTensor<Flex>,
    head: FloatTensor<Flex>,
    targets: IntTensor<Flex>,
    rule: CrossEntropyRule,
    wanted: bool,
) -> (FloatTensor<Flex>, FloatTensor<Flex>, FloatTensor<Flex>, FloatTensor<Flex>) {
    let (x, head, targets) = (contiguous(&x), contiguous(&head), indices(&targets));
    let [_, d] = x.shape().dims();
    with_float!(x.dtype(), T => {
        let (losses, d_x, d_head) = cross_entropy_cpu::<T>(slice(&x), slice(&head), &targets, d, rule, wanted);
        let shape = |of: &FloatTensor<Flex>| if wanted { of.shape() } else { [0].into() };
        let [cross_entropy, z_loss] = losses.map(|loss| float(vec![loss], [1]));
        (cross_entropy, z_loss, float(d_x, shape(&x)), float(d_head, shape(&head)))
    })
}

/// Makes the elements of each row contiguous.
fn rows_together(tensor: FloatTensor<Flex>) -> FloatTensor<Flex> {
    let strides = tensor.layout().strides();
    if strides[3] == 1 && strides.iter().all(|stride| *stride >= 0) { tensor } else { tensor.to_contiguous() }
}

/// The elements and strides of a `[b, heads, t, width]` tensor, in place.
fn lying<T: cpu::Element + Element>(tensor: &FloatTensor<Flex>) -> Lying<'_, T> {
    let layout = tensor.layout();
    (&tensor.storage::<T>()[layout.start_offset()..], [0, 1, 2].map(|dim| layout.strides()[dim] as usize))
}

fn sizes(q: &FloatTensor<Flex>, v: &FloatTensor<Flex>) -> Sizes {
    let ([b, heads, t, d], [_, kv_heads, s, dv]) = (q.shape().dims(), v.shape().dims());
    Sizes { b, heads, kv_heads, t, s, d, dv }
}

fn sizes_of_three(qkv: &FloatTensor<Flex>, heads: usize) -> Sizes {
    let [b, t, width] = qkv.shape().dims();
    let d = width / 3 / heads;
    Sizes { b, heads, kv_heads: heads, t, s: t, d, dv: d }
}

fn latent<T: cpu::Element + Element>(inputs: &[FloatTensor<Flex>; 6], rule: LatentRule) -> Latent<'_, T> {
    let ([q, kv, k_rope, cos, sin, starts], [b, t, _]) = (inputs, inputs[0].shape().dims());
    let table = [slice(cos), slice(sin)];
    Latent { b, t, q: slice(q), kv: slice(kv), k_rope: slice(k_rope), table, starts: slice(starts), rule }
}

fn indices(tensor: &IntTensor<Flex>) -> Vec<usize> {
    let tensor = contiguous(tensor);
    match tensor.dtype() {
        DType::I64 => slice::<i64>(&tensor).iter().map(|index| *index as usize).collect(),
        DType::I32 => slice::<i32>(&tensor).iter().map(|index| *index as usize).collect(),
        other => panic!("indices are i64 or i32, not {other:?}"),
    }
}

/// The values of a contiguous tensor, to modify: copied if they have another owner.
fn own(tensor: &mut FloatTensor<Flex>) -> &mut [f32] {
    if slice::<f32>(tensor).len() < tensor.storage::<f32>().len() {
        // It is a slice of something larger, all of which would be copied.
        *tensor = float(slice::<f32>(tensor).to_vec(), tensor.shape());
    }
    tensor.storage_mut()
}
