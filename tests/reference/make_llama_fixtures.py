"""Makes the reference fixtures of the models with Llama's blocks: Llama, Mistral, Qwen2, Qwen3, Mixtral and Qwen3-MoE.

    python tests/reference/make_llama_fixtures.py      # all of them, or the names given as arguments

Files and names follow `make_fixtures.py`. qwen2, qwen2-window and qwen3-moe have the config.json that transformers 5 saves, the
others the hub's older key style. Experts are stored as on the hub, one matrix each: `block_sparse_moe.experts.N.w1`
(gate), `w3` (up) and `w2` (down) for Mixtral, `mlp.experts.N.gate_proj`, `up_proj` and `down_proj` for Qwen3-MoE. Tied
models have no lm_head. Each folder holds, in addition,

  training.safetensors a training from the weights of the folder by PyTorch's AdamW, with a new batch of random tokens
                       at each step: tokens [step, batch, time + 1] int64, of which a sequence's inputs are all but the
                       last and its targets all but the first; losses [step] f32, the mean cross entropy before the
                       update; grad_norms [step] f32, the L2 norm of all gradients before they are clipped

The training has a constant learning rate of 1e-3, betas 0.9 and 0.95, eps 1e-8, gradients clipped to a norm of 1, and
a decoupled weight decay of 0.1 on everything except vectors (the weights of norms and the biases). It has neither
dropout nor an auxiliary loss of the router. An expert without a token in a batch has a gradient of zeros, so its
moments and its weights change all the same.
"""

import copy
import sys
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from make_fixtures import HERE, check_routing, load_config, make

STEPS = 15
MARGIN = 5e-5  # in the training, of every choice of an expert

# No pad_token_id: the embedding of that token would get no gradient.
BASE = {
    "attention_dropout": 0.0, "bos_token_id": 0, "eos_token_id": 1, "hidden_act": "silu", "hidden_size": 32,
    "initializer_range": 0.02, "intermediate_size": 56, "max_position_embeddings": 64, "num_attention_heads": 4,
    "num_hidden_layers": 2, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "tie_word_embeddings": False, "torch_dtype": "float32", "use_cache": True, "vocab_size": 72,
}
# As often on the hub, there is a window that `use_sliding_window` turns off.
QWEN = BASE | {
    "max_window_layers": 1, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "sliding_window": 4,
    "use_sliding_window": False,
}
MOE = {"output_router_logits": False, "router_aux_loss_coef": 0.02}

# name: (config, options). Options: those of `make_fixtures.py`.
FIXTURES = {
    # A theta of 50 so that frequency 0 is kept, 1 and 2 are mixed and 3 to 5 divided.
    "llama-scaled-rope": (
        BASE | {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": False,
                "eos_token_id": [1, 3], "head_dim": 12, "max_position_embeddings": 256, "mlp_bias": False,
                "pretraining_tp": 1, "rope_theta": 50.0,
                "rope_scaling": {"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                                 "original_max_position_embeddings": 32, "rope_type": "llama3"}}, {},
    ),
    "qwen2": (
        QWEN | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "num_hidden_layers": 3,
                "num_key_value_heads": 1, "tie_word_embeddings": True}, {"resave": True},
    ),
    # Layer 0 sees all tokens, layers 1 and 2 a window: `layer_types` in the file that transformers saves.
    "qwen2-window": (
        QWEN | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "num_hidden_layers": 3,
                "sliding_window": 5, "use_sliding_window": True}, {"resave": True, "time": 20},
    ),
    # As above: frequency 0 is kept, 1 to 3 are mixed and 4 to 7 divided. cos and sin are scaled.
    "qwen3": (
        QWEN | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": False,
                "head_dim": 16, "max_position_embeddings": 128, "rope_theta": 50.0, "tie_word_embeddings": True,
                "rope_scaling": {"factor": 4.0, "original_max_position_embeddings": 32, "rope_type": "yarn"}}, {},
    ),
    "mistral-window": (
        BASE | {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 5}, {"time": 20},
    ),
    "mixtral": (
        BASE | MOE | {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "intermediate_size": 24,
                      "num_experts_per_tok": 2, "num_local_experts": 4, "rope_theta": 1000000.0,
                      "sliding_window": None}, {},
    ),
    "qwen3-moe": (
        QWEN | MOE | {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "attention_bias": False,
                      "decoder_sparse_step": 1, "head_dim": 12, "intermediate_size": 40, "mlp_only_layers": [0],
                      "moe_intermediate_size": 8, "norm_topk_prob": True, "num_experts": 8, "num_experts_per_tok": 3,
                      "num_hidden_layers": 3}, {"resave": True},
    ),
}


def check_rope(model, factor, kinds):
    """`kinds` has a letter for each frequency: k for kept, m for mixed, d for divided by the factor."""
    rotary = model.model.rotary_emb
    ratios = rotary.inv_freq / rotary.compute_default_rope_parameters(model.config)[0]
    near = lambda ratio, to: abs(ratio - to) < 1e-6
    found = "".join("k" if near(r, 1) else "d" if near(r, 1 / factor) else "m" for r in ratios.tolist())
    assert found == kinds, (found, ratios)


def check_window(model, folder, tokens):
    """Position i sees positions i - window + 1 to i; at the first one that does not see all, the logits change."""
    config, window = load_config(folder), model.config.sliding_window
    config.sliding_window = None
    full = AutoModelForCausalLM.from_pretrained(folder, config=config, dtype=torch.float32).eval()
    with torch.no_grad():
        off = (full(tokens).logits - model(tokens).logits).abs().amax((0, 2))
    assert off[:window].max() < 1e-6 and off[window:].min() > 1e-2, off


def check_routers(model, tokens):
    """The weights of the chosen experts are their probabilities among all experts, divided by their sum."""
    def look(gate, inputs, outputs):
        chosen = (inputs[0] @ gate.weight.T).softmax(-1).gather(-1, outputs[2])
        assert torch.allclose(outputs[1], chosen / chosen.sum(-1, keepdim=True), atol=1e-6)

    hooks = [m.register_forward_hook(look) for n, m in model.named_modules() if n.endswith("mlp.gate")]
    assert len(hooks) == 2
    with torch.no_grad():
        model(tokens)
    for hook in hooks:
        hook.remove()


def check_names(model, folder):
    """`transformers` saves the same tensors under the same names."""
    with tempfile.TemporaryDirectory() as saved:
        model.save_pretrained(saved)
        ours, theirs = load_file(folder / "model.safetensors"), load_file(Path(saved) / "model.safetensors")
    assert ours.keys() == theirs.keys(), ours.keys() ^ theirs.keys()
    assert all(torch.equal(ours[n], theirs[n]) for n in ours)


def train(model, text):
    """The losses and the norms of the gradients of a training, and the smallest margin of all choices."""
    model = copy.deepcopy(model).train()
    losses, norms, margins, parameters = [], [], [], list(model.parameters())
    optimizer = torch.optim.AdamW(
        [{"params": [p for p in parameters if p.dim() >= 2], "weight_decay": 0.1},
         {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0}],
        lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
    for batch in text:
        tokens, targets = batch[:, :-1], batch[:, 1:]
        with torch.no_grad():
            margins.append(check_routing(model, tokens))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens, use_cache=False).logits.flatten(0, 1), targets.flatten())
        loss.backward()
        losses.append(loss.detach())
        norms.append(torch.nn.utils.clip_grad_norm_(parameters, 1.0))
        optimizer.step()
    return torch.stack(losses), torch.stack(norms), min(margins)


def perturbed(model):
    model = copy.deepcopy(model)
    with torch.no_grad():
        for p in model.parameters():
            p *= 1 + 1e-6 * torch.randn_like(p)
    return model


def robust_training(model, time):
    """The tensors of training.safetensors and a description. Rounding must not change the course of the training."""
    for seed in range(100):
        torch.manual_seed(seed)
        text = torch.randint(model.config.vocab_size, (STEPS, 2, time + 1))
        losses, norms, margin = train(model, text)
        if margin <= MARGIN:
            continue
        off = max((train(perturbed(model), text)[0] - losses).abs().max().item() for _ in range(5))
        if off < 1e-5:
            tensors = {"tokens": text, "losses": losses, "grad_norms": norms}
            return tensors, f"seed {seed}  margin {margin:.1e}  perturbed off by {off:.0e}"
    raise AssertionError("no seed with a robust training")


def make_llama(name):
    config, options = FIXTURES[name]
    folder, time = HERE / name, options.get("time", 16)
    model, tokens = make(name, config, options)
    check_names(model, folder)
    if name == "llama-scaled-rope":
        check_rope(model, 8, "kmmddd")
    elif name == "qwen3":
        check_rope(model, 4, "kmmmdddd")
        assert abs(model.model.rotary_emb.attention_scaling - 1.1386294) < 1e-6
    elif name == "mistral-window":
        check_window(model, folder, tokens)
    elif name in ("mixtral", "qwen3-moe"):
        check_routers(model, tokens)
    tensors, how = robust_training(model, time)
    save_file(tensors, folder / "training.safetensors")
    losses, norms = tensors["losses"], tensors["grad_norms"]
    size = sum(f.stat().st_size for f in folder.iterdir())
    print(f"{'':12}training: {how}  losses {losses.min():.4f} to {losses.max():.4f}  "
          f"norms {norms.min():.2f} to {norms.max():.2f}  {size / 1024:.0f} KiB in all")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for fixture in sys.argv[1:] or FIXTURES:
        make_llama(fixture)
