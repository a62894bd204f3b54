#!/usr/bin/env bash
# The kernels of llm.c's dev/cuda against their own references on the CPU, by their own programs, with smaller sizes and no timing.
#
#   git clone https://github.com/karpathy/llm.c
#   bash scripts/emulated-cuda.sh bash tools/cuda-emulator/truth/cuda/llmc.sh llm.c [NAME...]
#
# Takes the sources of one commit out of the clone, whatever is checked out there. Prints one line for each kernel. The eleven kernels
# that the emulator's README lists fail because of errors of their own.
set -uo pipefail

commit=f1e2ace651495b74ae22d45d1723443fd00ecd3a # 2025-05-10
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
clone=${1:?the path of a clone of llm.c}
shift
if ! git -C "$clone" cat-file -e "$commit^{commit}" 2>/dev/null; then
    echo "llmc.sh: '$clone' has no commit $commit of llm.c: clone it whole, or run 'git fetch' there" >&2
    exit 1
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git -C "$clone" archive "$commit" | tar --extract --directory "$work"
sources=$work/dev/cuda
chosen=" $* "

# program NAME FIRST LAST OPTION...: runs the kernels FIRST to LAST.
program() {
    local name=$1 runs=() kernel
    [[ $chosen == "  " || $chosen == *" $name "* ]] || return 0
    for kernel in $(seq "$2" "$3"); do runs+=(--run "$kernel"); done
    python3 "$here/run.py" "$sources/$name.cu" --set repeat_times=0 "${runs[@]}" "${@:4}" 2>&1 |
        grep --text -E '^emulated CUDA: kernel|error|Mismatch|Assertion|: (passed|exit status)' | grep --text -v 'from here on'
}

program adamw 1 2
program attention_forward 1 6 --set B=1 --set T=64
program attention_backward 1 8 --set B=1 --set T=64
program classifier_fused 1 5 --set B=2 --set T=16 --set V=5003
program crossentropy_forward 1 1 --set B=2 --set T=64 --set V=5003
program crossentropy_softmax_backward 1 1 --set B=2 --set T=16 --set V=5003
program encoder_forward 1 3 --set B=2 --set T=64
program encoder_backward 1 2 --set B=2 --set T=64
program fused_residual_forward 1 6 --set B=1 --set T=64
program gelu_forward 1 2 --set B=1 --set T=64
program gelu_backward 1 2 --set B=1 --set T=64
# Kernel 4 asserts fewer blocks than its own grid for an A100.
program global_norm 1 3
program layernorm_forward 1 6 --set B=1 --set T=64
# Kernels 8 and 9 are for multiples of 256 channels; kernel 1 is not for bf16.
program layernorm_backward 2 10 --set B=1 --set T=128 --set C=768
# Kernel 2 is cuBLAS, 3 is cuBLASLt.
program matmul_forward 1 1 --set B=1 --set T=128 --leave-out matmul_forward3
program matmul_forward 4 4 --set B=1 --set T=128 --leave-out matmul_forward3
# Kernel 5 is not for bf16, and there is no 6.
program matmul_backward_bias 1 4 --set B=1 --set T=128
program matmul_backward_bias 7 9 --set B=1 --set T=128
program permute 1 1
program residual_forward 1 2 --set B=1 --set T=64
program softmax_forward 1 8 --set B=1 --set T=16 --set V=1031
