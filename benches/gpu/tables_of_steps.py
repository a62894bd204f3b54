"""The tables of whole training steps."""

from text import best, show, table

# Published rates of bf16 products without sparsity, in 10^12 per second, by a part of the device's name. The first
# match counts.
PEAKS = {"H100 PCIe": 756, "H100 NVL": 835, "H100": 989, "H200": 989, "GH200": 989, "B200": 2250, "A100": 312, "L40S": 362, "RTX 4090": 165}
# Most kernels in a table. The others share one line.
MOST_KERNELS = 20
# How often a step of GPT-2 runs each operation.
BOTH = "forward and backward"
PARTS = {
    "linear layers, 48, with GELU, residuals, 12 norms": {
        f"{name} {BOTH}": 12 for name in ["linear", "linear_gelu", "linear_add_layer_norm", "linear_add"]
    },
    "attention, 12": {f"causal_self_attention {BOTH}": 12},
    "head with cross entropy": {f"linear_cross_entropy_transposed {BOTH}": 1},
    "layer norms, 13": {f"layer_norm {BOTH}": 13},
    "embedding": {f"embedding {BOTH}": 1},
    "norm of the gradient, AdamW": {"sum_of_squares forward": 1, "adamw step": 1},
}


def from_operations(kiln, peers):
    """Times of single operations, multiplied by their number in a step of 12 sequences, with PyTorch's fastest form
    of each.
    """
    own = {r["op"]: r for r in kiln if r["group"] == "operation" and r["shape"] == "gpt2-124m"}
    if any(op not in own for part in PARTS.values() for op in part):
        return "Not measured."
    rows, sums = [], [0.0] * 4
    for name, part in PARTS.items():
        times = [(times, own[op], best(peers, **{key: own[op][key] for key in ["group", "op", "shape", "rows"]})) for op, times in part.items()]
        figures = [sum(count * r[key] for count, r, _ in times) for key in ["bytes", "flops", "seconds"]]
        figures.append(sum(count * peer["seconds"] if peer else float("nan") for count, _, peer in times))
        sums = [a + b for a, b in zip(sums, figures)]
        rows.append([name, *figures])
    rows.append(["sum", *sums])
    lines = [[name, f"{size * 1e-9:.2f}", f"{flops * 1e-12:.2f}", show(own), show(peer) if peer == peer else "-"] for name, size, flops, own, peer in rows]
    return table(["operations of a step", "GB", "TFLOP", "Kiln", "PyTorch, fastest"], lines)


def steps(records, device):
    """Every micro-batch. The fastest of each program is compared with Kiln's fastest. FLOPs per token are Kiln's
    figure for both.
    """
    peak = next((rate * 1e12 for name, rate in PEAKS.items() if name in device), None)
    rows = []
    for shape in dict.fromkeys(r["shape"] for r in records):
        of_shape = [r for r in records if r["shape"] == shape]
        flops = next((r["flops_per_token"] for r in of_shape if "flops_per_token" in r), None)
        fastest = {}
        for r in sorted(of_shape, key=lambda r: r["tokens_per_second"]):
            fastest[r["form"]] = r
        kiln = fastest.get("Kiln")
        for r in of_shape:
            speed = r["tokens_per_second"]
            compared = kiln and r is fastest[r["form"]] and r is not kiln
            rows.append([
                shape, r["form"], str(r["batch"]), f"{speed:,.0f}", show(r["batch"] * r["context"] / speed), f"{r['parameters'] * 1e-6:,.2f}",
                f"{flops * speed * 1e-12:,.3g}" if flops else "-", f"{flops * speed / peak:.1%}" if flops and peak else "-",
                gb(r.get("peak_bytes")), gb(r.get("reserved_bytes")), f"{r['train_loss']:.3f}",
                f"**{kiln['tokens_per_second'] / speed:.2f}**" if compared else "-",
            ])
    head = ["model", "program", "micro-batch", "tokens/s", "step", "M parameters", "TFLOP/s", "MFU", "GB at most", "GB reserved", "last loss",
            "Kiln's fastest / it"]
    return table(head, rows)


def gb(size):
    return f"{size * 1e-9:.3g}" if size else "-"


def kernels(record):
    """The share of each kernel in the sum of their times, and its launches per step."""
    found = sorted(record["kernels"], key=lambda kernel: -kernel[2])
    total = sum(seconds for _, _, seconds in found)
    rest = found[MOST_KERNELS:]
    if rest:
        found = [*found[:MOST_KERNELS], [f"{len(rest)} others", sum(r[1] for r in rest), sum(r[2] for r in rest)]]
    found.append(["all", sum(calls for _, calls, _ in found), total])
    rows = [[short(name), f"{calls:,.1f}", show(seconds), f"{seconds / total:.1%}" if total else "-"] for name, calls, seconds in found]
    return table(["kernel", "launches a step", "time a step", "share"], rows)


def short(name):
    name = name.replace("|", "/").replace("\n", " ")
    return name if len(name) <= 90 else f"{name[:60]}...{name[-25:]}"
