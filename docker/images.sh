#!/usr/bin/env bash
# Builds the CPU images ostinato:cpu, ostinato-libllama and ostinato-llama-server: images.sh [--offline] [FOLDER]
#
# Wheels are fetched by pip of $PYTHON (default python3), which must be of the base image's Python version, 3.11.
# --offline: the base comes from debootstrap (base.sh, kept in FOLDER) and the builds get no network.
set -euo pipefail
cd "$(dirname "$0")/.."

offline=
if [ "${1:-}" = --offline ]; then offline=1; shift; fi
folder=${1:-.cache/docker}
python=${PYTHON:-python3}

if ! docker image inspect ostinato-base:bookworm >/dev/null 2>&1; then
  if [ -n "$offline" ]; then bash docker/base.sh "$folder"; else docker build -q -f docker/base.Dockerfile -t ostinato-base:bookworm .; fi
fi

args=()
if [ -n "$offline" ]; then
  "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' \
    || { echo "images.sh: $python is not Python 3.11, which the wheels must be for; set PYTHON" >&2; exit 1; }
  for pins in docker/pins/{ostinato,libllama,llama-server}.txt; do
    "$python" -m pip download -q --no-deps --only-binary :all: -d docker/wheels -r "$pins"
  done
  args=(--network none --build-arg PIP_ARGS=--no-index)
fi
for image in ostinato-cpu:ostinato:cpu libllama:ostinato-libllama llama-server:ostinato-llama-server; do
  # The classic builder: BuildKit asks a registry even about an image that is here.
  DOCKER_BUILDKIT=0 docker build -q "${args[@]}" -f "docker/${image%%:*}.Dockerfile" -t "${image#*:}" .
done
