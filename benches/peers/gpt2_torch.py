"""Trains a small character-level GPT-2 with PyTorch and prints its speed and losses as one line of JSON, for
comparison.

    pip install torch
    python benches/peers/gpt2_torch.py --data FILE --steps 500 --eval
    python benches/peers/gpt2_torch.py --data FILE --device cuda --bf16 --compile --vocab 50304 --bias --layers 12 --heads 12 --width 768
"""

import json
import math

import torch
import torch.nn.functional as F
from torch import nn

import training


def arguments():
    p = training.parser(__doc__, context=64, batch=12, warmup=100, beta2=0.99)
    p.add_argument("--layers", type=int, default=4)
    p.add_argument("--heads", type=int, default=4)
    p.add_argument("--width", type=int, default=128)
    p.add_argument("--vocab", type=int, help="rows of the token embedding, of which bytes fill 256; without it, characters are tokens")
    p.add_argument("--bias", action="store_true", help="biases in the linear layers and the norms")
    p.add_argument("--bf16", action="store_true", help="the forward under autocast to bfloat16, parameters in fp32, as nanoGPT does")
    p.add_argument("--eval", action="store_true", help="compute the validation loss at the end")
    return p.parse_args()


class Block(nn.Module):
    def __init__(self, width, heads, bias):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width, bias=bias)
        self.qkv = nn.Linear(width, 3 * width, bias=bias)
        self.attention_out = nn.Linear(width, width, bias=bias)
        self.norm2 = nn.LayerNorm(width, bias=bias)
        self.up = nn.Linear(width, 4 * width, bias=bias)
        self.down = nn.Linear(4 * width, width, bias=bias)

    def forward(self, x):
        qkv = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each [batch, heads, time, head]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attention_out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self, vocab, layers, heads, width, context, bias, bf16):
        super().__init__()
        self.bf16 = bf16
        self.tokens = nn.Embedding(vocab, width)  # also the output head
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads, bias) for _ in range(layers)))
        self.norm = nn.LayerNorm(width, bias=bias)
        for name, p in self.named_parameters():
            if p.dim() == 2:  # the projections into the residual stream start smaller
                into_residual = name.endswith(("attention_out.weight", "down.weight"))
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * layers) if into_residual else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def forward(self, x, y):
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.bf16):
            h = self.tokens(x) + self.positions.weight[: x.shape[1]]
            logits = F.linear(self.norm(self.blocks(h)), self.tokens.weight)
            return F.cross_entropy(logits.flatten(0, 1), y.flatten())


def validation_loss(model, data, context):
    """The mean loss over the non-overlapping windows of the split. An incomplete last window is left out."""
    windows = (len(data) - 1) // context
    x = data[: windows * context].view(windows, context)
    y = data[1 : windows * context + 1].view(windows, context)
    with torch.no_grad():
        total = sum(model(p, q).item() * len(p) for p, q in zip(x.split(64), y.split(64)))
    return total / windows


def characters(text):
    """A number for each character, and the number of distinct characters."""
    index = {c: i for i, c in enumerate(sorted(set(text)))}
    return [index[c] for c in text], len(index)


def main():
    a = arguments()
    training.start(a)
    ids, vocab = (list(a.data.read_bytes()), a.vocab) if a.vocab else characters(a.data.read_text(encoding="utf-8"))
    tokens, validation = training.split(ids)
    model = GPT2(vocab, a.layers, a.heads, a.width, a.context, a.bias, a.bf16)
    results = training.train(model, tokens, a)
    if a.eval:
        results["val_loss"] = validation_loss(model, validation.to(a.device), a.context)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
