#!/usr/bin/env bash
# Tests ranks that are processes started by Open MPI's mpirun, on this machine:
#
#   bash tests/mpi/run.sh
#
# * The collectives keep their properties, on one machine and as if on two: crates/comm/examples/mpi_properties.rs.
# * Four processes match the losses of four threads, to the last digit.
# * They wait for one that prepares data as long as comm.init_timeout_seconds allows.
# * `train launch` restarts a run after a kill and a panic, and leaves out a machine that does not answer. It removes the
#   shared memory of a killed mpirun.
# * Random faults end with the losses of undisturbed runs: crates/train/tests/resilience/chaos.rs.
# * If a process panics or is killed, all others end within ten seconds, and the output names its rank.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

cargo build --locked --workspace --features mpi --bin train --example mpi_properties
bin=${CARGO_TARGET_DIR:-target}/debug
out=$(mktemp -d)
job=
trap '[[ -z $job ]] || kill "$job" 2>/dev/null || true; rm -rf "$out"' EXIT

# Allows more processes than cores, and containers: running as root, and without the right to read each other's memory.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_btl_vader_single_copy_mechanism=none
mpirun=(mpirun --oversubscribe --bind-to none -n 4)
short=(--set train.sample_tokens=0 --set train.val_batches=1)
seconds_to_end=10
killed=2

fail() {
    printf 'FAILED: %s\n' "$*" >&2
    exit 1
}

# now: the time in milliseconds.
now() { date +%s%3N; }

properties() {
    local property per_machine
    for property in collectives small_parts mismatch abort under_way slow_to_drop leave moving_mail agreed agreed_leave agreed_abort timeout; do
        for per_machine in 4 2; do
            timeout 300 "${mpirun[@]}" "$bin/examples/mpi_properties" "$property" "$per_machine" ||
                fail "the property of $property with $per_machine ranks on each machine"
        done
    done
}

# losses FOLDER: the metrics without measurements of time and data of processes.
losses() {
    grep -vE '"(traffic|event|started|stages)":' "$1/metrics.jsonl" | sed -E 's/,"(tokens_per_second|tflops|mfu|[a-z_]*_seconds)":[^,}]*//g'
}

# same_losses MODEL STEPS OPTION...
same_losses() {
    local model=$1 steps=$2 folder name
    shift 2
    name=$model-$(tr -dc 'a-z0-9' <<<"$*")
    timeout 600 "$bin/train" --model "$model" --steps "$steps" "${short[@]}" "$@" --gpus 4 --out "$out/$name-threads"
    timeout 600 "${mpirun[@]}" "$bin/train" --model "$model" --steps "$steps" "${short[@]}" "$@" --out "$out/$name-mpi"
    [[ $(losses "$out/$name-mpi" | grep -cE '"(loss|val_loss)":') == $((steps + 1)) ]] || fail "$name: not a line a step and one of validation"
    diff <(losses "$out/$name-threads") <(losses "$out/$name-mpi") || fail "$name: processes and threads differ"
    folder=$(find "$out" -mindepth 1 -maxdepth 1 -name "$name*" | wc -l)
    [[ $folder == 2 ]] || fail "$name: $folder run folders instead of 2"
    echo "$model $*: four processes have the losses of four threads"
}

# with_data_late SECONDS OPTION...: a run whose rank 0 gets its data later than the others, as on a separate machine.
# Another process that prepares the data delays it.
with_data_late() {
    local seconds=$1 key of_rank='KILN_CACHE=$0/$([[ $OMPI_COMM_WORLD_RANK == 0 ]] && echo cold || echo warm) exec "$@"'
    shift
    rm -rf "$out/warm" "$out/cold" "$out/late"
    KILN_CACHE=$out/warm "$bin/train" --model gpt2 --steps 1 "${short[@]}" --out "$out/warm/run" >/dev/null 2>&1
    key=$(ls "$out/warm/prepared")
    mkdir -p "$out/cold/prepared"
    flock "$out/cold/prepared/.$key.lock" sleep "$seconds" &
    timeout 120 "${mpirun[@]}" bash -c "$of_rank" "$out" "$bin/train" --model gpt2 --steps 2 "${short[@]}" --out "$out/late" "$@" \
        >"$out/late.log" 2>&1
}

data_that_is_late() {
    local code=0
    with_data_late 8 --set comm.timeout_seconds=3 || { cat "$out/late.log"; fail "data that is 8 s late ends a run"; }
    with_data_late 20 --set comm.timeout_seconds=3 --set comm.init_timeout_seconds=4 || code=$?
    [[ $code != 0 && $code != 124 ]] || fail "a rank that is late returned $code"
    grep -q "no sign of rank 0 within 4s" "$out/late.log" || { cat "$out/late.log"; fail "rank 0 is not named"; }
    echo "processes wait for one that prepares data, and not for ever"
}

# ended_for CODE LOG WHAT: checks that a failed run returned a code and said which rank failed.
ended_for() {
    local code=$1 log=$2 what=$3
    [[ $code != 0 ]] || fail "$what: mpirun returned 0"
    grep -q "rank $killed\b" "$log" || { cat "$log"; fail "$what: the output names no rank $killed"; }
}

a_wrong_number_of_ranks() {
    local code=0
    "${mpirun[@]}" "$bin/train" --model gpt2 --gpus 3 --out "$out/wrong" >"$out/wrong.log" 2>&1 || code=$?
    [[ $code != 0 && ! -e $out/wrong ]] || fail "--gpus 3 on 4 processes returned $code"
    grep -q 'parallel.gpus is 3, but `mpirun -n 4` has started' "$out/wrong.log" || fail "$(cat "$out/wrong.log")"
    echo "--gpus 3 on 4 processes is an error"
}

a_panic() {
    local code=0 start
    start=$(now)
    timeout 60 "${mpirun[@]}" "$bin/examples/mpi_properties" panic >"$out/panic.log" 2>&1 || code=$?
    (($(now) - start < seconds_to_end * 1000)) || fail "a panic: all ended after $(($(now) - start)) ms only"
    ended_for "$code" "$out/panic.log" "a panic"
    echo "a panic of rank $killed: code $code, all ended after $(($(now) - start)) ms, starting included"
}

# rank_of PID: empty if the process is gone or is not a rank.
rank_of() { tr '\0' '\n' 2>/dev/null <"/proc/$1/environ" | sed -n 's/^OMPI_COMM_WORLD_RANK=//p' || true; }

a_kill() {
    local code=0 pids pid start took victim=
    "${mpirun[@]}" "$bin/train" --model deepseek --steps 100000 --out "$out/killed" >"$out/killed.log" 2>&1 &
    job=$!
    for _ in {1..600}; do
        [[ -s $out/killed/metrics.jsonl ]] && break
        kill -0 "$job" 2>/dev/null || { cat "$out/killed.log"; fail "the run to be killed ended by itself"; }
        sleep 0.2
    done
    pids=$(pgrep -P "$job")
    [[ $(wc -w <<<"$pids") == 4 ]] || fail "there are $(wc -w <<<"$pids") processes instead of 4"
    for pid in $pids; do
        [[ $(rank_of "$pid") != "$killed" ]] || victim=$pid
    done
    start=$(now)
    kill -KILL "$victim"
    wait "$job" || code=$?
    for pid in $pids; do
        while kill -0 "$pid" 2>/dev/null; do
            (($(now) - start < seconds_to_end * 1000)) || fail "process $pid is still there after $seconds_to_end s"
            sleep 0.05
        done
    done
    took=$(($(now) - start))
    ((took < seconds_to_end * 1000)) || fail "a kill: all ended after $took ms only"
    ended_for "$code" "$out/killed.log" "a kill"
    echo "SIGKILL of rank $killed: code $code, all ended after $took ms"
}

# steps_once FOLDER STEPS: each step is there once, in order.
steps_once() {
    [[ $(grep -oE '^\{"step":[0-9]+,"loss"' "$1/metrics.jsonl" | grep -oE '[0-9]+' | tr '\n' ' ') == "$(seq -s' ' "$2") " ]] ||
        fail "$1: not each of $2 steps once"
}

# launched: `train launch` starts all processes again after one was killed, and after another one has panicked.
launched() {
    local run=(--model gpt2 --steps 8 "${short[@]}" --set checkpoint.every=2)
    timeout 300 "$bin/train" "${run[@]}" --gpus 4 --out "$out/launched-threads"
    KILN_FAULTS="kill:step=5,rank=$killed,attempt=1; panic:step=7,rank=1,attempt=2" timeout 300 \
        "$bin/train" launch -n 4 -- "${run[@]}" --restarts 3 --out "$out/launched-mpi" >"$out/launched.log" 2>&1 ||
        { cat "$out/launched.log"; fail "a launched run does not survive"; }
    grep -q 'restart 2 of 3' "$out/launched.log" || { cat "$out/launched.log"; fail "there were no two restarts"; }
    steps_once "$out/launched-mpi" 8
    diff <(losses "$out/launched-threads") <(losses "$out/launched-mpi") || fail "a launched run has other losses"
    [[ ! -e $out/launched-mpi/.supervisor ]] || fail "a supervisor leaves its folder"
    echo "train launch: a killed and a panicked rank cost two restarts and no loss"
}

# launcher_killed: a killed mpirun leaves no shared memory behind once the run has been restarted and ended.
launcher_killed() {
    local launch mpirun folder run=(--model gpt2 --steps 40 "${short[@]}" --set checkpoint.every=2)
    "$bin/train" launch -n 4 -- "${run[@]}" --restarts 1 --out "$out/no-mpirun" >"$out/no-mpirun.log" 2>&1 &
    launch=$!
    for _ in {1..600}; do
        [[ -s $out/no-mpirun/metrics.jsonl ]] && break
        kill -0 "$launch" 2>/dev/null || { cat "$out/no-mpirun.log"; fail "the run whose mpirun is to be killed ended by itself"; }
        sleep 0.1
    done
    mpirun=$(pgrep -P "$launch" mpirun)
    folder=$(tr '\0' '\n' <"/proc/$mpirun/cmdline" | grep -m1 '^/dev/shm/')
    [[ $(find "$folder" -type f | wc -l) == 4 ]] || fail "the ranks do not share memory in $folder"
    kill -KILL "$mpirun"
    wait "$launch" || { cat "$out/no-mpirun.log"; fail "a run does not survive its mpirun"; }
    steps_once "$out/no-mpirun" 40
    [[ ! -e $folder ]] || fail "a killed mpirun leaves $(ls "$folder") in $folder"
    echo "train launch: a killed mpirun costs a restart, and no shared memory"
}

# on_machines_that_answer: of two machines of four slots, one does not answer.
on_machines_that_answer() {
    local run=(--model gpt2 --steps 8 "${short[@]}" --set checkpoint.every=2) line
    printf 'localhost slots=4\nnowhere slots=4\n' >"$out/hosts"
    cat >"$out/rsh" <<'EOF'
#!/usr/bin/env bash
host=$1
shift
[[ $host == localhost ]] || { echo "no route to host" >&2; exit 255; }
exec bash -c "$*"
EOF
    chmod +x "$out/rsh"
    KILN_FAULTS="error:step=4,rank=3,attempt=1" timeout 300 \
        "$bin/train" launch --hosts "$out/hosts" --rsh "$out/rsh" -- "${run[@]}" --restarts 3 \
        --set resilience.min_gpus=4 --out "$out/fewer" >"$out/fewer.log" 2>&1 ||
        { cat "$out/fewer.log"; fail "a run on fewer machines does not survive"; }
    for line in "nowhere: it cannot be reached, or does not have the program: no route to host" \
        "degraded: 4 ranks instead of 8" "restart 1 of 3"; do
        grep -qF "$line" "$out/fewer.log" || { cat "$out/fewer.log"; fail "no line: $line"; }
    done
    steps_once "$out/fewer" 8
    diff <(losses "$out/launched-threads") <(losses "$out/fewer") || fail "a run on fewer machines has other losses"
    ! "$bin/train" launch --hosts "$out/hosts" --rsh "$out/rsh" -- "${run[@]}" --out "$out/none" >"$out/none.log" 2>&1 ||
        fail "half of the ranks are enough without min_gpus"
    grep -qF "4 of the run's 8 ranks can start" "$out/none.log" || { cat "$out/none.log"; fail "it is not said that ranks are missing"; }
    [[ ! -e $out/none ]] || fail "a run that never began leaves a folder"
    echo "train launch: a machine that does not answer is left out, if that is allowed"
}

# chaos: a few random runs; KILN_CHAOS_SEED and KILN_CHAOS_RUNS make others.
chaos() {
    KILN_CHAOS_ENGINE=mpi KILN_CHAOS_SEED=${KILN_CHAOS_SEED:-1} KILN_CHAOS_RUNS=${KILN_CHAOS_RUNS:-4} timeout 1200 \
        cargo test --locked --workspace --features mpi --test resilience chaos -- --nocapture
}

properties
same_losses deepseek 5
same_losses gpt2 5
same_losses gpt2 5 --set parallel.pp=2
same_losses deepseek 5 --set parallel.pp=4
same_losses deepseek 5 --set parallel.pp=2 --set parallel.schedule=interleaved_1f1b
same_losses deepseek 5 --set parallel.ep=4
same_losses deepseek 5 --set parallel.pp=2 --set parallel.ep=2
same_losses gpt2 5 --set parallel.tp=4
same_losses deepseek 5 --set parallel.tp=2 --set parallel.ep=4
same_losses gpt2 5 --set parallel.cp=4
same_losses deepseek 5 --set parallel.cp=2 --set parallel.tp=2
data_that_is_late
a_wrong_number_of_ranks
a_panic
a_kill
launched
launcher_killed
on_machines_that_answer
chaos
echo "MPI: all is well"
