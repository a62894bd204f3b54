"""Measures whole training steps: `train` next to PyTorch's scripts in `../peers`, on the same models in bf16, over a
list of micro-batches; and profiles one of the steps by kernel. `parts.py` calls it.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE

import kernels
import processes
from losses import corpus

PEERS = Path(__file__).resolve().parent.parent / "peers"
STEPS, UNTIMED = 30, 10
LR, WARMUP, BETA2 = 1e-3, 10, 0.95
# Steps of the two profiled runs, whose difference is evaluated.
PROFILED = [4, 8]


@dataclass
class Model:
    """A model for both programs, and the micro-batches to try. Each step has one micro-batch."""

    preset: str
    keys: dict
    script: str
    flags: dict
    context: int
    batches: list


def models(smoke):
    if smoke:
        gpt2 = dict(layers=2, heads=2, width=32, vocab=256)
        deepseek = dict(layers=2, dense=1, width=32, heads=2, rank=16, nope=16, rope=8, value=16, hidden=48)
        deepseek |= dict(experts=8, top_k=2, expert=24, shared=1, vocab=256)
    else:
        gpt2 = dict(layers=12, heads=12, width=768, vocab=50304)  # as in nanoGPT: a multiple of 64
        deepseek = dict(layers=5, dense=1, width=2048, heads=16, rank=512, nope=128, rope=64, value=128, hidden=10944)
        deepseek |= dict(experts=64, top_k=6, expert=1408, shared=2, vocab=102400)
    names = dict(layers="n_layer", heads="n_head", width="n_embd", vocab="vocab_size")
    gpt2_keys = {f"model.{names[flag]}": value for flag, value in gpt2.items()}
    names = dict(
        layers="num_hidden_layers", dense="first_k_dense_replace", width="hidden_size", heads="num_attention_heads", rank="kv_lora_rank",
        nope="qk_nope_head_dim", rope="qk_rope_head_dim", value="v_head_dim", hidden="intermediate_size", vocab="vocab_size",
    )
    of_experts = dict(experts="num_experts", top_k="top_k", expert="moe_intermediate_size", shared="n_shared_experts")
    deepseek_keys = {f"model.{names[flag]}": value for flag, value in deepseek.items() if flag in names}
    deepseek_keys |= {f"moe.{of_experts[flag]}": value for flag, value in deepseek.items() if flag in of_experts} | {"moe.aux_loss_coef": 0}
    t = [32, 32] if smoke else [1024, 4096]
    b = [[4, 2], [4, 2]] if smoke else [[128, 64, 32, 12], [8, 4, 2, 1]]
    return {
        "gpt2-124m": Model("gpt2-124m", gpt2_keys | {"model.n_positions": t[0]}, "gpt2_torch.py", gpt2 | {"bias": True}, t[0], b[0]),
        "deepseek-v2-lite-5": Model("deepseek-v2-lite", deepseek_keys, "deepseek_grouped.py", deepseek, t[1], b[1]),
    }


def tokens(folder):
    data = folder / "text"
    if not data.is_file():
        corpus(data, size=1 << 23)
    return data


def call(command, limit, **rest):
    """The output of a program. A failure reports the end of its output."""
    done = processes.run(command, limit, stdout=PIPE, stderr=PIPE, text=True, **rest)
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip() or "nothing")[-600:]
        raise RuntimeError(f"{Path(done.args[0]).name} ended with exit code {done.returncode} and said: {said}")
    return done.stdout


def train(options, model, batch, steps, folder, limit):
    """The lines of `metrics.jsonl` of one of Kiln's runs."""
    keys = model.keys | {
        "parallel.precision.param": "bf16", "parallel.activation_checkpointing": "none", "train.seq_len": model.context,
        "train.global_batch_size": batch, "train.micro_batch_size": batch, "train.val_every": 0, "train.val_batches": 0, "train.sample_tokens": 0,
        "optim.lr": LR, "optim.min_lr": LR / 10, "optim.warmup_steps": WARMUP, "optim.beta2": BETA2, "checkpoint.keep": 0,
        "train.device": "cuda:0" if options.device == "cuda" else "cpu",
    }
    settings = [word for key, value in keys.items() for word in ["--set", f"{key}={value}"]]
    out = folder / f"run-{batch}-{steps}"
    # Runs without the memory forecast: whether it fits will show.
    command = [options.train, "--model", model.preset, *settings, "--gpus", 1, "--force", "--steps", steps, "--data", tokens(folder), "--out", out]
    call(command, limit, env=options.env, cwd=folder)
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def kiln(options, model, batch, folder, limit):
    """What one of Kiln's runs measures itself."""
    lines = train(options, model, batch, STEPS, folder, limit)
    at = {line["step"]: line for line in lines if "elapsed_seconds" in line}
    done, seconds = (at[STEPS][key] - at[UNTIMED][key] for key in ["tokens", "elapsed_seconds"])
    usage = [line for line in lines if "memory" in line][-1]
    return {
        "tokens_per_second": done / seconds,
        "flops_per_token": at[STEPS]["tflops"] * 1e12 / at[STEPS]["tokens_per_second"],
        "parameters": next(line["parameters"] for line in lines if "parameters" in line),
        "train_loss": at[STEPS]["loss"],
        "peak_bytes": sum(category["peak"] for category in usage["memory"].values()),
        "reserved_bytes": usage.get("device", {}).get("reserved"),
    }


def pytorch(options, model, batch, folder, limit, *flags):
    """The same for one of the scripts."""
    given = [word for flag, value in model.flags.items() for word in [f"--{flag.replace('_', '-')}", *([] if value is True else [value])]]
    given += ["--lr", LR, "--min-lr", LR / 10, "--warmup", WARMUP, "--beta2", BETA2]
    given += ["--context", model.context, "--batch", batch, "--device", options.device, "--bf16", *flags]
    command = [sys.executable, PEERS / model.script, "--data", tokens(folder), "--steps", STEPS, "--untimed", UNTIMED, *given]
    return json.loads(call(command, limit, cwd=folder).splitlines()[-1])


def step(options, name, form, batch, folder, limit):
    """A record of one program at one micro-batch."""
    model = models(options.smoke)[name]
    if form == "Kiln":
        measured = kiln(options, model, batch, folder, limit)
    else:
        measured = pytorch(options, model, batch, folder, limit, *["--compile"] * (form == "compiled"))
    return {"group": "step", "shape": name, "form": form, "batch": batch, "context": model.context, **measured}


def profile(options, name, form, batch, folder, limit):
    """A record with the kernels of one step."""
    model = models(options.smoke)[name]
    if form == "Kiln":
        log, runs = kernels.configure(folder), []
        for steps in PROFILED:
            log.unlink(missing_ok=True)
            train(options, model, batch, steps, folder, limit)
            runs.append(kernels.read(log))
        found = kernels.difference(runs[1], runs[0], PROFILED[1] - PROFILED[0])
    else:
        flags = [*["--compile"] * (form == "compiled"), "--profile", PROFILED[1] - PROFILED[0]]
        found = pytorch(options, model, batch, folder, limit, *flags)["kernels"]
    return {"group": "kernels", "shape": name, "form": form, "batch": batch, "kernels": found}
