#!/usr/bin/env bash
# Gives broken input to everything that reads files from elsewhere, SECONDS (10) to each target of `fuzz/`:
#
#   bash scripts/fuzz.sh [SECONDS] [TARGET...]
#
# A target that crashes, hangs for a minute, or takes more than 2 GB ends it with an error; the input is then in fuzz/artifacts/. Stable Rust
# will do: its sanitizers' runtimes come with it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

seconds=${1:-10}
shift || true
built=${CARGO_TARGET_DIR:-$PWD/target}/fuzz
export RUSTC_BOOTSTRAP=1 CARGO_INCREMENTAL=0
if ! cargo fuzz --version >/dev/null 2>&1; then
    CARGO_TARGET_DIR=$built/cargo-fuzz cargo install --quiet --locked cargo-fuzz
fi
targets=("$@")
((${#targets[@]})) || mapfile -t targets < <(cargo fuzz list)
trap 'rm -rf /dev/shm/kiln-fuzz-* "${TMPDIR:-/tmp}"/kiln-fuzz-*' EXIT
for target in "${targets[@]}"; do
    mkdir -p "$built/corpus/$target" "fuzz/corpus/$target"
    printf '== fuzz %s for %s s\n' "$target" "$seconds"
    # What is found is kept outside of the tree; the small corpus in it is where it begins.
    cargo fuzz run --target-dir "$built" "$target" "$built/corpus/$target" "fuzz/corpus/$target" -- \
        -max_total_time="$seconds" -rss_limit_mb=2048 -malloc_limit_mb=1024 -timeout=60 -max_len=16384 -print_final_stats=1 2>&1 |
        grep -E --line-buffered 'ERROR|SUMMARY|panicked|stat::|Test unit|DONE|error' || [[ ${PIPESTATUS[0]} == 0 ]]
done
