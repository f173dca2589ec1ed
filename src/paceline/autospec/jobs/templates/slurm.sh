#!/bin/bash
# The batch script of slurm.yaml: runs its arguments as one step of the batch job.
exec srun --ntasks 1 "$@"
