"""Checks Kiln on a GPU, measures it, and measures PyTorch on the same shapes. Prints tables in Markdown and writes
JSON.

    pip install torch
    python run.py --kiln ./gpu --train ./train --json out.json

The work consists of parts of less than ten minutes each, which are recorded in the JSON. Repeat the same command to
continue with the rest; `--minutes` limits the time of a call. A ratio above 1 means that Kiln is faster. With
`--smoke` (tiny sizes) and `--device cpu` (CubeCL's CPU runtime, and PyTorch on the CPU) everything runs on a machine
without a GPU, and the figures mean nothing. See README.md.
"""

import argparse
import hashlib
import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path

import toolkit
from parts import parts
from tables import tables

# Most time for a part.
LIMIT_SECONDS = 540
# No part begins with less time than this.
LEAST_SECONDS = 150
# A grouped product is not faster than a large square one. If it seems so, it was not computed.
MOST_OF_CEILING = 1.1
UNFINISHED = 3


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--kiln", type=Path, required=True, help="the binary `gpu`")
    p.add_argument("--train", type=Path, required=True, help="the binary `train`")
    p.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    p.add_argument("--smoke", action="store_true", help="tiny sizes, few rounds")
    p.add_argument("--json", type=Path, required=True, help="where everything is written, and what a second call goes on from")
    p.add_argument("--minutes", type=float, default=float("inf"), help="ends before a part that may not fit into these")
    p.add_argument("--only", nargs="+", metavar="NAME", help="parts whose names begin so: check, kiln, pytorch, step, ...")
    p.add_argument("--again", action="store_true", help="also parts that have been done")
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


def machine(options):
    try:
        import torch
    except ImportError:
        stop("there is no PyTorch: pip install torch")
    if options.device == "cuda" and not torch.cuda.is_available():
        stop("PyTorch finds no CUDA device here; --device cpu --smoke tries the programs without one")
    name = torch.cuda.get_device_name() if options.device == "cuda" else platform.processor() or "cpu"
    programs = {path.name: hashlib.sha256(path.read_bytes()).hexdigest()[:12] for path in [options.kiln, options.train]}
    versions = {"torch": torch.__version__, "cuda": torch.version.cuda}
    return versions | {"device": name, "kind": options.device, "smoke": options.smoke, "programs": programs}


def begun(options, here):
    """The results of an earlier call."""
    if not options.json.is_file():
        return {"machine": here, "parts": {}}
    everything = json.loads(options.json.read_text())
    if everything["machine"] != here:
        stop(f"{options.json} is of {everything['machine']}, and this is {here}: give another --json")
    return everything


def work(options, everything):
    """Runs the remaining parts as far as time allows. Returns the names of those that then remain."""
    all_parts, done = parts(options), everything["parts"]
    chosen = [name for name in all_parts if not options.only or name.startswith(tuple(options.only))]
    if not chosen:
        stop(f"--only {' '.join(options.only)}: there are the parts {', '.join(all_parts)}")
    left = [name for name in chosen if options.again or name not in done]
    unmet, end = [], time.monotonic() + 60 * options.minutes
    while left and end - time.monotonic() >= min(LEAST_SECONDS, 30 * options.minutes):
        name, start = left[0], time.monotonic()
        limit = min(LIMIT_SECONDS, end - start)
        print(f"----- {name}, {len(left)} to go", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            result = all_parts[name](done, Path(folder), limit)
        if result.pop("unmet", False):
            unmet.append(left.pop(0))
            continue
        if result.pop("cut", False) and limit < LIMIT_SECONDS and start > end - 60 * options.minutes + 1:
            break  # started late: the next call begins with it
        done[name] = result | {"seconds": time.monotonic() - start}
        options.json.write_text(json.dumps(everything, indent=1))
        left.pop(0)
    return unmet + left


def too_fast(everything, ceiling):
    """Impossible records: those above the ceiling."""
    for record in (r for part, result in everything["parts"].items() if part.startswith("kiln") for r in result["records"]):
        share = record["flops"] / record["seconds"] / ceiling
        if share > MOST_OF_CEILING:
            what = f"{record['op']} {record['tier']} {record['shape']} {record['rows']}"
            yield {"what": what, "why": f"{share:.0%} of the ceiling: the measurement is wrong", "failed": True}


def other_models(everything):
    """Programs whose numbers of parameters differ."""
    of_shape = {}
    for record in (r for part, result in everything["parts"].items() if part.startswith("step") for r in result["records"]):
        of_shape.setdefault(record["shape"], set()).add(record["parameters"])
    for shape, counts in of_shape.items():
        if len(counts) > 1:
            yield {"what": f"step {shape}", "why": f"the programs have {sorted(counts)} parameters: not the same model", "failed": True}


def main():
    options = arguments()
    options.kiln, options.train = binary(options.kiln), binary(options.train)
    if not options.json.absolute().parent.is_dir():
        stop(f"there is no folder for {options.json}")
    everything = begun(options, machine(options))
    with tempfile.TemporaryDirectory() as folder:
        options.env, line = toolkit.environment(Path(folder)) if options.device == "cuda" else (dict(os.environ), "no CUDA is asked for")
        print(line, flush=True)
        left = work(options, everything)

    missing = [line for result in everything["parts"].values() for line in result["missing"]]
    ceiling = next((r["flops"] / r["seconds"] for r in everything["parts"].get("pytorch ceiling", {"records": []})["records"]), None)
    if ceiling and not options.smoke:
        missing += too_fast(everything, ceiling)
    missing += other_models(everything)
    print(f"\n{tables(everything, missing, ceiling)}")
    seconds = sum(result["seconds"] for result in everything["parts"].values())
    print(f"\n{len(everything['parts'])} parts in {seconds:.0f} s; everything is in {options.json}")
    failed = sum(line["failed"] for line in missing)
    if failed:
        print(f"run.py: {failed} failed, see above", file=sys.stderr)
    if left:
        print(f"run.py: {len(left)} parts are left, from `{left[0]}` on; the same command goes on with them", file=sys.stderr)
    raise SystemExit(UNFINISHED if left else 1 if failed else 0)


if __name__ == "__main__":
    main()
