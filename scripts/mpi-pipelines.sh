#!/usr/bin/env bash
# Times messages and a pipeline of two stages on two emulated machines: network namespaces of this machine, connected by a
# link of RATE in both directions. Needs root, `ip`, `tc` and Open MPI.
#
#   bash scripts/mpi-pipelines.sh [RATE [STEPS]]
#
# To compare two builds, give the folder of each in BINARIES, separated by spaces; each has `train` and `mpi_overlap`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
rate=${1:-400mbit} steps=${2:-7}
source scripts/namespaces.sh

if [[ -z ${BINARIES:-} ]]; then
    cargo build --locked -p train -p kiln-comm --features train/mpi,kiln-comm/mpi --bin train --example mpi_overlap
    built=$(realpath "${CARGO_TARGET_DIR:-target}/debug")
    BINARIES=$work/bin
    mkdir "$BINARIES"
    ln -s "$built/train" "$built/examples/mpi_overlap" "$BINARIES"
fi
subnet=10.213.79.0/24
two_machines kiln-a kiln-b "${subnet%.*}"
for machine in "${machines[@]}"; do
    # BBR's probing and acknowledgments delayed by 40 ms would be measured too.
    ip netns exec "$machine" sysctl -qw net.ipv4.tcp_congestion_control=reno
    ip -netns "$machine" route change "$subnet" dev eth0 quickack 1
    ip netns exec "$machine" tc qdisc add dev eth0 root tbf rate "$rate" burst 128kb latency 50ms
done

# on_machines PROGRAM ARGUMENT...: runs a rank on each machine.
on_machines() {
    "$work/on-machine" "${machines[0]}" mpirun --hostfile "$work/hosts" --map-by node -n 2 --bind-to none \
        --mca plm_rsh_agent "$work/rsh" --mca oob_tcp_if_include "$subnet" --mca btl_tcp_if_include "$subnet" "$@"
}

run=(--model gpt2 --steps "$steps" --set model.n_layer=8 --set model.n_embd=384 --set model.n_head=6
    --set train.global_batch_size=16 --set train.micro_batch_size=2 --set parallel.pp=2 --set metrics.every=1
    --set train.sample_tokens=0 --set train.val_batches=1 --set checkpoint.every=0)
for folder in $BINARIES; do
    echo "$folder"
    on_machines "$folder/mpi_overlap" 5 100 1 256 1024 4096
    on_machines "$folder/train" "${run[@]}" --out "$work/run" &>"$work/log" || { cat "$work/log"; exit 1; }
    grep -E "tok/s|computes" "$work/log"
    rm -r "$work/run"
done
