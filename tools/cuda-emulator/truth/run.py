"""Runs the tests of CubeCL and CubeK on the emulated card.

    bash scripts/emulated-cuda.sh python3 tools/cuda-emulator/truth/run.py runtime graph device_fault
    KILN_EMULATED_ARCH=sm_90a bash scripts/emulated-cuda.sh python3 tools/cuda-emulator/truth/run.py --features cpp runtime
    bash scripts/emulated-cuda.sh python3 tools/cuda-emulator/truth/run.py --features cubek,tiled,multi-level matmul attention reduce

The build needs LLVM, as Kiln's feature `cuda` does: scripts/install-llvm.sh. A fault ends a process' context, and with it all later tests of the
process: so a test that fails among others runs again alone, and that result counts. CUBECL_AUTOTUNE_LEVEL=0 saves the measurements of kernels.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = ("cubecl-cuda", "cubek-matmul", "cubek-attention", "cubek-reduce")


def cargo(*arguments):
    return subprocess.run(["cargo", *arguments], cwd=HERE, check=True, stdout=subprocess.PIPE, text=True).stdout


def link_sources():
    """The tests of the crates lie in their packages: links to these, where `Cargo.toml` has them."""
    packages = json.loads(cargo("metadata", "--locked", "--all-features", "--format-version", "1"))["packages"]
    (HERE / "sources").mkdir(exist_ok=True)
    for package in packages:
        if package["name"] in SOURCES:
            link = HERE / "sources" / package["name"]
            link.unlink(missing_ok=True)
            link.symlink_to(Path(package["manifest_path"]).parent)


def build(tests, features):
    chosen = [part for test in tests for part in ("--test", test)]
    lines = cargo("test", "--locked", "--no-run", "--message-format=json", "--features", features, *chosen).splitlines()
    found = [json.loads(line) for line in lines if line.startswith("{")]
    return {m["target"]["name"]: m["executable"] for m in found if m.get("executable") and m["target"]["kind"] == ["test"]}


def run(program, tests, seconds):
    """Results by test, and what was printed."""
    try:
        done = subprocess.run([program, "--exact", *tests], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=seconds, cwd=HERE)
        printed = done.stdout.decode(errors="replace")
    except subprocess.TimeoutExpired as late:
        printed = (late.stdout or b"").decode(errors="replace") + f"\nno end within {seconds} s"
    found = dict(re.findall(r"^test (\S+)(?: - [^\n]*)? \.\.\. .*?\b(ok|FAILED|ignored)\b", printed, re.M))
    return {test: found.get(test, "FAILED") for test in tests}, printed


def why(printed):
    """The emulated card's fault if there is one, otherwise what the test says."""
    for pattern in (r"^emulated CUDA: (kernel .*(?:\n  .*)*)", r"panicked at [^\n]*\n(.*(?:\n(?!note:|stack).+){0,3})", r"(no end within .*)"):
        if found := re.search(pattern, printed, re.M):
            return found[1]
    return printed[-300:]


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("tests", nargs="+", help="runtime, graph, device_fault, matmul, attention, reduce; or NAME=PROGRAM that is built")
    arguments.add_argument("--features", default="")
    arguments.add_argument("--only", default="", help="a pattern of test names")
    arguments.add_argument("--at-once", type=int, default=40, help="tests of a process")
    arguments.add_argument("--timeout", type=int, default=600, help="seconds of a process")
    given = arguments.parse_args()
    os.environ.setdefault("RUST_BACKTRACE", "0")
    os.environ.setdefault("CUBECL_AUTOTUNE_LEVEL", "0")
    programs = dict(test.split("=") for test in given.tests if "=" in test)
    names = [test for test in given.tests if "=" not in test]
    if names:
        link_sources()
        programs |= build(names, given.features)
    failed = 0
    for name, program in programs.items():
        listed = subprocess.run([program, "--list"], stdout=subprocess.PIPE, text=True, check=True).stdout
        tests = [line[:-6] for line in listed.splitlines() if line.endswith(": test")]
        tests = [test for test in tests if re.search(given.only, test)]
        results, reasons = {}, {}
        for start in range(0, len(tests), given.at_once):
            group = tests[start : start + given.at_once]
            results |= run(program, group, given.timeout)[0]
            for test in [test for test in group if results[test] == "FAILED"]:
                alone, printed = run(program, [test], given.timeout)
                results |= alone
                if alone[test] == "FAILED":
                    reasons[test] = why(printed)
                    print(f"FAILED {test}\n    " + reasons[test].replace("\n", "\n    "), flush=True)
        counts = Counter(results.values())
        print(f"{name}: {counts['ok']} passed, {counts['FAILED']} failed, {counts['ignored']} ignored, of {len(tests)}", flush=True)
        failed += counts["FAILED"]
    sys.exit(failed != 0)


main()
