#!/usr/bin/env bash
# Interprets under Miri the unsafe code of crates/cpu, on its portable path, and the regions of crates/checkpoint.
#
#   bash scripts/check-miri.sh
#
# Miri is a component of a nightly toolchain (rustup toolchain install nightly --component miri). If it is missing, this
# fails with a message. In that case `scripts/check-sanitizers.sh memcheck` still finds reads of uninitialized memory,
# but no violations of the borrowing rules.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

toolchain=${MIRI_TOOLCHAIN:-nightly}
if ! cargo "+$toolchain" miri --version >/dev/null 2>&1; then
    printf 'check-miri: Miri is missing, and nothing was checked: rustup toolchain install %s --component miri\n' "$toolchain" >&2
    exit 1
fi
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/miri MIRIFLAGS="-Zmiri-disable-isolation ${MIRIFLAGS:-}"
# The profile of `cpu` has no checks, for speed.
checked=(--config profile.dev.package.kiln-cpu.debug-assertions=true --config profile.dev.package.kiln-cpu.overflow-checks=true)
cargo "+$toolchain" miri test --locked "${checked[@]}" --package kiln-cpu --lib --test memory
cargo "+$toolchain" miri test --locked --package kiln-checkpoint --lib region
