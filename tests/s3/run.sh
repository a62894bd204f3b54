#!/usr/bin/env bash
# Tests checkpoints in an S3 store with a real server, moto, on this machine:
#
#   bash tests/s3/run.sh
#
# * A run whose folder is lost resumes from the store, with the losses of an undisturbed run, to the last digit.
# * It resumes from an older checkpoint too. Only if its place is given anew, the later ones in the store no longer count.
# * Once a run has ended, its folder has no more checkpoints than it keeps, although some waited for their upload.
# * A server that is killed and started again costs a run nothing but warnings.
# * A store without the bucket, without credentials or without a server is an error before the first step, and so is the
#   place of another run.
#
# moto holds objects in memory. It is installed from PyPI into the build folder, unless Python has it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

target=${CARGO_TARGET_DIR:-target}
cargo build --locked --package train --bin train --features cloud
train=$target/debug/train
python=python3
if ! $python -c 'import moto, flask' 2>/dev/null; then
    python=$target/moto/bin/python
    $python -c 'import moto, flask' 2>/dev/null ||
        { bash scripts/make-venv.sh "$target/moto" && $python -m pip install --quiet --disable-pip-version-check 'moto[s3,server]==5.2.1'; }
fi
out=$(mktemp -d)
server=
trap '[[ -z $server ]] || kill "$server" 2>/dev/null || true; rm -rf "$out"' EXIT

port=$($python -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
export AWS_ENDPOINT_URL=http://127.0.0.1:$port AWS_ACCESS_KEY_ID=kiln AWS_SECRET_ACCESS_KEY=secret AWS_REGION=us-east-1
steps=24
tiny=(--batch-size 4 --seq-len 32 --set model.n_layer=1 --set model.n_embd=32 --set model.n_head=2)
run=(--model gpt2 --steps $steps --gpus 2 "${tiny[@]}" --set train.sample_tokens=0 --set train.val_batches=1 --set checkpoint.every=4)

fail() {
    printf 'FAILED: %s\n' "$*" >&2
    exit 1
}

# request METHOD PATH: fails unless the server answers with a success.
request() {
    $python -c 'import sys, urllib.request as u; u.urlopen(u.Request(sys.argv[2], method=sys.argv[1]), timeout=5)' \
        "$1" "$AWS_ENDPOINT_URL$2" 2>/dev/null
}

# start_server: starts it, with an empty bucket `kiln`.
start_server() {
    $python -m moto.server -H 127.0.0.1 -p "$port" >"$out/server.log" 2>&1 &
    server=$!
    for _ in {1..150}; do
        ! request PUT /kiln || return 0
        sleep 0.2
    done
    cat "$out/server.log"
    fail "the server does not start"
}

stop_server() {
    kill -KILL "$server"
    wait "$server" 2>/dev/null || true
    server=
}

# says LOG TEXT: fails unless the text is in the log.
says() {
    grep -qF -- "$2" "$1" || { cat "$1"; fail "not said: $2"; }
}

# losses FOLDER FIRST: losses and gradient norms from the step FIRST on.
losses() {
    grep -oE '^\{"step":[0-9]+,"loss":[^,]*,"lr":[^,]*,"aux_loss":[^,]*,"grad_norm":[^,]*' "$1/metrics.jsonl" | awk -F'[:,]' -v first="$2" '$2 >= first'
}

# same_losses FOLDER FIRST
same_losses() {
    [[ $(losses "$1" "$2" | wc -l) == $((steps - $2 + 1)) ]] || fail "$1: not each step from $2 to $steps"
    diff <(losses "$out/undisturbed" "$2") <(losses "$1" "$2") || fail "$1 has other losses"
}

a_lost_folder() {
    local url=s3://kiln/runs/lost log=$out/lost.log
    ! KILN_FAULTS="slow:step=9,ms=700; error:step=11" timeout 120 "$train" "${run[@]}" --out "$out/lost" --set checkpoint.upload=$url >"$log" 2>&1 ||
        fail "the fault does not end the run"
    says "$log" "uploaded $url/checkpoints/step-8"
    says "$log" "uploaded $url/checkpoints/step-10" # the emergency checkpoint
    rm -rf "$out/lost"
    timeout 120 "$train" --resume $url --out "$out/fresh" >"$log" 2>&1 || { cat "$log"; fail "it does not resume from the store"; }
    says "$log" "resuming after step 10 from $out/fresh/checkpoints/step-10"
    says "$log" "uploaded $url/checkpoints/step-$steps"
    same_losses "$out/fresh" 11
    echo "a run whose folder is lost resumes from the store, bit for bit"

    ! "$train" --resume $url@16 --out "$out/earlier" >"$log" 2>&1 || fail "a branch takes the place of its run"
    says "$log" "$url has later checkpoints than that of step 16, the newest of step $steps"
    timeout 120 "$train" --resume $url@16 --out "$out/earlier" --restarts 1 --set checkpoint.upload=$url >"$log" 2>&1 ||
        { cat "$log"; fail "not from @16"; }
    says "$log" "a checkpoint of later steps no longer counts: $url/checkpoints/step-$steps"
    same_losses "$out/earlier" 17
    (($(ls "$out/earlier/checkpoints" | grep -c '^step-') <= 3)) || fail "more than the newest two and the best stay"
    ! "$train" --resume $url@17 --out "$out/none" >"$log" 2>&1 || fail "there is no checkpoint of step 17"
    says "$log" "there is no checkpoint of step 17; there are @4, @8, @10, @12, @16, @20, @$steps"
    [[ ! -e $out/none ]] || fail "a run that never began leaves a folder"
    echo "an older checkpoint of the store can be taken, and under a supervisor"

    request PUT /kiln/runs/lost/checkpoints/step-12/rank-0.safetensors || fail "the object is not replaced"
    local program
    program=$(realpath "$train")
    ! (cd "$out" && timeout 120 "$program" --resume $url@12) >"$log" 2>&1 || fail "an object without bytes is no error"
    says "$log" "take the checkpoint of another step, with @STEP"
    [[ -z $(ls -A "$out/runs") ]] || fail "a download that fails leaves a folder"
    echo "a damaged checkpoint of the store is an error, and leaves nothing"
}

a_killed_server() {
    local url=s3://kiln/runs/killed log=$out/killed.log job
    KILN_FAULTS="slow:step=6,ms=300" timeout 120 "$train" "${run[@]}" --out "$out/killed" --set checkpoint.upload=$url >"$log" 2>&1 &
    job=$!
    for _ in {1..300}; do
        ! grep -qsF "uploaded $url/checkpoints/step-4" "$log" || break
        sleep 0.1
    done
    stop_server
    for _ in {1..300}; do
        ! grep -q 'the upload of the checkpoint of step .* is tried again' "$log" || break
        sleep 0.1
    done
    says "$log" "is tried again"
    start_server
    wait "$job" || { cat "$log"; fail "a killed server ends a run"; }
    says "$log" "uploaded $url/checkpoints/step-$steps"
    same_losses "$out/killed" 1
    echo "a server that was killed costs a run nothing"
}

# refused TEXT OPTION...: a run with these options ends before its first step and says the text.
refused() {
    local text=$1 log=$out/refused.log start=$SECONDS
    shift
    ! timeout 60 "$train" "${run[@]}" --out "$out/refused" "$@" >"$log" 2>&1 || fail "not refused: $*"
    says "$log" "$text"
    [[ ! -e $out/refused ]] || fail "a refused run leaves a folder"
    echo "refused after $((SECONDS - start)) s: $text"
}

start_server
timeout 120 "$train" "${run[@]}" --out "$out/undisturbed" >"$out/undisturbed.log" 2>&1 || { cat "$out/undisturbed.log"; fail "no run at all"; }
a_lost_folder
a_killed_server
refused "has the checkpoints of another run, the newest of step $steps" --set checkpoint.upload=s3://kiln/runs/killed
refused "create the bucket" --set checkpoint.upload=s3://nowhere/runs/mine
AWS_ENDPOINT_URL=http://127.0.0.1:9 refused "AWS_ENDPOINT_URL" --set checkpoint.upload=s3://kiln/runs/mine
unset AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY
AWS_EC2_METADATA_DISABLED=true refused "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" --set checkpoint.upload=s3://kiln/runs/mine
echo "S3: all is well"
