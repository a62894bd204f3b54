"""Measures Kiln's collectives and gloo's one after the other, `--runs` times in turn, and prints both and their ratio. The figure of each
size is the median over the runs.

    pip install torch
    python benches/peers/compare.py

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

from comm_gloo import COLLECTIVES, PAYLOADS

ROOT = Path(__file__).resolve().parents[2]


def kiln(results):
    command = ["cargo", "bench", "-p", "benches", "--bench", "comm", "--", "comm"]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    for collective in COLLECTIVES:
        for name, _ in PAYLOADS:
            for function in ["collective", "memcpy"]:
                folder = target() / "criterion" / f"comm_{collective}" / function / name
                estimates = json.loads((folder / "new" / "estimates.json").read_text())
                seconds = estimates["median"]["point_estimate"] * 1e-9
                results.setdefault((function, f"{collective}/{name}"), []).append(seconds)


def gloo(results):
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "gloo.json"
        command = [sys.executable, Path(__file__).with_name("comm_gloo.py"), "--json", table]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        for key, figures in json.loads(table.read_text())["results"].items():
            results.setdefault(("gloo", key), []).append(figures["seconds"])


def target():
    return Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))


def show(seconds):
    return f"{seconds * 1e3:,.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:,.1f} us"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--runs", type=int, default=3)
    options = p.parse_args()
    results, loads = {}, []
    for _ in range(options.runs):
        loads.append(os.getloadavg()[0])
        kiln(results)
        gloo(results)
    print(f"Load average before each run: {', '.join(f'{load:.2f}' for load in loads)}\n")
    print("| collective | payload | Kiln | Kiln, GB/s | memcpy | gloo | gloo / Kiln |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for collective in COLLECTIVES:
        for name, payload in PAYLOADS:
            key = f"{collective}/{name}"
            own, copy, peer = (statistics.median(results[which, key]) for which in ["collective", "memcpy", "gloo"])
            row = [f"`{collective}`", name, show(own), f"{payload / own / 1e9:.2f}", show(copy), show(peer), f"**{peer / own:.1f}**"]
            print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
