"""Every command in the README is run, or says what it needs."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    text = (ROOT / "README.md").read_text()
    lines = "\n".join(BLOCK.findall(text)).replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]


def needs(command: str) -> str | None:
    """What a command says it needs beyond this repository, in a comment behind it."""
    _, _, comment = command.partition("#")
    return comment.split("needs", 1)[1].strip() if "needs" in comment else None


def test_the_readme_has_commands() -> None:
    assert len(commands()) >= 5


RUNNABLE = [command for command in commands() if needs(command) is None and not command.startswith("make ")]


@pytest.mark.parametrize("target", sorted({c.split()[1] for c in commands() if c.startswith("make ")}))
def test_make_knows_the_target(target: str) -> None:
    subprocess.run(["make", "-n", target], cwd=ROOT, check=True, capture_output=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the README's commands run, in order: each may read what the ones before it wrote."""
    return tmp_path_factory.mktemp("readme")


@pytest.mark.parametrize("command", RUNNABLE)
def test_the_command_runs(command: str, folder: Path) -> None:
    words = shlex.split(command, comments=True)
    program = Path(sys.executable).parent / words[0]
    environment = {**os.environ, "OSTINATO_CACHE": str(ROOT / ".cache")}
    shared = folder.parent / "shared"
    if any("../shared" in word for word in words):
        real = ROOT.parent / "shared"
        if not real.is_dir():
            pytest.skip("no ../shared beside the checkout: real recordings are not here")
        if not shared.exists():
            shared.symlink_to(real)
    assert shutil.which(str(program)), f"{words[0]} is not installed beside {sys.executable}"
    done = subprocess.run(
        ["bash", "-c", shlex.join([str(program)]) + command[len(words[0]) :]],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
