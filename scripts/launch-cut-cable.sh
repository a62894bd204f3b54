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
until grep -q 'on 2 ranks' "$work/run/metrics.jsonl"; do
    kill -0 $job 2>/dev/null || { echo "the run did not survive" >&2; exit 1; }
    sleep 0.1
done
before=$(steps)
until (($(steps) > before)); do sleep 0.1; done
echo "--- the next step on two ranks came $((($(date +%s%3N) - cut) / 100))e-1 s after the cut ---"
ip -netns "${machines[1]}" link set eth0 up
wait $job
grep -oE '"event":"(restart|resumed|degraded)[^"]*' "$work/run/metrics.jsonl"
grep -q 'resumed from .* on 4 ranks' "$work/run/metrics.jsonl" || { echo "it did not grow back to 4 ranks" >&2; exit 1; }
compare_losses
