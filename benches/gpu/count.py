"""Counts what the kernels of a training step of `gpt2-124m` do on an emulated CUDA card: a table by operation.

    cargo build --release -p train --features cuda
    KILN_EMULATED_ARCH=sm_90a bash scripts/emulated-cuda.sh python3 benches/gpu/count.py target/release/train --data FILE

An emulated card would take many hours for such a step, so it makes smaller ones and this script extends their counts:

* one and two blocks, one and two sequences of 256 tokens, vocabularies of 1,280 and 2,560. A count grows linearly with
  each of them (the sort of the embedding's gradient only nearly). So the four corners of blocks and rows, and of rows
  and vocabulary, give 12 blocks, 12 x 1,024 rows and a vocabulary of 50,304;
* attention of 256 and of 512 tokens. A count of a sequence and a block is a T^2 + b T.

Bytes are those that threads ask for; a product reads most of them from caches. The counts of one step are those of a
run of two steps less those of a run of one. CubeCL chooses matrix products by the small shapes. The head takes all rows
at once; in a step of full size it takes 2,560 at a time.
"""

import argparse
import os
import re
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from steps import call
from tables_of_steps import PEAKS
from text import table

BLOCKS, SEQUENCES, TOKENS, WORDS = 12, 12, 1024, 50304
T, V = 256, 1280  # of the small steps, and twice as many
# What an operation's kernels are called, in this order.
OPERATIONS = [
    ("linear layers and head", r"matmul|gemm"),
    ("attention, forward", r"attention_forward"),
    ("attention, backward", r"attention_"),
    ("cross entropy", r"cross_entropy"),
    ("layer norms, with bias and residual before them", r"norm"),
    ("GELU", r"gelu"),
    ("embedding", r"embedding"),
    ("norm of the gradient, clipping", r"sum_of_squares|clip"),
    ("AdamW", r"adamw"),
    ("gradients into the flat buffer", r"flatten"),
    ("gradients of biases", r"reduce|shared_sum"),
    ("Burn's loops over elements", r"elemwise|binop|unary|cast_"),
    ("the rest", r""),
]
COUNTED = ["launches", "mma_flop", "read_bytes", "written_bytes", "sectors"]
BANDWIDTH = 3.352e12  # bytes a second of an H100 SXM, by its data sheet
LIMIT = 3600  # seconds of a run


def profile(path):
    """The counts of the table's kernels, by operation."""
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    names = lines[0].split("\t")
    found = defaultdict(lambda: [0.0] * len(COUNTED))
    for line in lines[1:]:
        row = dict(zip(names, line.split("\t")))
        operation = next(name for name, pattern in OPERATIONS if re.search(pattern, row["kernel"]))
        for i, column in enumerate(COUNTED):
            found[operation][i] += float(row[column])
    return found


def run(given, steps, blocks, sequences, tokens, words):
    """The counts of a training run."""
    settings = {
        "model.n_layer": blocks,
        "model.vocab_size": words,
        "train.seq_len": tokens,
        "train.global_batch_size": sequences,
        "train.micro_batch_size": sequences,
        "train.val_every": 0,
        "train.val_batches": 1,
        "checkpoint.keep": 0,
        "parallel.precision.param": "bf16",
    }
    with tempfile.TemporaryDirectory() as folder:
        counts = Path(folder) / "profile"
        command = [given.train.resolve(), "--model", "gpt2-124m", "--gpus", 1, "--device", "cuda", "--data", given.data.resolve()]
        command += [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        command += ["--steps", steps, "--out", Path(folder) / "run"]
        call(command, LIMIT, env={**os.environ, "KILN_EMULATED_PROFILE": str(counts)})
        return profile(counts)


def step(given, *shape):
    """The counts of one step of these blocks, sequences, tokens and words, by operation."""
    run(given, 1, *shape)  # measures the matrix products that CubeCL has not yet measured
    few, many = run(given, 1, *shape), run(given, 2, *shape)
    print("counted: {} blocks, {} x {} tokens, {} words".format(*shape), file=sys.stderr, flush=True)
    return {name: [b - a for a, b in zip(few[name], many[name])] for name, _ in OPERATIONS}


def full_size(f, column, is_attention):
    """A count of the step of full size; `f` has those of the small ones by blocks, sequences, tokens and words."""
    one = f[1, 1, T, V]
    if is_attention:
        if column == "launches":
            return one * BLOCKS
        square = (f[1, 1, 2 * T, V] - 2 * one) / (2 * T * T)
        return BLOCKS * SEQUENCES * (square * TOKENS**2 + (one / T - square * T) * TOKENS)
    block, row, word = f[2, 1, T, V] - one, f[1, 2, T, V] - one, f[1, 1, T, 2 * V] - one
    blocks_rows = f[2, 2, T, V] - one - block - row
    words_rows = f[1, 2, T, 2 * V] - one - row - word
    blocks, rows, words = BLOCKS - 1, SEQUENCES * TOKENS / T - 1, WORDS / V - 1
    return one + block * blocks + row * rows + word * words + blocks_rows * blocks * rows + words_rows * words * rows


def report(steps):
    """The table of the step of full size, from the counts of the small ones."""
    rows = []
    for name, _ in OPERATIONS:
        is_attention = name.startswith("attention")
        small = [{shape: counts[name][i] for shape, counts in steps.items()} for i in range(len(COUNTED))]
        rows.append((name, [full_size(f, column, is_attention) for f, column in zip(small, COUNTED)]))
    rows.append(("sum", [sum(column) for column in zip(*(counts for _, counts in rows))]))
    head = ["operation", "launches", "GB read", "GB written", "TFLOP of tensor cores", "ms of tensor cores", "ms of memory without caches"]
    return table(head, [[name, *figures(*counts)] for name, counts in rows])


def figures(launches, flop, read, written, sectors):
    times = [flop / (PEAKS["H100"] * 1e12), sectors * 32 / BANDWIDTH]
    return [f"{launches:.0f}", f"{read / 1e9:.2f}", f"{written / 1e9:.2f}", f"{flop / 1e12:.3f}", *(f"{time * 1e3:.2f}" for time in times)]


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("train", type=Path, help="the program, built with `--features cuda`")
    arguments.add_argument("--data", type=Path, required=True, help="a text to train on")
    given = arguments.parse_args()
    os.environ.setdefault("CUBECL_AUTOTUNE_LEVEL", "0")
    shapes = [(1, 1, T, V), (1, 2, T, V), (2, 1, T, V), (2, 2, T, V), (1, 1, T, 2 * V), (1, 2, T, 2 * V), (1, 1, 2 * T, V)]
    with tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache  # a cache in use by another program would be replaced by an empty one
        print(report({shape: step(given, *shape) for shape in shapes}))


if __name__ == "__main__":
    main()
