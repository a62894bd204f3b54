"""Trains a DeepSeek-V2 built from PyTorch's own operations and prints its speed, memory and losses as one line of
JSON, for comparison.

    pip install torch
    python benches/peers/deepseek_grouped.py --data FILE --device cuda --bf16 --compile

Attention is latent, through SDPA. A layer's tokens are sorted by expert and multiplied by `torch._grouped_mm`, as in
torchtitan. Matrices, norms and moments are fp32; with `--bf16` the forward runs under autocast. Tokens are bytes.
There is no load-balancing loss.
"""

import json

import torch
import torch.nn.functional as F
from torch import nn

import training


def arguments():
    p = training.parser(__doc__, context=4096, batch=1, warmup=20, beta2=0.95)
    sizes = dict(layers=5, dense=1, width=2048, heads=16, rank=512, nope=128, rope=64, value=128, hidden=10944)
    for name, value in (sizes | dict(experts=64, top_k=6, expert=1408, shared=2, vocab=102400)).items():
        p.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    p.add_argument("--bf16", action="store_true", help="the forward under autocast to bfloat16, parameters in fp32")
    return p.parse_args()


def linear(from_, to):
    return nn.Linear(from_, to, bias=False)


class Norm(nn.RMSNorm):
    """Converts the gain to the input's type, the only case for which PyTorch has a single kernel."""

    def forward(self, x):
        return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


class Attention(nn.Module):
    """DeepSeek-V2's attention (arXiv 2405.04434, section 2.1), without query compression."""

    def __init__(self, a):
        super().__init__()
        self.sizes = a
        self.q = linear(a.width, a.heads * (a.nope + a.rope))
        self.kv_a = linear(a.width, a.rank + a.rope)
        self.norm = Norm(a.rank, eps=1e-6)
        self.kv_b = linear(a.rank, a.heads * (a.nope + a.value))
        self.out = linear(a.heads * a.value, a.width)

    def forward(self, x, turns):
        a, heads = self.sizes, lambda y: y.unflatten(-1, (self.sizes.heads, -1)).transpose(1, 2)
        q_plain, q_turned = heads(self.q(x)).split([a.nope, a.rope], dim=-1)
        latent, k_turned = self.kv_a(x).split([a.rank, a.rope], dim=-1)
        k_plain, v = heads(self.kv_b(self.norm(latent))).split([a.nope, a.value], dim=-1)
        k_turned = rotate(k_turned[:, None], turns).expand(-1, a.heads, -1, -1)
        q, k = torch.cat([q_plain, rotate(q_turned, turns)], dim=-1), torch.cat([k_plain, k_turned], dim=-1)
        y = F.scaled_dot_product_attention(q, k.to(q.dtype), v.to(q.dtype), is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


def rotate(x, turns):
    """Interleaved pairs as complex numbers."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turns).flatten(-2).to(x.dtype)


class SwiGlu(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.gate, self.up, self.down = linear(width, hidden), linear(width, hidden), linear(hidden, width)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    """The routed and the shared experts: softmax over all, and the `top_k` best with unnormalized scores."""

    def __init__(self, a):
        super().__init__()
        self.top_k, self.dtype = a.top_k, torch.bfloat16 if a.bf16 else torch.float32
        self.router = linear(a.width, a.experts)
        self.gate, self.up = (nn.Parameter(torch.empty(a.experts, a.width, a.expert)) for _ in range(2))
        self.down = nn.Parameter(torch.empty(a.experts, a.expert, a.width))
        self.shared = SwiGlu(a.width, a.shared * a.expert)

    def forward(self, x_btd):
        x = x_btd.flatten(0, 1)
        with torch.autocast(x.device.type, enabled=False):
            scores = F.linear(x.float(), self.router.weight).softmax(dim=-1)
        gates, chosen = scores.topk(self.top_k, dim=-1)
        chosen = chosen.flatten()
        order = chosen.argsort(stable=True)
        numbers = torch.arange(scores.shape[1], device=x.device)
        ends = (chosen[:, None] == numbers).sum(dim=0).cumsum(dim=0).to(torch.int32)
        # Autocast does not cover the grouped product.
        gate, up, down = (weight.to(self.dtype) for weight in [self.gate, self.up, self.down])
        rows = x.to(self.dtype)[order // self.top_k]
        hidden = F.silu(torch._grouped_mm(rows, gate, ends)) * torch._grouped_mm(rows, up, ends)
        y = torch._grouped_mm(hidden, down, ends)[order.argsort()].unflatten(0, (-1, self.top_k))
        y = (y.float() * gates[..., None]).sum(dim=1).to(x.dtype)
        return y.view_as(x_btd) + self.shared(x_btd)


class Block(nn.Module):
    def __init__(self, a, dense):
        super().__init__()
        self.norm1, self.attention = Norm(a.width, eps=1e-6), Attention(a)
        self.norm2, self.mlp = Norm(a.width, eps=1e-6), SwiGlu(a.width, a.hidden) if dense else Experts(a)

    def forward(self, x, turns):
        x = x + self.attention(self.norm1(x), turns)
        return x + self.mlp(self.norm2(x))


class DeepSeek(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.bf16 = a.bf16
        self.tokens = nn.Embedding(a.vocab, a.width)
        self.blocks = nn.ModuleList(Block(a, i < a.dense) for i in range(a.layers))
        self.norm, self.head = Norm(a.width, eps=1e-6), linear(a.width, a.vocab)
        angles = torch.outer(torch.arange(a.context), 1e4 ** -(torch.arange(0, a.rope, 2) / a.rope))
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles))
        for p in self.parameters():
            if p.dim() >= 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, x, y):
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.bf16):
            h = self.tokens(x)
            for block in self.blocks:
                h = block(h, self.turns)
            return F.cross_entropy(self.head(self.norm(h)).flatten(0, 1), y.flatten())


def main():
    a = arguments()
    training.start(a)
    tokens, _ = training.split(list(a.data.read_bytes()))
    with torch.device(a.device):
        model = DeepSeek(a)
    print(json.dumps(training.train(model, tokens, a)))


if __name__ == "__main__":
    main()
