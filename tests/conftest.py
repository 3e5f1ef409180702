"""What every test may use."""

import importlib.util
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from replay import host_lock

SHARED = Path(__file__).parents[2] / "shared"

# A shell starts what runs in its background deaf to Ctrl-C, and so would be every program that a test interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def own_host_lock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A benchmark on this machine does not wait for the tests, nor they for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(host_lock.VARIABLE, str(tmp_path_factory.mktemp("lock") / "host.lock"))
        yield


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real recorded sessions and servers beside the checkout, where there is one."""
    if not SHARED.is_dir():
        pytest.skip("no ../shared beside the checkout: real recordings and servers are not here")
    return SHARED


@pytest.fixture(scope="session")
def module_of() -> Callable[[str, str], ModuleType]:
    """``module_of("soak", "benchmarks/soak.py")``: a program of this project, which no package holds, as a module."""

    def load(name: str, path: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[1] / path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # dataclasses look their module up
        spec.loader.exec_module(module)
        return module

    return load
