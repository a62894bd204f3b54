"""Measures `train prepare` and Python's `tokenizers` on the same text with the same tokenizer, alternately `--runs`
times, and prints the medians, their ratio and the peak memory of each.

    pip install tokenizers
    cargo build --release -p train
    python benches/peers/prepare.py target/release/train TEXT.txt --megabytes 1000 --tokenizer gpt2/tokenizer.json

TEXT.txt is repeated up to `--megabytes`. Python reads the text in chunks of 128 KiB cut at line breaks, 128 of them
at a time, and encodes them on all cores with `encode_batch`, and with `encode_batch_fast`, which computes no
offsets; it writes nothing. Kiln writes its shards. Without `--tokenizer`, a BPE of `--vocabulary` tokens is trained
on the first megabytes. With `--example`, a program other than `train` is called as PROGRAM SOURCE TOKENIZER OUT,
which is how `crates/data/examples/prepare.rs` is measured.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CHUNK = 128 << 10
CHUNKS = 128


def text(source, megabytes, target):
    """Repeats a file until it is large enough, without loading it: a child's peak memory starts from this process's."""
    with open(target, "wb") as file:
        while file.tell() < megabytes * 1_000_000:
            with open(source, "rb") as again:
                shutil.copyfileobj(again, file)
        return file.tell()


def train(source, vocabulary, target):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    with open(source, encoding="utf-8", errors="ignore") as file:
        tokenizer.train_from_iterator([file.read(8_000_000)], trainer)
    tokenizer.save(str(target))


def batches(path):
    batch = []
    with open(path, encoding="utf-8", newline="") as file:
        while chunk := file.read(CHUNK):
            batch.append(chunk + file.readline())
            if len(batch) == CHUNKS:
                yield batch
                batch = []
    if batch:
        yield batch


def encode(path, tokenizer, function):
    """The peer, in a separate process."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(tokenizer)
    encode = getattr(tokenizer, function)
    print(sum(len(encoding) for batch in batches(path) for encoding in encode(batch, add_special_tokens=False)))


def measure(command):
    """Seconds and peak resident bytes of a process. os.wait4 reports the memory of this child alone."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        sys.exit(f"{' '.join(map(str, command))} failed")
    scale = 1 if sys.platform == "darwin" else 1024
    return time.perf_counter() - start, usage.ru_maxrss * scale


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("program")
    p.add_argument("text")
    p.add_argument("--megabytes", type=int, default=100)
    p.add_argument("--tokenizer")
    p.add_argument("--vocabulary", type=int, default=32_000)
    p.add_argument("--runs", type=int, default=3)
    p.add_argument("--functions", nargs="*", default=["encode_batch_fast", "encode_batch"])
    p.add_argument("--example", action="store_true")
    options = p.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder) / "text.txt", Path(folder) / "out"
        size = text(options.text, options.megabytes, source)
        tokenizer = options.tokenizer or Path(folder) / "tokenizer.json"
        if not options.tokenizer:
            # In a separate process, because a child's peak memory starts from its parent's.
            subprocess.run([sys.executable, __file__, "--train", source, str(options.vocabulary), tokenizer], check=True)
        flags = [source, tokenizer, out] if options.example else ["prepare", source, "--tokenizer", tokenizer, "--out", out]
        peer = [sys.executable, __file__, "--peer", source, tokenizer]
        jobs = {"Kiln": [options.program, *flags]}
        jobs.update({f"`{function}`": [*peer, function] for function in options.functions})
        results, loads = {name: [] for name in jobs}, []
        for _ in range(options.runs):
            loads.append(os.getloadavg()[0])
            for name, command in jobs.items():
                shutil.rmtree(out, ignore_errors=True)
                results[name].append(measure(list(map(str, command))))
    print(f"Load average before each run: {', '.join(f'{load:.2f}' for load in loads)}\n")
    print(f"{size / 1e6:,.0f} MB on {os.cpu_count()} cores\n")
    print("| | seconds | MB/s | peak memory, MB | times Kiln's |")
    print("|---|---:|---:|---:|---:|")
    own = statistics.median(seconds for seconds, _ in results["Kiln"])
    for name, figures in results.items():
        seconds, memory = statistics.median(s for s, _ in figures), max(m for _, m in figures)
        print(f"| {name} | {seconds:.2f} | {size / seconds / 1e6:.1f} | {memory / 1e6:,.0f} | **{seconds / own:.2f}** |")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--peer"]:
        encode(*sys.argv[2:])
    elif sys.argv[1:2] == ["--train"]:
        train(sys.argv[2], int(sys.argv[3]), sys.argv[4])
    else:
        main()
