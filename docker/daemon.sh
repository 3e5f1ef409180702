#!/usr/bin/env bash
# A Docker daemon for tests where none runs: `daemon.sh start FOLDER` as root, `daemon.sh stop FOLDER`.
#
# start: prints the address that DOCKER_HOST must be set to, empty when a daemon answers already: that one is used.
#        Exit 1, with the reason on standard error, when there is none to be had.
# stop:  ends the daemon that start began, and nothing else.
# Everything of it lies in FOLDER (default .cache/docker): images built once are there the next time.
set -euo pipefail

what=${1:-}
folder=$(realpath -m "${2:-.cache/docker}")
# A socket's path may have 107 characters.
run=${TMPDIR:-/tmp}/ostinato-docker-$(printf %s "$folder" | cksum | cut -d' ' -f1)

no() { echo "no Docker daemon: $*" >&2; exit 1; }

start() {
  if command -v docker >/dev/null && docker version >/dev/null 2>&1; then return; fi
  if [ -n "${DOCKER_HOST:-}" ]; then no "DOCKER_HOST=$DOCKER_HOST does not answer"; fi
  # A second daemon beside one that is only hidden from this user could take down its bridge.
  if [ -S /var/run/docker.sock ] && pgrep -x dockerd >/dev/null; then no "dockerd runs and does not answer this user"; fi
  if [ "$(id -u)" != 0 ]; then no "starting one needs root"; fi
  if ! command -v dockerd >/dev/null || ! command -v iptables >/dev/null; then
    command -v apt-get >/dev/null || no "dockerd is not installed, and this system has no apt-get"
    # The packages would start a daemon of their own, where the system has a service manager.
    { apt-get update -q && apt-get install -y -q --no-install-recommends docker.io iptables; } >&2 \
      || no "apt-get could not install docker.io"
    if docker version >/dev/null 2>&1; then return; fi
  fi
  mkdir -p "$folder" "$run"
  # First with what Docker prefers; where the kernel lacks overlayfs or netfilter, with what always works.
  for flags in "" "--storage-driver=vfs" "--storage-driver=vfs --iptables=false --bridge=none"; do
    # shellcheck disable=SC2086
    setsid dockerd --data-root "$folder/data" --exec-root "$run/exec" -p "$run/pid" -H "unix://$run/sock" $flags \
      >"$folder/dockerd.log" 2>&1 </dev/null &
    pid=$!
    for _ in $(seq 150); do
      if DOCKER_HOST=unix://$run/sock docker version >/dev/null 2>&1; then
        echo "unix://$run/sock"
        return
      fi
      kill -0 "$pid" 2>/dev/null || break
      sleep 0.2
    done
    kill "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
  done
  no "dockerd does not start: $(tail -n 1 "$folder/dockerd.log")"
}

stop() {
  if [ -f "$run/pid" ]; then
    pid=$(cat "$run/pid")
    kill "$pid" 2>/dev/null || true
    for _ in $(seq 150); do
      kill -0 "$pid" 2>/dev/null || break
      sleep 0.2
    done
    if kill -0 "$pid" 2>/dev/null; then kill -9 "$pid"; fi
  fi
  # What it mounted stays mounted: its network namespace, and the roots of containers that were killed with it.
  awk -v run="$run/" 'index($2, run) == 1 { print $2 }' /proc/mounts | sort -r | while read -r place; do umount -l "$place"; done
  rm -rf "$run"
}

case $what in
  start | stop) "$what" ;;
  *) echo "usage: $0 start|stop [FOLDER]" >&2; exit 2 ;;
esac
