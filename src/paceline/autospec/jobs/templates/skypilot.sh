#!/bin/bash
# skypilot.sh CLUSTER TASK DATA INIT OUT MODEL EPOCHS: train on a rented machine, bring OUT back.
set -uo pipefail
cluster=$1 task=$2 data=$3 init=$4 out=$5 model=$6 epochs=$7

fetch() {
    rsync -a "$cluster:out/" "$out/"
}
trap 'fetch; exit 143' TERM

sky launch --yes --cluster "$cluster" \
    --env DATA="$data" --env INIT="$init" --env OUT="$out" \
    --env MODEL="$model" --env EPOCHS="$epochs" "$task"
code=$?
fetch && [ -d "$out/drafter" ] || code=1
sky down --yes "$cluster"
exit "$code"
