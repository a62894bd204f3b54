"""Loads exported folders with Hugging Face `transformers` and compares its logits with ours.

    cargo run -- logits --hf FOLDER --tokens "1,2,3;4,5,6" --out ours.safetensors
    python tests/reference/check_export.py FOLDER ours.safetensors --tokens "1,2,3;4,5,6"

    EXPORT_DIR=/tmp/exported cargo test --workspace --test hf_export -- --ignored
    python tests/reference/check_export.py /tmp/exported/*/

Without a file of logits the folder has one, `ours.safetensors`, with the tensors `tokens` and `logits`,
which the ignored test writes: there the logits are those of the model before it was exported.
"""

import argparse
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig
from transformers.utils import logging

logging.disable_progress_bar()
TOLERANCE = 1e-4


def check(folder, file, tokens):
    ours = load_file(file)
    tokens = ours["tokens"] if tokens is None else tokens
    config = AutoConfig.from_pretrained(folder, attn_implementation="eager", experts_implementation="eager")
    GenerationConfig.from_pretrained(folder)
    model, info = AutoModelForCausalLM.from_pretrained(
        folder, config=config, dtype=torch.float32, output_loading_info=True)
    wrong = {kind: keys for kind, keys in info.items() if keys}
    assert not wrong, f"{folder}: {wrong}"
    with torch.no_grad():
        off = (model.eval()(tokens).logits - ours["logits"]).abs().max().item()
    largest = ours["logits"].abs().max().item()
    print(f"{folder}: {config.model_type}, dtype {config.dtype}, logits up to {largest:.2f}, off by {off:.1e}")
    assert off <= TOLERANCE, f"{folder}: off by {off}, more than {TOLERANCE}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=Path, help="folders, or a folder and a file of logits")
    parser.add_argument("--tokens", help="as given to `logits`")
    args = parser.parse_args()
    if args.tokens:
        tokens = torch.tensor([[int(token) for token in text.split(",")] for text in args.tokens.split(";")])
        check(args.paths[0], args.paths[1], tokens)
    else:
        for path in args.paths:
            check(path, path / "ours.safetensors", None)
