"""The work of the binary `gpu` in PyTorch: grouped products as `torch._grouped_mm` and as a loop of `torch.matmul`,
a mixture-of-experts layer forward and backward, copies, the operations of `operations_peers.py`, and the matrix
product that is the ceiling. `parts.py` starts it with the sizes that the binary reported.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}


class Peers:
    """Measures as the binary does: a host clock around batches of launches between two synchronizations, and the
    median of the samples.
    """

    def __init__(self, device, smoke, file):
        self.device, self.smoke, self.file = torch.device(device), smoke, file
        self.records, self.missing = [], []
        torch.manual_seed(1)

    def sync(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def batch(self, launch, launches):
        self.sync()
        start = time.perf_counter()
        for _ in range(launches):
            launch()
        self.sync()
        return (time.perf_counter() - start) / launches

    def seconds(self, launch):
        self.batch(launch, 1 if self.smoke else 4)
        launches = 1 if self.smoke else min(1000, max(1, int(0.05 / self.batch(launch, 1))))
        return statistics.median(self.batch(launch, launches) for _ in range(1 if self.smoke else 15))

    def measure(self, form, launch, **what):
        """Adds a record, or a line on why there is none."""
        try:
            seconds = self.seconds(launch)
        except Exception as error:  # missing features of a PyTorch build raise various errors
            return self.skip(f"PyTorch {form} {' '.join(str(value) for value in what.values())}", error)
        self.records.append({"form": form, **what, "seconds": seconds})
        self.write()
        return seconds

    def write(self):
        """Writes results as they grow, in case the process is stopped."""
        self.file.write_text(json.dumps({"records": self.records, "missing": self.missing}))

    def skip(self, what, error, failed=False):
        if not failed and type(error).__name__ == "AcceleratorError":
            raise error  # the GPU accepts no more work from this process
        why = f"{type(error).__name__}: {(str(error).strip().splitlines() or ['no message'])[0]}"
        self.missing.append({"what": what, "why": why, "failed": failed})
        print(f"{'FAIL ' if failed else 'skip '} {what}: {why}", flush=True)
        self.write()

    def attempt(self, what, run):
        """Notes a failure and continues."""
        try:
            run()
        except Exception as error:
            self.skip(what, error, failed=True)

    def random(self, *shape, dtype):
        return torch.rand(*shape, device=self.device).mul_(2).sub_(1).to(dtype)

    def ceiling(self, dtype):
        """A large square product."""
        n = 256 if self.smoke else 8192
        a, b = self.random(n, n, dtype=DTYPES[dtype]), self.random(n, n, dtype=DTYPES[dtype])
        out = torch.empty_like(a)
        what = {"group": "ceiling", "shape": f"{n}^3", "dtype": dtype, "flops": 2 * n**3}
        seconds = self.measure("matmul", lambda: torch.matmul(a, b, out=out), **what)
        if seconds is None:
            raise SystemExit("PyTorch cannot multiply matrices on this device")
        print(f"time  torch.matmul {n}^3 {dtype}: {2e-12 * n**3 / seconds:.3f} TFLOP/s", flush=True)

    def copies(self, sizes):
        """Seconds of a copy that moves as many bytes in total, half of them read and half written."""
        for size in sorted(sizes):
            source = torch.ones(max(1, int(size) // 8), device=self.device)
            target = torch.empty_like(source)
            self.measure("copy", lambda: target.copy_(source), group="copy", bytes=size)

    def products(self, case, dtype):
        """The three products of a case that the binary has measured, on its segments."""
        model, ends = case["model"], case["expert_offsets"][1:]
        e, p, q = model["experts"] // model["ep"], model["d"], model["h"]
        x, d_y = self.random(case["rows"], p, dtype=DTYPES[dtype]), self.random(case["rows"], q, dtype=DTYPES[dtype])
        weight = self.random(e, p, q, dtype=DTYPES[dtype])
        offsets = torch.tensor(ends, dtype=torch.int32, device=self.device)
        ranges = [(i, slice(a, b)) for i, (a, b) in enumerate(zip(case["expert_offsets"], ends)) if b > a]
        y, d_x, d_weight = torch.empty_like(d_y), torch.empty_like(x), torch.zeros_like(weight)

        def loop(out, left, right, of_rows):
            for i, rows in ranges:
                torch.matmul(left(i, rows), right(i, rows), out=out[rows] if of_rows else out[i])
            return out

        grouped = {
            "forward": lambda: torch._grouped_mm(x, weight, offsets),
            "dx": lambda: torch._grouped_mm(d_y, weight.transpose(1, 2), offsets),
            "dW": lambda: torch._grouped_mm(x.t(), d_y, offsets),
        }
        loops = {
            "forward": lambda: loop(y, lambda i, rows: x[rows], lambda i, rows: weight[i], True),
            "dx": lambda: loop(d_x, lambda i, rows: d_y[rows], lambda i, rows: weight[i].t(), True),
            "dW": lambda: loop(d_weight, lambda i, rows: x[rows].t(), lambda i, rows: d_y[rows], False),
        }
        what = {"group": "grouped_gemm", "shape": model["name"], "rows": case["rows"], "skew": case["skew"], "dtype": dtype}
        for op in loops:
            by_loop = self.measure("loop", loops[op], op=op, **what)
            by_group = self.measure("grouped_mm", grouped[op], op=op, **what)
            if by_loop and by_group and not same(loops[op](), grouped[op]()):
                self.skip(f"PyTorch {op} {what}", ValueError("grouped_mm and loop disagree"), failed=True)

    def layers(self, model, dtype):
        """A layer of the model's experts of one rank, with fewer and with more rows."""
        e, d, h = model["experts"] // model["ep"], model["d"], model["h"]
        for product in [grouped_product, loop_product]:
            layer = Layer(self, e, model["top_k"], d, h, DTYPES[dtype], product)
            compiled = torch.compile(layer)
            for tokens in model["tokens"]:
                x = self.random(tokens // model["ep"], d, dtype=DTYPES[dtype]).requires_grad_()
                rows = tokens * model["top_k"] // model["ep"]
                what = {"group": "layer", "op": "forward and backward", "shape": model["name"], "rows": rows, "dtype": dtype}
                for form, run in [("compiled", compiled), ("eager", layer)]:
                    self.measure(f"{form} {product.__name__}", lambda: step(run, layer, x), **what)
            torch._dynamo.reset()


def same(a, b):
    """Equal up to rounding to bf16, relative to the largest. Compares in chunks, as the tensors may be large."""
    largest = b.abs().max().item()
    return all((c.float() - d.float()).abs().max().item() <= 1e-2 * largest for c, d in zip(a.chunk(16), b.chunk(16)))


def grouped_product(rows, weight, ends):
    return torch._grouped_mm(rows, weight, ends)


def loop_product(rows, weight, ends):
    borders = [0, *ends.tolist()]
    return torch.cat([rows[a:b] @ matrix for a, b, matrix in zip(borders, borders[1:], weight)])


class Layer(nn.Module):
    """Router in f32, rows sorted by expert, SwiGLU experts, weighted sum: what Kiln's `MoeLayer` computes."""

    def __init__(self, peers, experts, top_k, d, h, dtype, product):
        super().__init__()
        self.experts, self.top_k, self.product = experts, top_k, product
        matrix = lambda *shape: nn.Parameter(peers.random(*shape, dtype=dtype) * d**-0.5)
        self.router, self.gate, self.up = matrix(d, experts), matrix(experts, d, h), matrix(experts, d, h)
        self.down = matrix(experts, h, d)

    def forward(self, x):
        scores = torch.softmax(x.float() @ self.router.float(), dim=-1)
        gates, chosen = scores.topk(self.top_k, dim=-1)
        gates = gates / gates.sum(dim=-1, keepdim=True)
        chosen = chosen.flatten()
        order = chosen.argsort(stable=True)
        numbers = torch.arange(self.experts, device=x.device)
        ends = (chosen[:, None] == numbers).sum(dim=0).cumsum(dim=0).to(torch.int32)
        rows = x[order // self.top_k]
        hidden = F.silu(self.product(rows, self.gate, ends)) * self.product(rows, self.up, ends)
        y = self.product(hidden, self.down, ends)[order.argsort()]
        y = y.unflatten(0, (-1, self.top_k)).float() * gates[..., None]
        return y.sum(dim=1).to(x.dtype)


def step(run, layer, x):
    layer.zero_grad(set_to_none=True)
    x.grad = None
    run(x).sum().backward()


def work(peers, what, given):
    """Measures what is requested."""
    dtype, cases = given["dtype"], given["cases"]
    match what:
        case ["ceiling"]:
            peers.ceiling(dtype)
        case ["routing"]:
            peers.attempt("PyTorch copy", lambda: peers.copies(set(given["copies"])))
        case ["products"]:
            for case in cases:
                name = f"PyTorch grouped products {case['model']['name']} {case['rows']} {case['skew']}"
                peers.attempt(name, lambda: peers.products(case, dtype))
        case ["layers", name]:
            model = next(model for model in given["sizes"]["models"] if model["name"] == name)
            peers.attempt(f"PyTorch layer {name}", lambda: peers.layers(model, dtype))
        case ["operations"]:
            from operations_peers import operations

            peers.attempt("PyTorch operations", lambda: operations(peers, given["sizes"]["shapes"], dtype, DTYPES))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", nargs="+")
    p.add_argument("--given", type=Path, required=True, help="sizes, as JSON")
    p.add_argument("--json", type=Path, required=True)
    p.add_argument("--device", choices=["cuda", "cpu"], required=True)
    p.add_argument("--smoke", action="store_true")
    options = p.parse_args()
    peers = Peers(options.device, options.smoke, options.json)
    work(peers, options.what, json.loads(options.given.read_text()))
    peers.write()
    raise SystemExit(any(line["failed"] for line in peers.missing))


if __name__ == "__main__":
    main()
