//! One call of each public function.

use burn::backend::Flex;
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{DType, Device, Int, Tensor};
use fused::{
    AdamWState, AdamWStep, AttentionPart, ClipRule, DropoutKey, FusedAdamW, LinearCrossEntropyConfig, RopeTable, Rows,
};
use test_kit::arguments::{Case, Draw};

pub const CASES: &[Case] = &[
    ("gelu", |draw| {
        let shape = [draw.size(5), draw.size(9)];
        let x = draw.float(shape);
        draw.output(fused::gelu(x.clone()), x.dims());
    }),
    ("silu_mul", |draw| {
        let shape = [draw.size(5), draw.size(9)];
        let (gate, up) = (draw.float(shape), draw.float(shape));
        draw.output(fused::silu_mul(gate.clone(), up), gate.dims());
    }),
    ("dropout", |draw| {
        let shape = [draw.size(4), draw.size(3), draw.size(5)];
        let (x, p) = (draw.float(shape), draw.probability());
        draw.output(fused::dropout(x.clone(), p, DropoutKey::derive(1, 2, 3, 4)), x.dims());
    }),
    ("widened", |draw| {
        let shape = [draw.size(4), draw.size(3)];
        let x = draw.float(shape);
        draw.output(fused::widened(x.clone()), x.dims());
    }),
    ("rms_norm", |draw| {
        let shape = [draw.size(3), draw.size(3), draw.size(9)];
        let (x, gain) = (draw.float(shape), factors(draw, shape[2]));
        draw.output(fused::rms_norm(x.clone(), gain, 1e-5), x.dims());
    }),
    ("layer_norm", |draw| {
        let shape = [draw.size(3), draw.size(3), draw.size(9)];
        let (x, gain) = (draw.float(shape), factors(draw, shape[2]));
        let bias = draw.coin().then(|| factors(draw, shape[2]));
        draw.output(fused::layer_norm(x.clone(), gain, bias, 1e-5), x.dims());
    }),
    ("linear", |draw| {
        let (x, weight, bias) = product(draw);
        let shape = [x.dims()[0], x.dims()[1], weight.dims()[1]];
        draw.output(fused::linear(x, weight, bias), shape);
    }),
    ("Rows::not_kept", |draw| {
        let (x, weight, bias) = product(draw);
        let dtype = x.dtype();
        let again = draw.plain(x.dims(), dtype);
        let y = fused::linear(Rows::not_kept(x, move || again.clone()), weight, bias);
        if y.is_tracked() {
            y.sum().backward();
        }
    }),
    ("linear_gelu", |draw| {
        let (x, weight, bias) = product(draw);
        let shape = [x.dims()[0], x.dims()[1], weight.dims()[1]];
        draw.output(fused::linear_gelu(x, weight, bias), shape);
    }),
    ("linear_transposed", |draw| {
        let [b, t, from, to] = [draw.size(3), draw.size(4), draw.size(9), draw.size(9)];
        let (x, weight) = (draw.float([b, t, from]), draw.float([to, from]));
        let shape = [x.dims()[0], x.dims()[1], weight.dims()[0]];
        draw.output(fused::linear_transposed(x, weight), shape);
    }),
    ("linear_add", |draw| {
        let (x, weight, bias) = product(draw);
        let shape = [x.dims()[0], x.dims()[1], weight.dims()[1]];
        let residual = draw.float(shape);
        draw.output(fused::linear_add(x, weight, bias, residual), shape);
    }),
    ("linear_add_layer_norm", |draw| {
        let (x, weight, bias) = product(draw);
        let shape = [x.dims()[0], x.dims()[1], weight.dims()[1]];
        let (residual, gain) = (draw.float(shape), factors(draw, shape[2]));
        let norm_bias = draw.coin().then(|| factors(draw, shape[2]));
        let results = fused::linear_add_layer_norm(x, weight, bias, residual, gain, norm_bias, 1e-5);
        results.into_iter().for_each(|result| draw.output(result, shape));
    }),
    ("linear_add_rms_norm", |draw| {
        let (x, weight, _) = product(draw);
        let shape = [x.dims()[0], x.dims()[1], weight.dims()[1]];
        let (residual, gain) = (draw.float(shape), factors(draw, shape[2]));
        let results = fused::linear_add_rms_norm(x, weight, residual, gain, 1e-5);
        results.into_iter().for_each(|result| draw.output(result, shape));
    }),
    ("embedding", |draw| {
        let [v, d, b, t] = [draw.size(6), draw.size(5), draw.size(3), draw.size(4)];
        let (weight, tokens) = (draw.float([v, d]), draw.below_all([b, t], v));
        let shape = [tokens.dims()[0], tokens.dims()[1], weight.dims()[1]];
        draw.output(fused::embedding(weight, tokens), shape);
    }),
    ("linear_cross_entropy", |draw| {
        let [n, d, v] = [draw.size(6), draw.size(5), draw.size(9)];
        let (x, head, targets) = (draw.float([n, d]), draw.float([d, v]), draw.below_all([n], v));
        let losses = fused::linear_cross_entropy(x, head, targets, 0.1);
        draw.output(losses.z_loss, [1]);
        draw.output(losses.cross_entropy, [1]);
    }),
    ("linear_cross_entropy_transposed", |draw| {
        let [n, d, v] = [draw.size(6), draw.size(5), draw.size(9)];
        let (x, head, targets) = (draw.float([n, d]), draw.float([v, d]), draw.below_all([n], v));
        draw.output(fused::linear_cross_entropy_transposed(x, head, targets, 0.0).cross_entropy, [1]);
    }),
    ("LinearCrossEntropy::forward", |draw| {
        let [n, d, v] = [draw.size(6), draw.size(5), draw.size(9)];
        let (x, weight, targets) = (draw.float([n, d]), draw.float([d, v]), draw.below_all([n], v));
        let loss = LinearCrossEntropyConfig::new().with_pad_tokens(Some(vec![draw.below(v)])).init();
        draw.output(loss.forward(x, weight, targets), [1]);
    }),
    ("LinearCrossEntropy::forward_transposed", |draw| {
        let [n, d, v] = [draw.size(6), draw.size(5), draw.size(9)];
        let (x, weight, targets) = (draw.float([n, d]), draw.float([v, d]), draw.below_all([n], v));
        draw.output(LinearCrossEntropyConfig::new().init().forward_transposed(x, weight, targets), [1]);
    }),
    ("RopeTable::new", |draw| {
        let (t, pairs) = (draw.size(5), draw.size(4));
        let (angles, pairs) = (draw.number(t * pairs), draw.number(pairs));
        let table = RopeTable::new((0..angles).map(|i| i as f64), 1.0, pairs, &Device::flex());
        assert_eq!(table.positions() * pairs, angles);
    }),
    ("RopeTable::first", |draw| {
        let (table, has) = table(draw, 2);
        let wanted = draw.number(has);
        assert_eq!(table.first(wanted).positions(), wanted);
    }),
    ("RopeTable::at", |draw| {
        let (table, has) = table(draw, 2);
        let positions = [draw.number(0), draw.number(has.saturating_sub(1))];
        assert_eq!(table.at(&positions).positions(), 2);
    }),
    ("rope", |draw| {
        let pairs = draw.size(4);
        let (table, t) = table(draw, pairs);
        let shape = [draw.size(3), draw.size(3), t, 2 * pairs];
        let x = draw.float(shape);
        draw.output(fused::rope(x.clone(), &table), x.dims());
    }),
    ("rope_halves", |draw| {
        let pairs = draw.size(4);
        let (table, t) = table(draw, pairs);
        let shape = [draw.size(3), t, draw.size(3), 2 * pairs];
        let x = draw.float(shape);
        draw.output(fused::rope_halves(x.clone(), &table), x.dims());
    }),
    ("attention", |draw| {
        let [b, kv_heads, t, s] = [draw.size(2), draw.size(2), draw.size(4), draw.size(4)];
        let ([group, d, dv], options) = ([draw.size(2), draw.size(4), draw.size(4)], AttentionModuleOptions::default());
        let q = draw.float([b, group * kv_heads, t, d]);
        let (k, v) = (draw.float([b, kv_heads, s, d]), draw.float([b, kv_heads, s, dv]));
        let options = AttentionModuleOptions { is_causal: draw.coin(), ..options };
        let ([b, heads, t, _], [.., dv]) = (q.dims(), v.dims());
        draw.output(fused::attention(q, k, v, None, None, options), [b, heads, t, dv]);
    }),
    ("causal_attention", |draw| {
        let [b, t, d, dv] = [draw.size(3), draw.size(5), draw.size(5), draw.size(4)];
        let [heads, kv_heads] = grouped(draw);
        let s = if t == 0 { 0 } else { t + draw.below(3) };
        let offset = draw.number(s - t);
        let q = draw.float([b, heads, t, d]);
        let (k, v) = (draw.float([b, kv_heads, s, d]), draw.float([b, kv_heads, s, dv]));
        let first_keys = first_keys(draw, [b, t]);
        let shape = [q.dims()[0], q.dims()[2], q.dims()[1], v.dims()[3]];
        draw.output(fused::causal_attention(q, k, v, 0.7, offset, first_keys.as_ref()), shape);
    }),
    ("causal_self_attention", |draw| {
        let [b, heads, t, d] = [draw.size(3), draw.size(3), draw.size(5), draw.size(5)];
        let (qkv, first_keys) = (draw.float([b, t, 3 * heads * d]), first_keys(draw, [b, t]));
        let (heads, p) = (draw.number(heads), draw.probability());
        let dropout = draw.coin().then(|| (p, DropoutKey::derive(1, 2, 3, 4)));
        let shape = [qkv.dims()[0], qkv.dims()[1], qkv.dims()[2] / 3];
        draw.output(fused::causal_self_attention(qkv, heads, 0.7, dropout, first_keys.as_ref()), shape);
    }),
    ("latent_attention", |draw| {
        let [b, heads, nope, pairs, v] = [draw.size(3), draw.size(3), draw.size(3), draw.size(2), draw.size(4)];
        let (table, t) = table(draw, pairs);
        let q = draw.float([b, t, heads * (nope + 2 * pairs)]);
        let (kv, k_rope) = (draw.float([b, t, heads * (nope + v)]), draw.float([b, t, 2 * pairs]));
        let (first_keys, heads) = (first_keys(draw, [b, t]), draw.number(heads));
        let y = fused::latent_attention(q.clone(), kv.clone(), k_rope.clone(), &table, heads, 0.7, first_keys.as_ref());
        // The values' share of `kv`: what remains of a head after the unrotated part of its key.
        let nope = q.dims()[2] / heads - k_rope.dims()[2];
        draw.output(y, [q.dims()[0], q.dims()[1], kv.dims()[2] - heads * nope]);
    }),
    ("AttentionPart::forward", |draw| {
        let (part, [q, k, v], first_keys) = part(draw);
        let ([b, heads, t, _], dv) = (q.dims(), v.dims()[3]);
        let (y, l) = part.forward([q, k, v], first_keys);
        draw.output(y, [b, t, heads, dv]);
        draw.output(l, [b, heads, t]);
    }),
    ("AttentionPart::backward", |draw| {
        let (part, [q, k, v], first_keys) = part(draw);
        let ([b, heads, t, _], dv, dtype) = (q.dims(), v.dims()[3], q.dtype());
        let outputs = [draw.plain([b, t, heads, dv], dtype), draw.plain([b, t, heads, dv], dtype)];
        // At least as large as the log-sum-exp of these scores, so that probabilities are finite.
        let l = draw.plain([b, heads, t], DType::F32) * 0.0 + 30.0;
        let shapes = [q.dims(), k.dims(), v.dims()];
        let gradients = part.backward([q, k, v], outputs, l, first_keys);
        gradients.into_iter().zip(shapes).for_each(|(gradient, shape)| draw.output(gradient, shape));
    }),
    ("adamw", |draw| {
        let (n, dtype) = (draw.size(9), draw.dtype());
        let (parameter, gradient) = (draw.plain([n], DType::F32), draw.plain([n], dtype));
        let (mean, square) = (draw.plain([n], DType::F32), draw.plain([n], DType::F32).abs());
        let mut state = AdamWState { mean, square, steps: 3 };
        let copy = draw.coin().then_some(dtype);
        let factor = draw.coin().then(|| draw.plain([1], DType::F32));
        let step = AdamWStep { lr: 0.1, decayed: draw.below(2 * n), gradient_scale: 1.0, factor, copy };
        let shape = parameter.dims();
        let (parameter, copy) = fused::adamw(&FusedAdamW::default(), &step, parameter, gradient, &mut state);
        let state = [state.mean, state.square].into_iter();
        state.chain([parameter]).chain(copy).for_each(|result| draw.output(result, shape));
    }),
    ("AdamWState::new", |draw| {
        let n = draw.size(9);
        let state = AdamWState::new(&draw.plain([n], DType::F32));
        assert_eq!((state.mean.dims(), state.steps), (state.square.dims(), 0));
    }),
    ("sum_of_squares", |draw| {
        let n = draw.size(9);
        let sum = fused::sum_of_squares(draw.float([n]));
        draw.values(vec![sum as f32], 1);
    }),
    ("add_sum_of_squares", |draw| {
        let (n, len) = (draw.size(9), draw.number(2));
        let sum = fused::add_sum_of_squares(draw.plain([len], DType::F32), draw.float([n]), 0.5);
        draw.output(sum, [2]);
    }),
    ("flatten", |draw| {
        let (a, b, dtype) = (draw.size(5), draw.size(5), draw.dtype());
        let parts = vec![(1, draw.plain([a], dtype)), (draw.number(1 + a), draw.plain([b], DType::F32))];
        let len = draw.number(a + b + 3);
        let flat = fused::flatten(parts, len, dtype, &Device::flex());
        draw.output(flat, [len]);
    }),
    ("flatten_into", |draw| {
        let (a, b, dtype) = (draw.size(5), draw.size(5), draw.dtype());
        let parts = vec![(1, draw.plain([a], dtype)), (draw.number(1 + a), draw.plain([b], DType::F32))];
        let len = draw.number(a + b + 3);
        let flat = fused::flatten_into(Tensor::zeros([len], (&Device::flex(), dtype)), parts);
        draw.output(flat, [len]);
    }),
    ("clip_factor", |draw| {
        let (len, limit) = (draw.size(5) + 1, draw.coin().then_some(1.0));
        let factor = fused::clip_factor(draw.plain([len], DType::F32), ClipRule { count: 2.0, limit });
        draw.output(factor, [1]);
    }),
    ("contiguous", |draw| {
        let shape = [draw.size(4), draw.size(3)];
        let tensor = draw.plain(shape, DType::F32).transpose().try_into_primitive::<Flex>().expect("it is on flex");
        assert!(fused::slices::contiguous(&tensor).is_contiguous());
    }),
    ("slice", |draw| {
        let shape = [draw.size(4), draw.size(3)];
        let tensor = draw.plain(shape, DType::F32);
        let len = tensor.dims().iter().product();
        let values = fused::slices::slice::<f32>(&tensor.try_into_primitive::<Flex>().expect("it is on flex")).to_vec();
        draw.values(values, len);
    }),
    ("float", |draw| {
        let shape = [draw.size(4), draw.size(3)];
        let len = draw.number(shape[0] * shape[1]);
        fused::slices::float(vec![1.0f32; len], shape);
    }),
];

/// Public functions without arguments that could have a wrong shape, and why.
pub const WITHOUT: &[(&str, &str)] = &[
    ("has_kernels", "a device"),
    ("DropoutKey::derive", "numbers"),
    ("DropoutKey::at_row", "numbers"),
    ("DropoutKey::at_index", "numbers"),
    ("LinearCrossEntropyConfig::init", "no arguments"),
    ("RopeTable::positions", "no arguments"),
    ("step", "of the tape: takes what the operation of a crate has computed"),
    ("backward_of_inputs", "of the tape: takes a loss"),
    ("Deferred::is_empty", "no arguments"),
    ("Deferred::backward", "no arguments"),
    ("defers", "no arguments"),
    ("defer", "a function"),
    ("GradientBuffer::new", "a length; there is none on the CPU"),
    ("GradientBuffer::written", "no arguments"),
    ("Destination::new", "of a buffer, which there is none of on the CPU"),
    ("written_into", "places, and a function"),
    ("Call::shape", "what the checks are made of"),
    ("Call::not_empty", "what the checks are made of"),
    ("Call::width", "what the checks are made of"),
    ("Call::float", "what the checks are made of"),
    ("Call::index", "what the checks are made of"),
    ("Call::dtype", "what the checks are made of"),
    ("Call::that", "what the checks are made of"),
];

/// Gain or bias of a norm, which may have a different float type.
fn factors(draw: &mut Draw, d: usize) -> Tensor<1> {
    let dtype = draw.one_of([DType::F32, draw.dtype()]);
    draw.tracked([d], dtype)
}

/// `x`, `W`, and possibly `b`.
fn product(draw: &mut Draw) -> (Tensor<3>, Tensor<2>, Option<Tensor<1>>) {
    let [b, t, from, to] = [draw.size(3), draw.size(4), draw.size(9), draw.size(9)];
    let (x, weight) = (draw.float([b, t, from]), draw.float([from, to]));
    let bias = draw.coin().then(|| draw.float([to]));
    (x, weight, bias)
}

/// A table of some positions, and the number that it should have.
fn table(draw: &mut Draw, pairs: usize) -> (RopeTable, usize) {
    let right = draw.size(5);
    let (t, pairs) = (draw.number(right), draw.number(pairs));
    (RopeTable::new((0..t * pairs).map(|i| i as f64), 1.0, pairs, &Device::flex()), right)
}

fn first_keys(draw: &mut Draw, [b, t]: [usize; 2]) -> Option<Tensor<2, Int>> {
    draw.coin().then(|| draw.indices([b, t], |_, i| (i % t.max(1) / 2) as i64))
}

/// The numbers of query heads and of heads of keys and values.
fn grouped(draw: &mut Draw) -> [usize; 2] {
    let kv_heads = draw.size(3);
    [kv_heads * (1 + draw.below(3)), kv_heads]
}

/// A part of a sequence, and what it attends to.
fn part(draw: &mut Draw) -> (AttentionPart, [Tensor<4>; 3], Option<Tensor<2, Int>>) {
    let [b, t, d, dv] = [draw.size(3), draw.size(5), draw.size(5), draw.size(4)];
    let [heads, kv_heads] = grouped(draw);
    let (own, p, dtype) = (draw.coin(), draw.probability(), draw.dtype());
    let s = if own { t } else { draw.size(5) };
    let dropout = draw.coin().then(|| (p, DropoutKey::derive(1, 2, 3, 4), 1, 20));
    let part = AttentionPart { first: if own { [5, 5] } else { [5, 0] }, scale: 0.7, dropout };
    let qkv = [[b, heads, t, d], [b, kv_heads, s, d], [b, kv_heads, s, dv]].map(|shape| draw.plain(shape, dtype));
    (part, qkv, first_keys(draw, [b, t]))
}
