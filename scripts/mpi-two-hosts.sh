#!/usr/bin/env bash
# Trains on two "hosts" with two ranks each that communicate over TCP: two network namespaces of this machine, connected
# by a virtual cable. A second run must have bitwise the same losses. Four threads add gradients in another order, and must
# have the same losses to 1e-5. Needs root, `ip` and Open MPI.
#
#   bash scripts/mpi-two-hosts.sh [MODEL [STEPS]]
#
# On two real machines that reach each other by ssh, the equivalent is
#
#   mpirun --hostfile hosts -n 4 target/debug/train --model deepseek
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
model=${1:-deepseek} steps=${2:-5}
[[ $(id -u) == 0 ]] || { echo "network namespaces need root" >&2; exit 1; }

cargo build --locked --workspace --features mpi --bin train
bin=$(realpath "${CARGO_TARGET_DIR:-target}/debug/train")
work=$(mktemp -d)
hosts=(kiln-a kiln-b) addresses=(10.213.77.1 10.213.77.2) subnet=10.213.77.0/24

clean_up() {
    for host in "${hosts[@]}"; do
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

# on-host HOST COMMAND...: runs the command in the host's namespace, under the host's name.
cat >"$work/on-host" <<'EOF'
#!/usr/bin/env bash
host=$1
shift
exec ip netns exec "$host" unshare --uts bash -c "hostname $host && $*"
EOF
# What mpirun calls instead of ssh: ADDRESS COMMAND...
cat >"$work/agent" <<EOF
#!/usr/bin/env bash
shift # the address: only the second host is started from elsewhere
exec "$work/on-host" ${hosts[1]} "\$*"
EOF
chmod +x "$work/on-host" "$work/agent"
printf '%s slots=2\n' "${addresses[@]}" >"$work/hosts"

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
run=(--model "$model" --steps "$steps" --set train.sample_tokens=0 --set train.val_batches=1)

# on_hosts RUN: trains on both hosts.
on_hosts() {
    "$work/on-host" "${hosts[0]}" mpirun --hostfile "$work/hosts" -n 4 --bind-to none \
        --mca plm_rsh_agent "$work/agent" --mca oob_tcp_if_include "$subnet" --mca btl_tcp_if_include "$subnet" \
        "$bin" "${run[@]}" --out "$work/$1"
}

on_hosts hosts-run
for host in "${hosts[@]}"; do
    printf '%s has sent %s bytes\n' "$host" "$(ip netns exec "$host" cat /sys/class/net/eth0/statistics/tx_bytes)"
done
on_hosts second-run
"$bin" "${run[@]}" --gpus 4 --out "$work/threads-run"

# losses RUN: the metrics without measurements of time.
losses() { grep -v -E '"(traffic|event|started|stages)":' "$work/$1/metrics.jsonl" | sed -E 's/,"(tokens_per_second|tflops|mfu|[a-z_]*_seconds)":[^,}]*//g'; }

# values RUN: the losses alone, one a line.
values() { grep -oE '"(loss|val_loss)":[0-9.e-]+' "$work/$1/metrics.jsonl" | cut -d: -f2; }

diff <(losses hosts-run) <(losses second-run) || { echo "two runs on two hosts differ" >&2; exit 1; }
paste <(values threads-run) <(values hosts-run) |
    awk -v lines=$((steps + 1)) '{ d = $1 - $2; if (d < 0) d = -d; if (d > 1e-5 * $1) bad = 1 } END { exit bad || NR != lines }' ||
    { echo "two hosts and four threads differ" >&2; paste <(values threads-run) <(values hosts-run) >&2; exit 1; }
echo "two hosts have the same losses twice, and those of four threads to 1e-5:"
losses hosts-run
