"""Matrix products of PyTorch on the CPU: the same lines as `benches/benches/products.rs`, in GFLOP/s, the best of
several rounds.

    pip install torch
    python benches/peers/products_torch.py
"""

import argparse
import time

import torch

ROUNDS, ROUND = 7, 0.025
LISTS = [
    (8, (1024, 1024, 512), "nn"),
    (8, (1024, 512, 1024), "nt"),
    (8, (1024, 1024, 512), "tn"),
    (64, (384, 512, 256), "nn"),
    (64, (384, 512, 256), "nt"),
    (64, (256, 384, 512), "tn"),
    (1, (4096, 512, 512), "nn"),
    (1, (4096, 512, 512), "nt"),
    (1, (512, 4096, 512), "tn"),
]
LAYERS = [(768, 128, 384), (768, 128, 128), (768, 128, 512), (768, 512, 128), (2048, 384, 1152), (2048, 384, 1536), (2048, 1536, 384)]


def seconds(once):
    once()
    start, calls = time.perf_counter(), 0
    while time.perf_counter() - start < ROUND:
        once()
        calls += 1
    return (time.perf_counter() - start) / calls


def line(dtype, name, count, sizes, form):
    m, k, n = sizes
    a = torch.randn(count, *((k, m) if form == "tn" else (m, k))).to(dtype)
    b = torch.randn(count, *((n, k) if form == "nt" else (k, n))).to(dtype)
    a, b = a.mT if form == "tn" else a, b.mT if form == "nt" else b
    c = torch.empty(count, m, n, dtype=dtype)
    if count == 1:
        a, b, c = a[0], b[0], c[0]
    multiply = torch.mm if count == 1 else torch.bmm
    best = min(seconds(lambda: multiply(a, b, out=c)) for _ in range(ROUNDS))
    print(f"{name} {count} of {m} x {k} x {n} {form} {2e-9 * count * m * k * n / best:.1f}", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--threads", type=int, default=2)
    torch.set_num_threads(p.parse_args().threads)
    forms = [((r, f, t), (r, t, f), (f, r, t)) for r, f, t in LAYERS]
    layers = [(1, sizes, form) for three in forms for sizes, form in zip(three, ("nn", "nt", "tn"))]
    for count, sizes, form in LISTS + layers:
        line(torch.float32, "f32", count, sizes, form)
        line(torch.bfloat16, "bf16", count, sizes, form)


if __name__ == "__main__":
    main()
