"""What Docker's refusals mean, each in one line with its remedy. Pure: takes texts, gives texts."""

import re

from engines.base import EngineError
from engines.settings import EngineSettings

_RULES = (
    (
        r"could not select device driver .*gpu|unknown runtime.*nvidia|nvidia-container-cli|could not load NVML",
        "Docker can't give containers a GPU; install nvidia-container-toolkit, run `nvidia-ctk runtime configure "
        "--runtime=docker`, restart Docker, or set engine.container.gpus=null",
    ),
    (
        r"invalid reference format|invalid repository name",
        "engine.container.image={image!r} is no image name; write it as in name:tag or name@sha256:…",
    ),
    (
        r"no such image|manifest unknown|pull access denied",
        "there is no image {image} here; `docker pull {image}`, build it (docker/images.sh), or correct "
        "engine.container.image",
    ),
    (
        r"rlimit|ulimit|operation not permitted.*limit",
        "the daemon may not set engine.container.ulimits={ulimits}; set "
        "engine.container.ulimits={{}}, or raise the daemon's own limits (LimitMEMLOCK=infinity in its systemd unit)",
    ),
    (
        r"is already in use by container|name .* is already in use",
        "another container has the name; `docker rm -f` it, or start again",
    ),
    (
        r"port is already allocated|address already in use",
        "engine.port is taken; set another, or 0 for a free one",
    ),
    (
        r"bind source path does not exist",
        "the daemon does not see this path; correct engine.container.mounts or model.path, and mind that a daemon on "
        "another machine (DOCKER_HOST) sees that machine's files only",
    ),
    (
        r"executable file not found|no such file or directory.*(exec|init)|permission denied.*exec|exec format error",
        "the image {image} can't run this program; correct engine.container.entrypoint or engine.container.command",
    ),
    (
        r"cpuset|requested cpus are not available|requested memory nodes are not available",
        "engine.container.cpuset_cpus={cpus} or cpuset_mems={mems} names what this machine has not; see `lscpu`",
    ),
    (
        r"minimum memory limit|invalid size|unable to parse|illegal value|invalid .*size",
        "engine.container.memory={memory} or shm_size={shm} is no size Docker takes; write it as in 64g, 6m at least",
    ),
    (
        r"unable to find user|no matching entries in passwd|invalid .*user",
        "engine.container.user={user} is not in the image; give numbers, as in 1000:1000",
    ),
    (
        r"network .* not found",
        "engine.container.network={network} is not there; set host or bridge",
    ),
    (r"no space left on device", "the daemon's disk is full; free some (`docker system df`, `docker system prune`)"),
)


def refused(said: str, settings: EngineSettings) -> EngineError:
    """The error for what the daemon answered to ``create`` or ``start``."""
    container = settings.container
    said = " ".join(said.split())
    for pattern, advice in _RULES:
        if re.search(pattern, said, re.IGNORECASE):
            remedy = advice.format(
                image=container.image,
                ulimits=container.ulimits,
                cpus=container.cpuset_cpus,
                mems=container.cpuset_mems,
                memory=container.memory,
                shm=container.shm_size,
                user=container.user,
                network=container.network,
            )
            return EngineError(f"{remedy} (Docker said: {said})")
    return EngineError(f"Docker refused to run {container.image}: {said}", kind="start")


def unreachable(said: str, host: str | None) -> EngineError:
    """The error for a daemon that does not answer.

    Args:
        host: ``DOCKER_HOST``.
    """
    said = " ".join(said.split())
    place = f"DOCKER_HOST={host}" if host else "the default socket"
    if re.search(r"permission denied", said, re.IGNORECASE):
        remedy = "join the group docker (`sudo usermod -aG docker $USER`, then log in again)"
    else:
        remedy = (
            "start Docker (`sudo systemctl start docker`, or `docker/daemon.sh start` as root), or set DOCKER_HOST"
        )
    return EngineError(f"no Docker daemon answers at {place}; {remedy}, or use launch=process (it said: {said})")


def ending(code: int | None, *, out_of_memory: bool, settings: EngineSettings) -> str:
    """How a container ended, in words.

    Args:
        code: its exit code; above 128 a signal's number is added. None: the daemon does not know.
    """
    limit = settings.container.memory
    if out_of_memory:
        remedy = f"its limit is engine.container.memory={limit}; raise it" if limit else "the machine had none left"
        return f"killed as it ran out of memory; {remedy}, or make the engine take less"
    if code is None:
        return "its container is gone"
    if code in (126, 127):
        return f"exit code {code}: its image can't run this program; correct engine.container.entrypoint or .command"
    if code > 128:
        return f"exit code {code}, signal {code - 128}"
    return f"exit code {code}"
