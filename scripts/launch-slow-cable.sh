#!/usr/bin/env bash
# Trains on two "machines" of two ranks each, whose cable becomes slow and loses packets for ten steps. The machines are
# network namespaces of this one. The run must go on without a restart, with the losses of four threads. Needs root, `ip`,
# `tc` and Open MPI.
#
#   bash scripts/launch-slow-cable.sh
#
# `tbf` limits the rate, and drops what does not fit into its short queue. Kernels with `netem` also delay packets and lose
# 1% of them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/launched.sh

run=(--model gpt2 --steps 40 --set model.n_layer=2 --set model.n_head=2 --set model.n_embd=64 --set train.seq_len=32)
run+=(--set train.sample_tokens=0 --set train.val_every=0 --set checkpoint.every=5 --set comm.timeout_seconds=20)
launch kiln-e kiln-f 10.213.80
until_step 10
for machine in "${machines[@]}"; do
    if tc -n "$machine" qdisc add dev eth0 root netem delay 20ms 5ms loss 1% rate 40mbit 2>/dev/null; then
        echo "--- $machine: 40 Mbit/s, 20 ms, 1% of the packets are lost ---"
    else
        tc -n "$machine" qdisc add dev eth0 root tbf rate 40mbit burst 16kb latency 5ms
        echo "--- $machine: 40 Mbit/s with a queue of 5 ms, which drops the rest; this kernel has no netem ---"
    fi
done
slow=$(date +%s%3N)
until_step 20
echo "--- ten steps took $((($(date +%s%3N) - slow) / 100))e-1 s; $(tc -n "${machines[0]}" -s qdisc show dev eth0 | grep -o 'dropped [0-9]*') packets ---"
for machine in "${machines[@]}"; do tc -n "$machine" qdisc delete dev eth0 root; done
wait $job
! grep -q '"event":"restart' "$work/run/metrics.jsonl" || { echo "a slow cable has cost a restart" >&2; exit 1; }
compare_losses
