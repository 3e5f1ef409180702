"""``prepare capture``: record until Ctrl-C."""

import asyncio
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from workloads import words
from workloads.capture.proxy import Proxy
from workloads.capture.recorder import Recorder
from workloads.capture.upstream import Upstream
from workloads.session import WorkloadError

USAGE = """\
usage: prepare capture upstream=URL [out=FILE] [port=N] [host=ADDRESS]

Stand between an agent and the OpenAI-compatible server it uses, and record every chat completion and completion,
streaming or not, while the agent works. Everything is passed on as it is; keys are never written. Ctrl-C ends.

  upstream=URL   the server, http:// or https:// (an authority of your own: SSL_CERT_FILE=ca.pem)
  out=FILE       the recording, a line a call (calls.jsonl); one that is there already is continued
  port=N         where to listen (8800)
  host=ADDRESS   the address to listen at (127.0.0.1)

example:
  prepare capture upstream=http://127.0.0.1:8080 out=calls.jsonl port=8800
  OPENAI_BASE_URL=http://127.0.0.1:8800/v1 my-agent      (in another terminal)
  prepare source=chat_log path=calls.jsonl out=sessions.parquet
"""
OPTIONS: Mapping[str, Callable[[str, str], Any]] = {
    "upstream": words.text,
    "out": words.place,
    "port": words.whole,
    "host": words.text,
}
LAST_PORT = 65535


def capture(given: Sequence[str]) -> None:
    """Record until SIGINT or SIGTERM, then say what was recorded.

    Raises:
        WorkloadError: a bad option, a port that is taken, a file that can't be written, a server that doesn't answer.
    """
    import uvloop

    if not {"-h", "--help"}.isdisjoint(given):
        print(USAGE, end="")
        return
    options = words.parse(_joined(given), OPTIONS)
    if "upstream" not in options:
        raise WorkloadError("upstream= is missing; name the server, as in upstream=http://127.0.0.1:8080")
    if options.get("port", 0) > LAST_PORT:
        raise WorkloadError(f"port={options['port']} is no port; give one from 1 to {LAST_PORT}")
    out: Path = options.get("out", Path("calls.jsonl"))
    if not out.parent.is_dir():
        raise WorkloadError(f"{out.parent}: no such folder; create it or choose another out=")
    upstream = Upstream.parse(options["upstream"])
    recorder = uvloop.run(_record(upstream, out, options.get("host", "127.0.0.1"), options.get("port", 8800)))
    for line in recorder.summary():
        print(line)


def _joined(given: Sequence[str]) -> list[str]:
    """Let ``--upstream URL`` be ``upstream=URL``."""
    joined: list[str] = []
    for word in given:
        if joined and joined[-1].startswith("--") and "=" not in joined[-1]:
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


async def _record(upstream: Upstream, out: Path, host: str, port: int) -> Recorder:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    _, writer = await upstream.connect()
    writer.close()
    recorder = Recorder(out, clock_start_s=time.time() - time.perf_counter())
    try:
        proxy = Proxy(upstream, recorder.add)
        try:
            server = await proxy.listen(host, port)
        except OSError as error:
            raise WorkloadError(f"can't listen at {host}:{port} ({error.strerror}); choose another port=") from error
        port = server.sockets[0].getsockname()[1]
        base = f"http://{f'[{host}]' if ':' in host else host}:{port}{upstream.version}"
        more = f", which holds {recorder.continued:,} calls" if recorder.continued else ""
        print(f"recording to {out}{more}; point the agent at {base} (Ctrl-C ends)", flush=True)
        await stop.wait()
        server.close()
        await proxy.stop()
    finally:
        recorder.close()
    return recorder
