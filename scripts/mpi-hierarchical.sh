#!/usr/bin/env bash
# Times collectives in one step and in two on emulated machines: network namespaces of this machine, connected by a
# bridge, each with a link of RATE in both directions. Needs root, `ip`, `tc` and Open MPI.
#
#   bash scripts/mpi-hierarchical.sh MACHINES RANKS_PER_MACHINE [RATE [ROUNDS [MIB...]]]
#
# It fails unless the bytes that cross are those of the closed forms: crates/comm/examples/hierarchical.rs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
count=${1:?machines} each=${2:?ranks per machine} rate=${3:-400mbit} rounds=${4:-7}
shift $(($# < 4 ? $# : 4))
sizes=("$@")
((${#sizes[@]})) || sizes=(4 16)
source scripts/namespaces.sh

cargo build --locked -p kiln-comm --features mpi --example hierarchical
bin=$(realpath "${CARGO_TARGET_DIR:-target}/debug/examples/hierarchical")
bridge=kiln-bridge subnet=10.213.78

trap 'remove_machines; ip link delete "$bridge" 2>/dev/null || true' EXIT

# limit COMMAND...: limits what leaves a device; the command ends with its name.
limit() { "$@" root tbf rate "$rate" burst 128kb latency 50ms; }

ip link add "$bridge" type bridge
ip link set "$bridge" up
for ((i = 1; i <= count; i++)); do
    machine "kiln-$i"
    ip link add "kiln-port-$i" type veth peer name eth0 netns "kiln-$i"
    ip link set "kiln-port-$i" master "$bridge" up
    ip -netns "kiln-$i" address add "$subnet.$i/24" dev eth0
    ip -netns "kiln-$i" link set eth0 up
    # BBR's probing and acknowledgments delayed by 40 ms would be measured with either way of a call.
    ip netns exec "kiln-$i" sysctl -qw net.ipv4.tcp_congestion_control=reno
    ip -netns "kiln-$i" route change "$subnet.0/24" dev eth0 quickack 1
    limit tc qdisc add dev "kiln-port-$i"
    limit ip netns exec "kiln-$i" tc qdisc add dev eth0
    printf '%s slots=%s\n' "$subnet.$i" "$each" >>"$work/hosts"
done

"$work/on-machine" kiln-1 mpirun --hostfile "$work/hosts" -n $((count * each)) --bind-to none \
    --mca plm_rsh_agent "$work/rsh" --mca oob_tcp_if_include "$subnet.0/24" --mca btl_tcp_if_include "$subnet.0/24" \
    "$bin" "$rounds" "${sizes[@]}"
for ((i = 1; i <= count; i++)); do
    printf 'kiln-%s has received %s bytes\n' "$i" "$(ip netns exec "kiln-$i" cat /sys/class/net/eth0/statistics/rx_bytes)"
done
