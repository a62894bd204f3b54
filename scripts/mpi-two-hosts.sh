#!/usr/bin/env bash
# Trains on two "hosts" with two ranks each that communicate over TCP: two network namespaces of this machine, connected
# by a virtual cable. Then trains on four threads, and compares the losses. Needs root, `ip` and Open MPI.
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
"$work/on-host" "${hosts[0]}" mpirun --hostfile "$work/hosts" -n 4 --bind-to none \
    --mca plm_rsh_agent "$work/agent" --mca oob_tcp_if_include "$subnet" --mca btl_tcp_if_include "$subnet" \
    "$bin" "${run[@]}" --out "$work/hosts-run"
for host in "${hosts[@]}"; do
    printf '%s has sent %s bytes\n' "$host" "$(ip netns exec "$host" cat /sys/class/net/eth0/statistics/tx_bytes)"
done
"$bin" "${run[@]}" --gpus 4 --out "$work/threads-run"

# losses RUN: the metrics without measurements of time.
losses() { grep -v -E '"(traffic|event|started|stages)":' "$work/$1/metrics.jsonl" | sed -E 's/,"(tokens_per_second|tflops|mfu|[a-z_]*_seconds)":[^,}]*//g'; }

diff <(losses threads-run) <(losses hosts-run) || { echo "two hosts and four threads differ" >&2; exit 1; }
echo "two hosts have the losses of four threads:"
losses hosts-run
