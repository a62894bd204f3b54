#!/usr/bin/env bash
# Tests checkpoints and data in an S3 store with a real server, moto, on this machine:
#
#   bash tests/s3/run.sh
#
# * A run whose folder is lost resumes from the store, with the losses of an undisturbed run, to the last digit.
# * It resumes from an older checkpoint too. Only if its place is given anew, the later ones in the store no longer count.
# * Once a run has ended, its folder has no more checkpoints than it keeps, although some waited for their upload.
# * The same holds for ranks that are processes, started by mpirun or by `train launch`, which goes on after a kill. Without
#   MPI, this is skipped.
# * Data from the store give the losses of the same files on the disk, to the last digit. They are downloaded once, by one
#   process, and again if they have changed. Without the server, the copy is used.
# * A server that is killed and started again costs a run nothing but warnings.
# * A store without the bucket, without credentials or without a server is an error before the first step, and so is the
#   place of another run.
#
# moto holds objects in memory. It is installed from PyPI into the build folder, unless Python has it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

target=${CARGO_TARGET_DIR:-target}
features=cloud
if command -v mpirun mpicc >/dev/null; then
    features=cloud,mpi
fi
cargo build --locked --package train --bin train --features $features
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
# The cache of data is that of this test. Processes: as root, and in containers.
export KILN_CACHE=$out/cache OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_btl_vader_single_copy_mechanism=none
mpirun=(mpirun --oversubscribe --bind-to none -n 2)
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

# put FILE NAME: writes a file to the bucket.
put() {
    $python -c 'import sys, urllib.request as u
kind = {"Content-Type": "application/octet-stream", "Authorization": "AWS kiln:unchecked"}
u.urlopen(u.Request(sys.argv[2], open(sys.argv[1], "rb").read(), kind, method="PUT"), timeout=30)' "$1" "$AWS_ENDPOINT_URL/kiln/$2"
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

processes() {
    local url=s3://kiln/runs/processes log=$out/processes.log
    if [[ $features != *mpi* ]]; then
        echo "SKIPPED, because there is no mpirun or mpicc: checkpoints and data of ranks that are processes"
        return
    fi
    ! KILN_FAULTS="slow:step=9,ms=700; error:step=11" timeout 120 "$train" "${run[@]}" --out "$out/lost" --set checkpoint.upload=$url >"$log" 2>&1 ||
        fail "the fault does not end the run"
    rm -rf "$out/lost"
    ! timeout 60 "${mpirun[@]}" "$train" --resume $url >"$log" 2>&1 || fail "processes without a folder are not refused"
    says "$log" "name a folder that they share with --out"
    timeout 120 "${mpirun[@]}" "$train" --resume $url --out "$out/by-mpirun" >"$log" 2>&1 || { cat "$log"; fail "processes do not resume"; }
    [[ $(grep -c "^downloading" "$log") == 1 ]] || fail "not one process downloads"
    says "$log" "uploaded $url/checkpoints/step-$steps"
    same_losses "$out/by-mpirun" 11
    echo "processes of mpirun resume from the store, bit for bit"

    KILN_FAULTS="kill:step=14,rank=1,attempt=1" timeout 180 "$train" launch -n 2 -- --resume $url@8 --out "$out/launched" --restarts 1 >"$log" 2>&1 ||
        { cat "$log"; fail "launched processes do not resume"; }
    says "$log" "restart 1 of 1"
    says "$log" "uploaded $url/checkpoints/step-$steps"
    same_losses "$out/launched" 9
    echo "launched processes resume from the store, and after a kill from their folder, bit for bit"

    timeout 120 "$train" "${run[@]}" --data "$out/tokens.bin" --out "$out/tokens-threads" >"$log" 2>&1 || { cat "$log"; fail "no tokens"; }
    put "$out/tokens.bin" tokens.bin
    timeout 120 "${mpirun[@]}" "$train" "${run[@]}" --data s3://kiln/tokens.bin --out "$out/tokens-mpi" >"$log" 2>&1 || { cat "$log"; fail "no tokens of the store"; }
    [[ $(grep -c "^downloading s3://kiln/tokens.bin, 1 object of 36.0 MB" "$log") == 1 ]] || { cat "$log"; fail "not one process downloads"; }
    diff <(losses "$out/tokens-threads" 1) <(losses "$out/tokens-mpi" 1) || fail "tokens of the store have other losses"
    echo "one of two processes downloads the tokens, and the losses are those of the file, bit for bit"
}

data_of_a_store() {
    local url=s3://kiln/corpus log=$out/data.log corpus=$out/corpus file
    mkdir -p "$corpus/sub"
    cp docs/train.md "$corpus/a.txt"
    cp docs/resume.md "$corpus/sub/b [1].txt"
    cp docs/prepare.md "$out/val.txt"
    put "$corpus/a.txt" corpus/a.txt
    put "$corpus/sub/b [1].txt" corpus/sub/b%20%5B1%5D.txt
    put "$out/val.txt" val.txt
    timeout 120 "$train" "${run[@]}" --data "$corpus" --val-data "$out/val.txt" --out "$out/of-disk" >"$log" 2>&1 || { cat "$log"; fail "no run on files"; }
    for file in once again; do
        timeout 120 "$train" "${run[@]}" --data $url --val-data s3://kiln/val.txt --out "$out/$file" >"$log" 2>&1 || { cat "$log"; fail "no data of the store"; }
        [[ $file == again ]] || says "$log" "downloading $url, 2 objects of "
        [[ $file == once ]] || ! grep -q ^downloading "$log" || fail "what is there is downloaded again"
        diff <(losses "$out/of-disk" 1) <(losses "$out/$file" 1) || fail "data of the store have other losses"
        diff <(grep -o '"val_loss":[^,]*' "$out/of-disk/metrics.jsonl") <(grep -o '"val_loss":[^,]*' "$out/$file/metrics.jsonl") || fail "other validations"
    done
    grep -qE "source: ['\"]?$url" "$out/once/config.yaml" || fail "config.yaml does not have the URL"
    "$train" eval "$out/once" --data s3://kiln/val.txt >"$log" 2>&1 || { cat "$log"; fail "eval"; }
    says "$log" "s3://kiln/val.txt: "
    "$train" prepare $url --out "$out/prepared" >"$log" 2>&1 || { cat "$log"; fail "prepare"; }
    grep -q "\"source\": \"$url\"" "$out/prepared/meta.json" || fail "meta.json does not have the URL"
    echo "data of the store are downloaded once and have the losses of the files, bit for bit; eval and prepare read them too"

    echo "One more line." >>"$corpus/a.txt"
    put "$corpus/a.txt" corpus/a.txt
    timeout 120 "$train" --resume "$out/once" --steps $((steps + 1)) >"$log" 2>&1 || { cat "$log"; fail "changed data"; }
    says "$log" "$url has changed; its old copy stays"
    says "$log" "warning: the training data changed after step $steps"
    stop_server
    timeout 120 "$train" --resume "$out/once" --steps $((steps + 2)) >"$log" 2>&1 || { cat "$log"; fail "no run without the server"; }
    says "$log" "is used, which may be old"
    ! grep -q "the training data changed" "$log" || fail "not the newest copy"
    start_server
    echo "what has changed is downloaded again, and without the server the copy is used"
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
$python -c 'import random, sys
tokens = bytearray(36_000_000)
tokens[::2] = random.Random(1).randbytes(18_000_000)
sys.stdout.buffer.write(tokens)' >"$out/tokens.bin"
processes
a_killed_server
refused "has the checkpoints of another run, the newest of step $steps" --set checkpoint.upload=s3://kiln/runs/killed
refused "create the bucket" --set checkpoint.upload=s3://nowhere/runs/mine
AWS_ENDPOINT_URL=http://127.0.0.1:9 refused "AWS_ENDPOINT_URL" --set checkpoint.upload=s3://kiln/runs/mine
refused "there is no object s3://kiln/none, and none below" --data s3://kiln/none
data_of_a_store
unset AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY
AWS_EC2_METADATA_DISABLED=true refused "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" --set checkpoint.upload=s3://kiln/runs/mine
echo "S3: all is well"
