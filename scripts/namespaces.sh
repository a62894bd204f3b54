# Machines that are namespaces of this one, for scripts that `source` this file after `set -euo pipefail`: each has a network,
# a name and a /dev/shm of its own, and shares all other files.
#
# It needs root, `ip` and `nsenter`, makes the folder $work, and removes the namespaces in `machines` and the folder at the end.

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

# machine NAME: makes the namespaces of a machine, and starts it.
machine() {
    machines+=("$1")
    echo "$1" >>"$work/machines"
    ip netns add "$1"
    ip -netns "$1" link set lo up
    start_machine "$1"
}

# start_machine NAME: starts the process that keeps a machine's name and memory.
start_machine() {
    ip netns exec "$1" unshare --uts --mount --propagation private bash -c \
        'hostname "$0" && mount -t tmpfs tmpfs /dev/shm && touch "$1" && exec sleep infinity' "$1" "$work/$1.up" &
    echo $! >"$work/$1.pid"
    until [[ -e $work/$1.up ]]; do sleep 0.05; done
}

# lose_machine NAME: kills all processes of a machine, whose memory is lost with them.
lose_machine() {
    rm "$work/$1.up"
    ip netns pids "$1" | xargs -r kill -KILL 2>/dev/null || true # some have ended in between
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

# on-machine NAME COMMAND...: runs the command on a machine.
cat >"$work/on-machine" <<EOF
#!/usr/bin/env bash
machine=\$1
shift
exec nsenter --target "\$(cat "$work/\$machine.pid")" --net --uts --mount --wd="\$PWD" bash -c "\$*"
EOF
# What is called instead of ssh: ADDRESS COMMAND... The last number of the address is the number of the machine. A machine
# that is lost or has no cable does not answer.
cat >"$work/rsh" <<EOF
#!/usr/bin/env bash
machine=\$(sed -n "\${1##*.}p" "$work/machines")
shift
"$work/on-machine" "\$machine" ip link show eth0 2>/dev/null | grep -q "[<,]UP[,>]" ||
    { echo "no route to host" >&2; exit 255; }
exec "$work/on-machine" "\$machine" "\$*"
EOF
chmod +x "$work/on-machine" "$work/rsh"
