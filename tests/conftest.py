"""What every test may use."""

from pathlib import Path

import pytest

SHARED = Path(__file__).parents[2] / "shared"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real recorded sessions and servers beside the checkout, where there is one."""
    if not SHARED.is_dir():
        pytest.skip("no ../shared beside the checkout: real recordings and servers are not here")
    return SHARED
