"""What every Dockerfile and script in ``docker/`` must keep to."""

import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "docker").glob("*.Dockerfile"))
PINS = sorted((ROOT / "docker" / "pins").glob("*.txt"))
MAX_LINES = 45
NAMES = {
    "base", "freetoken", "harness", "libllama", "llama-cuda", "llama-server", "ostinato-cpu", "ostinato-cuda",
    "sglang-kt", "vllm-hooks",
}  # fmt: skip


def instructions(file: Path) -> Iterator[tuple[str, str]]:
    """``(name, arguments)``, continuation lines joined."""
    text = re.sub(r"^\s*#.*\n", "", file.read_text(), flags=re.MULTILINE)
    for line in re.sub(r"\\\n", " ", text).splitlines():
        if line.strip():
            name, _, rest = line.strip().partition(" ")
            yield name, rest.strip()


def filled(text: str, arguments: dict[str, str]) -> str:
    return re.sub(r"\$\{(\w+)\}", lambda found: arguments[found[1]], text)


def bases(file: Path) -> list[str]:
    """What each stage starts from, with the arguments' defaults; names of earlier stages left out."""
    arguments: dict[str, str] = {}
    found, stages = [], set()
    for name, rest in instructions(file):
        if name == "ARG":
            key, _, value = rest.partition("=")
            arguments[key] = value.strip('"')
        if name == "FROM":
            words = filled(rest, arguments).split()
            if words[0] not in stages:
                found.append(words[0])
            stages |= set(words[2:])
    return found


def test_there_is_a_dockerfile_for_each_engine_that_comes_without_an_image() -> None:
    assert {file.name.removesuffix(".Dockerfile") for file in FILES} == NAMES


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
class TestDockerfile:
    def test_holds_only_what_docker_knows_and_can_be_read_in_one_sitting(self, file: Path) -> None:
        known = {"ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "FROM", "RUN", "USER"}  # no ADD: it fetches and unpacks
        assert {name for name, _ in instructions(file)} <= known
        assert len(file.read_text().splitlines()) <= MAX_LINES

    def test_starts_from_a_version_that_an_argument_names(self, file: Path) -> None:
        froms = [rest for name, rest in instructions(file) if name == "FROM"]
        assert froms
        assert all("${" in text for text in froms)
        for base in bases(file):
            _, _, tag = base.partition(":")
            assert re.search(r"\d|bookworm", tag), f"{base} is not pinned"
            assert tag != "latest"

    def test_ends_as_a_user_who_is_not_root(self, file: Path) -> None:
        users = [rest for name, rest in instructions(file) if name == "USER"]
        assert users[-1] == "65534:65534"
        last_from = max(number for number, (name, _) in enumerate(instructions(file)) if name == "FROM")
        last_user = max(number for number, (name, _) in enumerate(instructions(file)) if name == "USER")
        assert last_user > last_from

    def test_installs_exact_versions_and_keeps_no_package_lists(self, file: Path) -> None:
        arguments = {rest.partition("=")[0] for name, rest in instructions(file) if name == "ARG"}
        for name, rest in instructions(file):
            if name == "RUN" and "apt-get install" in rest:
                assert "--no-install-recommends" in rest
                assert "rm -rf /var/lib/apt/lists/*" in rest
            if name == "RUN" and "pip install" in rest:
                assert "--no-cache-dir" in rest
                pinned = set(re.findall(r'"[\w-]+==\$\{(\w+)\}"', rest))
                assert pinned <= arguments
                assert pinned or "-r /pins.txt" in rest or "/source" in rest or "/wheels/*.whl" in rest

    def test_holds_no_secret_and_no_index_of_packages(self, file: Path) -> None:
        text = file.read_text()
        assert not re.search(r"(?i)(password|passwd|secret|\b(\w+_)?token|api_?key)\s*=", text)
        assert not re.search(r"(?i)--(extra-)?index-url[ =]\S*://", text)
        assert not re.search(r"https?://\S*@", text)

    def test_copies_only_what_is_there_and_docker_is_given(self, file: Path) -> None:
        given = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
        for name, rest in instructions(file):
            if name == "COPY" and not rest.startswith("--from="):
                for source in rest.split()[:-1]:
                    assert (ROOT / source).exists(), source
                    assert any(
                        source == path or source.startswith(f"{path}/") or path.startswith(source) for path in given
                    )


@pytest.mark.parametrize("file", PINS, ids=lambda file: file.stem)
def test_pins_are_exact(file: Path) -> None:
    lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    assert lines
    assert all(re.fullmatch(r"[a-z0-9-]+==[\w.]+", line) for line in lines), file


@pytest.mark.parametrize(("pins", "extra"), [("ostinato", "ostinato"), ("libllama", "embedded")])
def test_pins_are_within_what_the_project_asks_for(pins: str, extra: str) -> None:
    lines = (ROOT / "docker" / "pins" / f"{pins}.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if not line.startswith("#"))
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"][extra]
    for requirement in map(Requirement, asked):
        assert pinned[requirement.name] in requirement.specifier, requirement


@pytest.mark.parametrize(
    "script", [*sorted((ROOT / "docker").glob("*.sh")), ROOT / ".ci" / "run"], ids=lambda p: p.name
)
def test_scripts_can_be_read_by_bash_and_stop_at_the_first_error(script: Path) -> None:
    assert "set -euo pipefail" in script.read_text()
    bash = shutil.which("bash")
    assert bash is not None
    assert subprocess.run([bash, "-n", script], capture_output=True).returncode == 0
