#!/bin/bash
# skypilot.sh CLUSTER TASK DATA OUT MODEL EPOCHS [INIT]: train on a rented machine, bring OUT back.
set -uo pipefail
cluster=$1 task=$2 data=$3 out=$4 model=$5 epochs=$6 init=${7:-}

fetch() {
    rsync -a "$cluster:out/" "$out/"
}
trap 'fetch; exit 143' TERM

if [ -z "$init" ]; then # the task copies a folder in any case: here one without a drafter
    init=$(mktemp -d)
    trap 'rm -r "$init"' EXIT
    touch "$init/none"
fi
sky launch --yes --cluster "$cluster" \
    --env DATA="$data" --env INIT="$init" --env OUT="$out" \
    --env MODEL="$model" --env EPOCHS="$epochs" "$task"
code=$?
fetch && [ -d "$out/drafter" ] || code=1
sky down --yes "$cluster"
exit "$code"
