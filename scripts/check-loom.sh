#!/usr/bin/env bash
# Runs the thread team of crates/cpu in every order of its threads' steps (https://docs.rs/loom), with at most three
# preemptions.
#
#   bash scripts/check-loom.sh
#
# The model, crates/cpu/loom, is a separate workspace and takes a few seconds.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/loom
cargo test --locked --lib --manifest-path crates/cpu/loom/Cargo.toml
