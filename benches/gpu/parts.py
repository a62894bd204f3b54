"""The parts of `run.py`, in order. Each runs one or a few processes, ends within its limit, and returns what goes
into the JSON: `records`, `missing`, and the data that later parts need.
"""

import json
import subprocess
import sys
from pathlib import Path

import losses
import processes
import steps

TIERS = ["simt", "multi_level", "wgmma"]
GROUPED = [f"grouped_gemm-{tier}-{dtype}" for tier in TIERS for dtype in ["f32", "bf16"]]
CHECKS = ["routing", "operations-f32", "operations-bf16", *GROUPED, "layer"]
LAYERS = ["mixtral", "deepseek-16b", "deepseek-v3-ep8"]
FORMS = ["Kiln", "compiled", "eager"]


def parts(options):
    """Maps each name to a function from (results so far, folder, seconds) to a result."""
    found = {}
    for name in CHECKS:
        found[f"check {name}"] = lambda done, folder, limit, name=name: kiln(options, folder, limit, "--check", name)
    found["pytorch ceiling"] = lambda *given: pytorch(options, "ceiling", *given)
    for name in ["operations", "routing", "layers"]:
        found[f"kiln {name}"] = lambda done, folder, limit, name=name: kiln(options, folder, limit, "--measure", name)
        if name == "layers":
            for model in LAYERS:
                found[f"pytorch layers {model}"] = lambda *given, model=model: pytorch(options, f"layers {model}", *given)
        else:
            found[f"pytorch {name}"] = lambda *given, name=name: pytorch(options, name, *given)
    for tier in TIERS:
        found[f"kiln products {tier}"] = lambda *given, tier=tier: products(options, tier, *given)
    found["pytorch products"] = lambda *given: pytorch(options, "products", *given)
    for name, model in steps.models(options.smoke).items():
        for form in FORMS:
            for batch in model.batches:
                found[f"step {name} {form} {batch}"] = lambda *given, of=(name, form, batch): step(options, *of, *given)
        for form in FORMS[:2]:
            found[f"kernels {name} {form}"] = lambda *given, of=(name, form): kernels(options, *of, *given)
    for model in losses.MODELS:
        found[f"losses {model}"] = lambda done, folder, limit, model=model: same_losses(options, model, folder, limit)
    return found


def dtype(options):
    return "bf16" if options.device == "cuda" else "f32"


def missing(what, why, failed):
    print(f"{'FAIL ' if failed else 'skip '} {what}: {why}", flush=True)
    return {"what": what, "why": why, "failed": failed}


def unmet(what, why):
    """A part that needs others first. It remains to be done."""
    print(f"later {what}: {why}", flush=True)
    return {"unmet": True}


def kiln(options, folder, limit, *flags):
    """The binary's report, which lists failures. It is written as it grows, so a crash leaves what was measured
    before.
    """
    file = folder / "kiln.json"
    command = [options.kiln, "--device", "cuda:0" if options.device == "cuda" else "cpu", "--json", file, *flags]
    command += ["--smoke"] * options.smoke + (["--commit", options.commit] if options.commit else [])
    return reported(command, file, limit, flags[-1], options.env)


def reported(command, file, limit, what, env=None):
    """What a program has written into `file`, even if it was stopped."""
    code, why = None, f"not done after {limit:.0f} s"
    try:
        code = processes.run(command, limit, env=env).returncode
        why = f"exit code {code}"
    except subprocess.TimeoutExpired:
        pass
    report = json.loads(file.read_text()) if file.is_file() else {"records": [], "missing": []}
    if code not in (0, 1) or not file.is_file():
        report["missing"].append(missing(f"what {what} had left", why, True))
    return report | {"cut": code is None}


def products(options, tier, done, folder, limit):
    """Measures a tier if its results are correct."""
    name = f"check grouped_gemm-{tier}-{dtype(options)}"
    if name not in done:
        return unmet(f"products {tier}", f"`{name}` has not run")
    if done[name]["missing"]:
        return {"records": [], "missing": [missing(f"products {tier}", f"`{name}` has not passed", False)]}
    return kiln(options, folder, limit, "--measure", f"products-{tier}")


def pytorch(options, what, done, folder, limit):
    """PyTorch's records at the sizes that the binary reported."""
    told = next((result for result in done.values() if "cases" in result), None)
    if told is None and what == "ceiling":
        told = {"sizes": None, "cases": []}
    if told is None:
        return unmet(f"PyTorch {what}", "no part of the binary has told the sizes")
    routing = done.get("kiln routing", {"records": []})["records"]
    given = {"dtype": dtype(options), "sizes": told["sizes"], "cases": told["cases"], "copies": [r["bytes"] for r in routing if r["op"] != "copy"]}
    given_file, file = folder / "given.json", folder / "pytorch.json"
    given_file.write_text(json.dumps(given))
    command = [sys.executable, Path(__file__).with_name("torch_peers.py"), *what.split(), "--given", given_file, "--json", file]
    return reported(command + ["--device", options.device] + ["--smoke"] * options.smoke, file, limit, f"PyTorch {what}")


def step(options, name, form, batch, done, folder, limit):
    """A larger micro-batch need not fit; the smallest must."""
    must = batch == min(steps.models(options.smoke)[name].batches)
    return attempt(f"step {name} {form} {batch}", must, lambda: steps.step(options, name, form, batch, folder, limit))


def kernels(options, name, form, done, folder, limit):
    """Profiles the fastest micro-batch."""
    what = f"kernels {name} {form}"
    if not all(f"step {name} {form} {batch}" in done for batch in steps.models(options.smoke)[name].batches):
        return unmet(what, "not all of its steps have run")
    ran = [r for result in done.values() for r in result["records"] if r.get("group") == "step" and (r["shape"], r["form"]) == (name, form)]
    if not ran:
        return {"records": [], "missing": [missing(what, "no step of it has run", True)]}
    batch = max(ran, key=lambda record: record["tokens_per_second"])["batch"]
    result = attempt(what, True, lambda: steps.profile(options, name, form, batch, folder, limit / 2))
    if result["records"] and not result["records"][0]["kernels"]:
        on_cpu = form == "Kiln" and options.device == "cpu"
        why = "plain Rust on the CPU launches no kernels" if on_cpu else "the profile names no kernel"
        return {"records": [], "missing": [missing(what, why, not on_cpu)]}
    return result


def attempt(what, must, run):
    """A record, or why there is none."""
    try:
        record = run()
    except subprocess.TimeoutExpired as error:
        return {"records": [], "missing": [missing(what, f"not done after {error.timeout:.0f} s", must)], "cut": True}
    except (RuntimeError, OSError, LookupError, ValueError) as error:
        return {"records": [], "missing": [missing(what, f"{type(error).__name__}: {error}", must)]}
    speed = f"{record['tokens_per_second']:,.0f} tokens/s" if "tokens_per_second" in record else f"{len(record['kernels'])} kernels"
    print(f"time  {what}: {speed}", flush=True)
    return {"records": [record], "missing": []}


def same_losses(options, model, folder, limit):
    device = "cuda:0" if options.device == "cuda" else "cpu"
    rows = losses.compare(options.train, model, device, folder, options.env, limit)
    names = [f"train {model} on {losses.counted(row['device'], row['ranks'])}" for row in rows]
    wrong = [{"what": name, "why": row["why"], "failed": True} for name, row in zip(names, rows) if row["why"]]
    cut = any((row["why"] or "").startswith("not done") for row in rows)
    return {"records": [], "losses": rows, "missing": wrong, "cut": cut}
