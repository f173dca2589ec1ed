#!/usr/bin/env bash
# Everything CUDA in one call of at most ten minutes: tests, then ratios. Also the CPU kernels of the
# host, which may have AMX where the development machine has not. Needs no network, and a model only
# for the CPU kernels' ratios.
#
#   [MODEL=folder] [SET=folder of `paceline synth`] [APP=app.yaml] bash benchmarks/gpu.sh
#
# from the root, with a python3 that has torch. APP is answered by MODEL, 4096 rows of it.
set -u
export PYTHONPATH=src:benchmarks PYTHONUNBUFFERED=1 PACELINE_CACHE="${PACELINE_CACHE:-$(mktemp -d)}"
PY=${PYTHON:-python3}
status=0
$PY -c 'import torch; print("torch", torch.__version__, torch.cuda.get_device_name())' || exit 1
grep -m1 "model name" /proc/cpuinfo
# Other folders would also import tests whose packages a machine for GPUs need not have.
CUDA_TESTS=$(grep -rl --include='test_*.py' 'mark\.cuda' tests)
timeout 240 $PY -m pytest -q -m cuda -p no:cacheprovider $CUDA_TESTS || status=1
timeout 120 $PY benchmarks/gpu.py || status=1
timeout 60 $PY benchmarks/drafter_attention.py || status=1
timeout 120 $PY -m pytest -q -p no:cacheprovider tests/kernels -m "not slow and not model" || status=1
if [ -n "${MODEL:-}" ]; then timeout 110 $PY benchmarks/kernels.py "$MODEL" || status=1; fi
if [ -n "${MODEL:-}" ] && [ -n "${SET:-}" ]; then
  timeout 150 $PY benchmarks/training.py "$MODEL" "$SET" --device cuda || status=1
fi
if [ -n "${MODEL:-}" ] && [ -n "${APP:-}" ]; then
  timeout 120 $PY -m paceline synth "$APP" --model "$MODEL" --device cuda --rows 4096 \
    --out "$PACELINE_CACHE/set" || status=1
fi
exit $status
