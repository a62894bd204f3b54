#!/usr/bin/env bash
# Checks the GPU kernels of crates/fused and crates/moe without a GPU: tests them on CubeCL's CPU runtime, on lavapipe
# (Mesa's Vulkan driver in software) and on an emulated CUDA card (tools/cuda-emulator), counts a model's kernel
# launches there, trains on lavapipe and on four emulated cards, and compiles each kernel for A100 and H100.
#
#   bash scripts/check-kernels.sh
#
# A kernel becomes CUDA C++ and, through LLVM, PTX; NVIDIA's tools assemble both. The script fails if a test fails, if a
# kernel is not listed, does not compile or spills registers, or if a kernel for wgmma has no wgmma in its machine code.
# It prints the GPU resources of each kernel.
#
# The tools come from PyPI and stay in ${XDG_CACHE_HOME:-$HOME/.cache}/kiln-ptxas, about 350 MB.
#
# If KILN_PASSED is a folder, the script records there which programs have passed, and for a week does not run them again
# unless they change, or something that they depend on: the sources of kernels, the tools, lavapipe, the emulator, the
# processor or environment variables. It names each one that it does not run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tools=${XDG_CACHE_HOME:-$HOME/.cache}/kiln-ptxas
packages=scripts/kernel-tools.txt # with the digest of every archive
source scripts/kernel-tests.sh
readarray -t build < <(kernel_build llvm)

say() { printf 'check-kernels, %d s: %s\n' "$SECONDS" "$*"; }

fail() {
    say "$*" >&2
    exit 1
}

# The list of packages is copied last, so that an incomplete installation is not taken for complete.
install_tools() {
    if cmp --quiet "$packages" "$tools/packages"; then
        say "NVIDIA's tools are in $tools"
        return
    fi
    say "installing $packages into $tools"
    bash scripts/make-venv.sh "$work/venv"
    rm -rf "$tools"
    "$work/venv/bin/pip" install --quiet --disable-pip-version-check --target "$tools" \
        --require-hashes --requirement "$packages" ||
        fail "pip cannot install NVIDIA's tools, and without them nothing is checked"
    cp "$packages" "$tools/packages"
}

# The test programs but for those of these names, as `WHERE NAME PATH DIGEST`: all_but WHERE [NAME...]
all_but() { awk -v names=" ${*:2} " -v where="$1" '!index(names, " " $2 " ") { print where, $2, $3, $4 }' "$work/programs"; }

# Prints everything but the programs that results may depend on.
surroundings() {
    cat scripts/check-kernels.sh scripts/check_kernels.py scripts/emulated-cuda.sh "$packages"
    find crates/{fused,moe}/src -name '*.rs' | sort | xargs cat # some programs look for kernels there
    cat "$lavapipe" "${lavapipe%/run}"/usr/lib/*/*.so*
    bash scripts/emulated-cuda.sh bash -c 'cat "$CUDA_PATH"/../lib/*.so*'
    nproc
    grep -m 2 -E '^(model name|flags|Features)' /proc/cpuinfo || true
    env | grep -E '^(KILN|CUBECL|LP|GALLIVM|MESA|VK|LD|RAYON|RUST|PROPTEST)_' | grep -v '^KILN_\(PASSED\|CI_CACHE\)' | sort || true
}

# The file that says that a program has passed, with the profile of its kernels: record WHERE DIGEST
record() { echo "$passed/$(cat - "$work/surroundings" <<<"$*" | sha256sum | cut -d " " -f 1)"; }

# write_record RECORD FILE
write_record() { cp "$2" "$1.new" && mv "$1.new" "$1"; }

digest() { cat "$@" | sha256sum | cut -d " " -f 1; }

# Runs `WHERE NAME PROGRAM DIGEST` of each line, as many at once as there are cores: most of the time CubeCL compiles kernels
# on one thread, and cargo would run one program after another. A program's output is shown when it has ended. WHERE is the
# width of lavapipe's vectors in bits, `cpu` for CubeCL's CPU runtime, or `cuda` for emulated cards.
run_tests() {
    xargs --max-procs="$(nproc)" --max-args=4 bash -c '
        run=() name=$1 program=$2 record=$(record "$0" "$3")
        if [[ -f $record ]]; then
            printf "%s, %s: passed before, unchanged since\n" "$name" "$0"
            [[ $0 != cuda ]] || cp "$record" "$work/profiles/$name-$3"
            exit
        fi
        profile=$(mktemp --tmpdir="$work/profiles")
        case $0 in
        cpu) ;;
        cuda)
            run=(bash "$PWD/scripts/emulated-cuda.sh")
            export KILN_KERNEL_DEVICE=cuda KILN_EMULATED_CARDS=4 KILN_EMULATED_MEMORY=2G KILN_EMULATED_CHECKS=partial_stores CUBECL_AUTOTUNE_LEVEL=0
            export KILN_EMULATED_PROFILE=$profile
            cd "$environment" || exit
            ;;
        *)
            run=("$lavapipe")
            export LP_NATIVE_VECTOR_WIDTH=$0 KILN_KERNEL_DEVICE=vulkan KILN_TEST_RUNNER=$lavapipe CUBECL_WGPU_DEFAULT_DEVICE=Cpu
            ;;
        esac
        out=$("${run[@]}" "$program" 2>&1); code=$?; printf "%s, %s: %s\n" "$name" "$0" "$out"
        [[ $code != 0 ]] || write_record "$record" "$profile"
        exit "$code"'
}

# Planes have one unit per 32 bits of a vector. `cube_listed` and `cube_ahead` test the code and the CPU runtime.
on_lavapipe() {
    local width
    for width in 256 128 512; do
        all_but "$width" cube_listed cube_ahead cube_training
    done
    awk '$2 == "cube_training" { print 256, $2, $3, $4 }' "$work/programs"
}

# Measuring an emulated card and choosing the fastest kernel takes minutes, so CubeCL caches the results in this folder.
on_cuda() {
    printf '[environment.path]\ndirectory = "%s"\n' "$environment" >"$environment/cubecl.toml"
    all_but cuda cube_listed cube_ahead
}

# Checks by the emulator's own count that kernels for tensor cores have used them.
check_profile() {
    python3 - "$work"/profiles/* <<'PYTHON'
import fileinput, sys
rows = (line.rstrip("\n").split("\t") for line in fileinput.input() if not line.startswith(("#", "model_us")))
used = {row[-1].split("_f_bf16")[0] for row in rows if row[4] != "0"}
wanted = {f"attention_{kernel}" for kernel in ("forward", "dkv", "dq")}
missing = wanted.union({"grouped_gemm_product", "grouped_gemm_weight_sum"}) - used
sys.exit(f"check-kernels: not executed on tensor cores: {', '.join(sorted(missing))}" if missing else 0)
PYTHON
}

work=$(mktemp -d)
compiling=
trap '[[ -z $compiling ]] || kill "$compiling" 2>/dev/null || true; rm -rf "$work"' EXIT
bash scripts/install-llvm.sh
lavapipe=$(bash scripts/install-lavapipe.sh)
environment=$(realpath -m "${CARGO_TARGET_DIR:-target}/emulated-cuda")
passed=$(realpath -m "${KILN_PASSED:-$work/passed}")
mkdir -p "$environment" "$passed" "$work/profiles"
# After a week, so that flaky tests run again now and then.
find "$passed" -maxdepth 1 -type f -regextype posix-extended -regex '.*/[0-9a-f]{64}' -mtime +6 -delete
export -f record write_record
export lavapipe environment work passed
install_tools
surroundings | sha256sum >"$work/surroundings"
cargo build --quiet "${build[@]}" --example compile_kernels
kernel_programs llvm | while read -r crate name program; do
    used=("$program")
    [[ $crate != train ]] || used+=("${CARGO_TARGET_DIR:-target}/debug/train") # these tests run it
    digest=$(digest "${used[@]}")
    echo "$crate" "$name" "$program" "$digest"
done >"$work/programs"
[[ -s $work/programs ]] || fail "there are no tests of kernels"
compiler=${CARGO_TARGET_DIR:-target}/debug/examples/compile_kernels
assembled=$(record ptxas "$(digest "$compiler")")
say "testing the kernels on the CPU"
if [[ ! -f $assembled ]]; then
    say "compiling them at the same time"
    # LLVM finds `exp` and the like in CUDA_PATH.
    CUDA_PATH=$tools/nvidia/cuda_nvcc "$compiler" "$work/code" >"$work/compiled" 2>&1 &
    compiling=$!
fi
all_but cpu cube_training | run_tests
say "testing them on lavapipe"
on_lavapipe | run_tests
say "testing them on emulated CUDA cards"
KILN_NVRTC_CACHE= bash scripts/emulated-cuda.sh cargo test --locked --quiet --package nvrtc-cache --test nvrtc -- --ignored
on_cuda | run_tests
check_profile
if [[ -f $assembled ]]; then
    say "assembled before, and unchanged since:"
    cat "$assembled"
    exit
fi
wait "$compiling" || { cat "$work/compiled" >&2; fail "a kernel does not compile"; }
say "assembling the kernels"
python3 scripts/check_kernels.py "$tools" "$work/code" | tee "$work/assembled"
write_record "$assembled" "$work/assembled"
