"""A log file of whichever server."""

from itertools import chain
from pathlib import Path
from typing import IO

from analysis.server_logs import llamacpp, sglang, vllm
from analysis.server_logs.lines import marked_lines, open_log
from analysis.server_logs.requests import Log

_MARKS = (*llamacpp.MARKS, *sglang.MARKS, *vllm.MARKS)


class LogError(Exception):
    """A log that can't be read or holds nothing to compute from; the message says what to do."""


def read_log(path: Path) -> Log:
    """Stream a log once, whatever its size; which server wrote it shows in the first line that counts.

    Raises:
        LogError: no such file, or no line with a number in it.
    """
    try:
        with open_log(path) as stream:
            log = _read(path, stream)
    except (OSError, EOFError) as error:
        reason = getattr(error, "strerror", None) or error
        raise LogError(f"{path}: {reason}; name the file that the server wrote its log to") from error
    if not log.requests and not log.windows:
        raise LogError(
            f"{path}: no timing of a request; known are llama-server's 'prompt eval time' lines, SGLang's with "
            "--log-requests, and vLLM's 'Avg generation throughput'"
        )
    return log


def _read(path: Path, stream: IO[bytes]) -> Log:
    lines = marked_lines(stream, _MARKS)
    first = next(lines, b"")
    server = next((kind for kind in (vllm, sglang) if any(mark in first for mark in kind.MARKS)), llamacpp)
    log = Log(path, server.SERVER)
    for found in server.read(chain([first], lines)):
        log.add(found)
    log.lacks = server.lacks(log)
    return log
