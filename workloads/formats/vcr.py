"""VCR cassettes: recorded HTTP exchanges with an OpenAI-compatible server, as YAML."""

import base64
import binascii
import gzip
import json
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from workloads.conversation import Conversation
from workloads.formats.calls import CallLog
from workloads.formats.completion import FAILED
from workloads.formats.decompress import GZIP_MAGIC, opened
from workloads.formats.exchange import call_of, reasons
from workloads.formats.folders import files_below
from workloads.formats.openai_message import read
from workloads.formats.read_message import PromptReader
from workloads.formats.recognise import looks_like
from workloads.session import WorkloadError

SOURCE = "vcr"
SUFFIXES = (".yaml", ".yml")
ENDPOINT = "chat/completions"

OTHER_REQUEST = "recorded requests that are no chat completions"


def matches(head: Any) -> bool:
    """Say whether a file that begins with this text, or this value, is a cassette."""
    if isinstance(head, str):
        lines = [line for line in head.splitlines() if line.strip() and not line.startswith(("#", "---"))]
        return bool(lines) and lines[0].startswith(("interactions:", "version:")) and "interactions:" in head
    return isinstance(head, dict) and isinstance(head.get("interactions"), list)


def load(path: Path) -> Iterator[Conversation]:
    """Yield the conversations of a cassette, or of all cassettes of a folder; those of two cassettes are never one.

    Raises:
        WorkloadError: a file that can't be read or is no cassette, a body that is broken, or not one answered call.
    """
    general: Counter[str] = Counter()
    log = CallLog(SOURCE)
    reader = PromptReader(read)
    found = 0
    for file in files_below(path, *SUFFIXES):
        for number, interaction in enumerate(_interactions(file), start=1):
            place = f"{file}, interaction {number}"
            request, response = _halves(interaction, place)
            body = _request_body(request, place)
            if ENDPOINT not in str(request.get("uri")) or body is None:
                general[OTHER_REQUEST] += 1
            elif not _is_success(response):
                general[FAILED] += 1
            elif call := call_of(
                body, _response_body(response, place), place, general, reader=reader, group=file.stem
            ):
                found += 1
                log.add(call)
    if not found:
        raise WorkloadError(f"{path}: holds no answered chat completion ({reasons(general)}); record it again")
    yield from log.conversations(general)


def _interactions(file: Path) -> list[Any]:
    import yaml  # type: ignore[import-untyped]

    with opened(file) as source:
        data = source.stream.read()
    try:
        # The C parser is ten times as fast, and as safe.
        cassette = yaml.load(data, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark else ""
        reason = str(getattr(error, "problem", None) or error).splitlines()[0]
        raise WorkloadError(f"{file}: broken YAML{where} ({reason}); record it again") from error
    if cassette is None:
        raise WorkloadError(f"{file}: the file is empty; record it again")
    interactions = cassette.get("interactions") if isinstance(cassette, dict) else None
    if not isinstance(interactions, list):
        raise WorkloadError(f"{file}: not a VCR cassette but {looks_like(cassette)}; choose the format that fits")
    return interactions


def _halves(interaction: Any, place: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    if isinstance(interaction, dict):
        request, response = interaction.get("request"), interaction.get("response")
        if isinstance(request, dict) and isinstance(response, dict):
            return request, response
    raise WorkloadError(f"{place}: has no request and response; delete it")


def _is_success(response: Mapping[str, Any]) -> bool:
    status = response.get("status")
    code = status.get("code") if isinstance(status, dict) else status
    return isinstance(code, int) and 200 <= code < 300


def _request_body(request: Mapping[str, Any], place: str) -> dict[str, Any] | None:
    """Return the JSON object that was sent; None when none was."""
    if isinstance(request.get("parsed_body"), dict):
        return dict(request["parsed_body"])
    text = _text(request.get("body"), f"{place}, request body")
    if not text:
        return None
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) else None


def _response_body(response: Mapping[str, Any], place: str) -> Any:
    if isinstance(response.get("parsed_body"), dict):
        return response["parsed_body"]
    return _text(response.get("body"), f"{place}, response body")


def _text(body: Any, place: str) -> str | None:
    """Return a body's text: plain, bytes, under ``string`` or ``base64_string``, gzip-compressed or not."""
    if isinstance(body, dict):
        if isinstance(body.get("base64_string"), str | bytes):
            try:
                body = base64.b64decode(body["base64_string"])
            except (binascii.Error, ValueError) as error:
                raise WorkloadError(f"{place}: broken base64 ({error}); record it again") from error
        else:
            body = body.get("string")
    if isinstance(body, bytes):
        try:
            return (gzip.decompress(body) if body.startswith(GZIP_MAGIC) else body).decode()
        except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
            raise WorkloadError(
                f"{place}: neither text nor gzip ({str(error).splitlines()[0]});"
                " record it again with decode_compressed_response"
            ) from error
    if body is not None and not isinstance(body, str):
        raise WorkloadError(f"{place}: must be text, found {looks_like(body)}")
    return body
