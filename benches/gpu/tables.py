"""The tables of `run.py`, in Markdown."""


def table(head, rows):
    """Columns of numbers are on the right."""
    rows = list(rows)
    numbers = [all(row[i].strip("*")[:1] in "-0123456789" for row in rows) for i in range(len(head))]
    lines = [head, ["--:" if number else ":--" for number in numbers], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def show(seconds):
    return f"{seconds * 1e3:,.3f} ms" if seconds >= 1e-4 else f"{seconds * 1e6:,.1f} us"


def best(records, **what):
    """The fastest of PyTorch's records that agree."""
    found = [record for record in records if all(record.get(key) == value for key, value in what.items())]
    return min(found, key=lambda record: record["seconds"], default=None)


def speed(record, flops):
    return f"{flops / record['seconds'] * 1e-12:.3g}" if record else "-"


def ratio(record, seconds):
    return f"**{record['seconds'] / seconds:.2f}**" if record else "-"


def products(kiln, peers, ceiling):
    own = [r for r in kiln if r["group"] == "grouped_gemm"]
    # The tiers of a product one below the other.
    order = list(dict.fromkeys((r["shape"], r["rows"], r["skew"], r["op"]) for r in own))
    rows = []
    for r in sorted(own, key=lambda r: order.index((r["shape"], r["rows"], r["skew"], r["op"]))):
        what = {key: r[key] for key in ["group", "op", "shape", "rows", "skew"]}
        grouped, loop = (best(peers, form=form, **what) for form in ["grouped_mm", "loop"])
        rows.append([
            r["shape"], f"{r['rows']:,}", r["skew"], r["op"], r["tier"], show(r["seconds"]), speed(r, r["flops"]),
            f"{r['flops'] / r['seconds'] / ceiling:.1%}", speed(grouped, r["flops"]), speed(loop, r["flops"]),
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
            r["shape"], f"{r['rows']:,}", show(r["seconds"]), speed(r, r["flops"]), f"{r['flops'] / r['seconds'] / ceiling:.1%}",
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


def tables(everything):
    kiln, peers = everything["kiln"], everything["pytorch"]
    records, ceiling = kiln["records"], peers["ceiling_flops"]
    parts = [
        f"{kiln['device']} ({kiln['device_kind']}), commit {kiln['commit']}; PyTorch {peers['machine']['torch']}, "
        f"CUDA {peers['machine']['cuda']}, {peers['machine']['device']}; torch.matmul {ceiling * 1e-12:.3g} TFLOP/s",
    ]
    if kiln["smoke"]:
        parts.append("**A try with tiny sizes: these figures say nothing about speed.**")
    if kiln["device_kind"] == "cpu":
        parts.append("**CubeCL's CPU runtime: no GPU was used.**")
    parts += ["### Grouped products", products(records, peers["records"], ceiling)]
    parts += ["### Layers, forward and backward", layers(records, peers["records"], ceiling)]
    parts += ["### Routing", routing(records, peers["records"]), "### Losses of `train`", losses(everything["losses"])]
    if everything["missing"]:
        lines = [["**failed**" if line["failed"] else "skipped", line["what"], line["why"]] for line in everything["missing"]]
        parts += ["### Not measured", table(["", "what", "why"], [[cell.replace("|", "/").replace("\n", " ") for cell in line] for line in lines])]
    return "\n\n".join(parts)
