"""The exact arguments of ``docker create``: field by field, and whole for every engine that comes with an image."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from docker.types import DeviceRequest, HostConfig, Ulimit

from engines.base import EngineError, Mount
from engines.container.spec import Bind, Place, arguments, command, forcing_binds, model_bind
from engines.placeholders import names_state
from engines.settings import ContainerSettings, EngineSettings
from replay.config import CONF, composed

CREATED = Path(__file__).with_name("created")
WITH_IMAGE = [
    path.stem
    for path in sorted((CONF / "engine").glob("*.yaml"))
    if (yaml.safe_load(path.read_text()).get("container") or {}).get("image")
]


def settings(**container: Any) -> EngineSettings:
    return EngineSettings(
        name="tested",
        label="Tested",
        dialect="ostinato",
        forcing="field",
        command=["{python}", "serve.py", "--host", "{host}", "--port", "{port}", "--model", "{model}"],
        env={"FLAVOUR": "port {port}"},
        container=ContainerSettings(**{"image": "engine:1", **container}),
    )


def place(**changes: Any) -> Place:
    given = {"name": "ostinato-tested", "port": 8080, "labels": {"ostinato.pid": "7"}, "user": (1000, 100)}
    return Place(**{**given, "model": "/model", **changes})


def test_an_engine_gets_no_more_rights_than_it_needs() -> None:
    created = arguments(settings(), place())
    assert created == {
        "image": "engine:1",
        "name": "ostinato-tested",
        "command": ["python3", "serve.py", "--host", "127.0.0.1", "--port", "8080", "--model", "/model"],
        "environment": {"HOME": "/tmp", "USER": "ostinato", "FLAVOUR": "port 8080"},
        "labels": {"ostinato.pid": "7"},
        "user": "1000:100",
        "mounts": [],
        "tmpfs": {"/tmp": "rw,exec,nosuid,nodev,mode=1777"},
        "read_only": True,
        "security_opt": ["no-new-privileges"],
        "cap_drop": ["ALL"],
        "init": True,
        "stop_signal": "SIGTERM",
        "network_mode": "host",
    }


def test_whoever_runs_the_harness_as_root_gets_another_user_inside() -> None:
    assert arguments(settings(), place(user=(0, 0)))["user"] == "65534:65534"
    assert arguments(settings(user="0:0"), place())["user"] == "0:0"


def test_limits_are_asked_for_as_the_sdk_takes_them() -> None:
    asked = settings(
        cpuset_cpus="0-47", cpuset_mems="0,1", memory="64g", shm_size="16g", ulimits={"memlock": -1, "nofile": 4096}
    )
    created = arguments(asked, place())
    limits = {"cpuset_cpus", "cpuset_mems", "mem_limit", "memswap_limit", "shm_size", "ulimits", "cap_add"}
    assert {name: created[name] for name in limits} == {
        "cpuset_cpus": "0-47",
        "cpuset_mems": "0,1",
        "mem_limit": "64g",
        "memswap_limit": "64g",
        "shm_size": "16g",
        "ulimits": [
            {"Name": "memlock", "Soft": -1, "Hard": -1},
            {"Name": "nofile", "Soft": 4096, "Hard": 4096},
        ],
        "cap_add": ["SYS_NICE"],
    }
    host = HostConfig(version="1.41", ulimits=created["ulimits"], mem_limit="64g", memswap_limit="64g")
    assert host["Ulimits"] == [Ulimit(name="memlock", soft=-1, hard=-1), Ulimit(name="nofile", soft=4096, hard=4096)]


@pytest.mark.parametrize(
    ("gpus", "request_"),
    [
        ("all", {"Driver": "", "Count": -1, "Capabilities": [["gpu"]]}),
        ("0,2", {"Driver": "", "DeviceIDs": ["0", "2"], "Capabilities": [["gpu"]]}),
    ],
)
def test_gpus_are_asked_for_by_number_or_all(gpus: str, request_: dict[str, Any]) -> None:
    (asked,) = arguments(settings(gpus=gpus), place())["device_requests"]
    assert asked == request_
    whole = DeviceRequest(**asked)
    assert whole["Count"] == request_.get("Count", 0)
    assert whole["DeviceIDs"] == request_.get("DeviceIDs", [])


def test_gpus_that_name_nothing_are_refused() -> None:
    with pytest.raises(EngineError, match=r"engine\.container\.gpus='0,' .* set all, or numbers"):
        arguments(settings(gpus="0,"), place())


def test_a_bridge_publishes_the_port_on_this_machine_alone() -> None:
    created = arguments(settings(network="bridge"), place())
    assert created["network_mode"] == "bridge"
    assert created["ports"] == {"8080/tcp": ("127.0.0.1", 8080)}
    assert created["command"][3] == "0.0.0.0"


def test_its_own_command_and_entry_point_replace_the_engines(tmp_path: Path) -> None:
    asked = settings(command=["-p", "{port}"], entrypoint=["/app/{name}"], mounts={str(tmp_path): "/extra"})
    asked.options = {"name": "server"}
    created = arguments(asked, place(binds=[Bind(source=Path("/m"), target="/model")]))
    assert created["command"] == ["-p", "8080"]
    assert created["entrypoint"] == ["/app/server"]
    assert created["mounts"] == [
        {"Type": "bind", "Source": "/m", "Target": "/model", "ReadOnly": True},
        {"Type": "bind", "Source": str(tmp_path), "Target": "/extra", "ReadOnly": True},
    ]


def test_an_image_is_asked_for() -> None:
    with pytest.raises(EngineError, match=r"engine\.container\.image is not set"):
        arguments(settings(image=None), place())


def test_what_nothing_fills_names_the_containers_setting() -> None:
    with pytest.raises(EngineError, match=r"engine\.container\.command: nothing fills \{colour\}"):
        arguments(settings(command=["{colour}"]), place())


def test_forcing_comes_before_the_engines_own_preload_and_its_files_keep_their_paths(tmp_path: Path) -> None:
    (tmp_path / "compiled.so").touch()
    library = tmp_path / "force.so"
    library.symlink_to(tmp_path / "compiled.so")
    binds = forcing_binds((Mount(path=library), Mount(path=tmp_path / "plan", writable=True)))
    assert binds == [
        Bind(source=tmp_path / "compiled.so", target=str(library)),
        Bind(source=tmp_path / "plan", target=str(tmp_path / "plan"), read_only=False),
    ]
    asked = settings()
    asked.env = {"LD_PRELOAD": "/lib/tcmalloc.so"}
    created = arguments(asked, place(forcing={"LD_PRELOAD": str(library), "PLAN": "p"}))
    assert created["environment"]["LD_PRELOAD"] == f"{library}:/lib/tcmalloc.so"
    assert created["environment"]["PLAN"] == "p"


def test_a_model_file_is_mounted_alone(tmp_path: Path) -> None:
    model = tmp_path / "tiny.gguf"
    model.touch()
    link = tmp_path / "link.gguf"
    link.symlink_to(model)
    assert model_bind(model) == (Bind(source=model, target="/model/tiny.gguf"), "/model/tiny.gguf")
    assert model_bind(link) == (Bind(source=model, target="/model/link.gguf"), "/model/link.gguf")


def test_the_parts_of_a_split_model_come_along(tmp_path: Path) -> None:
    first = tmp_path / "big-00001-of-00002.gguf"
    first.touch()
    assert model_bind(first) == (Bind(source=tmp_path, target="/model"), f"/model/{first.name}")


def test_a_model_folder_is_mounted_whole(tmp_path: Path) -> None:
    (tmp_path / "config.json").touch()
    assert model_bind(tmp_path) == (Bind(source=tmp_path, target="/model"), "/model")


def test_a_model_in_a_hubs_cache_brings_what_its_links_name(tmp_path: Path) -> None:
    repository = tmp_path / "models--org--name"
    snapshot = repository / "snapshots" / "1234"
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    (repository / "blobs" / "aa").touch()
    (snapshot / "config.json").symlink_to("../../blobs/aa")
    assert model_bind(snapshot) == (Bind(source=repository, target="/model"), "/model/snapshots/1234")


def test_links_inside_the_folder_need_nothing_more(tmp_path: Path) -> None:
    (tmp_path / "real").touch()
    (tmp_path / "link").symlink_to("real")
    assert model_bind(tmp_path) == (Bind(source=tmp_path, target="/model"), "/model")


@pytest.mark.parametrize("name", WITH_IMAGE)
def test_the_call_for_an_engine_with_an_image_is_the_one_that_was_read(name: str) -> None:
    """On the machine of ``conf/hardware/rtx4090d_x4.yaml``, for which these files hold the calls."""
    engine = composed([f"engine={name}", "launch=container", "hardware=rtx4090d_x4"]).engine
    inside = "/model/model.gguf" if engine.model_format == "gguf" else "/model"
    created = arguments(
        engine,
        Place(
            name=f"ostinato-{name}",
            port=8080,
            labels={},
            user=(1000, 1000),
            model=inside,
            binds=[Bind(source=Path("/models/model"), target=inside)],
            state=names_state(command(engine), engine),
        ),
    )
    file = CREATED / f"{name}.json"
    if not file.is_file():
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(created, indent=2) + "\n")
        pytest.fail(f"{file} was missing and is written; read it, then run again")
    told = f"{name}: another call than {file.name} holds; where it is meant, remove the file and run twice"
    assert json.loads(json.dumps(created)) == json.loads(file.read_text()), told


def test_no_call_is_kept_of_an_engine_that_is_gone() -> None:
    assert {path.stem for path in CREATED.glob("*.json")} <= set(WITH_IMAGE)
