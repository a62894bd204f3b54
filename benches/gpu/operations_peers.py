"""The operations of `fused` in PyTorch, at the sizes in the report of the binary `gpu`. `torch_peers.py` calls it.

Each is measured eagerly (`eager`) and through `torch.compile` (`compiled`), attention also with an explicit backend.
A backward starts with a tensor of ones, as Burn's does.
"""

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

BETAS, EPSILON, DECAY = (0.9, 0.95), 1e-8, 0.1


def flash(attention):
    """The same with SDPA's flash backend, or an error."""

    def run(*inputs):
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return attention(*inputs)

    return run


def gpt2(sizes, device):
    """Lists of (operation, shapes of its inputs, {form: function})."""
    b, t, heads, d, hidden, vocab = (sizes[key] for key in ["b", "t", "heads", "d", "hidden", "vocab"])
    n, head = b * t, d // heads
    tokens = torch.randint(vocab, (b, t), device=device)

    def attention(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def self_attention(qkv):
        q, k, v = qkv.unflatten(-1, (3, heads, head)).permute(2, 0, 3, 1, 4)
        return attention(q, k, v).transpose(1, 2).reshape(b, t, d)

    def cross_entropy(x, head):
        return F.cross_entropy(F.linear(x, head), tokens.flatten())

    def linear_gelu(x, weight, bias):
        return F.gelu(torch.addmm(bias, x, weight), approximate="tanh")

    def linear_add(x, weight, bias, residual):
        return residual + torch.addmm(bias, x, weight)

    def linear_add_layer_norm(x, weight, bias, residual, gain, norm_bias):
        return F.layer_norm(linear_add(x, weight, bias, residual), (d,), gain, norm_bias, 1e-5)

    return [
        ("linear", [(n, d), (d, 3 * d), (3 * d,)], plain(lambda x, weight, bias: torch.addmm(bias, x, weight))),
        ("linear_gelu", [(n, d), (d, hidden), (hidden,)], plain(linear_gelu)),
        ("linear_add", [(n, hidden), (hidden, d), (d,), (n, d)], plain(linear_add)),
        ("linear_add_layer_norm", [(n, d), (d, d), (d,), (n, d), (d,), (d,)], plain(linear_add_layer_norm)),
        ("layer_norm", [(n, d), (d,), (d,)], plain(lambda x, gain, bias: F.layer_norm(x, (d,), gain, bias, 1e-5))),
        ("gelu", [(n, hidden)], plain(lambda x: F.gelu(x, approximate="tanh"))),
        ("dropout", [(b, t, d)], plain(lambda x: F.dropout(x, 0.1))),
        ("causal_self_attention", [(b, t, 3 * d)], backends(self_attention)),
        ("causal_attention", [(b, heads, t, head)] * 3, backends(lambda *qkv: attention(*qkv).transpose(1, 2).contiguous())),
        ("linear_cross_entropy_transposed", [(n, d), (vocab, d)], plain(cross_entropy)),
        ("embedding", [(vocab, d)], plain(lambda table: F.embedding(tokens, table))),
    ]


def deepseek(sizes, device):
    b, t, heads, nope, rope, v, d, hidden, vocab = (
        sizes[key] for key in ["b", "t", "heads", "nope", "rope", "v", "d", "hidden", "vocab"]
    )
    n = b * t
    targets = torch.randint(vocab, (n,), device=device)
    angles = torch.outer(torch.arange(t), 1e4 ** -(torch.arange(0, rope, 2) / rope)).to(device)
    turns = torch.polar(torch.ones_like(angles), angles)

    def latent(pad):
        """Queries and keys with both parts concatenated and the rotated key repeated for each head. Values keep
        their width or are padded.
        """

        def attention(q, kv, k_rope):
            q_plain, q_turned = q.unflatten(-1, (heads, -1)).transpose(1, 2).split([nope, rope], dim=-1)
            k_plain, values = kv.unflatten(-1, (heads, -1)).transpose(1, 2).split([nope, v], dim=-1)
            k_turned = rotate(k_rope[:, None], turns).expand(b, heads, t, rope)
            q, k = torch.cat([q_plain, rotate(q_turned, turns)], dim=-1), torch.cat([k_plain, k_turned], dim=-1)
            y = F.scaled_dot_product_attention(q, k, F.pad(values, (0, pad)), is_causal=True)
            return y[..., :v].transpose(1, 2).reshape(b, t, heads * v)

        return attention

    # Flash attention requires values as wide as keys.
    padded = backends(latent(nope + rope - v))
    forms = padded | {f"{form}, values not padded": run for form, run in plain(latent(0)).items()}
    return [
        ("rms_norm", [(n, d), (d,)], plain(lambda x, gain: F.rms_norm(x, (d,), gain, 1e-6))),
        ("silu_mul", [(n, hidden)] * 2, plain(lambda gate, up: F.silu(gate) * up)),
        ("rope", [(b, heads, t, rope)], plain(lambda x: rotate(x, turns))),
        ("latent_attention", [(b, t, heads * (nope + rope)), (b, t, heads * (nope + v)), (b, t, rope)], forms),
        ("linear_cross_entropy", [(n, d), (d, vocab)], plain(lambda x, head: F.cross_entropy(x @ head, targets))),
    ]


def rotate(x, turns):
    """Interleaved pairs as complex numbers, in f32, as in DeepSeek's own code and torchtitan's."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turns).flatten(-2).to(x.dtype)


def plain(function):
    return {"eager": function, "compiled": torch.compile(function)}


def backends(attention):
    """Flash attention, and SDPA's default choice; both eager and compiled."""
    return plain(attention) | {f"{form}, flash": flash(run) for form, run in plain(attention).items()}


def operations(peers, shapes, dtype, dtypes):
    """Measures all of them, forward, and forward and backward."""
    for sizes, of in [(shapes["gpt2"], gpt2), (shapes["deepseek"], deepseek)]:
        for name, inputs, forms in of(sizes, peers.device):
            what = {"group": "operation", "shape": sizes["name"], "rows": sizes["b"] * sizes["t"], "dtype": dtype}
            given = [peers.random(*shape, dtype=dtypes[dtype]).mul_(0.25) for shape in inputs]
            for form, run in forms.items():
                with torch.no_grad():
                    peers.measure(form, lambda: run(*given), op=f"{name} forward", **what)
            tracked = [x.requires_grad_() for x in given]
            for form, run in forms.items():
                peers.measure(form, lambda: gradients(run, tracked), op=f"{name} forward and backward", **what)
            torch._dynamo.reset()
    optimizer(peers, shapes["gpt2"])


def gradients(run, inputs):
    y = run(*inputs)
    return torch.autograd.grad(y, inputs, torch.ones_like(y))


def optimizer(peers, sizes):
    """All parameters in one f32 tensor."""
    parameter = torch.nn.Parameter(peers.random(sizes["parameters"], dtype=torch.float32))
    parameter.grad = peers.random(sizes["parameters"], dtype=torch.float32)
    what = {"group": "operation", "shape": sizes["name"], "rows": sizes["parameters"], "dtype": "f32"}
    adamw = torch.optim.AdamW([parameter], lr=1e-4, betas=BETAS, eps=EPSILON, weight_decay=DECAY, fused=True)
    peers.measure("fused", adamw.step, op="adamw step", **what)
    square = lambda: torch.linalg.vector_norm(parameter.grad).square().item()
    peers.measure("eager", square, op="sum_of_squares forward", **what)
