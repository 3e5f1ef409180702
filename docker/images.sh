#!/usr/bin/env bash
# Builds the CPU images ostinato:cpu, ostinato-libllama and ostinato-llama-server: images.sh [--offline] [FOLDER]
#
# --offline: no registry, and no network for the builds. The base comes from debootstrap (base.sh); the wheels are
# fetched here, by pip of $PYTHON (default python3, of the base image's version 3.11), and served on 127.0.0.1. Both are
# kept in FOLDER (default .cache/docker).
set -euo pipefail
cd "$(dirname "$0")/.."

offline=
if [ "${1:-}" = --offline ]; then offline=1; shift; fi
folder=$(realpath -m "${1:-.cache/docker}")
python=${PYTHON:-python3}
images=(ostinato libllama llama-server)
declare -A file=([ostinato]=ostinato-cpu [libllama]=libllama [llama-server]=llama-server)
declare -A tag=([ostinato]=ostinato:cpu [libllama]=ostinato-libllama [llama-server]=ostinato-llama-server)

if ! docker image inspect ostinato-base:bookworm >/dev/null 2>&1; then
  if [ -n "$offline" ]; then bash docker/base.sh "$folder"; else docker build -q -f docker/base.Dockerfile -t ostinato-base:bookworm .; fi
fi

args=()
if [ -n "$offline" ]; then
  "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' \
    || { echo "images.sh: $python is not Python 3.11, which the wheels must be for; set PYTHON" >&2; exit 1; }
  mkdir -p "$folder/wheels"
  for image in "${images[@]}"; do
    fetch=("$python" -m pip download -qq --no-deps --only-binary :all: -d "$folder/wheels" -r "docker/pins/$image.txt")
    "${fetch[@]}" --no-index --find-links "$folder/wheels" 2>/dev/null || "${fetch[@]}"  # those of the last time do
  done
  # The same port as the last time, if it is free: the layers that were built with it are then used again.
  for wanted in "$(cat "$folder/port" 2>/dev/null || echo 0)" 0; do
    "$python" -u -m http.server "$wanted" --bind 127.0.0.1 --directory "$folder/wheels" >"$folder/wheels.log" 2>&1 &
    trap 'kill $! 2>/dev/null || true' EXIT
    port=
    while [ -z "$port" ] && kill -0 $! 2>/dev/null; do
      sleep 0.1
      port=$(sed -n 's/^Serving HTTP on .* port \([0-9]*\) .*/\1/p' "$folder/wheels.log")
    done
    if [ -n "$port" ]; then break; fi
  done
  echo "$port" >"$folder/port"
  args=(--network host --build-arg "PIP_ARGS=--no-index --find-links http://127.0.0.1:$port")
fi
for image in "${images[@]}"; do
  # The classic builder: BuildKit asks a registry even about an image that is here.
  DOCKER_BUILDKIT=0 docker build -q "${args[@]}" -f "docker/${file[$image]}.Dockerfile" -t "${tag[$image]}" . 2>"$folder/build.log" \
    || { cat "$folder/build.log" >&2; exit 1; }
done
