"""Checks that the `train` program trains the same way on the GPU as on the CPU: compares the losses of the first
steps of both small models, on one rank and on four that share the GPU, with those of one rank on the CPU. `run.py`
calls it.
"""

import json
import statistics
import subprocess
import sysconfig
from pathlib import Path

import processes

MODELS = ["gpt2", "deepseek"]
STEPS = 5
# Reordered sums move an f32 loss by about 1e-6. Products in TF32, with which Burn may multiply f32 on a GPU, round each
# factor to 11 bits, 5e-4 at most, and send a few tokens with close scores to another expert. A wrong gradient of one
# operation moves the losses of steps 2 to 5 by percents.
TOLERANCE = 1e-3
LIMIT_SECONDS = 180


def corpus(file, size=1 << 20):
    """Writes a text that exists on every machine with Python, its standard library. Kiln's own corpus needs Rust's
    folders.
    """
    text = ""
    for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        text += path.read_text(encoding="utf-8", errors="ignore")
        if len(text) > size:
            break
    file.write_text(text[:size], encoding="utf-8")


def train(binary, model, device, ranks, data, out, env, limit):
    """The lines of steps in metrics.jsonl, or the reason why there are none."""
    command = [str(binary), "--model", model, "--gpus", str(ranks), "--steps", str(STEPS), "--data", str(data), "--out", str(out)]
    for setting in [f"train.device={device}", "train.val_batches=0", "train.val_every=0", "train.sample_tokens=0"]:
        command += ["--set", setting]
    try:
        result = processes.run(command, limit, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    except subprocess.TimeoutExpired:
        return None, f"not done after {limit:.0f} s"
    if result.returncode != 0:
        return None, f"exit code {result.returncode}: {(result.stderr.strip() or result.stdout.strip())[-400:]}"
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "loss" in line]
    return (steps, None) if len(steps) == STEPS else (None, f"{len(steps)} steps in metrics.jsonl, not {STEPS}")


def counted(device, ranks):
    return f"{device}, {ranks} rank{'s' * (ranks > 1)}"


def compare(binary, model, device, folder, env, limit):
    """A row for each layout, within `limit` seconds in all. `why` is empty if the losses agree."""
    data = folder / "text"
    corpus(data)
    rows, reference = [], None
    for where, ranks in [("cpu", 1), (device, 1), (device, 4)]:
        steps, why = train(binary, model, where, ranks, data, folder / f"run-{len(rows)}", env, min(LIMIT_SECONDS, limit / 3))
        row = {"model": model, "device": where, "ranks": ranks, "losses": None, "difference": None, "why": why or ""}
        if steps:
            row["losses"] = [step["loss"] for step in steps]
            row["tokens_per_second"] = statistics.median(step["tokens_per_second"] for step in steps[1:])
            reference = reference or row["losses"]
            row["difference"] = max(abs(a - b) / abs(b) for a, b in zip(row["losses"], reference))
            if not row["difference"] <= TOLERANCE:
                row["why"] = f"losses differ by {row['difference']:.1e} from those of one rank on the CPU, {TOLERANCE:.0e} allowed"
        print(f"{'FAIL ' if row['why'] else 'ok   '} train {model} on {counted(where, ranks)}: {row['why'] or row['losses']}", flush=True)
        rows.append(row)
        if reference is None:
            break  # nothing to compare with
    return rows
