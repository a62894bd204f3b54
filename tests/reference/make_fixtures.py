"""Makes the reference fixtures: small random models of Hugging Face `transformers`, in the layout of
a hub folder, with the logits, the loss and the gradients that `transformers` computes for them.

    pip install torch transformers safetensors
    python tests/reference/make_fixtures.py            # all of them, or the names given as arguments

The checked-in fixtures come from Python 3.11, torch 2.15, transformers 5.23, safetensors 0.8 (CPU,
float32, eager attention, no dropout). Each folder holds

  config.json          as a hub folder has it: the hub's older key style (`rope_theta`, `rope_scaling`),
                       or what transformers 5 itself saves (`rope_parameters`): gpt2-b, deepseek-v3-yarn-2
  model.safetensors    the weights under the hub's names: one matrix per expert, Conv1D [in, out] for
                       GPT-2 (gpt2-a has neither prefix nor lm_head but has the causal-mask buffers
                       `h.N.attn.bias`, as openai-community/gpt2 has; gpt2-b has `transformer.`);
                       deepseek-v3-yarn has two shards and a model.safetensors.index.json instead
  expected.safetensors tokens, targets [batch, time] int64; logits [batch, time, vocab] f32;
                       loss [1] f32, the mean cross entropy of logits against targets;
                       grad.<weight name> for each parameter, zeros for an expert that got no token

deepseek-v3-fp8 follows DeepSeek's release of V3: matrices in float8_e4m3fn with `<name>_scale_inv`, a factor for each
block of 128 x 128, and the rest in bfloat16 or float32. Its expectations are those of the dequantized weights in
float32. It has no gradients, but `e4m3`, the value of each of the 256 bytes.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

logging.disable_progress_bar()
HERE = Path(__file__).resolve().parent
MARGIN = 1e-4  # by how much the last choice of a router must beat the first one left out

GPT2 = {
    "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
    "bos_token_id": 0, "embd_pdrop": 0.1, "eos_token_id": 0, "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-5, "model_type": "gpt2", "n_ctx": 32, "n_positions": 32,
    "resid_pdrop": 0.1,
}
DEEPSEEK = {
    "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 0, "eos_token_id": 1,
    "ep_size": 1, "hidden_act": "silu", "hidden_size": 32, "initializer_range": 0.02, "intermediate_size": 56,
    "kv_lora_rank": 16, "max_position_embeddings": 64, "moe_intermediate_size": 12,
    "moe_layer_freq": 1, "n_routed_experts": 8, "num_attention_heads": 4, "num_experts_per_tok": 3,
    "num_key_value_heads": 4, "pretraining_tp": 1, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8,
    "rms_norm_eps": 1e-6, "rope_scaling": None, "rope_theta": 10000, "tie_word_embeddings": False,
    "torch_dtype": "float32", "use_cache": True, "v_head_dim": 10, "vocab_size": 72,
}
V3 = DEEPSEEK | {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3",
    "first_k_dense_replace": 1, "n_group": 4, "n_shared_experts": 1, "norm_topk_prob": True,
    "num_hidden_layers": 2, "q_lora_rank": 20, "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid", "topk_group": 2, "topk_method": "noaux_tc",
}
V2 = DEEPSEEK | {
    "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2",
    "aux_loss_alpha": 0.001, "first_k_dense_replace": 1, "n_group": 1, "n_shared_experts": 1,
    "norm_topk_prob": False, "num_hidden_layers": 2, "q_lora_rank": None,
    "routed_scaling_factor": 1.0, "scoring_func": "softmax", "seq_aux": True, "topk_group": 1,
    "topk_method": "greedy",
}


def yarn(original, **rest):
    return {"factor": 4, "mscale_all_dim": 1.0, "original_max_position_embeddings": original,
            "type": "yarn"} | rest


# name: (config, options). Options: time; resave: config.json as transformers saves it; prefix: keep `transformer.`;
# shards; small: activations so small that the epsilons of the norms matter.
FIXTURES = {
    "gpt2-a": (GPT2 | {"n_embd": 48, "n_head": 4, "n_layer": 2, "vocab_size": 96}, {}),
    "gpt2-b": (
        GPT2 | {"n_embd": 40, "n_head": 2, "n_layer": 3, "n_inner": 100, "vocab_size": 65},
        {"prefix": True, "resave": True, "time": 20},
    ),
    # rms_norm_eps applies to all norms except q_a_layernorm and kv_a_layernorm, which use 1e-6.
    "deepseek-v3-q-lora": (V3 | {"num_hidden_layers": 3, "rms_norm_eps": 1e-5}, {"small": True}),
    "deepseek-v3-no-q-lora": (
        V3 | {"q_lora_rank": None, "n_group": 1, "topk_group": 1, "norm_topk_prob": False,
              "n_shared_experts": 2, "routed_scaling_factor": 1.5}, {},
    ),
    # At a length of 8 the ramp of YaRN is a step: only the fastest frequency is unchanged.
    "deepseek-v3-yarn": (
        V3 | {"max_position_embeddings": 32,
              "rope_scaling": yarn(8, beta_fast=32, beta_slow=1, mscale=1.0)},
        {"shards": 2},
    ),
    # Here frequencies 0 and 1 are unchanged, 2 to 4 are mixed and 5 to 7 interpolated; cos and sin are scaled.
    "deepseek-v3-yarn-2": (
        V3 | {"first_k_dense_replace": 0, "qk_rope_head_dim": 16, "rope_theta": 50,
              "rope_scaling": yarn(16, beta_fast=1.5, beta_slow=0.25, mscale=0.707)},
        {"resave": True, "time": 20},
    ),
    "deepseek-v2-greedy": (V2, {}),
    "deepseek-v2-group-limited": (
        V2 | {"n_group": 4, "topk_group": 2, "topk_method": "group_limited_greedy",
              "q_lora_rank": 20, "routed_scaling_factor": 16.0, "n_shared_experts": 2,
              "num_hidden_layers": 3}, {"time": 13},
    ),
}


def randomise(model, small):
    """Weights far enough from an initialization that attention and routing are far from uniform."""
    for name, p in [*model.named_parameters(), *model.named_buffers()]:
        if name.endswith("e_score_correction_bias"):
            p.normal_(0, 0.2)
        elif not isinstance(p, torch.nn.Parameter):
            continue
        elif p.dim() == 1:  # the weight or the bias of a norm, or the bias of a matrix
            p.uniform_(-0.2, 0.2)
            p += float(name.endswith("weight"))
        else:
            p.normal_(0, 0.3 if name.endswith("mlp.gate.weight") else 0.15)
        if small and name.endswith("embed_tokens.weight"):
            p *= 0.1
        if small and name.endswith("q_a_proj.weight"):
            p *= 0.02
        if small and name.endswith("kv_a_proj_with_mqa.weight"):
            p[: model.config.kv_lora_rank] *= 0.02  # the latent; the rotary key after it is unchanged


def hub_tensors(model, prefix, of):
    """`of` each parameter under the names and in the shapes of a hub file."""
    out, mixtral = {}, model.config.model_type == "mixtral"
    gate_proj, up_proj, down_proj = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    for name, p in model.named_parameters():
        value = of(p)
        name = name if prefix else name.removeprefix("transformer.")
        name = name.replace(".mlp.", ".block_sparse_moe.") if mixtral else name
        if name.endswith("experts.gate_up_proj"):
            stem = name.removesuffix("gate_up_proj")
            gates, ups = value.chunk(2, dim=1)
            for i, (gate, up) in enumerate(zip(gates, ups)):
                out |= {f"{stem}{i}.{gate_proj}.weight": gate, f"{stem}{i}.{up_proj}.weight": up}
        elif name.endswith("experts.down_proj"):
            for i, down in enumerate(value):
                out[f"{name.removesuffix('down_proj')}{i}.{down_proj}.weight"] = down
        else:
            out[name] = value
    return {k: v.detach().clone().contiguous() for k, v in out.items()}


def choose(gate, x, bias=True):
    """The experts that a router chooses for x, computed explicitly, and the margin of the choices."""
    scores, v3 = x.flatten(0, -2) @ gate.weight.T, hasattr(gate, "e_score_correction_bias")
    scores = scores.sigmoid() if v3 else scores.softmax(-1)
    if v3 and bias:
        scores = scores + gate.e_score_correction_bias
    margins = []

    def top(s, k):
        ordered, index = s.sort(-1, descending=True)
        if k < s.shape[-1]:
            margins.append((ordered[:, k - 1] - ordered[:, k]).min().item())
        return index[:, :k]

    if v3 or getattr(gate, "topk_method", None) == "group_limited_greedy":
        groups = scores.unflatten(-1, (gate.num_group, -1))
        strength = groups.topk(2).values.sum(-1) if v3 else groups.amax(-1)
        kept = torch.zeros_like(strength, dtype=torch.bool)
        kept.scatter_(1, top(strength, gate.topk_group), True)
        scores = groups.masked_fill(~kept[..., None], float("-inf")).flatten(1)
    return top(scores, gate.top_k).sort(-1).values, min(margins)


def check_routing(model, tokens):
    """The smallest margin of all choices. 0 if the correction bias changes no choice at all."""
    margins, changed, v3 = [], False, model.config.model_type == "deepseek_v3"

    def look(gate, inputs, outputs):
        nonlocal changed
        chosen, margin = choose(gate, inputs[0])
        assert torch.equal(chosen, outputs[2].sort(-1).values), "not the choice of transformers"
        changed |= not torch.equal(chosen, choose(gate, inputs[0], bias=False)[0])
        margins.append(margin)

    hooks = [m.register_forward_hook(look) for n, m in model.named_modules() if n.endswith("mlp.gate")]
    model(tokens)
    for hook in hooks:
        hook.remove()
    return min(margins, default=float("inf")) if changed or not v3 else 0.0


def load_config(folder):
    return AutoConfig.from_pretrained(folder, attn_implementation="eager", experts_implementation="eager")


def write_weights(folder, weights, shards):
    if shards == 1:
        return save_file(weights, folder / "model.safetensors", {"format": "pt"})
    names, where = list(weights), {}
    for i in range(shards):
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        part = names[i * len(names) // shards : (i + 1) * len(names) // shards]
        save_file({n: weights[n] for n in part}, folder / file, {"format": "pt"})
        where |= {n: file for n in part}
    size = sum(w.nbytes for w in weights.values())
    index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(where.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def make(name, config, options):
    """Writes a folder. Returns the model, loaded back from it, and the tokens."""
    folder, prefix, small = HERE / name, options.get("prefix", False), options.get("small", False)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    if options.get("resave"):
        load_config(folder).save_pretrained(folder)
    model = AutoModelForCausalLM.from_config(load_config(folder)).eval()

    for seed in range(100):  # until no choice of an expert is close
        torch.manual_seed(seed)
        with torch.no_grad():
            randomise(model, small)
            text = torch.randint(config["vocab_size"], (2, options.get("time", 16) + 1))
            tokens, targets = text[:, :-1].contiguous(), text[:, 1:].contiguous()
            margin = check_routing(model, tokens)
        if margin > MARGIN:
            break
    else:
        raise AssertionError(f"{name}: no seed with clear choices")

    logits = model(tokens, use_cache=False).logits
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    loss.backward()

    weights = hub_tensors(model, prefix, lambda p: p)
    grads = hub_tensors(model, prefix, lambda p: p.grad)
    expected = {"tokens": tokens, "targets": targets, "logits": logits, "loss": loss.reshape(1)}
    expected |= {f"grad.{n}": g for n, g in grads.items()}
    save_file({n: t.detach() for n, t in expected.items()}, folder / "expected.safetensors")
    for n, buffer in model.named_buffers():
        if n.endswith("e_score_correction_bias"):
            weights[n] = buffer.clone()
    if name == "gpt2-a":
        mask = torch.ones(config["n_ctx"], config["n_ctx"]).tril()[None, None]
        weights |= {f"h.{i}.attn.bias": mask.clone() for i in range(config["n_layer"])}
    write_weights(folder, weights, options.get("shards", 1))

    # Checks that the folder holds the model from which the expectations come.
    again, info = AutoModelForCausalLM.from_pretrained(
        folder, config=load_config(folder), dtype=torch.float32, output_loading_info=True)
    assert not any(info.values()), info
    with torch.no_grad():
        off = (again.eval()(tokens).logits - logits).abs().max().item()
        assert off < 1e-6, f"{name}: the folder gives other logits, off by {off}"
        if small:  # a wrong epsilon in the two inner norms must show
            for n, module in again.named_modules():
                if n.endswith(("q_a_layernorm", "kv_a_layernorm")):
                    module.variance_epsilon = config["rms_norm_eps"]
            assert (again(tokens).logits - logits).abs().max() > 1e-3
    size = sum(f.stat().st_size for f in folder.iterdir())
    print(f"{name:26} seed {seed}  margin {margin:.1e}  loss {loss.item():.4f}  "
          f"reloaded off by {off:.0e}  {size / 1024:.0f} KiB")
    return again, tokens


FP8 = V3 | {
    "hidden_size": 160, "intermediate_size": 136, "moe_intermediate_size": 24, "n_routed_experts": 4,
    "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2, "torch_dtype": "bfloat16",
    "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
                            "weight_block_size": [128, 128]},
}


def quantise(w, block=128):
    """A matrix in fp8, a factor for each block, and the matrix that they represent."""
    rows, columns = w.shape
    factors = torch.empty(-(-rows // block), -(-columns // block))
    for i in range(factors.shape[0]):
        for j in range(factors.shape[1]):
            part = w[i * block : (i + 1) * block, j * block : (j + 1) * block]
            factors[i, j] = part.abs().max() / torch.finfo(torch.float8_e4m3fn).max
    spread = factors.repeat_interleave(block, 0)[:rows].repeat_interleave(block, 1)[:, :columns]
    fp8 = (w / spread).to(torch.float8_e4m3fn)
    return fp8, factors, fp8.float() * spread


def stored(name, w):
    """The tensors that the file has for a weight, and the values that they represent."""
    if name.endswith("e_score_correction_bias"):
        return {name: w}, w
    if w.dim() == 1 or name.endswith(("embed_tokens.weight", "lm_head.weight", "mlp.gate.weight")):
        return {name: w.bfloat16()}, w.bfloat16().float()
    fp8, factors, plain = quantise(w)
    return {name: fp8, f"{name}_scale_inv": factors}, plain


def make_fp8(name="deepseek-v3-fp8"):
    folder, plain_config = HERE / name, {k: v for k, v in FP8.items() if k != "quantization_config"}
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(FP8, indent=2, sort_keys=True) + "\n")
    for seed in range(100):
        torch.manual_seed(seed)
        with tempfile.TemporaryDirectory() as plain, torch.no_grad():
            plain = Path(plain)
            (plain / "config.json").write_text(json.dumps(plain_config))
            model = AutoModelForCausalLM.from_config(load_config(plain)).eval().float()
            randomise(model, False)
            weights = hub_tensors(model, False, lambda p: p)
            weights |= {n: b.clone() for n, b in model.named_buffers() if n.endswith("correction_bias")}
            file, values = {}, {}
            for n, w in weights.items():
                tensors, values[n] = stored(n, w)
                file |= tensors
            write_weights(plain, values, 1)
            model = AutoModelForCausalLM.from_pretrained(plain, config=load_config(plain), dtype=torch.float32).eval()
            text = torch.randint(FP8["vocab_size"], (2, 17))
            tokens, targets = text[:, :-1].contiguous(), text[:, 1:].contiguous()
            margin = check_routing(model, tokens)
            if margin <= MARGIN:
                continue
            logits = model(tokens, use_cache=False).logits
            loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
            write_weights(folder, file, 1)
            e4m3 = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
            expected = {"tokens": tokens, "targets": targets, "logits": logits, "loss": loss.reshape(1), "e4m3": e4m3}
            save_file(expected, folder / "expected.safetensors")
            size = sum(f.stat().st_size for f in folder.iterdir())
            return print(f"{name:26} seed {seed}  margin {margin:.1e}  loss {loss.item():.4f}  {size / 1024:.0f} KiB")
    raise AssertionError(f"{name}: no seed with clear choices")


if __name__ == "__main__":
    for fixture in sys.argv[1:] or [*FIXTURES, "deepseek-v3-fp8"]:
        make_fp8() if fixture == "deepseek-v3-fp8" else make(fixture, *FIXTURES[fixture])
