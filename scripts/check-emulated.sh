#!/usr/bin/env bash
# Runs every test of kernels and of training on emulated CUDA cards (tools/cuda-emulator), for both architectures and
# both of CubeCL's compilers, LLVM and NVRTC, and prints a table. `scripts/check-kernels.sh` runs less of it: sm_80 by
# LLVM, and few layouts.
#
#   bash scripts/check-emulated.sh                   # everything, which takes hours
#   bash scripts/check-emulated.sh sm_90a            # one architecture
#   COMPILERS=nvrtc bash scripts/check-emulated.sh   # one compiler: llvm or nvrtc
#
# Fails if a test fails, if the emulator finds a fault, or if no grouped product has used `wgmma` by NVRTC on sm_90a; LLVM
# offers no `wgmma`. `ptxas` assembles every module.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

architectures=("$@")
((${#architectures[@]})) || architectures=(sm_80 sm_90a)
read -ra compilers <<<"${COMPILERS:-llvm nvrtc}"
source scripts/kernel-tests.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
environment=$(realpath -m "${CARGO_TARGET_DIR:-target}/emulated-cuda")
export KILN_KERNEL_DEVICE=cuda KILN_ALL_LAYOUTS=1 KILN_EMULATED_CARDS=4 KILN_EMULATED_MEMORY=2G KILN_EMULATED_CHECKS=partial_stores
export KILN_EMULATED_PTXAS=1 CUBECL_AUTOTUNE_LEVEL=0

# Runs one program and adds a row to the table.
check() {
    local compiler=$1 architecture=$2 crate=$3 name=$4 program=$5 before=$SECONDS passed
    if ! (cd "$environment" && KILN_EMULATED_ARCH=$architecture KILN_EMULATED_PROFILE=$work/$compiler-$architecture \
        bash "$OLDPWD/scripts/emulated-cuda.sh" "$program" --nocapture >"$work/log" 2>&1); then
        cat "$work/log"
        exit 1
    fi
    grep -h -o 'losses differ by .* at most' "$work/log" >>"$work/losses" || true
    passed=$(sed -n 's/^test result: ok. \([0-9]*\) passed.*/\1/p' "$work/log")
    printf '| %s | %s | %s: %s | %s | %s s |\n' "$compiler" "$architecture" "$crate" "$name" "$passed" $((SECONDS - before))
}

mkdir -p "$environment"
printf '[environment.path]\ndirectory = "%s"\n' "$environment" >"$environment/cubecl.toml"
bash scripts/install-llvm.sh >&2
printf '| compiler | architecture | test | passed | time |\n|---|---|---|---:|---:|\n'
for compiler in "${compilers[@]}"; do
    # Two programs need no card. cube_training takes longer than all others together, and is last in this order.
    kernel_programs "$compiler" | grep -v -e ' cube_listed ' -e ' cube_ahead ' | sort -k2,2 >"$work/programs"
    for architecture in "${architectures[@]}"; do
        while read -r crate name program; do
            check "$compiler" "$architecture" "$crate" "$name" "$program"
        done <"$work/programs"
        used='$5 != "0" && $NF ~ /grouped_gemm_product_wgmma/ { found = 1 } END { exit !found }'
        if [[ $compiler == nvrtc && $architecture == sm_90a ]] && ! awk -F'\t' "$used" "$work/$compiler-$architecture"; then
            printf '%s on sm_90a: no product has used wgmma\n' "$compiler" >&2
            exit 1
        fi
    done
done
sed 's/losses differ by \(.*\) at most/\1/' "$work/losses" | sort -g | tail -1 | sed 's/.*/losses of training differ from those of the CPU by & at most/'
