"""Checks Kiln on a GPU, measures it, and measures PyTorch on the same shapes in the same run. Prints tables in Markdown and writes JSON.

    pip install torch
    python run.py --kiln ./gpu --train ./train --json out.json

A ratio above 1 means that Kiln is faster. --smoke takes tiny sizes, --device cpu CubeCL's CPU runtime and PyTorch on the CPU: together
they try all of it on a machine without a GPU, and their figures mean nothing. See README.md.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import losses
import toolkit
from tables import tables

# A grouped product is not faster than a large square one: what is, has not been computed.
MOST_OF_CEILING = 1.1
# Of the binary, for a kernel that never ends.
LIMIT_SECONDS = 2 * 3600


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--kiln", type=Path, required=True, help="the binary `gpu`")
    p.add_argument("--train", type=Path, required=True, help="the binary `train`")
    p.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    p.add_argument("--smoke", action="store_true", help="tiny sizes, few rounds")
    p.add_argument("--json", type=Path, required=True, help="where to write everything")
    p.add_argument("--commit", help="what the binaries were built from, where they do not say so")
    return p.parse_args()


def stop(message):
    print(f"run.py: {message}", file=sys.stderr)
    raise SystemExit(2)


def binary(path):
    if not path.is_file():
        stop(f"there is no {path}; README.md says how to build it")
    if not os.access(path, os.X_OK):
        stop(f"{path} is not executable: chmod +x {path}")
    return path.resolve()


def kiln(options, folder, env):
    """The binary's report. What failed is listed in it; it is written as it grows, so a crash leaves what was measured before."""
    report = folder / "kiln.json"
    command = [options.kiln, "--device", "cuda:0" if options.device == "cuda" else "cpu", "--json", report]
    command += ["--smoke"] * options.smoke + (["--commit", options.commit] if options.commit else [])
    try:
        code = subprocess.run([str(part) for part in command], env=env, timeout=LIMIT_SECONDS).returncode
        why = f"ended with exit code {code}"
    except subprocess.TimeoutExpired:
        code, why = None, f"was not done after {LIMIT_SECONDS} s"
    if code == 2 or not report.is_file():
        stop(f"{options.kiln} {why} and left no report; what it printed last says why")
    report = json.loads(report.read_text())
    if code not in (0, 1):
        print(f"FAIL  {options.kiln} {why}", flush=True)
        report["missing"].append({"what": "all that the binary had not measured yet", "why": f"it {why}", "failed": True})
    return report


def torch_peers(options, report):
    """PyTorch's records for what the binary has measured."""
    import torch

    from torch_peers import Peers

    peers = Peers(options.device, options.smoke)
    dtype = next((record["dtype"] for record in report["records"] if record["group"] == "grouped_gemm"), "bf16")
    ceiling = peers.ceiling(dtype)
    sizes = {record["bytes"] for record in report["records"] if record["group"] == "routing" and record["op"] != "copy"}
    peers.attempt("PyTorch copy", lambda: peers.copies(sizes))
    for case in report["cases"]:
        name = f"PyTorch grouped products {case['model']['name']} {case['rows']} {case['skew']}"
        peers.attempt(name, lambda: peers.products(case, dtype))
    for name, model in {case["model"]["name"]: case["model"] for case in report["cases"]}.items():
        peers.attempt(f"PyTorch layer {name}", lambda: peers.layers(model, dtype))
    name = torch.cuda.get_device_name() if options.device == "cuda" else platform.processor() or "cpu"
    machine = {"torch": torch.__version__, "cuda": torch.version.cuda, "device": name}
    return {"machine": machine, "ceiling_flops": ceiling, "records": peers.records, "missing": peers.missing}


def too_fast(report, ceiling):
    """What cannot be: records beyond the ceiling."""
    for record in report["records"]:
        share = record["flops"] / record["seconds"] / ceiling
        if share > MOST_OF_CEILING:
            what = f"{record['op']} {record['tier']} {record['shape']} {record['rows']}"
            yield {"what": what, "why": f"{share:.0%} of the ceiling: the measurement is wrong", "failed": True}


def main():
    options = arguments()
    options.kiln, options.train = binary(options.kiln), binary(options.train)
    if not options.json.absolute().parent.is_dir():
        stop(f"there is no folder for {options.json}")
    try:
        import torch
    except ImportError:
        stop("there is no PyTorch: pip install torch")
    if options.device == "cuda" and not torch.cuda.is_available():
        stop("PyTorch finds no CUDA device here; --device cpu --smoke tries the programs without one")

    start = time.time()
    with tempfile.TemporaryDirectory() as folder:
        env, line = toolkit.environment(Path(folder)) if options.device == "cuda" else (dict(os.environ), "no CUDA is asked for")
        print(line, flush=True)
        report = kiln(options, Path(folder), env)
        options.json.write_text(json.dumps({"kiln": report}, indent=1))  # in case that what follows ends early
        peers = torch_peers(options, report)
        rows = losses.compare(options.train, "cuda:0" if options.device == "cuda" else "cpu", Path(folder), env)
    missing = report.pop("missing") + peers.pop("missing")
    missing += [] if options.smoke else list(too_fast(report, peers["ceiling_flops"]))
    for row in rows:
        if row["why"]:
            missing.append({"what": f"train {row['model']} on {losses.counted(row['device'], row['ranks'])}", "why": row["why"], "failed": True})

    everything = {"kiln": report, "pytorch": peers, "losses": rows, "missing": missing, "seconds": time.time() - start}
    options.json.write_text(json.dumps(everything, indent=1))
    print(f"\n{tables(everything)}")
    failed = [line for line in missing if line["failed"]]
    print(f"\n{time.time() - start:.0f} s; everything is in {options.json}")
    if failed:
        print(f"run.py: {len(failed)} failed, see above", file=sys.stderr)
        raise SystemExit(1)


if __name__ == "__main__":
    main()
