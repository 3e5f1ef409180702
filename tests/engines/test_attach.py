from pathlib import Path

import pytest

from engines.attach import AttachedServer
from engines.base import EngineError
from engines.process import ProcessServer
from engines.settings import EngineSettings

pytestmark = pytest.mark.anyio


def attached(url: str | None, health: str = "/health") -> AttachedServer:
    return AttachedServer(
        EngineSettings(
            name="a", label="A", dialect="ostinato", forcing="field", launch="attach", url=url, health=health
        )
    )


async def test_a_running_server_is_used_and_left_running(tmp_path: Path) -> None:
    fake = ["{python}", "-m", "http.server", "{port}", "--bind", "127.0.0.1", "--directory", str(tmp_path)]
    own = ProcessServer(
        EngineSettings(name="f", label="F", dialect="ostinato", forcing="field", command=fake, health="/"),
        model=None,
        folder=tmp_path,
        environment={},
    )
    await own.start()
    try:
        engine = attached(own.url + "/", health="/")
        await engine.start()
        assert engine.url == own.url
        assert engine.describe() == {"launch": "attach", "url": own.url}
        await engine.stop()
        assert own.alive()
        with pytest.raises(EngineError, match=r"/nowhere answers 404.*engine\.health"):
            await attached(own.url, health="/nowhere").start()
    finally:
        await own.stop()


async def test_nothing_there_says_what_to_do() -> None:
    with pytest.raises(EngineError, match=r"nothing answers at http://127\.0\.0\.1:9/health.*engine\.url") as failure:
        await attached("http://127.0.0.1:9").start()
    assert failure.value.kind == "start"


def test_a_missing_url_is_named() -> None:
    with pytest.raises(EngineError, match=r"engine\.launch=attach needs engine\.url"):
        attached(None)
