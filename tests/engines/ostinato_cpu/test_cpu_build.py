"""Compiling at the first use, and where that can't be."""

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from engines.ostinato.cpu.build import BuildError, build, cache_folder
from engines.ostinato.cpu.library import open_cpu_experts
from engines.ostinato.expert_layout import ExpertLayout

SMALL = 'extern "C" int answer() { return 42; }\n'
BUILDER = """
import sys
from pathlib import Path
from engines.ostinato.cpu.build import build
print(build(sources=Path(sys.argv[1]), folder=Path(sys.argv[2])))
"""


@pytest.fixture
def sources(tmp_path: Path, library: Path) -> Path:
    folder = tmp_path / "native"
    folder.mkdir()
    (folder / "small.cpp").write_text(SMALL)
    return folder


def test_builders_at_once_agree_and_leave_one_whole_library(tmp_path, sources) -> None:
    folder = tmp_path / "cache"
    command = [sys.executable, "-c", BUILDER, str(sources), str(folder)]
    builders = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = {builder.communicate()[0].strip() for builder in builders}
    assert [builder.returncode for builder in builders] == [0, 0, 0]
    (path,) = said
    assert [Path(path)] == list(folder.rglob("*.*"))
    assert ctypes.CDLL(path).answer() == 42


def test_a_changed_source_is_another_library(tmp_path, sources) -> None:
    first = build(sources=sources, folder=tmp_path)
    assert build(sources=sources, folder=tmp_path) == first
    (sources / "small.cpp").write_text(SMALL.replace("42", "43"))
    second = build(sources=sources, folder=tmp_path)
    assert ctypes.CDLL(str(second)).answer() == 43
    assert build(sources=sources, folder=tmp_path, extra=("-g",)) not in {first, second}


def test_a_compiler_that_fails_is_quoted(tmp_path, sources) -> None:
    (sources / "broken.cpp").write_text("int f() { return nowhere; }\n")
    with pytest.raises(BuildError, match=r"nowhere.* was not declared"):
        build(sources=sources, folder=tmp_path)


def test_a_cache_that_cannot_be_written_says_what_to_set(tmp_path, sources) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BuildError, match="set OSTINATO_CACHE to a folder that can be written"):
        build(sources=sources, folder=tmp_path / "file")


def test_the_cache_is_the_users_or_the_one_that_is_set(monkeypatch, tmp_path) -> None:
    monkeypatch.delenv("OSTINATO_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "ostinato"
    monkeypatch.setenv("OSTINATO_CACHE", str(tmp_path / "chosen"))
    assert cache_folder() == tmp_path / "chosen"


def test_without_a_compiler_torch_computes_and_a_warning_says_what_that_costs(monkeypatch, bank) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    layout = ExpertLayout(64, 32, "float32")
    with pytest.warns(RuntimeWarning, match=r"no C\+\+ compiler: apt-get install g\+\+.*four times as long"):
        experts = open_cpu_experts(layout, torch.get_num_threads())
    assert experts.isa == "torch"
    held = bank(layout, 2)
    x_TD, routes, out_TD = held.x(4), held.routes(4), torch.empty(4, 64)
    experts.compute(routes.experts, routes.starts, routes.tokens, routes.weights, x_TD, out_TD)
    assert torch.allclose(out_TD.double(), held.expected(x_TD, routes), atol=1e-5)
    experts.close()
