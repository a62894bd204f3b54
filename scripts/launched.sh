# Two machines that train by `train launch`, for scripts that `source` this file. It builds $bin, and the scripts set $run to
# the arguments of the run.

source scripts/namespaces.sh
cargo build --locked --workspace --features mpi --bin train
bin=$(realpath "${CARGO_TARGET_DIR:-target}/debug/train")

# launch NAME NAME PREFIX OPTION...: trains on four threads, then starts to train on two machines with two ranks each, and
# with further options. The job is $job.
launch() {
    local subnet=$3.0/24
    two_machines "$1" "$2" "$3"
    shift 3
    "$bin" "${run[@]}" --gpus 4 --out "$work/threads"
    local command=("$bin" launch --hosts "$work/hosts" --rsh "$work/rsh")
    command+=(--mpirun "--mca oob_tcp_if_include $subnet --mca btl_tcp_if_include $subnet")
    command+=(-- "${run[@]}" --restarts 4 "$@" --out "$work/run")
    "$work/on-machine" "${machines[0]}" "exec ${command[*]@Q}" &
    job=$!
}

steps() { cat "$work/run/metrics.jsonl" 2>/dev/null | grep -c '"loss"' || true; }

# until_step N: waits until the run has made N steps.
until_step() {
    until (($(steps) >= $1)); do
        kill -0 $job 2>/dev/null || { echo "the run ended by itself" >&2; exit 1; }
        sleep 0.05
    done
}

# until_on_two_ranks SINCE WHAT: waits until the run has made a step on two ranks, and says how long after WHAT, at the time SINCE.
until_on_two_ranks() {
    local before
    until grep -q 'on 2 ranks' "$work/run/metrics.jsonl"; do
        kill -0 $job 2>/dev/null || { echo "the run did not survive" >&2; exit 1; }
        sleep 0.1
    done
    before=$(steps)
    until (($(steps) > before)); do sleep 0.1; done
    echo "--- the next step on two ranks came $((($(date +%s%3N) - $1) / 100))e-1 s after $2 ---"
}

# until_its_end: waits for the run, prints its restarts, and fails unless it has grown back to four ranks with the losses of
# four threads.
until_its_end() {
    wait $job
    grep -oE '"event":"(restart|resumed|degraded)[^"]*' "$work/run/metrics.jsonl"
    grep -q 'resumed from .* on 4 ranks' "$work/run/metrics.jsonl" || { echo "it did not grow back to 4 ranks" >&2; exit 1; }
    compare_losses
}

# compare_losses: fails unless each step of the run has the loss of four threads, within 1e-5.
compare_losses() {
    python3 - "$work/threads/metrics.jsonl" "$work/run/metrics.jsonl" <<'EOF'
import json, sys

threads, run = ({line["step"]: line["loss"] for line in map(json.loads, open(name)) if "loss" in line} for name in sys.argv[1:])
worst = max(abs(run[step] - loss) / loss for step, loss in threads.items())
print(f"{len(run)} steps, losses within {worst:.1e} of those of four threads")
sys.exit(worst > 1e-5 or len(run) != len(threads))
EOF
}
