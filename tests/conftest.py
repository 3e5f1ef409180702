"""What every test may use."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from replay import host_lock

SHARED = Path(__file__).parents[2] / "shared"


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
