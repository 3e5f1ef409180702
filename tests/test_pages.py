"""Every command in the README and in the guides is run, or says what it needs."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from replay.record import RESULT_FILE
from replay.rows import COMPLETE, status

ROOT = Path(__file__).parents[1]
README = "README.md"
PAGES = [README, *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md"))]
COMMANDS = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
FILES = re.compile(r"^```(?:yaml|json)\n# file: (\S+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")


def commands(page: str) -> list[str]:
    lines = "\n".join(COMMANDS.findall((ROOT / page).read_text())).replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]


def needs(command: str) -> str | None:
    """What a command says it needs beyond this repository, in a comment behind it."""
    _, _, comment = command.partition("#")
    return comment.split("needs", 1)[1].strip() if "needs" in comment else None


RUNNABLE = [
    pytest.param(page, command, marks=() if page == README else pytest.mark.slow, id=f"{Path(page).stem}: {command}")
    for page in PAGES
    for command in commands(page)
    if needs(command) is None and not command.startswith("make ")
]


def test_the_readme_has_commands() -> None:
    assert len(commands(README)) >= 5


@pytest.mark.parametrize("target", sorted({c.split()[1] for c in commands(README) if c.startswith("make ")}))
def test_make_knows_the_target(target: str) -> None:
    subprocess.run(["make", "-n", target], cwd=ROOT, check=True, capture_output=True)


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_links_to_is_there(page: str) -> None:
    for target in LINK.findall((ROOT / page).read_text()):
        assert (ROOT / page).parent.joinpath(target).exists(), target


def test_the_index_names_every_guide() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    for path in (ROOT / "docs").glob("*.md"):
        assert path.name == README or f"({path.name})" in index


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Where each page's commands run, in order: one may read what those before it wrote, and the files that the page
    shows under a line ``# file: …``."""
    made = {}
    for page in PAGES:
        made[page] = tmp_path_factory.mktemp(Path(page).stem)
        for name, text in FILES.findall((ROOT / page).read_text()):
            path = made[page] / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return made


@pytest.mark.parametrize(("page", "command"), RUNNABLE)
def test_the_command_runs(page: str, command: str, folders: dict[str, Path]) -> None:
    folder = folders[page]
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
    said = done.stdout[-3000:] + done.stderr[-3000:]
    assert done.returncode == 0 or (done.returncode in (1, 3) and disturbed(folder)), said


def disturbed(folder: Path) -> bool:
    """Whether every run of this page came to its end, and some are not valid only because others took the cores."""
    ended = [status(path.parent) for path in folder.rglob(RESULT_FILE)]
    return all(run.name == COMPLETE or run.noise for run in ended) and any(run.noise for run in ended)
