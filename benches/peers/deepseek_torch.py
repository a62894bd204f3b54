"""Trains a DeepSeek exported by Kiln with `transformers` and PyTorch on the CPU, and prints its speed and losses as
one line of JSON, for comparison.

    pip install torch transformers
    python benches/peers/deepseek_torch.py FOLDER --data FILE --steps 100

Tokens are bytes. `--experts` selects an implementation of `transformers`: `eager` loops over the experts, each with
the rows of its tokens; `grouped_mm` sorts the rows by expert for PyTorch's grouped product, which is also a loop on
the CPU; `batched_mm` copies an expert's matrices for each of its rows. The defaults are as fast as any on a CPU;
docs/benchmarks/2026-11-22-zen5.md has the others.
"""

import json
from pathlib import Path

import torch
import torch.nn.functional as F
import transformers
from torch import nn

import training


class DeepSeek(nn.Module):
    def __init__(self, folder, attention, experts):
        super().__init__()
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation=attention, experts_implementation=experts
        ).train()

    def forward(self, x, y):
        logits = self.model(input_ids=x, use_cache=False).logits
        return F.cross_entropy(logits.flatten(0, 1), y.flatten())


def main():
    p = training.parser(__doc__, context=128, batch=32, warmup=20, beta2=0.95)
    p.add_argument("model", type=Path, metavar="FOLDER", help="what `train export` has written")
    p.add_argument("--attention", default="eager", choices=["eager", "sdpa"])
    p.add_argument("--experts", default="eager", choices=["eager", "grouped_mm", "batched_mm"])
    a = p.parse_args()
    training.start(a)
    transformers.utils.logging.disable_progress_bar()
    tokens, _ = training.split(list(a.data.read_bytes()))
    results = training.train(DeepSeek(a.model, a.attention, a.experts), tokens, a)
    results["versions"] += f", transformers {transformers.__version__}"
    print(json.dumps(results))


if __name__ == "__main__":
    main()
