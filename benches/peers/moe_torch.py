"""A mixture-of-experts layer in PyTorch on the CPU, forward and backward: the same two layers as
`benches/benches/moe.rs`.

    pip install torch
    python benches/peers/moe_torch.py --json FILE

Tokens are sorted by expert, each expert multiplies its rows (a loop over experts: PyTorch's `grouped_mm` is no
faster for f32 on the CPU), and the weighted rows are added back, as in torchtitan's and Hugging Face's layers.
Measured eagerly (`eager`) and through `torch.compile` (`compiled`).
"""

import argparse
import json
import statistics
import time

import torch
from torch import nn
from torch.nn import functional as F

TOKENS, D = 4096, 512
SHAPES = [("E=8 top-2 h=1024", 8, 2, 1024), ("E=64 top-6 h=256", 64, 6, 256)]


class MoeLayer(nn.Module):
    def __init__(self, e, k, h):
        super().__init__()
        self.k = k
        self.router = nn.Linear(D, e, bias=False)
        self.gate, self.up = (nn.Parameter(torch.randn(e, D, h) / D**0.5) for _ in range(2))
        self.down = nn.Parameter(torch.randn(e, h, D) / h**0.5)

    def forward(self, x):
        n, e = x.shape[0], self.gate.shape[0]
        scores = self.router(x).softmax(-1)
        gates, experts = scores.topk(self.k, -1)
        gates = gates / gates.sum(-1, keepdim=True)
        order = experts.flatten().argsort(stable=True)
        token = order // self.k
        counts = torch.bincount(experts.flatten(), minlength=e).tolist()
        rows = x[token]
        # Unbound at once, because the gradient of `gate[i]` alone would be as large as all of `gate`.
        matrices = zip(self.gate.unbind(), self.up.unbind(), self.down.unbind())
        parts = [(F.silu(part @ gate) * (part @ up)) @ down for part, (gate, up, down) in zip(rows.split(counts), matrices)]
        weighted = torch.cat(parts) * gates.flatten()[order].unsqueeze(-1)
        return torch.zeros(n, D).index_add(0, token, weighted)


def seconds(layer, x, rounds):
    def step():
        layer.zero_grad(set_to_none=True)
        leaf = x.detach().requires_grad_()
        layer(leaf).sum().backward()

    for _ in range(3):
        step()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--rounds", type=int, default=10)
    p.add_argument("--json", help="write {name: {eager, compiled: seconds}} here")
    options = p.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    results = {}
    for name, e, k, h in SHAPES:
        layer, x = MoeLayer(e, k, h), torch.randn(TOKENS, D)
        results[name] = {"eager": seconds(layer, x, options.rounds)}
        results[name]["compiled"] = seconds(torch.compile(layer), x, options.rounds)
        print(name, {key: f"{value * 1e3:.1f} ms" for key, value in results[name].items()}, flush=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(results, file)


if __name__ == "__main__":
    main()
