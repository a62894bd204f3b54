"""Shared by the peers that train a model: the command line, the split, the optimizer with its schedule, the step,
and its timing. A step is a batch, forward, backward, clipping and AdamW, in fp32. On a GPU it also reports memory,
and with `--profile` the time of each kernel.
"""

import argparse
import math
import time
from pathlib import Path

import torch
from torch import nn


def parser(doc, **defaults):
    p = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", type=Path, required=True, help="a text file; its first 90%% are for training")
    p.add_argument("--steps", type=int, default=2000)
    p.add_argument("--untimed", type=int, default=20, help="the first steps, which are slower and compile")
    p.add_argument("--compile", action="store_true", help="the model goes through torch.compile")
    p.add_argument("--context", type=int)
    p.add_argument("--batch", type=int)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--min-lr", type=float, default=1e-4)
    p.add_argument("--warmup", type=int)
    p.add_argument("--beta2", type=float)
    p.add_argument("--seed", type=int, default=1337)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--device", default="cpu")
    p.add_argument("--profile", type=int, default=0, metavar="STEPS", help="look into so many steps more")
    p.set_defaults(**defaults)
    return p


def start(a):
    if a.steps <= a.untimed:
        raise SystemExit(f"--steps {a.steps}: give more than the {a.untimed} first steps that are not timed")
    torch.set_num_threads(a.threads)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True  # as in nanoGPT; no effect on a CPU
    torch.manual_seed(a.seed)


def split(ids):
    """The training split of 90%, and the rest for validation."""
    ids = torch.tensor(ids)
    return ids[: len(ids) * 9 // 10], ids[len(ids) * 9 // 10 :]


def learning_rate(step, a):
    """Linear warm-up, then a cosine from lr down to min_lr at the last step."""
    if step < a.warmup:
        return a.lr * (step + 1) / (a.warmup + 1)
    done = (step - a.warmup) / max(1, a.steps - a.warmup)
    return a.min_lr + 0.5 * (1 + math.cos(math.pi * done)) * (a.lr - a.min_lr)


def train(model, tokens, a):
    """Trains `model`, which returns the loss of inputs and targets. Returns the measurements."""
    model, tokens = model.to(a.device), tokens.to(a.device)
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=a.lr, betas=(0.9, a.beta2), eps=1e-8, fused=True)
    loss_of = torch.compile(model) if a.compile else model
    window = torch.arange(a.context, device=a.device)

    def make_step(step):
        at = torch.randint(len(tokens) - a.context, (a.batch, 1), device=a.device) + window
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, a)
        loss = loss_of(tokens[at], tokens[at + 1])
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()  # waits for all of it

    started = time.perf_counter()
    for step in range(a.steps):
        if step == a.untimed:
            started = time.perf_counter()
        train_loss = make_step(step)
    seconds = time.perf_counter() - started
    return memory(a.device) | kernels(a, make_step) | {
        "tokens_per_second": a.batch * a.context * (a.steps - a.untimed) / seconds,
        "train_loss": train_loss,
        "parameters": sum(p.numel() for p in parameters),
        "versions": f"PyTorch {torch.__version__}",
    }


def memory(device):
    """Peak bytes of tensors, and bytes reserved by PyTorch's allocator."""
    if torch.device(device).type != "cuda":
        return {}
    return {"peak_bytes": torch.cuda.max_memory_allocated(), "reserved_bytes": torch.cuda.max_memory_reserved()}


def kernels(a, make_step):
    """Calls and seconds of each kernel per step. On a CPU, those of PyTorch's operators."""
    if not a.profile:
        return {}
    on_gpu = torch.device(a.device).type == "cuda"
    activity = torch.profiler.ProfilerActivity.CUDA if on_gpu else torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[activity]) as profile:
        for _ in range(a.profile):
            make_step(a.steps - 1)
    seconds = lambda event: (event.self_device_time_total if on_gpu else event.self_cpu_time_total) * 1e-6
    events = [event for event in profile.key_averages() if seconds(event) > 0]
    return {"kernels": [[event.key, event.count / a.profile, seconds(event) / a.profile] for event in events]}
