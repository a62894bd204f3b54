#!/usr/bin/env bash
# Builds and runs a program outside of this workspace that uses Kiln's crates as libraries (tests/library/main.rs):
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
mkdir "$crate/src"
cp tests/library/main.rs "$crate/src/"
cp Cargo.lock "$crate/"
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
    # The program does not use `train`. With it, all features are those of `cargo build --package train`, and Burn is
    # not compiled again.
    for name in comm data fsdp model moe train; do
        [[ $name == train ]] && package=train || package=kiln-$name
        echo "$name = { package = \"$package\", path = \"$root/crates/$name\" }"
    done
    # Kiln's own profiles: without optimization its loops are slow, and with other profiles everything is compiled anew.
    sed -n '/^\[profile\.dev\]/,$p' Cargo.toml
} >"$crate/Cargo.toml"
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$root/target}
(cd "$crate" && cargo run --quiet)
