"""Makes the reference fixtures of multi-token prediction (DeepSeek-V3, arXiv 2412.19437, section 2.2), which
`transformers` does not have.

    python tests/reference/make_mtp_fixtures.py

The blocks are those of `transformers`. What turns them into modules is implemented here from the paper, with the
column order of the published weights. Folders and names follow `make_fixtures.py`, with the modules' layers after
the model's. `expected.safetensors` differs in the following:

    loss          [1] f32, the mean cross entropy of the next tokens
    mtp_losses    [depth] f32: for each module, the sum of the cross entropies of its targets / (batch * time)
    grad.*        of loss + 0.3 / depth * sum(mtp_losses)

Token 1 ends a document: module k has no target at position i if one of the tokens i+1 to i+k is token 1.
"""

import json
import shutil

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3DecoderLayer, DeepseekV3RMSNorm

from make_fixtures import HERE, MARGIN, V3, check_routing, hub_tensors, load_config, randomise, write_weights

COEF = 0.3
END_OF_TEXT = 1
FIXTURES = {
    "deepseek-v3-mtp-1": V3 | {"num_nextn_predict_layers": 1},
    "deepseek-v3-mtp-2": V3 | {"num_nextn_predict_layers": 2, "q_lora_rank": None, "num_hidden_layers": 1},
}


class Module(DeepseekV3DecoderLayer):
    """A decoder layer extended to a module of multi-token prediction, under the hub's names."""

    def __init__(self, config, layer):
        super().__init__(config, layer)
        d = config.hidden_size
        self.enorm, self.hnorm = DeepseekV3RMSNorm(d, config.rms_norm_eps), DeepseekV3RMSNorm(d, config.rms_norm_eps)
        self.eh_proj = nn.Linear(2 * d, d, bias=False)
        self.shared_head = nn.ModuleDict({"norm": DeepseekV3RMSNorm(d, config.rms_norm_eps)})

    def predict(self, hidden, embeddings, positions, rotary, mask):
        x = self.eh_proj(torch.cat([self.enorm(embeddings), self.hnorm(hidden)], dim=-1))
        x = self(x, attention_mask=mask, position_ids=positions, position_embeddings=rotary, use_cache=False)
        return self.shared_head["norm"](x[0] if isinstance(x, tuple) else x)


def losses(model, modules, text):
    tokens, targets = text[:, :-1], text[:, 1:]
    batch, time = tokens.shape
    hidden = model.model(tokens, use_cache=False).last_hidden_state  # after the final norm
    main = F.cross_entropy(model.lm_head(hidden).flatten(0, 1), targets.flatten())
    positions = torch.arange(time)[None]
    rotary = model.model.rotary_emb(hidden, positions)
    mask = torch.full((time, time), float("-inf")).triu(1)[None, None]
    further = []
    for k, module in enumerate(modules, 1):
        shifted = torch.zeros_like(tokens)
        shifted[:, : time + 1 - k] = text[:, k:]
        hidden = module.predict(hidden, model.model.embed_tokens(shifted), positions, rotary, mask)
        logits = model.lm_head(hidden)
        total = torch.zeros(())
        for row in range(batch):
            for i in range(time - k):
                if END_OF_TEXT not in text[row, i + 1 : i + k + 1]:
                    total = total + F.cross_entropy(logits[row, i], text[row, i + k + 1])
        further.append(total / (batch * time))
    return main, torch.stack(further)


class All(nn.Module):
    """A model and its modules, to be run together."""

    def __init__(self, model, further):
        super().__init__()
        self.model, self.further, self.config = model, further, model.config

    def forward(self, text):
        return losses(self.model, self.further, text)


def make(name):
    config, folder = FIXTURES[name], HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    parsed = load_config(folder)
    layers, depth = config["num_hidden_layers"], config["num_nextn_predict_layers"]
    for seed in range(100):  # until no choice of an expert is close
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(parsed).eval()
        both = All(model, nn.ModuleList(Module(parsed, layers + k) for k in range(depth)).eval())
        with torch.no_grad():
            randomise(both, False)
            text = torch.randint(2, config["vocab_size"], (2, 17))
            text[0, 6], text[0, 13], text[1, 9] = END_OF_TEXT, END_OF_TEXT, END_OF_TEXT
            margin = check_routing(both, text)
        if margin > MARGIN:
            break
    else:
        raise AssertionError(f"{name}: no seed with clear choices")

    main, further = both(text)
    (main + COEF / depth * further.sum()).backward()
    model.model.layers.extend(both.further)  # their names are then those of the hub
    weights = hub_tensors(model, False, lambda p: p)
    grads = hub_tensors(model, False, lambda p: p.grad)
    weights |= {n: b.clone() for n, b in model.named_buffers() if n.endswith("e_score_correction_bias")}
    for layer in range(layers, layers + depth):
        weights[f"model.layers.{layer}.embed_tokens.weight"] = weights["model.embed_tokens.weight"].clone()
        weights[f"model.layers.{layer}.shared_head.head.weight"] = weights["lm_head.weight"].clone()
    tokens, targets = text[:, :-1].contiguous(), text[:, 1:].contiguous()
    expected = {"tokens": tokens, "targets": targets, "loss": main.reshape(1), "mtp_losses": further}
    expected |= {f"grad.{n}": g for n, g in grads.items()}
    save_file({n: t.detach() for n, t in expected.items()}, folder / "expected.safetensors")
    write_weights(folder, weights, 1)
    size = sum(f.stat().st_size for f in folder.iterdir())
    print(f"{name:26} seed {seed}  margin {margin:.1e}  losses {main:.4f} {further.tolist()}  {size / 1024:.0f} KiB")


if __name__ == "__main__":
    for name in FIXTURES:
        make(name)
