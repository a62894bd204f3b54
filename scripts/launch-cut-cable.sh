#!/usr/bin/env bash
# Trains on two "machines" of two ranks each, cuts the cable between them during a step, and connects it again later. The
# machines are network namespaces of this one. `train launch` continues on the first machine, and then on both; the losses
# must be those of four threads. Needs root, `ip` and Open MPI.
#
#   bash scripts/launch-cut-cable.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[[ $(id -u) == 0 ]] || { echo "network namespaces need root" >&2; exit 1; }

cargo build --locked --workspace --features mpi --bin train
bin=$(realpath "${CARGO_TARGET_DIR:-target}/debug/train")
work=$(mktemp -d)
hosts=(kiln-c kiln-d) addresses=(10.213.79.1 10.213.79.2) subnet=10.213.79.0/24

clean_up() {
    for host in "${hosts[@]}"; do
        ip netns pids "$host" 2>/dev/null | xargs -r kill -KILL 2>/dev/null || true
        ip netns delete "$host" 2>/dev/null || true
    done
    rm -rf "$work"
}
trap clean_up EXIT

for host in "${hosts[@]}"; do
    ip netns add "$host"
    ip -netns "$host" link set lo up
done
ip link add eth0 netns "${hosts[0]}" type veth peer name eth0 netns "${hosts[1]}"
for i in 0 1; do
    ip -netns "${hosts[i]}" address add "${addresses[i]}/24" dev eth0
    ip -netns "${hosts[i]}" link set eth0 up
done

# What is called instead of ssh: ADDRESS COMMAND... A machine without a cable does not answer.
cat >"$work/rsh" <<EOF
#!/usr/bin/env bash
host=${hosts[1]}
[[ \$1 != ${addresses[0]} ]] || host=${hosts[0]}
shift
ip -netns \$host link show eth0 | grep -q "[<,]UP[,>]" || { echo "no route to host" >&2; exit 255; }
exec ip netns exec "\$host" unshare --uts bash -c "hostname \$host && \$*"
EOF
chmod +x "$work/rsh"
printf '%s slots=2\n' "${addresses[@]}" >"$work/hosts"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
run=(--model gpt2 --steps 60 --set train.sample_tokens=0 --set train.val_every=0 --set checkpoint.every=5 --set comm.timeout_seconds=5)
"$bin" "${run[@]}" --gpus 4 --out "$work/threads"

# Rank 0 fails in step 40, so that there is another restart after the cable is back.
export KILN_FAULTS="error:step=40,rank=0,attempt=2"
ip netns exec "${hosts[0]}" unshare --uts bash -c 'hostname "$0" && exec "$@"' "${hosts[0]}" \
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
ip -netns "${hosts[1]}" link set eth0 down
echo "--- the cable is cut after $(steps) steps ---"
until grep -q 'on 2 ranks' "$work/run/metrics.jsonl"; do
    kill -0 $job 2>/dev/null || { echo "the run did not survive" >&2; exit 1; }
    sleep 0.1
done
before=$(steps)
until (($(steps) > before)); do sleep 0.1; done
echo "--- the next step on two ranks came $((($(date +%s%3N) - cut) / 100))e-1 s after the cut ---"
ip -netns "${hosts[1]}" link set eth0 up
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
