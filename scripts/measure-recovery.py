#!/usr/bin/env python3
"""Measure how long a supervised run takes from a failure to its next step, and how many steps it makes again.

    cargo build -p train
    python3 scripts/measure-recovery.py target/debug/train

Trains the preset deepseek on four ranks that are threads, kills the process in step 58, and reads the times of the lines
that the program prints. Checkpoints are saved every 50 steps; in further cases also in memory. In the last case the
strategy is ddp and a rank panics, so that the others save the run. Then it measures what checkpoints in memory cost: the
time of a step in runs without and with them, in turns.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

ROUNDS = 3
COMMON = ["--model", "deepseek", "--gpus", "4", "--set", "train.val_every=0", "--set", "train.sample_tokens=0"]


def recovery(program, folder, options, fault="kill"):
    """Seconds from the failure to the first step of the next process, and the steps that were made again."""
    command = [program, *COMMON, "--steps=64", "--restarts=1", "--set=checkpoint.every=50", *options, "--out", folder]
    env = {**os.environ, "KILN_FAULTS": f"{fault}:step=58,rank=1,attempt=1"}
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    killed = resumed = step = None
    for line in process.stderr:
        now = time.monotonic()
        if "killed by SIGKILL" in line or line.startswith("error: rank 1 panicked"):
            killed = now
        elif killed and line.startswith("resuming after step"):
            step = int(line.split()[3])
        elif killed and line.startswith("step ") and resumed is None:
            resumed = now
    assert process.wait() == 0 and resumed and step is not None, "the run did not survive"
    return resumed - killed, 57 - step


def step_seconds(program, folder, options):
    """The mean time of a step after the first ten, saves included."""
    command = [program, *COMMON, "--quiet", "--steps=60", "--restarts=1", "--set=checkpoint.every=0", *options]
    command += ["--out", folder]
    subprocess.run(command, check=True, capture_output=True)
    with open(os.path.join(folder, "metrics.jsonl"), encoding="utf-8") as lines:
        steps = [json.loads(line) for line in lines]
    elapsed = [step["elapsed_seconds"] for step in steps if "step_seconds" in step]
    return (elapsed[-1] - elapsed[9]) / (len(elapsed) - 10)


def main():
    program = os.path.abspath(sys.argv[1])
    cases = {"disk": [], **{f"memory, every {n}": [f"--set=resilience.memory_every={n}"] for n in (5, 20)}}
    with tempfile.TemporaryDirectory() as folder:
        for case, options in cases.items():
            found = [recovery(program, f"{folder}/{case}-{i}", options) for i in range(ROUNDS)]
            seconds, steps = zip(*found)
            print(f"{case}: {statistics.median(seconds):.1f} s to the next step, {statistics.median(steps)} steps repeated")
        found = [recovery(program, f"{folder}/ddp-{i}", ["--strategy=ddp"], "panic") for i in range(ROUNDS)]
        seconds, steps = zip(*found)
        print(f"ddp, a panic: {statistics.median(seconds):.1f} s to the next step, {statistics.median(steps)} steps repeated")
        wholes = {case: [] for case in cases}
        for i in range(ROUNDS):
            for case, options in cases.items():
                wholes[case].append(step_seconds(program, f"{folder}/steps-{case}-{i}", options))
        for case, seconds in wholes.items():
            print(f"{case}: {statistics.median(seconds) * 1e3:.1f} ms a step, of {[round(s * 1e3, 1) for s in seconds]}")


if __name__ == "__main__":
    main()
