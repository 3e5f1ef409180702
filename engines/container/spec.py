"""From an engine's settings to the exact arguments of ``docker create``. Pure: asks neither Docker nor the files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engines.base import EngineError, Mount
from engines.placeholders import filled, filled_command, placeholders
from engines.port import LOOPBACK
from engines.settings import EngineSettings

PYTHON = "python3"
"""What ``{python}`` names inside: an image has one, on its PATH."""
STATE = "/state"
_ANYWHERE = "0.0.0.0"  # noqa: S104 inside a container of its own network, published on 127.0.0.1 only
_NOBODY = 65534
_PRELOAD = "LD_PRELOAD"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind:
    """A folder or file of the host inside the container."""

    source: Path
    target: str
    read_only: bool = True

    def described(self) -> dict[str, Any]:
        return {"Type": "bind", "Source": str(self.source), "Target": self.target, "ReadOnly": self.read_only}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What a start of its own decides."""

    name: str
    port: int
    labels: Mapping[str, str]
    user: tuple[int, int]
    """Of this process: user and group."""
    model: str | None = None
    """``{model}`` inside."""
    binds: Sequence[Bind] = ()
    """Model, forcing and state."""
    forcing: Mapping[str, str] = field(default_factory=dict)
    """Forcing's environment; its paths hold inside as they do outside."""
    state: bool = False


def arguments(settings: EngineSettings, place: Place) -> dict[str, Any]:
    """Keyword arguments of the SDK's ``containers.create``.

    Raises:
        EngineError: a setting of ``engine.container`` is missing or can't be read.
    """
    asked = settings.container
    if not asked.image:
        raise EngineError("engine.container.image is not set; name the image that holds the engine")
    values = placeholders(
        settings,
        python=PYTHON,
        model=place.model,
        host=listening_host(settings),
        port=place.port,
        state=STATE if place.state else None,
    )
    created: dict[str, Any] = {
        "image": asked.image,
        "name": place.name,
        "command": filled_command(command(settings), _command_setting(settings), values),
        "environment": _environment(settings, place, values),
        "labels": dict(place.labels),
        "user": user(settings, place.user),
        "mounts": [bind.described() for bind in (*place.binds, *_mounts(settings))],
        "tmpfs": {"/tmp": "rw,exec,nosuid,nodev,mode=1777"},  # noqa: S108 exec: engines compile kernels there
        "read_only": True,
        "security_opt": ["no-new-privileges"],
        "cap_drop": ["ALL"],
        "init": True,  # a first process that hands signals on and buries the dead, which few engines do
        "stop_signal": "SIGTERM",
        **_network(settings, place.port),
        **_limits(settings),
    }
    if asked.entrypoint is not None:
        created["entrypoint"] = filled_command(asked.entrypoint, "engine.container.entrypoint", values)
    return created


def command(settings: EngineSettings) -> list[str]:
    """What runs inside, placeholders unfilled."""
    return settings.container.command or settings.command


def listening_host(settings: EngineSettings) -> str:
    return LOOPBACK if settings.container.network == "host" else _ANYWHERE


def user(settings: EngineSettings, own: tuple[int, int]) -> str:
    """``user:group`` inside; whoever runs the harness as root gets ``nobody``, not root."""
    if settings.container.user:
        return settings.container.user
    uid, gid = own
    return f"{uid}:{gid}" if uid else f"{_NOBODY}:{_NOBODY}"


def forcing_binds(mounts: Sequence[Mount]) -> list[Bind]:
    """What forcing needs inside, at the place that it has outside."""
    return [
        Bind(source=mount.path.resolve(), target=str(mount.path), read_only=not mount.writable) for mount in mounts
    ]


def model_bind(model: Path) -> tuple[Bind, str]:
    """The mount that brings a model inside, and its path there.

    A hub's cache links each file to one elsewhere in it, and a split GGUF names its first part only: then a whole
    folder above is mounted.
    """
    if model.is_file() and "-of-" not in model.name:
        inside = f"/model/{model.name}"
        return Bind(source=model.resolve(), target=inside), inside
    folder = (model.parent if model.is_file() else model).absolute()
    root = folder
    for path in folder.iterdir():
        if path.is_symlink():
            target = Path(path.parent, path.readlink())
            while not _lies_in(target, root) and root != root.parent:
                root = root.parent
    if root == root.parent:
        raise EngineError(f"{model}: links to files all over the disk; give a folder that holds the files themselves")
    inside = f"/model/{model.absolute().relative_to(root)}".removesuffix("/.")
    return Bind(source=root, target="/model"), inside


def _lies_in(path: Path, root: Path) -> bool:
    """By name: ``a/../b`` lies where its parts lead, not where links do."""
    parts: list[str] = []
    for part in path.parts:
        parts = parts[:-1] if part == ".." else [*parts, part]
    return Path(*parts).is_relative_to(root)


def _command_setting(settings: EngineSettings) -> str:
    return "engine.container.command" if settings.container.command else "engine.command"


def _environment(settings: EngineSettings, place: Place, values: Mapping[str, object]) -> dict[str, str]:
    own = {name: filled(value, f"engine.env.{name}", values) for name, value in settings.env.items()}
    # A user that no password file names still has a home and a name: caches and libraries ask for both.
    variables = {"HOME": "/tmp", "USER": "ostinato", **own, **place.forcing}  # noqa: S108 a tmpfs of its own
    if preloads := [at[_PRELOAD] for at in (place.forcing, own) if at.get(_PRELOAD)]:
        variables[_PRELOAD] = ":".join(preloads)
    return variables


def _mounts(settings: EngineSettings) -> list[Bind]:
    return [
        Bind(source=Path(outside).expanduser().absolute(), target=inside)
        for outside, inside in settings.container.mounts.items()
    ]


def _network(settings: EngineSettings, port: int) -> dict[str, Any]:
    network = settings.container.network
    if network == "host":
        return {"network_mode": "host"}
    return {"network_mode": network, "ports": {f"{port}/tcp": (LOOPBACK, port)}}


def _limits(settings: EngineSettings) -> dict[str, Any]:
    asked = settings.container
    limits: dict[str, Any] = {
        "cpuset_cpus": asked.cpuset_cpus,
        "cpuset_mems": asked.cpuset_mems,
        "mem_limit": asked.memory,
        "memswap_limit": asked.memory,  # the same: none of it is swap
        "shm_size": asked.shm_size,
    }
    limits = {name: value for name, value in limits.items() if value is not None}
    if asked.cpuset_mems is not None:
        # Docker's seccomp profile refuses set_mempolicy and mbind without it. A process that is not root does not
        # hold the capability; that the container may have it is enough.
        limits["cap_add"] = ["SYS_NICE"]
    if asked.ulimits:
        limits["ulimits"] = [{"Name": name, "Soft": n, "Hard": n} for name, n in sorted(asked.ulimits.items())]
    if asked.gpus:
        limits["device_requests"] = [_gpus(asked.gpus)]
    return limits


def _gpus(asked: str) -> dict[str, Any]:
    if asked == "all":
        return {"Driver": "", "Count": -1, "Capabilities": [["gpu"]]}
    numbers = [part.strip() for part in asked.split(",")]
    if not all(numbers):
        raise EngineError(f"engine.container.gpus={asked!r} can't be read; set all, or numbers as in 0,1")
    return {"Driver": "", "DeviceIDs": numbers, "Capabilities": [["gpu"]]}
