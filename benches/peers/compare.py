"""Measures Kiln and its peer in PyTorch alternately, `--runs` times, and prints both and their ratio. Each figure is
the median over the runs.

    pip install torch transformers
    python benches/peers/compare.py comm                   # collectives against gloo
    python benches/peers/compare.py moe                    # the mixture-of-experts layer against PyTorch's, eager and compiled, and a naive loop
    python benches/peers/compare.py gpt2 --data FILE       # training steps of GPT-2, against PyTorch eager and compiled
    python benches/peers/compare.py gpt2-bf16 --data FILE  # the same in bf16, against autocast
    python benches/peers/compare.py deepseek --data FILE   # the same for DeepSeek, against `transformers`
    python benches/peers/compare.py generate --data FILE   # continuing one text and 16, against `transformers`

The last four use two threads and `target/release/train` (`cargo build --release -p train`); `--runs 1 --steps 20`
tries them in a minute. On an AMD processor the peer's matrix products run at half their speed unless MKL is
configured otherwise; docs/benchmarks/2026-11-22-zen5.md says how. The output is a Markdown table, with the machine and the versions
above it. A ratio above 1 means that Kiln is faster. Linux only.
"""

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
THREADS = 2
# The preset `deepseek` without the features that `transformers` lacks, and with the shared expert that `transformers`
# requires.
LIKE_TRANSFORMERS = {"moe.capacity_factor": "null", "moe.aux_loss_coef": 0, "moe.bias_update_speed": 0, "moe.selection_bias": "false", "moe.n_shared_experts": 1}
UNTIMED = 10  # first steps of a training: they are slower, and PyTorch compiles in them


def criterion(bench, filter):
    """Runs one of Kiln's benchmarks on two threads."""
    command = ["cargo", "bench", "-p", "benches", "--bench", bench, "--", filter]
    environment = {**os.environ, "RAYON_NUM_THREADS": "2"}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)


def seconds(*names):
    """What criterion has measured under this name."""
    estimates = target().joinpath("criterion", *names, "new", "estimates.json")
    return json.loads(estimates.read_text())["median"]["point_estimate"] * 1e-9


def peer(script):
    """The JSON that a script of this folder writes."""
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "peer.json"
        subprocess.run([sys.executable, Path(__file__).with_name(script), "--json", table], check=True, stdout=subprocess.DEVNULL)
        return json.loads(table.read_text())


def target():
    return Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))


def show(seconds):
    return f"{seconds * 1e3:,.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:,.1f} us"


def row(*cells):
    print(f"| {' | '.join(cells)} |")


class Comm:
    """Collectives against gloo."""

    def __init__(self, options):
        from comm_gloo import COLLECTIVES, PAYLOADS

        self.collectives, self.payloads = COLLECTIVES, PAYLOADS

    def run(self, results):
        criterion("comm", "comm")
        for collective in self.collectives:
            for name, _ in self.payloads:
                for function in ["collective", "memcpy"]:
                    key = (function, f"{collective}/{name}")
                    results.setdefault(key, []).append(seconds(f"comm_{collective}", function, name))
        for key, figures in peer("comm_gloo.py")["results"].items():
            results.setdefault(("gloo", key), []).append(figures["seconds"])

    def table(self, results):
        row("collective", "payload", "Kiln", "Kiln, GB/s", "memcpy", "gloo", "gloo / Kiln")
        print("|---|---:|---:|---:|---:|---:|---:|")
        for collective in self.collectives:
            for name, payload in self.payloads:
                key = f"{collective}/{name}"
                own, copy, gloo = (statistics.median(results[which, key]) for which in ["collective", "memcpy", "gloo"])
                row(f"`{collective}`", name, show(own), f"{payload / own / 1e9:.2f}", show(copy), show(gloo), f"**{gloo / own:.1f}**")


class Moe:
    """The mixture-of-experts layer, forward and backward."""

    def __init__(self, options):
        from moe_torch import SHAPES, TOKENS

        self.names, self.tokens = [shape[0] for shape in SHAPES], TOKENS

    def run(self, results):
        criterion("moe", "moe/layer")
        for name in self.names:
            results.setdefault(("kiln", name), []).append(seconds("moe_layer", "kiln", name))
            # The naive loop processes 32 tokens.
            results.setdefault(("naive", name), []).append(seconds("moe_layer", "naive", name) * self.tokens / 32)
        for name, figures in peer("moe_torch.py").items():
            for mode, value in figures.items():
                results.setdefault((mode, name), []).append(value)

    def table(self, results):
        row("layer", "Kiln", "PyTorch eager", "compiled", "naive loop", "eager / Kiln", "compiled / Kiln", "naive / Kiln")
        print("|---|---:|---:|---:|---:|---:|---:|---:|")
        for name in self.names:
            own, *others = (statistics.median(results[which, name]) for which in ["kiln", "eager", "compiled", "naive"])
            row(name, show(own), *map(show, others), *(f"**{other / own:.2f}**" for other in others))


@dataclass
class Model:
    """A model, and the arguments with which both programs train it."""

    name: str
    steps: int
    kiln: list
    peer: list


class Training:
    """Training steps of whole models, in tokens per second over all steps but the first ones."""

    def __init__(self, options):
        if options.data is None:
            sys.exit("give --data FILE: a text to train on")
        if options.steps is not None and options.steps <= UNTIMED:
            sys.exit(f"--steps {options.steps}: give more than the {UNTIMED} first ones, which are not timed")
        self.program = target() / "release" / "train"
        if not self.program.exists():
            sys.exit(f"{self.program} is missing: cargo build --release -p train")
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])  # Kiln derives its number of threads from this
        self.data, self.steps = options.data.resolve(), options.steps
        self.folder = tempfile.TemporaryDirectory()
        self.models = self.make_models(Path(self.folder.name))

    def run(self, results):
        for model in self.models:
            steps = self.steps or model.steps
            turns = {
                "Kiln": lambda: self.kiln(model, steps),
                "PyTorch eager": lambda: self.peer(model, steps),
                "compiled": lambda: self.peer(model, steps, "--compile"),
            }
            counts = set()
            for name, turn in turns.items():
                speed, parameters = turn()
                print(f"{model.name}, {parameters:,} parameters: {name} {speed:,.0f} tokens/s", file=sys.stderr, flush=True)
                results.setdefault((model.name, name), []).append(speed)
                counts.add(parameters)
            if len(counts) > 1:
                sys.exit(f"{model.name}: the parameters are not as many: these are not the same models")

    def kiln(self, model, steps):
        """Tokens per second, and the number of parameters."""
        with tempfile.TemporaryDirectory() as folder:
            run = Path(folder) / "run"
            rest = settings({"train.val_every": 0, "train.val_batches": 1, "train.sample_tokens": 0, "checkpoint.keep": 0})
            call(self.program, *model.kiln, *rest, "--data", self.data, "--steps", steps, "--out", run)
            lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        at = {line["step"]: line for line in lines if "elapsed_seconds" in line}
        tokens, seconds = (at[steps][key] - at[UNTIMED][key] for key in ["tokens", "elapsed_seconds"])
        return tokens / seconds, next(line["parameters"] for line in lines if "parameters" in line)

    def peer(self, model, steps, *flags):
        """The same for a script of this folder."""
        script, *rest = model.peer
        rest += ["--data", self.data, "--steps", steps, "--untimed", UNTIMED, "--threads", THREADS, *flags]
        measured = json.loads(call(sys.executable, Path(__file__).with_name(script), *rest))
        self.versions = measured["versions"]
        return measured["tokens_per_second"], measured["parameters"]

    def table(self, results):
        print(f"{self.versions}\n")
        row("model", "", "tokens/s in the rounds", "median", "Kiln / it in the same round")
        print("|---|---|---|---:|---:|")
        for (model, name), speeds in results.items():
            ratios = [kiln / speed for kiln, speed in zip(results[model, "Kiln"], speeds)]
            ratio = "" if name == "Kiln" else f"**{statistics.median(ratios):.2f}** ({min(ratios):.2f} to {max(ratios):.2f})"
            row(model, name, " ".join(f"{speed:,.0f}" for speed in speeds), f"{statistics.median(speeds):,.0f}", ratio)


class Gpt2(Training):
    """nanoGPT's configuration for a CPU, and one with the blocks and the context of its configuration for a GPU.
    Tokens are characters.
    """

    def make_models(self, folder):
        return [
            self.model("4 x 128, T=64, batch 12", 300, layers=4, heads=4, width=128, context=64, batch=12),
            self.model("6 x 384, T=256, batch 8", 30, layers=6, heads=6, width=384, context=256, batch=8),
        ]

    def model(self, name, steps, **shape):
        keys = {
            "layers": ["model.n_layer"],
            "heads": ["model.n_head"],
            "width": ["model.n_embd"],
            "context": ["model.n_positions", "train.seq_len"],
            "batch": ["train.global_batch_size"],
        }
        values = settings({key: value for flag, value in shape.items() for key in keys[flag]})
        flags = [f"--{flag}={value}" for flag, value in shape.items()]
        return Model(name, steps, ["--config", "configs/gpt2/shakespeare_char_cpu.yaml", *values], ["gpt2_torch.py", *flags])


class Gpt2Bf16(Gpt2):
    """The same in bf16, with PyTorch's forward under autocast. Master weights and optimizer are fp32 in both."""

    def model(self, name, steps, **shape):
        model = super().model(name, steps, **shape)
        return Model(model.name, model.steps, [*model.kiln, *settings({"parallel.precision.param": "bf16"})], [*model.peer, "--bf16"])


class DeepSeek(Training):
    """The preset without the features that `transformers` lacks, capacity and load balancing, and with the shared
    expert that it requires. All sequences of a step are computed at once. The peer trains the model that Kiln
    exports. Tokens are bytes.
    """

    def make_models(self, folder):
        kiln = ["--model", "deepseek", *settings(LIKE_TRANSFORMERS | {"train.micro_batch_size": "null"})]
        run, exported = folder / "run", folder / "exported"
        call(self.program, *kiln, "--data", self.data, "--steps", 1, "--out", run)
        call(self.program, "export", run, "--out", exported)
        return [Model("4 x 128, 8 experts, T=128, batch 32", 50, kiln, ["deepseek_torch.py", exported])]


class Generation(Training):
    """Greedy generation with a cache. The peer has the weights that Kiln exports. Tokens are bytes, and the models
    have made one step.
    """

    PROMPT, TOKENS, BATCHES = "First Citizen: B\n", 200, (1, 16)

    def make_models(self, folder):
        def model(name, values):
            run, exported = folder / name, folder / f"{name}-exported"
            small = {"train.sample_tokens": 0, "train.val_batches": 1, "train.micro_batch_size": 1}
            shape = ["--steps", 1, "--batch-size", 1, "--seq-len", 64]
            call(self.program, "--model", name, *settings(values | small), *shape, "--data", self.data, "--out", run)
            call(self.program, "export", run, "--out", exported)
            return Model(name, self.TOKENS, [run], [exported])

        self.prompts = {batch: folder / f"prompts-{batch}" for batch in self.BATCHES}
        for batch, file in self.prompts.items():
            file.write_text(self.PROMPT * batch)
        return [model("gpt2-124m", {}), model("gpt2", {}), model("deepseek", LIKE_TRANSFORMERS)]

    def run(self, results):
        for model in self.models:
            for batch, prompts in self.prompts.items():
                command = [self.program, "generate", *model.kiln, "--prompts", prompts, "--tokens", self.TOKENS, "--temperature", 0]
                for _ in range(2):  # the second time, the checkpoint is read from memory
                    done = subprocess.run([str(word) for word in command], check=True, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
                kiln = float(re.findall(r"([\d.]+) tokens/s", done.stderr)[-1])
                script = Path(__file__).with_name("generate_torch.py")
                rest = ["--batch", batch, "--tokens", self.TOKENS, "--threads", THREADS]
                measured = json.loads(call(sys.executable, script, *model.peer, *rest))
                self.versions, name = measured["versions"], f"{model.name}, {batch} at once"
                for program, speed in [("Kiln", kiln), ("transformers", measured["tokens_per_second"])]:
                    print(f"{name}: {program} {speed:,.1f} tokens/s", file=sys.stderr, flush=True)
                    results.setdefault((name, program), []).append(speed)


def settings(values):
    return [word for key, value in values.items() for word in ("--set", f"{key}={value}")]


def call(*command):
    """The output of a program. If it fails, the output and errors are shown."""
    command = [str(word) for word in command]
    done = subprocess.run(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def others():
    """Seconds that the cores have spent on processes other than this one and its children, since the machine's
    start.
    """
    user, nice, system, _, _, *rest = map(int, Path("/proc/stat").read_text().splitlines()[0].split()[1:9])
    own = os.times()
    return (user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK") - sum(own[:4])


def machine():
    """Date, commit and processor."""
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, text=True, stdout=subprocess.PIPE).stdout.strip()
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return f"{date.today()}, commit `{commit}`, {os.cpu_count()} cores of {cpu[1] if cpu else platform.machine()}, Python {platform.python_version()}"


JOBS = {"comm": Comm, "moe": Moe, "gpt2": Gpt2, "gpt2-bf16": Gpt2Bf16, "deepseek": DeepSeek, "generate": Generation}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=JOBS)
    p.add_argument("--runs", type=int, default=3)
    p.add_argument("--data", type=Path, help="the text that models train on")
    p.add_argument("--steps", type=int, help=f"steps of gpt2 and deepseek, of which the first {UNTIMED} are not timed")
    p.add_argument("--simd", choices=["default", "avx2", "avx512"], help="take fewer vector instructions than the processor has, in Kiln and in PyTorch")
    options = p.parse_args()
    if options.simd:
        simd = {"KILN_SIMD": options.simd, "ATEN_CPU_CAPABILITY": options.simd}
        # MKL has no setting below AVX2 that AMD processors respect. PyTorch's products of bf16 come from oneDNN.
        if options.simd != "default":
            simd["MKL_ENABLE_INSTRUCTIONS"] = options.simd.upper()
            simd["ONEDNN_MAX_CPU_ISA"] = {"avx2": "AVX2", "avx512": "AVX512_CORE_BF16"}[options.simd]
        os.environ.update(simd)
    job = JOBS[options.what](options)
    results, loads = {}, []
    for _ in range(options.runs):
        started, busy = time.monotonic(), others()
        job.run(results)
        loads.append((others() - busy) / (time.monotonic() - started))
    print(f"{machine()}. Other processes kept {', '.join(f'{load:.2f}' for load in loads)} of the cores busy in the rounds.\n")
    job.table(results)


if __name__ == "__main__":
    main()
