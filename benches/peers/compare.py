"""Measures Kiln and its peer in PyTorch one after the other, `--runs` times in turn, and prints both and their ratio. Each figure is the median
over the runs.

    pip install torch
    python benches/peers/compare.py comm    # collectives against gloo
    python benches/peers/compare.py moe     # the mixture-of-experts layer against PyTorch's, eager and compiled, and a naive loop

Written as a table in Markdown. A ratio above 1 means that Kiln is faster.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def criterion(bench, filter):
    """Runs a benchmark of Kiln on two threads."""
    command = ["cargo", "bench", "-p", "benches", "--bench", bench, "--", filter]
    environment = {**os.environ, "RAYON_NUM_THREADS": "2"}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)


def seconds(*names):
    """What criterion has measured under this name."""
    estimates = target().joinpath("criterion", *names, "new", "estimates.json")
    return json.loads(estimates.read_text())["median"]["point_estimate"] * 1e-9


def peer(script):
    """What a script of this folder writes with `--json`."""
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

    def __init__(self):
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

    def __init__(self):
        from moe_torch import SHAPES, TOKENS

        self.names, self.tokens = [shape[0] for shape in SHAPES], TOKENS

    def run(self, results):
        criterion("moe", "moe/layer")
        for name in self.names:
            results.setdefault(("kiln", name), []).append(seconds("moe_layer", "kiln", name))
            # The naive loop does 32 tokens.
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


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=["comm", "moe"])
    p.add_argument("--runs", type=int, default=3)
    options = p.parse_args()
    job = {"comm": Comm, "moe": Moe}[options.what]()
    results, loads = {}, []
    for _ in range(options.runs):
        loads.append(os.getloadavg()[0])
        job.run(results)
    print(f"Load average before each run: {', '.join(f'{load:.2f}' for load in loads)}\n")
    job.table(results)


if __name__ == "__main__":
    main()
