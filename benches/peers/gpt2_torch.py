"""Trains a small character-level GPT-2 with PyTorch (eager, on the CPU) and prints its speed and losses
as one line of JSON, to compare with.

    pip install torch
    python benches/peers/gpt2_torch.py --data FILE --steps 500 --eval
"""

import argparse
import json
import math
import statistics
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", type=Path, required=True, help="a text file; its first 90%% are for training")
    p.add_argument("--steps", type=int, default=2000)
    p.add_argument("--layers", type=int, default=4)
    p.add_argument("--heads", type=int, default=4)
    p.add_argument("--width", type=int, default=128)
    p.add_argument("--context", type=int, default=64)
    p.add_argument("--batch", type=int, default=12)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--min-lr", type=float, default=1e-4)
    p.add_argument("--warmup", type=int, default=100)
    p.add_argument("--beta2", type=float, default=0.99)
    p.add_argument("--seed", type=int, default=1337)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--bias", action="store_true", help="biases in the linear layers and the norms")
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
    def __init__(self, vocab, layers, heads, width, context, bias):
        super().__init__()
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

    def loss(self, x, y):
        h = self.tokens(x) + self.positions.weight[: x.shape[1]]
        logits = F.linear(self.norm(self.blocks(h)), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1), y.flatten())


def learning_rate(step, a):
    """Linear warm-up, then a cosine from lr down to min_lr at the last step."""
    if step < a.warmup:
        return a.lr * (step + 1) / (a.warmup + 1)
    done = (step - a.warmup) / max(1, a.steps - a.warmup)
    return a.min_lr + 0.5 * (1 + math.cos(math.pi * done)) * (a.lr - a.min_lr)


def validation_loss(model, data, context):
    """The mean over the non-overlapping windows of the split; a shorter rest is left out."""
    windows = (len(data) - 1) // context
    x = data[: windows * context].view(windows, context)
    y = data[1 : windows * context + 1].view(windows, context)
    with torch.no_grad():
        total = sum(model.loss(p, q).item() * len(p) for p, q in zip(x.split(64), y.split(64)))
    return total / windows


def main():
    a = arguments()
    torch.set_num_threads(a.threads)
    torch.manual_seed(a.seed)
    text = a.data.read_text(encoding="utf-8")
    index = {c: i for i, c in enumerate(sorted(set(text)))}
    ids = torch.tensor([index[c] for c in text])
    train, val = ids[: len(ids) * 9 // 10], ids[len(ids) * 9 // 10 :]

    model = GPT2(len(index), a.layers, a.heads, a.width, a.context, a.bias)
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=a.lr, betas=(0.9, a.beta2), eps=1e-8)

    seconds = []
    window = torch.arange(a.context)
    for step in range(a.steps):
        start = time.perf_counter()
        at = torch.randint(len(train) - a.context, (a.batch, 1)) + window
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, a)
        loss = model.loss(train[at], train[at + 1])
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        train_loss = loss.item()
        seconds.append(time.perf_counter() - start)

    timed = seconds[20:] or seconds  # the first steps are slower
    tokens = a.batch * a.context
    print(json.dumps({
        "tokens_per_second": round(tokens / statistics.median(timed), 1),
        "mean_tokens_per_second": round(tokens * len(timed) / sum(timed), 1),
        "train_loss": train_loss,
        "val_loss": validation_loss(model, val, a.context) if a.eval else None,
        "parameters": sum(p.numel() for p in parameters),
        "torch": torch.__version__,
    }))


if __name__ == "__main__":
    main()
