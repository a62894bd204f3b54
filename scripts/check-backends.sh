#!/usr/bin/env bash
# Compares the expert layer on Burn's NdArray, for which there are no kernels, with `flex`; feeds Burn's data loader;
# and trains a model with the expert layer and Kiln's AdamW under Burn's `Learner`:
#
#   bash scripts/check-backends.sh
#
# The tests are a separate workspace, tests/backends, which compiles Burn with more backends and features. That takes
# about a minute and a half; later runs take about ten seconds.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/backends
cargo test --locked --manifest-path tests/backends/Cargo.toml
cargo run --locked --quiet --manifest-path tests/backends/Cargo.toml --example batches
