#!/usr/bin/env bash
# Feeds broken input to everything that reads files from elsewhere, for SECONDS (10) per target of `fuzz/`:
#
#   bash scripts/fuzz.sh [SECONDS] [TARGET...]
#
# The script ends with an error if a target crashes, hangs for a minute, or takes more than 2 GB. The input is then in
# fuzz/artifacts/. Stable Rust suffices, because it includes the sanitizers' runtimes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

seconds=${1:-10}
shift || true
built=${CARGO_TARGET_DIR:-$PWD/target}/fuzz
export RUSTC_BOOTSTRAP=1 CARGO_INCREMENTAL=0
if ! cargo fuzz --version >/dev/null 2>&1; then
    CARGO_TARGET_DIR=$built/cargo-fuzz cargo install --quiet --locked --debug --version 0.13.2 cargo-fuzz
fi
targets=("$@")
((${#targets[@]})) || mapfile -t targets < <(cargo fuzz list)
cargo metadata --quiet --locked --format-version 1 --manifest-path fuzz/Cargo.toml >/dev/null # cargo fuzz has no --locked
folder=/dev/shm # in memory, if possible
[[ -d $folder ]] || folder=${TMPDIR:-/tmp}
KILN_FUZZ_FOLDER=$(mktemp -d "$folder/kiln-fuzz-XXXXXX")
export KILN_FUZZ_FOLDER
trap 'rm -rf "$KILN_FUZZ_FOLDER"' EXIT
for target in "${targets[@]}"; do
    mkdir -p "$built/corpus/$target" "fuzz/corpus/$target"
    printf '== fuzz %s for %s s\n' "$target" "$seconds"
    # New inputs are kept outside the source tree. The small corpus in it is the starting point.
    cargo fuzz run --target-dir "$built" "$target" "$built/corpus/$target" "fuzz/corpus/$target" -- \
        -max_total_time="$seconds" -rss_limit_mb=2048 -malloc_limit_mb=1024 -timeout=60 -max_len=16384 -print_final_stats=1 2>&1 |
        grep -E --line-buffered '^(error|==[0-9]+==ERROR|SUMMARY|stat::|thread .* panicked)|Test unit|DONE' || [[ ${PIPESTATUS[0]} == 0 ]]
done
