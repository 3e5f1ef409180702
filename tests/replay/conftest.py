"""The command as a user runs it, in this process and in an empty folder."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hydra import initialize_config_dir

from replay.cli import main
from replay.config import CONF, register
from replay.engines_cli import main as engines_main
from replay.record import RESULT_FILE
from replay.rows import COMPLETE, status


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """The one line that says what is wrong."""
        lines = [line for line in self.err.splitlines() if line.startswith("replay: ")]
        assert len(lines) == 1, self.err
        assert "Traceback" not in self.err
        return lines[0]


Command = Callable[..., Done]


@pytest.fixture
def replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """``replay("engine=fake", …)`` in ``tmp_path``."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OSTINATO_CACHE", str(tmp_path / "cache"))

    def run(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["replay", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capsys.readouterr()
        assert isinstance(stop.value.code, int)
        return Done(stop.value.code, captured.out, captured.err)

    return run


@pytest.fixture
def engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """``engines("doctor", …)`` in ``tmp_path``, on a wide terminal without a Docker daemon."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OSTINATO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")

    def run(*arguments: str) -> Done:
        with pytest.raises(SystemExit) as stop:
            engines_main(arguments)
        captured = capsys.readouterr()
        assert isinstance(stop.value.code, int)
        return Done(stop.value.code, captured.out, captured.err)

    return run


@pytest.fixture
def runs(tmp_path: Path) -> Callable[[], list[Path]]:
    """The run folders that ``replay`` left."""
    return lambda: sorted(path.parent for path in tmp_path.glob(f"results/*/*/*/{RESULT_FILE}"))


@pytest.fixture
def due(runs: Callable[[], list[Path]]) -> Callable[[], int]:
    """The exit code that a sweep's rows ask for: on a busy machine a run of 1 ms a turn may be called invalid."""
    return lambda: int(any(status(folder).name != COMPLETE for folder in runs()))


@pytest.fixture
def fake() -> Callable[..., list[str]]:
    """Overrides for small sessions on a fake engine without latency; arguments say how its completions fail."""

    def overrides(*faults: str) -> list[str]:
        words = (
            "{python} -m engines.fake --port {port} --prefill-ms 0 --prefill-ms-per-token 0 --decode-ms {decode_ms}"
        )
        command = ",".join(f"'{word}'" for word in [*words.split(), *(f"--fault={fault}" for fault in faults)])
        small = ["workload=synthetic", "workload.sessions=3", "workload.turns=3"]
        return ["engine=fake", f"engine.command=[{command}]", "engine.options.decode_ms=0", *small]

    return overrides


@pytest.fixture
def worker() -> Iterator[subprocess.Popen[bytes]]:
    """A process whose child has computed for a while, and waits."""
    child = "import time; end = time.process_time() + 0.2\nwhile time.process_time() < end: pass\ninput()"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    process = subprocess.Popen([sys.executable, "-c", parent], stdin=subprocess.PIPE)
    yield process
    process.communicate(b"\n")


@pytest.fixture(scope="module")
def hydra() -> Iterator[None]:
    """The project's configuration, for ``hydra.compose``."""
    register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        yield
