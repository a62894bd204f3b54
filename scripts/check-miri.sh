#!/usr/bin/env bash
# Interprets the unsafe code of crates/fused that needs no Burn, on its portable path, and the regions of crates/checkpoint under Miri.
#
#   bash scripts/check-miri.sh
#
# Miri is a component of a nightly toolchain (rustup toolchain install nightly --component miri). Where it is missing this fails, and says so;
# `scripts/check-sanitizers.sh memcheck` then sees reads of memory that is not set, and none of the rules of borrows.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

toolchain=${MIRI_TOOLCHAIN:-nightly}
if ! cargo "+$toolchain" miri --version >/dev/null 2>&1; then
    printf 'check-miri: Miri is missing, and nothing was checked: rustup toolchain install %s --component miri\n' "$toolchain" >&2
    exit 1
fi
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/miri MIRIFLAGS="-Zmiri-disable-isolation ${MIRIFLAGS:-}"
cargo "+$toolchain" miri test --locked --lib --manifest-path crates/fused/alone/Cargo.toml
cargo "+$toolchain" miri test --locked --package checkpoint --lib region
