#!/usr/bin/env bash
# Trains on two "machines" of two ranks each, cuts the cable between them during a step, and connects it again later. The
# machines are network namespaces of this one. `train launch` continues on the first machine, and then on both; the losses
# must be those of four threads. Needs root, `ip` and Open MPI.
#
#   bash scripts/launch-cut-cable.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/namespaces.sh

cargo build --locked --workspace --features mpi --bin train
bin=$(realpath "${CARGO_TARGET_DIR:-target}/debug/train")
subnet=10.213.79.0/24
two_machines kiln-c kiln-d "${subnet%.*}"
run=(--model gpt2 --steps 60 --set train.sample_tokens=0 --set train.val_every=0 --set checkpoint.every=5 --set comm.timeout_seconds=5)
"$bin" "${run[@]}" --gpus 4 --out "$work/threads"

# Rank 0 fails in step 40, so that there is another restart after the cable is back.
export KILN_FAULTS="error:step=40,rank=0,attempt=2"
ip netns exec "${machines[0]}" unshare --uts bash -c 'hostname "$0" && exec "$@"' "${machines[0]}" \
    "$bin" launch --hosts "$work/hosts" --rsh "$work/rsh" \
    --mpirun "--mca oob_tcp_if_include $subnet --mca btl_tcp_if_include $subnet" \
    -- "${run[@]}" --restarts 4 --set resilience.min_gpus=2 --out "$work/run" &
job=$!
steps() { cat "$work/run/metrics.jsonl" 2>/dev/null | grep -c '"loss"' || true; }
until (($(steps) >= 12)); do
    kill -0 $job 2>/dev/null || { echo "the run ended by itself" >&2; exit 1; }
    sleep 0.1
done
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
python3 - "$work/threads/metrics.jsonl" "$work/run/metrics.jsonl" <<'EOF'
import json, sys

threads, run = ({line["step"]: line["loss"] for line in map(json.loads, open(name)) if "loss" in line} for name in sys.argv[1:])
worst = max(abs(run[step] - loss) / loss for step, loss in threads.items())
print(f"{len(run)} steps, losses within {worst:.1e} of those of four threads")
sys.exit(worst > 1e-5 or len(run) != len(threads))
EOF
