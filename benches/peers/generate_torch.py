"""Continues texts with a model exported by Kiln, greedily and with a cache, with `transformers` on the CPU. Prints
its speed as one line of JSON.

    pip install torch transformers
    python benches/peers/generate_torch.py EXPORTED --batch 16
"""

import argparse
import json
import time
from pathlib import Path

import torch
import transformers

PROMPT = b"First Citizen: B"


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder", type=Path, help="what `train export` has written")
    p.add_argument("--batch", type=int, default=1)
    p.add_argument("--tokens", type=int, default=200)
    p.add_argument("--threads", type=int, default=2)
    return p.parse_args()


def main():
    a = arguments()
    torch.set_num_threads(a.threads)
    model = transformers.AutoModelForCausalLM.from_pretrained(a.folder, dtype=torch.float32).eval()
    ids = torch.tensor([list(PROMPT)] * a.batch)
    how = {"attention_mask": torch.ones_like(ids), "pad_token_id": 0, "do_sample": False}

    def generate(tokens):
        with torch.no_grad():
            return model.generate(ids, min_new_tokens=tokens, max_new_tokens=tokens, **how)

    generate(5)
    started = time.perf_counter()
    made = generate(a.tokens)
    seconds = time.perf_counter() - started
    assert made.shape == (a.batch, len(PROMPT) + a.tokens), made.shape
    speed = a.batch * a.tokens / seconds
    versions = f"PyTorch {torch.__version__}, transformers {transformers.__version__}"
    print(json.dumps({"tokens_per_second": speed, "parameters": model.num_parameters(), "versions": versions}))


if __name__ == "__main__":
    main()
