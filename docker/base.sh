#!/usr/bin/env bash
# The image of base.Dockerfile where no registry can be reached: Debian by debootstrap, as root. About 75 s the first
# time; the archive (170 MB) is kept in FOLDER (default .cache/docker).
set -euo pipefail
cd "$(dirname "$0")/.."

folder=$(realpath -m "${1:-.cache/docker}")
suite=bookworm
packages=$(paste -sd, docker/base.packages)
archive=$folder/base-$suite-$(printf %s "$packages" | cksum | cut -d' ' -f1).tar

if [ ! -f "$archive" ]; then
  [ "$(id -u)" = 0 ] || { echo "$0 needs root, for debootstrap" >&2; exit 1; }
  command -v debootstrap >/dev/null || { apt-get update -q && apt-get install -y -q --no-install-recommends debootstrap; }
  mkdir -p "$folder"
  root=$(mktemp -d "$folder/root.XXXXXX")
  trap 'rm -rf "$root" "$archive.part"' EXIT
  # On another distribution than Debian, DEBIAN_MIRROR must give the address of a mirror.
  debootstrap --variant=minbase --include="$packages" $suite "$root" ${DEBIAN_MIRROR:+"$DEBIAN_MIRROR"} >"$folder/debootstrap.log" \
    || { tail -n 5 "$folder/debootstrap.log" >&2; exit 1; }
  rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/* "$root"/usr/share/doc "$root"/usr/share/man
  tar -C "$root" -cf "$archive.part" .
  mv "$archive.part" "$archive"
fi
docker import --change "USER 65534:65534" --change "CMD [\"python3\"]" "$archive" ostinato-base:$suite
