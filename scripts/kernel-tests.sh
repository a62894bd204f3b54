# The test programs of kernels and of training on devices, for the scripts that run them; to be sourced in the
# repository's root.

# One set of packages and features, so that Burn is compiled once. (`cargo run` accepts one package, which gives the
# crates below Burn other features.) The argument is CubeCL's compiler for CUDA, `llvm` or `nvrtc`.
kernel_build() {
    local -A cuda=([llvm]=train/nccl [nvrtc]=train/cuda-cpp,train/nccl)
    printf '%s\n' --locked --package={kiln-moe,kiln-fused,kiln-model,kiln-comm,kiln-fsdp,train} \
        --features="kiln-moe/offline,kiln-fused/offline,train/cpu-jit,train/vulkan,${cuda[$1]}"
}

# Builds the test programs, and prints `CRATE NAME PATH` of each.
kernel_programs() {
    local build read='import json, sys
for line in map(json.loads, sys.stdin):
    if "test" in line.get("target", {}).get("kind", []) and line.get("executable"):
        print(line["package_id"].split("#")[0].split("/")[-1], line["target"]["name"], line["executable"])'
    readarray -t build < <(kernel_build "$1")
    cargo test "${build[@]}" --test 'cube*' --no-run --quiet --message-format=json-render-diagnostics | python3 -c "$read"
}
