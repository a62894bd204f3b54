# Machines that are network namespaces of this one, for scripts that `source` this file after `set -euo pipefail`.
#
# It needs root and `ip`, makes the folder $work, and removes the namespaces in `machines` and the folder at the end.

[[ $(id -u) == 0 ]] || { echo "network namespaces need root" >&2; exit 1; }
work=$(mktemp -d)
machines=()
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

remove_machines() {
    local machine
    for machine in "${machines[@]}"; do
        ip netns pids "$machine" 2>/dev/null | xargs -r kill -KILL 2>/dev/null || true
        ip netns delete "$machine" 2>/dev/null || true
    done
    rm -rf "$work"
}
trap remove_machines EXIT

# machine NAME: makes a namespace.
machine() {
    machines+=("$1")
    echo "$1" >>"$work/machines"
    ip netns add "$1"
    ip -netns "$1" link set lo up
}

# two_machines NAME NAME PREFIX: makes two namespaces with the addresses PREFIX.1 and PREFIX.2, connected by a cable, and a
# host file with two slots each.
two_machines() {
    local i
    machine "$1"
    machine "$2"
    ip link add eth0 netns "$1" type veth peer name eth0 netns "$2"
    for i in 1 2; do
        ip -netns "${!i}" address add "$3.$i/24" dev eth0
        ip -netns "${!i}" link set eth0 up
        printf '%s slots=2\n' "$3.$i" >>"$work/hosts"
    done
}

# on-machine NAME COMMAND...: runs the command in the namespace, under the name of a machine of its own.
cat >"$work/on-machine" <<'EOF'
#!/usr/bin/env bash
machine=$1
shift
exec ip netns exec "$machine" unshare --uts bash -c "hostname $machine && $*"
EOF
# What is called instead of ssh: ADDRESS COMMAND... The last number of the address is the number of the machine. A machine
# without a cable does not answer.
cat >"$work/rsh" <<EOF
#!/usr/bin/env bash
machine=\$(sed -n "\${1##*.}p" "$work/machines")
shift
ip -netns "\$machine" link show eth0 | grep -q "[<,]UP[,>]" || { echo "no route to host" >&2; exit 255; }
exec "$work/on-machine" "\$machine" "\$*"
EOF
chmod +x "$work/on-machine" "$work/rsh"
