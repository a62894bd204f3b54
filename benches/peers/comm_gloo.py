"""Measures PyTorch's gloo: all_gather, reduce_scatter and all_to_all between four processes of this machine, as
`cargo bench -p benches -- comm` measures Kiln's between four threads. Prints a table and writes JSON.

    pip install torch
    python benches/peers/comm_gloo.py --json gloo.json

A payload is the full tensor of one rank, in bytes: the result of all_gather, the input of reduce_scatter, the input
and result of all_to_all. Outputs are allocated once. Every sample is a number of rounds between two barriers, timed
on the slowest rank; the median of the samples is printed.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS = 4
PAYLOADS = [("1 KB", 1 << 10), ("16 KB", 16 << 10), ("256 KB", 256 << 10), ("4 MB", 4 << 20), ("64 MB", 64 << 20)]


def all_gather_into_tensor(full, part):
    dist.all_gather_into_tensor(full, part)


def all_gather_list(full, part):
    dist.all_gather(list(full.chunk(RANKS)), part)


def reduce_scatter_tensor(full, part):
    dist.reduce_scatter_tensor(part, full)


def reduce_scatter_list(full, part):
    dist.reduce_scatter(part, list(full.chunk(RANKS)))


def reduce_scatter_by_all_reduce(full, part):
    whole = full.clone()
    dist.all_reduce(whole)
    part.copy_(whole.chunk(RANKS)[dist.get_rank()])


def all_to_all_single(full, other):
    dist.all_to_all_single(other, full)


def all_to_all_by_sends(full, other):
    sends = [dist.isend(chunk, rank) for rank, chunk in enumerate(full.chunk(RANKS)) if rank != dist.get_rank()]
    receives = [dist.irecv(chunk, rank) for rank, chunk in enumerate(other.chunk(RANKS)) if rank != dist.get_rank()]
    own = dist.get_rank()
    other.chunk(RANKS)[own].copy_(full.chunk(RANKS)[own])
    for request in sends + receives:
        request.wait()


# Uses the first form that this version of gloo supports.
COLLECTIVES = {
    "all_gather": [all_gather_into_tensor, all_gather_list],
    "reduce_scatter": [reduce_scatter_tensor, reduce_scatter_list, reduce_scatter_by_all_reduce],
    "all_to_all": [all_to_all_single, all_to_all_by_sends],
}


def tensors(collective, payload):
    full = torch.ones(payload // 4)
    return full, torch.ones(payload // 4 if collective == "all_to_all" else payload // 4 // RANKS)


def known(collective):
    for form in COLLECTIVES[collective]:
        try:
            form(*tensors(collective, 1 << 10))
            return form
        except (RuntimeError, NotImplementedError, ValueError) as error:
            if dist.get_rank() == 0:
                print(f"{form.__name__} is not there: {str(error).splitlines()[0]}")
    raise SystemExit(f"gloo knows no form of {collective}")


def seconds_of(form, args, rounds):
    """The slowest rank's seconds per round."""
    dist.barrier()
    start = time.perf_counter()
    for _ in range(rounds):
        form(*args)
    dist.barrier()
    seconds = torch.tensor([(time.perf_counter() - start) / rounds], dtype=torch.float64)
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return seconds.item()


def rank_main(rank, store, options):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    results = {}
    for collective in COLLECTIVES:
        form = known(collective)
        for name, payload in PAYLOADS:
            args = tensors(collective, payload)
            seconds_of(form, args, 2)
            # All ranks know the same maximum, so they agree on the number of rounds.
            rounds = max(1, int(options.sample_seconds / seconds_of(form, args, 3)))
            samples = [seconds_of(form, args, rounds) for _ in range(options.samples)]
            results[f"{collective}/{name}"] = {"seconds": statistics.median(samples), "form": form.__name__}
            if rank == 0:
                seconds = statistics.median(samples)
                print(f"{collective:<16}{name:>8}{seconds * 1e6:>12.1f} us{payload / seconds / 1e9:>10.3f} GB/s  {form.__name__}", flush=True)
    if rank == 0 and options.json:
        table = {"torch": torch.__version__, "load": os.getloadavg()[0], "results": results}
        options.json.write_text(json.dumps(table, indent=1))
    dist.destroy_process_group()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--json", type=Path, help="where to write the results")
    p.add_argument("--samples", type=int, default=15)
    p.add_argument("--sample-seconds", type=float, default=0.1)
    options = p.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(rank_main, (Path(folder) / "store", options), nprocs=RANKS)


if __name__ == "__main__":
    main()
