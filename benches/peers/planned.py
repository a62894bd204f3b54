"""Compares the step times that `train plan` predicts with those that `train` takes on this machine's CPU.

    cargo build --release -p train
    python3 benches/peers/planned.py target/release/train [--cluster cpu] [--steps 20]

Every layout trains for some steps with a corpus that ships with the program's dependencies, in several rounds over all
layouts; the median of the later half of the steps counts, of the fastest round. Prints a Markdown table.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile

LAYOUTS = [
    ("gpt2", 1, []),
    ("gpt2", 2, []),
    ("gpt2", 4, ["parallel.strategy=ddp"]),
    ("gpt2", 4, ["parallel.strategy=zero1"]),
    ("gpt2", 4, ["parallel.strategy=shard_grad_op"]),
    ("gpt2", 4, []),
    ("gpt2", 4, ["parallel.activation_checkpointing=full"]),
    ("gpt2", 4, ["parallel.strategy=block"]),
    ("gpt2", 4, ["parallel.strategy=hybrid_shard", "parallel.dp_replicate=2"]),
    ("gpt2", 3, ["train.global_batch_size=24"]),
    ("gpt2", 2, ["parallel.pp=2", "parallel.schedule=gpipe"]),
    ("gpt2", 2, ["parallel.pp=2", "parallel.schedule=interleaved_1f1b"]),
    ("gpt2", 4, ["parallel.pp=4", "parallel.schedule=1f1b"]),
    ("gpt2", 4, ["parallel.pp=2", "parallel.schedule=zero_bubble"]),
    ("gpt2", 2, ["parallel.tp=2"]),
    ("gpt2", 4, ["parallel.cp=2"]),
    ("llama", 1, []),
    ("llama", 4, []),
    ("llama", 2, ["parallel.tp=2"]),
    ("deepseek", 1, []),
    ("deepseek", 4, []),
    ("deepseek", 4, ["parallel.ep=4"]),
    ("deepseek", 4, ["parallel.pp=2", "parallel.ep=2"]),
    ("deepseek", 4, ["parallel.activation_checkpointing=full"]),
]


def run(arguments, folder):
    done = subprocess.run(arguments, cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, arguments))}: {done.stderr}")
    return done.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("--cluster", default="cpu")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    program = given.program.resolve()
    cluster = pathlib.Path(given.cluster)
    cluster = cluster.resolve() if cluster.suffix else cluster

    def arguments(model, ranks, settings):
        return [f"--model={model}", f"--gpus={ranks}"] + [f"--set={setting}" for setting in settings]

    def step(*layout):
        with tempfile.TemporaryDirectory() as folder:
            options = [f"--steps={given.steps}", "--quiet", "--out=run", "--device=cpu", "--set=train.sample_tokens=0"]
            run([program, *arguments(*layout), *options], folder)
            lines = map(json.loads, (pathlib.Path(folder) / "run/metrics.jsonl").read_text().splitlines())
            seconds = [line["step_seconds"] for line in lines if "step_seconds" in line]
        return statistics.median(seconds[len(seconds) // 2 :])

    step(*LAYOUTS[0])  # the first run of a while is slower
    measured = [min(rounds) for rounds in zip(*([step(*layout) for layout in LAYOUTS] for _ in range(given.rounds)))]
    errors = []
    print("| Layout | Measured, ms | Planned, ms | Error |\n|---|---:|---:|---:|")
    for (model, ranks, settings), seconds in zip(LAYOUTS, measured):
        command = [program, "plan", "--json", f"--cluster={cluster}", *arguments(model, ranks, settings)]
        planned = json.loads(run(command, "."))["time"]["step"]
        errors.append(abs(planned / seconds - 1))
        name = ", ".join([f"{model}, {ranks} rank{'s' if ranks > 1 else ''}", *(s.split(".")[1] for s in settings)])
        print(f"| {name} | {1e3 * seconds:.0f} | {1e3 * planned:.0f} | {planned / seconds - 1:+.0%} |", flush=True)
    within = sum(error <= 0.15 for error in errors)
    print(f"\nmean error {statistics.mean(errors):.0%}, largest {max(errors):.0%}; {within} of {len(errors)} within 15%")


if __name__ == "__main__":
    main()
