#!/usr/bin/env bash
# Compares the expert layer on Burn's NdArray, for which there are no kernels, with `flex`, and feeds Burn's data loader:
#
#   bash scripts/check-backends.sh
#
# The test, tests/backends, is a separate workspace, because it compiles Burn with more backends. That takes about a
# minute; later runs take a few seconds.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/backends
cargo test --locked --manifest-path tests/backends/Cargo.toml
