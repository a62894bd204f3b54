#!/usr/bin/env bash
# Trains on two "hosts" with two ranks each that communicate over TCP: two network namespaces of this machine, connected
# by a virtual cable. A second run must have bitwise the same losses. Four threads add gradients in another order, and must
# have the same losses to 1e-5. Needs root, `ip` and Open MPI.
#
#   bash scripts/mpi-two-hosts.sh [MODEL [STEPS]]
#
# On two real machines that reach each other by ssh, the equivalent is
#
#   mpirun --hostfile hosts -n 4 target/debug/train --model deepseek
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
model=${1:-deepseek} steps=${2:-5}
source scripts/namespaces.sh

cargo build --locked --workspace --features mpi --bin train
bin=$(realpath "${CARGO_TARGET_DIR:-target}/debug/train")
subnet=10.213.77.0/24
two_machines kiln-a kiln-b "${subnet%.*}"
run=(--model "$model" --steps "$steps" --set train.sample_tokens=0 --set train.val_batches=1)

# on_hosts RUN: trains on both hosts.
on_hosts() {
    "$work/on-machine" "${machines[0]}" mpirun --hostfile "$work/hosts" -n 4 --bind-to none \
        --mca plm_rsh_agent "$work/rsh" --mca oob_tcp_if_include "$subnet" --mca btl_tcp_if_include "$subnet" \
        "$bin" "${run[@]}" --out "$work/$1"
}

on_hosts hosts-run
for host in "${machines[@]}"; do
    printf '%s has sent %s bytes\n' "$host" "$(ip netns exec "$host" cat /sys/class/net/eth0/statistics/tx_bytes)"
done
on_hosts second-run
"$bin" "${run[@]}" --gpus 4 --out "$work/threads-run"

# losses RUN: the metrics without measurements of time.
losses() { grep -v -E '"(traffic|event|started|stages)":' "$work/$1/metrics.jsonl" | sed -E 's/,"(tokens_per_second|tflops|mfu|[a-z_]*_seconds)":[^,}]*//g'; }

# values RUN: the losses alone, one a line.
values() { grep -oE '"(loss|val_loss)":[0-9.e-]+' "$work/$1/metrics.jsonl" | cut -d: -f2; }

diff <(losses hosts-run) <(losses second-run) || { echo "two runs on two hosts differ" >&2; exit 1; }
paste <(values threads-run) <(values hosts-run) |
    awk -v lines=$((steps + 1)) '{ d = $1 - $2; if (d < 0) d = -d; if (d > 1e-5 * $1) bad = 1 } END { exit bad || NR != lines }' ||
    { echo "two hosts and four threads differ" >&2; paste <(values threads-run) <(values hosts-run) >&2; exit 1; }
echo "two hosts have the same losses twice, and those of four threads to 1e-5:"
losses hosts-run
