#!/usr/bin/env bash
# Runs a command with CUDA cards that are emulated on the CPU, without a GPU or an NVIDIA driver.
#
#   bash scripts/emulated-cuda.sh COMMAND [ARGUMENT...]
#   KILN_EMULATED_ARCH=sm_90a bash scripts/emulated-cuda.sh cargo run --release --features cuda -- ...
#
# Builds the driver and NCCL of tools/cuda-emulator, which replace libcuda.so.1 and libnccl.so.2, and a libnvrtc.so that
# compiles each program once; its README lists the settings. The first run also downloads NVRTC, CUDA's headers, libdevice
# and ptxas from PyPI, about 350 MB. Everything stays in ${XDG_DATA_HOME:-$HOME/.local/share}/kiln-emulated-cuda.
#
# The command sees LD_LIBRARY_PATH, CUDA_PATH, CUDA_HOME and CUDA_LIBRARY_PATH, and runs in the current folder.
# KILN_EMULATED_PTXAS=1 uses the ptxas of that installation. Nothing that runs here is a result of a GPU.
set -euo pipefail

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
packages=$repository/scripts/kernel-tools.txt # with the digest of every archive
home=${XDG_DATA_HOME:-$HOME/.local/share}/kiln-emulated-cuda

say() { printf 'emulated-cuda: %s\n' "$*" >&2; }

fail() {
    say "$*"
    exit 1
}

# A toolkit like /usr/local/cuda, made of links to the folders of the wheels. The list of packages is written last, so
# that an incomplete toolkit is not taken for complete.
install_toolkit() {
    cmp --quiet "$packages" "$home/packages" && return
    local work new
    mkdir -p "$home"
    work=$(mktemp --directory --tmpdir="$home" new.XXXXXX)
    # shellcheck disable=SC2064 # the folder of now
    trap "rm -rf '$work'" EXIT
    say "taking NVRTC, headers, libdevice and ptxas from PyPI into $home"
    bash "$repository/scripts/make-venv.sh" "$work/venv" >&2
    "$work/venv/bin/pip" install --quiet --disable-pip-version-check --target "$work/wheels" --require-hashes --requirement "$packages" >&2 ||
        fail "pip cannot install NVIDIA's compilers; a program that brings its own PTX needs only the driver"
    new=$work/toolkit
    mkdir -p "$new"/{include,bin,lib64,nvvm}
    local nvidia=../../wheels/nvidia package entry
    for package in cuda_runtime cuda_cccl cuda_nvcc cuda_nvrtc; do
        for entry in "$work/wheels/nvidia/$package/include"/*; do
            [[ -e $new/include/${entry##*/} ]] || ln -s "$nvidia/$package/include/${entry##*/}" "$new/include/"
        done
    done
    # From CUDA 13 on, these headers have their own folder.
    ln -s "$nvidia/cuda_cccl/include" "$new/include/cccl"
    ln -s "$nvidia/cuda_nvcc/bin/ptxas" "$new/bin/"
    for entry in "$work/wheels/nvidia/cuda_nvrtc/lib"/*.so*; do
        ln -s "$nvidia/cuda_nvrtc/lib/${entry##*/}" "$new/lib64/"
    done
    ln -s libnvrtc.so.12 "$new/lib64/libnvrtc.so"
    for entry in "$work/wheels/nvidia/cuda_nvcc/nvvm"/*; do
        ln -s "$nvidia/cuda_nvcc/nvvm/${entry##*/}" "$new/nvvm/"
    done
    rm -rf "$home/wheels" "$home/toolkit" "$home/compiled"
    mv "$work/wheels" "$home/wheels"
    mv "$new" "$home/toolkit"
    rm -rf "$work"
    cp "$packages" "$home/packages"
}

# A running program keeps its library: the new one takes over the name in one step.
install_library() {
    cmp --quiet "$1" "$home/lib/$2" && return
    cp "$1" "$home/lib/$2.$$"
    mv "$home/lib/$2.$$" "$home/lib/$2"
}

# NCCL gets no link `libnccl.so`: CubeCL looks for that name alone, and would move tensors by its own use of NCCL.
install_libraries() {
    local target
    target=$(cd "$repository" && cargo metadata --locked --offline --no-deps --format-version=1 2>/dev/null |
        python3 -c 'import json, sys; print(json.load(sys.stdin)["target_directory"])') || target=$repository/target
    (cd "$repository" && cargo build --locked --quiet --release --package cuda-driver --package emulated-nccl --package nvrtc-cache)
    mkdir -p "$home/lib"
    install_library "$target/release/libemulated_cuda.so" libcuda.so.1
    install_library "$target/release/libemulated_nccl.so" libnccl.so.2
    install_library "$target/release/libnvrtc_cache.so" libnvrtc.so
    ln -sf libcuda.so.1 "$home/lib/libcuda.so"
    # What programs are linked with, where a toolkit has it.
    mkdir -p "$home/toolkit/lib64/stubs"
    ln -sf ../../../lib/libcuda.so.1 "$home/toolkit/lib64/stubs/libcuda.so"
}

case ${1:-} in
-h | --help)
    sed -n '2,/^set /{s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
    exit
    ;;
esac
[[ $# -gt 0 ]] || fail "no command is given: bash scripts/emulated-cuda.sh COMMAND [ARGUMENT...]"
install_toolkit
install_libraries
export CUDA_PATH=$home/toolkit CUDA_HOME=$home/toolkit CUDA_LIBRARY_PATH=$home/toolkit
export LD_LIBRARY_PATH=$home/lib:$home/toolkit/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export KILN_NVRTC_CACHE=${KILN_NVRTC_CACHE-$home/compiled}
# CubeCL caches measurements by the kind of card. Those of emulated cards must not be used for real ones.
export CUBECL_ENVIRONMENT=${CUBECL_ENVIRONMENT:-emulated-cuda}
[[ ${KILN_EMULATED_PTXAS:-} != 1 ]] || export KILN_EMULATED_PTXAS=$home/toolkit/bin/ptxas
exec "$@"
