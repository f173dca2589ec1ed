#!/bin/bash
# slurm.sh PYTHON PROCESSES COMMAND...: run a command of Paceline in so many processes on each node
# of the batch job: one torchrun on each, which meet on the first.
set -euo pipefail
python=$1 processes=$2
shift 2
hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
meet=${hosts%%$'\n'*}:$((20000 + SLURM_JOB_ID % 10000)) # jobs that share a node have other ports

exec srun --ntasks "$SLURM_JOB_NUM_NODES" --ntasks-per-node 1 \
    "$python" -m torch.distributed.run \
    --nnodes "$SLURM_JOB_NUM_NODES" --nproc-per-node "$processes" \
    --rdzv-backend c10d --rdzv-endpoint "$meet" --rdzv-id "$SLURM_JOB_ID" \
    -m paceline.cli "$@"
