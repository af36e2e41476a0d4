#!/bin/sh
# One rank of a job becomes one node of a Ray cluster. Rank 0 is the head: it carries no load, waits for all others,
# runs the command, and ends with its exit code. The others end in good order when the head has gone.
#
#     HEAD=host [RANK=n] [SIZE=n] [HEAD_PORT=6379] [NODE_IP=address] [WAIT_S=300] rank.sh command [argument ...]
#
# Kubernetes says the rank (JOB_COMPLETION_INDEX), Slurm the rank and the size (SLURM_PROCID, SLURM_NTASKS).
# SIZE counts the head. SIGTERM and SIGINT reach the command as Ctrl-C, so that it can close its log.
set -u

rank=${RANK:-${JOB_COMPLETION_INDEX:-${SLURM_PROCID:-}}}
size=${SIZE:-${SLURM_NTASKS:-}}
wait_s=${WAIT_S:-300}

fail() {
    echo "rank ${rank:-?}: $*" >&2
    exit 1
}

[ -n "$rank" ] && [ -n "$size" ] && [ -n "${HEAD:-}" ] || fail "expected RANK, SIZE and HEAD in the environment"
[ $# -gt 0 ] || fail "expected the command to run when all $size are there"

head=$HEAD:${HEAD_PORT:-6379}
until_s=$(($(date +%s) + wait_s))
export RAY_worker_niceness="${RAY_worker_niceness:-0}" # Ray's default is 15: everything else would go first
export RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S=0 # the command has ended: there is nothing to wait for

# Become a node, as the group of the process $node; what Ray prints is no result of the command.
start_node() {
    setsid ray start "$@" ${NODE_IP:+--node-ip-address="$NODE_IP"} ${RAY_TMPDIR:+--temp-dir="$RAY_TMPDIR"} \
        --object-store-memory="${OBJECT_STORE_BYTES:-1000000000}" --disable-usage-stats --block >&2 &
    node=$!
}

# Ray leaves agents behind that nobody ends where the head went first: so the group is ended, too.
end_node() {
    [ -n "${node:-}" ] || return
    kill "$node" ${watch:+"$watch"} 2>/dev/null
    wait "$node"
    kill -KILL "-$node" 2>/dev/null
}

find_head() {
    python -c 'import socket, sys; socket.create_connection(sys.argv[1].rsplit(":", 1), 2)' "$head" 2>/dev/null
}

await_head() {
    until find_head; do
        [ -z "${node:-}" ] || kill -0 "$node" 2>/dev/null || fail "the head did not start; see above"
        [ "$(date +%s)" -lt "$until_s" ] || fail "no head at $head after $wait_s s"
        sleep 1
    done
}

await_nodes() {
    python - "$head" "$size" "$until_s" <<'END'
import sys, time, ray
head, size, until_s = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
ray.init(address=head, logging_level="error", log_to_driver=False)
while (there := sum(node["Alive"] for node in ray.nodes())) < size:
    if time.time() > until_s:
        sys.exit(f"rank 0: expected {size} nodes, found {there}: look at the logs of the others")
    time.sleep(0.5)
END
}

# End this node when the head has gone, as the process $watch: one connection that says nothing, and costs nothing.
watch_head() {
    python - "$head" "$node" <<'END' &
import os, signal, socket, sys, time
where, missed = sys.argv[1].rsplit(":", 1), 0
while missed < 3:
    try:
        with socket.create_connection(where, 5) as line:
            line.settimeout(None)
            missed = 0
            while line.recv(4096):
                pass
    except OSError:
        missed += 1
    time.sleep(1)
os.kill(int(sys.argv[2]), signal.SIGTERM)
END
    watch=$!
}

trap end_node EXIT
trap 'exit 143' TERM INT

if [ "$rank" -eq 0 ]; then
    start_node --head --port="${head##*:}" --num-cpus=0 --include-dashboard=false
    await_head
    await_nodes || exit 1
    RAY_ADDRESS=$head env --default-signal=INT "$@" &
    command=$!
    trap 'kill -INT "$command"' TERM INT
    wait "$command"
    code=$?
    while kill -0 "$command" 2>/dev/null; do # a signal ends the wait, not the command
        wait "$command"
        code=$?
    done
    exit "$code"
fi

await_head
trap : TERM INT # who stops the job stops the head, too, which still needs the logs of this node
start_node --address="$head"
watch_head
while kill -0 "$node" 2>/dev/null; do
    wait "$node"
done
if find_head; then
    fail "this node was lost; see above"
fi
