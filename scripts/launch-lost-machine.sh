#!/usr/bin/env bash
# Trains on two machines of two ranks each, and loses the second one with its memory during a step. `train launch` continues
# on the first machine, which has copies of all parts of a checkpoint in its memory, and then on both; the losses must be
# those of four threads. With `disk`, there are no checkpoints in memory. The machines are namespaces of this one. Needs root,
# `ip` and Open MPI.
#
#   bash scripts/launch-lost-machine.sh [disk]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/launched.sh

run=(--model gpt2 --steps 80 --set train.sample_tokens=0 --set train.val_every=0 --set checkpoint.every=30 --set comm.timeout_seconds=5)
every=$([[ ${1:-} == disk ]] && echo 0 || echo 5)
# Rank 0 fails in step 65, so that there is another restart after the machine is back.
KILN_FAULTS="error:step=65,rank=0,attempt=2" \
    launch kiln-g kiln-h 10.213.81 --set resilience.min_gpus=2 --set resilience.memory_every="$every"
until_step 57
lost=$(date +%s%3N)
lose_machine "${machines[1]}"
echo "--- the machine is lost after $(steps) steps ---"
until_on_two_ranks "$lost" "the loss"
start_machine "${machines[1]}"
until_its_end
# The newest checkpoint on disk was that of step 30.
grep -E 'recovered the checkpoint of step 5[05] from memory' "$work/run/logs/supervisor.txt" || [[ $every == 0 ]]
for machine in "${machines[@]}"; do
    left=$("$work/on-machine" "$machine" ls /dev/shm)
    ! grep kiln <<<"$left" || { echo "$machine still has checkpoints in memory" >&2; exit 1; }
done
