#!/usr/bin/env bash
# Training on machines that are reached by ssh:    launch.sh ACTIVE HOST...
#
# Starts one torchrun agent a HOST, all with the same command; the first ACTIVE to come train, the others stand by.
# The event log is RUN_DIR/events.db on the first HOST; with
#   export LM_RESILIENCY_EVENT_LOG=postgresql+psycopg://USER:PASSWORD@HOST/DATABASE
# it is in PostgreSQL, and the first HOST may be lost like any other. Started again with the same RUN_ID it goes on.
set -euo pipefail

if [ $# -lt 2 ]; then
    echo "usage: launch.sh ACTIVE HOST...   (RUN_ID, RUN_DIR, RANKS_A_NODE, PORT, MODULE may be set)" >&2
    exit 2
fi
active=$1
shift
: "${RANKS_A_NODE:=8}" "${PORT:=29400}" "${MODULE:=your_training.module}"
: "${RUN_ID:=$(date +%Y%m%d-%H%M%S)}" "${RUN_DIR:=lmr-runs/$RUN_ID}"

# A dead machine's connection ends after a minute; -tt: when this script ends, so do the agents.
on() { ssh -o BatchMode=yes -o ServerAliveInterval=15 -o ServerAliveCountMax=4 "$@"; }

# What is secret goes through files of the owner, not through command lines.
secret=$(head -c 32 /dev/urandom | base64)
settings="export LM_RESILIENCY_SECRET_FILE=$(printf %q "$RUN_DIR")/secret"
if [ -n "${LM_RESILIENCY_EVENT_LOG:-}" ]; then
    settings="$settings LM_RESILIENCY_EVENT_LOG=$(printf %q "$LM_RESILIENCY_EVENT_LOG")"
fi
folder=$(printf %q "$RUN_DIR")
for host in "$@"; do
    on "$host" "umask 077; mkdir -p $folder/context; cat > $folder/secret" <<<"$secret"
    on "$host" "umask 077; cat > $folder/settings" <<<"$settings"
done

command=(
    torchrun
    --nnodes="$active:$#"
    --nproc-per-node="$RANKS_A_NODE"
    --rdzv-backend=lm_resiliency
    --rdzv-endpoint="$1:$PORT"
    --rdzv-id="$RUN_ID"
    --module "$MODULE"
)
conf="store_type=tcp,lm_resiliency_restart_context_path=$RUN_DIR/context"
agents=()
for host in "$@"; do
    is_host=0
    if [ "$host" = "$1" ]; then is_host=1; fi
    agent=$(printf '%q ' "${command[0]}" --rdzv-conf="$conf,is_host=$is_host" "${command[@]:1}")
    name="export LM_RESILIENCY_NODE_ID=$(printf %q "$host")"
    { on -tt "$host" ". $folder/settings; $name; exec $agent" </dev/null 2>&1 | sed -u "s/^/$host: /"; } &
    agents+=($!)
done
for pid in "${agents[@]}"; do
    wait "$pid" || echo "an agent ended early, as that of a lost machine does"
done

# The script's code is that of the run, whatever became of single agents.
if [ -n "${LM_RESILIENCY_EVENT_LOG:-}" ]; then
    lmr status "$LM_RESILIENCY_EVENT_LOG" --run "$RUN_ID" --exit-code
else
    on "$1" "lmr status $folder/events.db --run $(printf %q "$RUN_ID") --exit-code"
fi
