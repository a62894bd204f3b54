#!/usr/bin/env bash
# Builds and runs programs outside of this workspace that use Kiln's crates as libraries, with their default features:
# tests/library/main.rs and the examples of the crates. Each program asserts what it shows.
#
#   bash scripts/check-library.sh
#
# The crate is generated in a temporary folder, with Cargo.lock of this workspace. It builds in the workspace's target
# folder, whose crates it uses.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

root=$PWD
crate=$(mktemp -d)
trap 'rm -rf "$crate"' EXIT
mkdir -p "$crate/src/bin"
cp Cargo.lock "$crate/"
cp tests/library/main.rs "$crate/src/bin/library.rs"
programs=(mlp vision_transformer lora resume own_loop expert_layer drop_in batches reshard collectives draw)
for name in "${programs[@]}" own_model; do
    cp crates/*/examples/"$name.rs" "$crate/src/bin/"
done
{
    cat <<END
[package]
name = "outside"
version = "0.0.0"
edition = "2024"
publish = false

[dependencies]
burn = { version = "=$(sed -n 's/^burn = { version = "=\([^"]*\)".*/\1/p' Cargo.toml)", default-features = false, features = ["std", "flex", "autodiff", "optim"] }
END
    # With `train`, all features are those of `cargo build --package train`, and Burn is not compiled again.
    grep -E '^(schemars|serde|tempfile) = ' Cargo.toml
    for name in checkpoint comm data fsdp fused model moe schedule train; do
        [[ $name == train ]] && package=train || package=kiln-$name
        echo "$name = { package = \"$package\", path = \"$root/crates/$name\" }"
    done
    # Kiln's own profiles: without optimization its loops are slow, and with other profiles everything is compiled anew.
    sed -n '/^\[profile\.dev\]/,$p' Cargo.toml
} >"$crate/Cargo.toml"
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$root/target}
cd "$crate"
cargo build --quiet --bins
for name in library "${programs[@]}"; do
    printf '%s: ' "$name"
    "$CARGO_TARGET_DIR/debug/$name"
done

# A model that Kiln does not know, from its command line: the losses of four ranks in a pipeline are those of one, and its
# checkpoint generates text.
loss() {
    "$CARGO_TARGET_DIR/debug/own_model" --model tiny --steps 20 --data shakespeare --out "$@" 2>&1 |
        sed -n 's/.*validation loss \([0-9.]*\) after 20 steps.*/\1/p'
}
one=$(loss one --gpus 1)
four=$(loss four --gpus 4 --set parallel.pp=2)
echo "own_model: validation loss $one on one rank, $four on four"
[[ -n $one && $one == "$four" ]]
"$CARGO_TARGET_DIR/debug/own_model" generate four --tokens 5 --prompt "To be" >/dev/null
