import pytest

from engines.container.advice import ending, refused, unreachable
from engines.settings import ContainerSettings, EngineSettings

ENGINE = EngineSettings(
    name="tested",
    label="Tested",
    dialect="ostinato",
    forcing="none",
    container=ContainerSettings(image="engine:1", memory="2x", ulimits={"memlock": -1}, cpuset_cpus="0-99"),
)

# What daemons said: 20.10 and 28.2, and podman's API.
SAID = {
    'could not select device driver "" with capabilities: [[gpu]]': "install nvidia-container-toolkit",
    "No such image: engine:1": "docker pull engine:1",
    "invalid reference format: repository name must be lowercase": "image='engine:1' is no image name",
    "failed to create shim: OCI runtime create failed: runc create failed: unable to start container process: error "
    "during container init: error setting rlimits for ready process: error setting rlimit type 8: operation not "
    "permitted: unknown": "engine.container.ulimits={'memlock': -1}; set engine.container.ulimits={}",
    'Conflict. The container name "/ostinato-x" is already in use by container "4f". You have to remove (or rename) '
    "that container to be able to reuse that name.": "another container has the name",
    "driver failed programming external connectivity on endpoint x: Bind for 127.0.0.1:8080 failed: port is already "
    "allocated": "engine.port is taken",
    'invalid mount config for type "bind": bind source path does not exist: /models/x': "correct "
    "engine.container.mounts",
    'OCI runtime create failed: exec: "serve": executable file not found in $PATH: unknown': "correct "
    "engine.container.entrypoint",
    "Requested CPUs are not available - requested 0-99, available: 0-1": "cpuset_cpus=0-99",
    "Minimum memory limit allowed is 6MB": "engine.container.memory=2x",
    "network tunnel not found": "set host or bridge",
    "unable to find user ada: no matching entries in passwd file": "give numbers, as in 1000:1000",
    "write /var/lib/docker/x: no space left on device": "the daemon's disk is full",
}


@pytest.mark.parametrize(("said", "remedy"), SAID.items())
def test_a_refusal_is_one_line_that_names_the_remedy_and_keeps_what_docker_said(said: str, remedy: str) -> None:
    error = refused(said, ENGINE)
    assert remedy in str(error)
    assert f"Docker said: {said}" in str(error)
    assert "\n" not in str(error)
    assert error.kind == "setting"


def test_a_refusal_that_nobody_foresaw_is_told_as_it_is() -> None:
    error = refused("the moon\nis full", ENGINE)
    assert str(error) == "Docker refused to run engine:1: the moon is full"
    assert error.kind == "start"


def test_a_daemon_that_is_not_there_can_be_started() -> None:
    error = unreachable("Error while fetching server API version: No such file or directory", None)
    assert "no Docker daemon answers at the default socket; start Docker" in str(error)
    assert "DOCKER_HOST=tcp://far:1" in str(unreachable("timed out", "tcp://far:1"))


def test_a_socket_of_others_needs_their_group() -> None:
    assert "join the group docker" in str(unreachable("PermissionError(13, 'Permission denied')", None))


def test_an_ending_tells_memory_from_signals_and_codes() -> None:
    assert "ran out of memory; its limit is engine.container.memory=2x; raise it" in ending(
        137, out_of_memory=True, settings=ENGINE
    )
    assert ending(137, out_of_memory=False, settings=ENGINE) == "exit code 137, signal 9"
    assert "correct engine.container.entrypoint" in ending(127, out_of_memory=False, settings=ENGINE)
    assert ending(7, out_of_memory=False, settings=ENGINE) == "exit code 7"
    assert ending(None, out_of_memory=False, settings=ENGINE) == "its container is gone"
