"""The repository's shape: whose packages are imported, what the contracts say."""

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("analysis", "engines", "replay", "workloads")


@pytest.mark.parametrize("package", PACKAGES)
def test_no_other_distribution_shadows_a_package_of_ours(package: str, tmp_path: Path) -> None:
    found = subprocess.run(
        [sys.executable, "-c", f"import {package}; print({package}.__file__)"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(found.stdout.strip()) == ROOT / package / "__init__.py"
    owners = set(importlib.metadata.packages_distributions().get(package, []))
    assert owners <= {"ostinato-replay"}


def test_the_docker_folder_does_not_hide_the_docker_sdk() -> None:
    assert not list((ROOT / "docker").glob("**/*.py"))
    found = subprocess.run(
        [sys.executable, "-c", "import docker; print(docker.from_env.__name__)"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert found.stdout.strip() == "from_env", found.stderr


@pytest.mark.parametrize("package", PACKAGES)
def test_package_files_hold_a_docstring_only(package: str) -> None:
    for path in (ROOT / package).rglob("__init__.py"):
        text = path.read_text()
        assert text.startswith('"""'), path
        assert text.rstrip().endswith('"""'), path
        assert text.count('"""') == 2, path


def test_tests_mirror_the_packages() -> None:
    folders = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders <= {*PACKAGES, "containers", "sweeps"}  # with a real daemon, real launchers: about all packages
    assert not list((ROOT / "tests").rglob("__init__.py"))
