#!/usr/bin/env bash
# Trains on two "machines" of two ranks each, cuts the cable between them during a step, and connects it again later. The
# machines are network namespaces of this one. `train launch` continues on the first machine, and then on both; the losses
# must be those of four threads. Needs root, `ip` and Open MPI.
#
#   bash scripts/launch-cut-cable.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/launched.sh

run=(--model gpt2 --steps 60 --set train.sample_tokens=0 --set train.val_every=0 --set checkpoint.every=5 --set comm.timeout_seconds=5)
# Rank 0 fails in step 40, so that there is another restart after the cable is back.
faults="error:step=40,rank=0,attempt=2"
KILN_FAULTS=$faults launch kiln-c kiln-d 10.213.79 --set resilience.min_gpus=2
until_step 12
cut=$(date +%s%3N)
ip -netns "${machines[1]}" link set eth0 down
echo "--- the cable is cut after $(steps) steps ---"
until_on_two_ranks "$cut" "the cut"
ip -netns "${machines[1]}" link set eth0 up
until_its_end
