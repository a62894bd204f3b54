#!/usr/bin/env bash
# Runs the unsafe code of crates/cpu under LLVM's sanitizers and valgrind: uninitialized memory, its parts for tasks, the
# thread team, products on this processor's vectors.
#
#   bash scripts/check-sanitizers.sh                       # all that can run here
#   bash scripts/check-sanitizers.sh address thread        # some of: address, thread, memcheck
#   bash scripts/check-sanitizers.sh address --all         # also the tests of fused, moe and comm: recompiles Burn, about ten minutes
#
# The stable toolchain includes the sanitizers' runtimes. Without the component rust-src the standard library is not
# instrumented: errors inside its compiled code go unseen, and ThreadSanitizer does not see that a thread which waited
# for one of its locks holds it. It then reports races on what the lock guards: dozens of them for `cpu`, all behind a
# lock or a channel of the standard library (rayon's sleep and latches, the test harness, `Crew`'s state). In that case
# only `check-loom.sh` can tell whether the thread team is correct. memcheck needs valgrind, which has no AVX-512.
# It finds reads of uninitialized memory, which none of these sanitizers does.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf 'check-sanitizers: %s\n' "$*"; }

all=
tools=()
for argument in "$@"; do
    case $argument in
        --all) all=yes ;;
        address | thread | memcheck) tools+=("$argument") ;;
        *) say "$argument is none of address, thread, memcheck and --all" >&2 && exit 2 ;;
    esac
done
[[ ${#tools[@]} -gt 0 ]] || tools=(address thread memcheck)

# Level 3 may remove a faulty access before a tool sees it.
checked=(--config profile.dev.package.kiln-cpu.debug-assertions=true --config profile.dev.package.kiln-cpu.overflow-checks=true
    --config profile.dev.package.kiln-cpu.opt-level=1)
of_cpu=(test --locked "${checked[@]}" --package kiln-cpu --lib --test memory)
host=$(rustc -vV | sed -n 's/^host: //p')
instrumented_std=()
if [[ -d $(rustc --print sysroot)/lib/rustlib/src/rust/library ]]; then
    instrumented_std=(-Zbuild-std)
fi
base=${CARGO_TARGET_DIR:-$PWD/target}/sanitizers

# sanitized NAME CARGO-ARGUMENTS...
sanitized() {
    local name=$1
    shift
    say "$name: cargo $*"
    RUSTC_BOOTSTRAP=1 CARGO_TARGET_DIR=$base/$name RUSTFLAGS="-Zsanitizer=$name -Cunsafe-allow-abi-mismatch=sanitizer" \
        TSAN_OPTIONS="halt_on_error=0 exitcode=66 ${TSAN_OPTIONS:-}" ASAN_OPTIONS="detect_leaks=0 ${ASAN_OPTIONS:-}" \
        cargo "$@" "${instrumented_std[@]}" --target "$host"
}

for tool in "${tools[@]}"; do
    if [[ $tool == memcheck ]]; then
        if ! command -v valgrind >/dev/null; then
            say "valgrind is missing: memcheck has not run (apt-get install valgrind)" >&2
            exit 1
        fi
        if grep -qw avx512f /proc/cpuinfo; then
            say "this processor has AVX-512, which valgrind has not: it hides it from the program, which takes AVX2"
        fi
        CARGO_TARGET_DIR=$base/memcheck cargo "${of_cpu[@]}" --no-run
        CARGO_TARGET_DIR=$base/memcheck cargo "${of_cpu[@]}" --no-run --message-format=json 2>/dev/null |
            python3 -c 'import json, sys; print(*filter(None, (json.loads(line).get("executable") for line in sys.stdin)), sep="\n")' |
            while read -r program; do
                say "memcheck: $program"
                valgrind --quiet --error-exitcode=99 --fair-sched=try "$program" --test-threads=1 </dev/null
            done
        continue
    fi
    sanitized "$tool" "${of_cpu[@]}"
    [[ -z $all ]] || sanitized "$tool" test --locked --package kiln-cpu --package kiln-fused --package kiln-moe --package kiln-comm
done
say "no errors in ${tools[*]}"
