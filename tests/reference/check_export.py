"""Loads exported folders with Hugging Face `transformers` and compares its logits, and its greedy choices, with
Kiln's.

    cargo run -- logits --hf FOLDER --tokens "1,2,3;4,5,6" --out ours.safetensors
    python tests/reference/check_export.py FOLDER ours.safetensors --tokens "1,2,3;4,5,6"

    cargo run -- generate RUN --prompt "The five" --tokens 16 --temperature 0 > ours.txt
    python tests/reference/check_export.py FOLDER --prompt "The five" --continuation ours.txt

    EXPORT_DIR=/tmp/exported cargo test --workspace --test hf_export -- --ignored
    python tests/reference/check_export.py /tmp/exported/*/

Without a file of logits, the folder contains one, `ours.safetensors`, with the tensors `tokens` and `logits`. The
ignored test writes it; the logits are then those of the model before the export.
"""

import argparse
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.utils import logging

logging.disable_progress_bar()
TOLERANCE = 1e-4


def load(folder):
    config = AutoConfig.from_pretrained(folder, attn_implementation="eager", experts_implementation="eager")
    GenerationConfig.from_pretrained(folder)
    model, info = AutoModelForCausalLM.from_pretrained(
        folder, config=config, dtype=torch.float32, output_loading_info=True)
    # transformers has no multi-token prediction: it ignores the layers after the model's own.
    further = getattr(config, "num_nextn_predict_layers", None) or 0
    layers = range(config.num_hidden_layers, config.num_hidden_layers + further)
    is_mtp = lambda key: any(key.startswith(f"model.layers.{layer}.") for layer in layers)
    info["unexpected_keys"] = [key for key in info["unexpected_keys"] if not is_mtp(key)]
    wrong = {kind: keys for kind, keys in info.items() if keys}
    assert not wrong, f"{folder}: {wrong}"
    return config, model.eval()


def check_logits(folder, file, tokens):
    ours = load_file(file)
    tokens = ours["tokens"] if tokens is None else tokens
    config, model = load(folder)
    with torch.no_grad():
        off = (model(tokens).logits - ours["logits"]).abs().max().item()
    largest = ours["logits"].abs().max().item()
    print(f"{folder}: {config.model_type}, dtype {config.dtype}, logits up to {largest:.2f}, off by {off:.1e}")
    assert off <= TOLERANCE, f"{folder}: off by {off}, more than {TOLERANCE}"


def check_continuation(folder, prompt, ours):
    _, model = load(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(prompt, return_tensors="pt")
    count = len(ours) - len(prompt)
    assert count > 0, f"{ours!r} does not go on"
    theirs = tokenizer.decode(model.generate(**inputs, do_sample=False, max_new_tokens=count)[0])
    print(f"{folder}: {theirs!r}")
    # A token may be more than a character, so theirs may be longer. They omit tokens that the model has and the
    # tokenizer lacks.
    assert theirs.startswith(ours.replace("\ufffd", "")), f"{folder}: we go on with {ours!r}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=Path, help="folders, or a folder and a file of logits")
    parser.add_argument("--tokens", help="as given to `logits`")
    parser.add_argument("--prompt", help="as given to `generate`")
    parser.add_argument("--continuation", type=Path, help="what `generate` has printed")
    args = parser.parse_args()
    if args.continuation:
        # `generate` ends its output with a line break.
        check_continuation(args.paths[0], args.prompt, args.continuation.read_text().removesuffix("\n"))
    elif args.tokens:
        tokens = torch.tensor([[int(token) for token in text.split(",")] for text in args.tokens.split(";")])
        check_logits(args.paths[0], args.paths[1], tokens)
    else:
        for path in args.paths:
            check_logits(path, path / "ours.safetensors", None)
