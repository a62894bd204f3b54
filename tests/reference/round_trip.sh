#!/usr/bin/env bash
# Moves models between Hugging Face transformers and Kiln, both ways, with a Python that has requirements.txt installed:
#
#   PYTHON=python3 bash tests/reference/round_trip.sh
#
# * A model made by transformers is imported, trained for 5 steps and exported as fp32, bf16 and fp16. transformers
#   loads the folders, matches Kiln's logits to 1e-4, and continues a prompt in the same way.
# * For every fixture, and for models initialized by Kiln, transformers matches the logits from before the export.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

python=${PYTHON:-python3}
bin=${CARGO_TARGET_DIR:-target}/debug
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

cargo build --locked --package train
for _ in {1..60}; do printf 'The five boxing wizards jump quickly. '; done >"$out/text.txt"
short=(--set optim.warmup_steps=1 --set train.seq_len=16 --set train.global_batch_size=4 --set train.sample_tokens=0)
tokens="1,2,3,4,5,6,7,8;9,10,11,12,13,14,15,16"
prompt="The five"
continuation=16

there_and_back() {
    local name=$1 dtype export
    local run=$out/$name
    "$bin/train" import --hf "tests/reference/$name" --out "$run"
    "$bin/train" --resume "$run" --data "$out/text.txt" --set data.tokenizer=char --steps 5 "${short[@]}"
    "$bin/train" generate "$run" --prompt "$prompt" --tokens $continuation --temperature 0 >"$out/$name.txt"
    for dtype in fp32 bf16 fp16; do
        export=$out/$name-$dtype
        "$bin/train" export "$run" --out "$export" --dtype $dtype
        "$bin/train" logits --hf "$export" --tokens "$tokens" --out "$export.safetensors"
        "$python" tests/reference/check_export.py "$export" "$export.safetensors" --tokens "$tokens"
    done
    "$python" tests/reference/check_export.py "$out/$name-fp32" --prompt "$prompt" --continuation "$out/$name.txt"
}

there_and_back gpt2-a
there_and_back deepseek-v3-q-lora
there_and_back llama-scaled-rope
there_and_back qwen3-moe
mkdir "$out/exported"
EXPORT_DIR=$out/exported cargo test --locked --workspace --test hf_export -- --ignored
"$python" tests/reference/check_export.py "$out"/exported/*/
echo "transformers: all is well"
