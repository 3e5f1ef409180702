"""The name of the model in requests: the user's, the server's, or none."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from engines.base import EngineError, ForcedRequest
from engines.client import EngineClient
from engines.dialects.registry import dialect
from engines.fake.server import FakeSettings, in_thread
from engines.forcing.field import FieldForcing
from engines.served_model import served_model
from engines.settings import EngineSettings

pytestmark = pytest.mark.anyio
NOBODY = "http://127.0.0.1:9"


def settings(dialect: str = "openai", **changes: Any) -> EngineSettings:
    return EngineSettings(name="e", label="E", dialect=dialect, forcing="field", **changes)


@contextmanager
def answering(status: int, answer: Any) -> Iterator[tuple[str, list[Any]]]:
    """A server that answers every GET so, notes what is posted, and refuses it; its URL and the notes."""
    posted: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(status, answer)

        def do_POST(self) -> None:
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self._answer(400, {"error": {"message": "noted"}})

        def _answer(self, status: int, answer: Any) -> None:
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", posted
        finally:
            server.shutdown()
            thread.join()


async def test_the_users_name_is_taken_unasked() -> None:
    assert await served_model(settings(served_model="mine"), NOBODY) == "mine"


@pytest.mark.parametrize("name", ["openai", "openai_chat"])
async def test_else_the_server_is_asked(name: str) -> None:
    with in_thread(FakeSettings()) as engine:
        assert await served_model(settings(name), engine.url) == "fake"


async def test_dialects_of_one_model_name_none() -> None:
    assert await served_model(settings("llamacpp"), NOBODY) is None


@pytest.mark.parametrize(
    ("status", "answer"), [(404, {}), (200, {"data": []}), (200, {"data": [{}]}), (200, []), (200, None)]
)
async def test_a_server_that_does_not_tell_gets_no_name(status: int, answer: Any) -> None:
    with answering(status, answer) as (url, _):
        assert await served_model(settings(), url) is None


async def test_of_several_models_the_user_chooses() -> None:
    with (
        answering(200, {"data": [{"id": "a"}, {"id": "b"}]}) as (url, _),
        pytest.raises(EngineError, match=r"set engine\.served_model to one of a, b"),
    ):
        await served_model(settings(), url)


@pytest.mark.parametrize(("model", "named"), [("mine", {"model": "mine"}), (None, {})])
async def test_requests_hold_the_name(model: str | None, named: dict[str, str]) -> None:
    with answering(200, {}) as (url, posted):
        async with EngineClient(
            url, dialect("openai"), FieldForcing(), request_timeout_s=30, stall_timeout_s=30, model=model
        ) as client:
            with pytest.raises(EngineError, match="noted"):
                await client.turn(ForcedRequest(prompt_ids=(1, 2), output_ids=(3,)))
    (body,) = posted
    assert {name: value for name, value in body.items() if name == "model"} == named
    assert body["prompt"] == [1, 2]
