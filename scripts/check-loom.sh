#!/usr/bin/env bash
# Runs the thread team of crates/fused in every order of its threads' steps (https://docs.rs/loom), with at most three changes of thread that nobody waited for.
#
#   bash scripts/check-loom.sh
#
# The model, crates/fused/loom, is a workspace of its own and takes some seconds.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/loom
cargo test --locked --lib --manifest-path crates/fused/loom/Cargo.toml
