#!/usr/bin/env bash
# Builds llama.cpp, the engine that `make bench PEERS=DIR` measures beside dendrite, from the source package of
# llama-cpp-python (MIT licence) on PyPI. About 4 minutes on two cores; the binaries end in DIR/llama/bin.
#
#   tools/build_peers.sh DIR
#
# Whoever has built ik_llama.cpp finds it measured too, when its binaries lie in DIR/ik/bin.
set -euo pipefail
[ $# = 1 ] || { echo "usage: $0 DIR" >&2; exit 2; }
version=${LLAMA_CPP_PYTHON:-0.3.36}
mkdir -p "$1"
cd "$1"
if [ ! -d llama/vendor ]; then
    python3 -m pip download --quiet --no-deps --no-binary llama-cpp-python "llama-cpp-python==$version" -d .
    mkdir -p llama
    tar -xzf llama_cpp_python-*.tar.gz -C llama --strip-components=1
fi
cmake -S llama/vendor/llama.cpp -B llama/build -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DGGML_CUDA=OFF \
    -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DGGML_CCACHE=OFF > /dev/null
cmake --build llama/build -j "$(nproc)" --target llama-bench llama-batched-bench llama-quantize > /dev/null
ln -sfn build/bin llama/bin
ls llama/bin/llama-bench llama/bin/llama-batched-bench
