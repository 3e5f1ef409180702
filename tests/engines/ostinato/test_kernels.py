"""The GPU's kernels as far as a machine without one can try them."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the engine needs the extra `ostinato`")

SOURCE = Path("engines/ostinato/handover.cu")
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def differences() -> dict[str, float]:
    """What each kernel's output differs from PyTorch's by, in parts of the largest value."""
    pytest.importorskip("triton", reason="the kernels' interpreter comes with triton (extra `dev`)")
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("interpreted_kernels.py"))],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, float] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("kind", "count", "tolerance"),
    [("float32", 6, 2e-6), ("mxfp4", 4, 2e-6), ("float16", 2, 4e-3), ("attention", 4, 2e-6)],
)
def test_triton_kernels_compute_what_pytorch_does(
    kind: str, count: int, tolerance: float, differences: dict[str, float]
) -> None:
    found = {name: value for name, value in differences.items() if name.startswith(kind)}
    assert len(found) == count
    assert all(value < tolerance for value in found.values()), found


@pytest.mark.slow
def test_triton_kernels_compile_for_gpus_that_are_not_here(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="the compiler comes with triton (extra `dev`)")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("compiled_kernels.py"))],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 30


def test_the_hand_over_compiles(tmp_path: Path) -> None:
    compiler = shutil.which("nvcc")
    if compiler is None:
        pytest.skip("nvcc is not here; on a GPU machine the engine compiles this source with PyTorch's NVRTC")
    command = [compiler, "-arch=sm_80", "--cubin", "-o", str(tmp_path / "handover.cubin"), str(ROOT / SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
