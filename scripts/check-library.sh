#!/usr/bin/env bash
# Builds and runs programs outside of this workspace that use Kiln's crates as libraries, with their default features
# (together: those of `train`): tests/library/main.rs and the examples of the crates. Most assert what they show.
#
#   bash scripts/check-library.sh
#
# The crate is generated in the workspace's target folder, with Cargo.lock of this workspace. It builds there too, and uses
# the crates that are there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

root=$PWD
CARGO_TARGET_DIR=$(realpath -m "${CARGO_TARGET_DIR:-target}")
export CARGO_TARGET_DIR
crate=$CARGO_TARGET_DIR/outside
rm -rf "$crate"
mkdir -p "$crate/src/bin"
cp Cargo.lock "$crate/"
# With their times (-p), so that cargo sees what has not changed.
cp -p tests/library/main.rs "$crate/src/bin/library.rs"
programs=(mlp vision_transformer lora resume own_loop expert_layer drop_in batches reshard collectives draw)
for name in "${programs[@]}" prepare report; do
    cp -p crates/*/examples/"$name.rs" "$crate/src/bin/"
done
cp -rp crates/train/examples/own_model "$crate/src/bin/"
{
    cat <<END
[workspace]

[package]
name = "outside"
version = "0.0.0"
edition = "2024"
publish = false

[features]
burn = [] # asked for by an example that tests/backends runs with it

[lints.rust]
warnings = "deny"

[dependencies]
burn = { version = "=$(sed -n 's/^burn = { version = "=\([^"]*\)".*/\1/p' Cargo.toml)", default-features = false, features = ["std", "flex", "autodiff", "optim"] }
END
    # With `train`, all features are those of `cargo build --package train`, and Burn is not compiled again.
    grep -E '^(schemars|serde|tempfile) = ' Cargo.toml
    for name in checkpoint comm data fsdp fused model moe plan report schedule train; do
        [[ $name == train ]] && package=train || package=kiln-$name
        echo "$name = { package = \"$package\", path = \"$root/crates/$name\" }"
    done
    # Kiln's own profiles: without optimization its loops are slow, and with other profiles everything is compiled anew.
    sed -n '/^\[profile\.dev\]/,$p' Cargo.toml
} >"$crate/Cargo.toml"
cd "$crate"
cargo build --quiet --bins
for name in library "${programs[@]}"; do
    printf '%s: ' "$name"
    "$CARGO_TARGET_DIR/debug/$name"
done

# A model defined outside of Kiln, trained from the command line: a pipeline on four ranks matches the losses of one rank,
# and its checkpoint resumes and generates text.
own_model=$CARGO_TARGET_DIR/debug/own_model
quietly() {
    "$@" >own_model.log 2>&1 || { cat own_model.log; exit 1; }
}
quietly "$own_model" --model tiny --steps 10 --data shakespeare --out four --gpus 4 --set parallel.pp=2 --set optim.schedule=constant
quietly "$own_model" --resume four --steps 20 --gpus 2
quietly "$own_model" generate four --tokens 5 --prompt "To be"
quietly "$own_model" --model tiny --steps 20 --data shakespeare --out same --gpus 1 --set optim.schedule=constant

# The programs that need arguments: a text becomes tokens, and the runs become a page.
printf 'To be, or not to be.\n%.0s' {1..100} >text.txt
"$CARGO_TARGET_DIR/debug/prepare" text.txt byte tokens
"$CARGO_TARGET_DIR/debug/report" page.html same four
[[ -s tokens/meta.json && -s page.html ]]
python3 - <<'END'
import json


def losses(run):
    lines = map(json.loads, open(f"{run}/metrics.jsonl"))
    return {line["step"]: line["loss"] for line in lines if "grad_norm" in line}


one, four = losses("same"), losses("four")
apart = max(abs(one[step] / four[step] - 1) for step in range(1, 21))
print(f"own_model: loss {one[1]:.4f} -> {one[20]:.4f}; four ranks, then two, differ by {apart:.1e} at most")
assert apart < 1e-5 and one[20] < 0.9 * one[1]
END
