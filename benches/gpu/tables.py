"""The tables of `run.py`, in Markdown."""

from tables_of_steps import from_operations, kernels, steps
from text import best, ratio, share, show, speed, table


def products(kiln, peers, ceiling):
    own = [r for r in kiln if r["group"] == "grouped_gemm"]
    # Lists the tiers of a product below each other.
    order = list(dict.fromkeys((r["shape"], r["rows"], r["skew"], r["op"]) for r in own))
    rows = []
    for r in sorted(own, key=lambda r: order.index((r["shape"], r["rows"], r["skew"], r["op"]))):
        what = {key: r[key] for key in ["group", "op", "shape", "rows", "skew"]}
        grouped, loop = (best(peers, form=form, **what) for form in ["grouped_mm", "loop"])
        rows.append([
            r["shape"], f"{r['rows']:,}", r["skew"], r["op"], r["tier"], show(r["seconds"]), speed(r, r["flops"]),
            share(r["flops"], r["seconds"], ceiling), speed(grouped, r["flops"]), speed(loop, r["flops"]),
            ratio(best(peers, **what), r["seconds"]),
        ])
    head = ["shape", "rows", "segments", "product", "tier", "Kiln", "TFLOP/s", "of matmul", "grouped_mm, TFLOP/s", "loop, TFLOP/s",
            "faster of the two / Kiln"]
    return table(head, rows)


def layers(kiln, peers, ceiling):
    rows = []
    for r in (r for r in kiln if r["group"] == "layer"):
        peer = best(peers, **{key: r[key] for key in ["group", "op", "shape", "rows"]})
        rows.append([
            r["shape"], f"{r['rows']:,}", show(r["seconds"]), speed(r, r["flops"]), share(r["flops"], r["seconds"], ceiling),
            show(peer["seconds"]) if peer else "-", peer["form"] if peer else "-", ratio(peer, r["seconds"]),
        ])
    return table(["layer", "rows", "Kiln", "TFLOP/s", "of matmul", "PyTorch", "its fastest form", "PyTorch / Kiln"], rows)


def routing(kiln, peers):
    copies = {r["bytes"]: r["seconds"] for r in kiln if r["op"] == "copy"}
    rows = []
    for r in (r for r in kiln if r["group"] == "routing" and r["op"] != "copy"):
        copy = best(peers, group="copy", bytes=r["bytes"])
        own = copies.get(r["bytes"] // 8 * 8)
        rows.append([
            r["shape"], f"{r['rows']:,}", r["op"], f"{r['bytes'] * 1e-6:,.2f}", show(r["seconds"]), f"{r['bytes'] / r['seconds'] * 1e-9:.3g}",
            f"{own / r['seconds']:.1%}" if own else "-", f"{copy['seconds'] / r['seconds']:.1%}" if copy else "-",
        ])
    head = ["shape", "rows", "operation", "MB", "Kiln", "GB/s", "of Burn's pass over as many", "of PyTorch's copy of as many"]
    return table(head, rows)


def losses(rows):
    def line(row):
        difference = "-" if row["difference"] is None else f"{row['difference']:.1e}"
        values = " ".join(f"{loss:.4f}" for loss in row["losses"] or [])
        return [row["model"], row["device"], str(row["ranks"]), values or "-", difference, "**NO**" if row["why"] else "yes"]

    return table(["model", "device", "ranks", "losses", "relative difference", "as on one rank of the CPU"], map(line, rows))


def operations(kiln, peers, ceiling):
    """Forward, and forward and backward, next to PyTorch eager and PyTorch's fastest form."""
    rows = []
    for r in (r for r in kiln if r["group"] == "operation"):
        what = {key: r[key] for key in ["group", "op", "shape", "rows"]}
        eager, fastest = best(peers, form="eager", **what), best(peers, **what)
        speed = f"{r['flops'] / r['seconds'] * 1e-12:.3g} TFLOP/s" if r["flops"] else f"{r['bytes'] / r['seconds'] * 1e-9:.3g} GB/s"
        rows.append([
            r["shape"], r["op"], f"{r['bytes'] * 1e-6:,.1f}", f"{r['flops'] * 1e-9:,.1f}", show(r["seconds"]), speed,
            share(r["flops"], r["seconds"], ceiling), show(eager["seconds"]) if eager else "-",
            show(fastest["seconds"]) if fastest else "-", fastest["form"] if fastest else "-", ratio(fastest, r["seconds"]),
        ])
    head = ["shape", "operation", "MB", "GFLOP", "Kiln", "speed", "of matmul", "PyTorch eager", "PyTorch, fastest", "its form", "fastest / Kiln"]
    return table(head, rows)


def tables(everything, missing, ceiling):
    parts, machine = everything["parts"], everything["machine"]
    of = lambda prefix: [record for name, result in parts.items() if name.startswith(prefix) for record in result["records"]]
    kiln, peers = of("kiln"), of("pytorch")
    report = next((result for result in parts.values() if "device_kind" in result), None)
    what = f"{report['device']} ({report['device_kind']}), commit {report['commit']}" if report else "no part of the binary has run"
    speed = f"{ceiling * 1e-12:.3g} TFLOP/s" if ceiling else "not measured"
    blocks = [f"{what}; PyTorch {machine['torch']}, CUDA {machine['cuda']}, {machine['device']}; torch.matmul {speed}"]
    if machine["smoke"]:
        blocks.append("**A try with tiny sizes: these figures say nothing about speed.**")
    if machine["kind"] == "cpu":
        blocks.append("**CubeCL's CPU runtime, and plain Rust for steps: no GPU was used.**")
    blocks += ["### Operations", operations(kiln, peers, ceiling)]
    blocks += ["### A step of GPT-2 from its operations", from_operations(kiln, peers)]
    blocks += ["### Grouped products", products(kiln, peers, ceiling), "### Layers, forward and backward", layers(kiln, peers, ceiling)]
    blocks += ["### Routing", routing(kiln, peers), "### Training steps", steps(of("step"), machine["device"])]
    for record in of("kernels"):
        blocks += [f"### Kernels of a step of {record['shape']}, {record['form']}, micro-batch {record['batch']}", kernels(record)]
    rows = [row for result in parts.values() for row in result.get("losses", [])]
    blocks += ["### Losses of `train`", losses(rows)]
    if missing:
        lines = [["**failed**" if line["failed"] else "skipped", line["what"], line["why"]] for line in missing]
        blocks += ["### Not measured", table(["", "what", "why"], [[cell.replace("|", "/").replace("\n", " ") for cell in line] for line in lines])]
    return "\n\n".join(blocks)
