"""The turns behind a session, for the page: columns of short numbers, packed."""

import base64
import gzip
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from analysis import wording
from analysis.runs import COMPLETE
from analysis.summary import Summary

_MILLISECONDS = {
    "late": "queue_s", "byte": "first_byte_s", "first": "ttft_s", "last": "request_s", "end": "stream_s",
    "tpot": "tpot_s", "serverPrefill": "server_prefill_s", "serverDecode": "server_decode_s",
}  # fmt: skip
_COUNTS = {
    "turn": "turn", "repeat": "repeat", "prompt": "prompt_tokens", "delta": "prompt_delta", "new": "new_tokens",
    "output": "output_tokens", "cached": "cached_tokens", "prefilled": "prefilled_tokens",
}  # fmt: skip
_WORDS = {"kind": "kind", "status": "status", "error": "error", "verified": "verified_by"}


def packed(text: bytes) -> str:
    """Compressed, in characters that a page can hold; the page's ``unpack`` gives the text back."""
    return base64.b64encode(gzip.compress(text, 9, mtime=0)).decode()


def turn_data(summary: Summary, by_engine: Mapping[str, str]) -> dict[str, Any]:
    """Every turn of each session's last attempt, failed ones too; of one part of a report.

    Returns:
        ``{engines: [{label, colour}], repeated, sessions: [id], starts, words, columns}``. Row r of ``columns`` is a
        turn; those of session i are ``starts[i]`` to ``starts[i + 1]``, by turn, engine, repeat. Times are in
        milliseconds, with four digits; ``words`` holds the texts that the columns ``kind``, ``status``, ``error`` and
        ``verified`` number. Null is "not measured".
    """
    turns, sessions = _turns(summary)
    kinds = {name: list(dict.fromkeys(turns[column].dropna())) for name, column in _WORDS.items()}
    return {
        "engines": [{"label": run.label, "colour": by_engine[run.key]} for run in summary.runs],
        "repeated": any(len(run.folders) > 1 for run in summary.runs),
        "sessions": sessions,
        "starts": [0, *turns.groupby("session").size().reindex(range(len(sessions)), fill_value=0).cumsum().tolist()],
        "words": {**kinds, "kind": [wording.KIND_WORDS.get(kind, kind) for kind in kinds["kind"]]},
        "columns": {
            "engine": turns["engine"].tolist(),
            **{name: _whole(turns[column]) for name, column in _COUNTS.items()},
            **{name: _milliseconds(turns[column]) for name, column in _MILLISECONDS.items()},
            **{name: _numbered(turns[column], kinds[name]) for name, column in _WORDS.items()},
        },
    }


def session_rows(summary: Summary) -> list[dict[str, Any]]:
    """One row a session: its number of turns, and each engine's total request time or why it has none."""
    columns = [(run.sessions, _totals(run.turns), _reached(run.turns)) for run in summary.runs]
    counted, rows = set(summary.pairing.sessions), []
    for session in _names(summary):
        cells = []
        for status, totals, _ in columns:
            found = status.get(session, "not reached")
            total = totals.get(session) if found == COMPLETE else None
            cells.append((wording.seconds(total) if total is not None else found, total))
        turns = max((reached.get(session, 0) for *_, reached in columns), default=0)
        known = [total for _, total in cells if total is not None]
        best = min(known) if len(known) > 1 else None
        rows.append({"session": session, "turns": turns, "cells": cells, "best": best, "counts": session in counted})
    return rows


def _turns(summary: Summary) -> tuple[pd.DataFrame, list[str]]:
    """All runs' turns in the order of the page, with the engine's and the session's number."""
    sessions = _names(summary)
    position = {session: number for number, session in enumerate(sessions)}
    parts = [run.turns.assign(engine=number) for number, run in enumerate(summary.runs) if len(run.turns)]
    turns = pd.concat(parts, ignore_index=True)
    turns["session"] = turns["session_id"].map(position)
    turns = turns.sort_values(["session", "engine", "repeat", "turn"], kind="stable")
    before = turns.groupby(["session", "engine", "repeat"])["prompt_tokens"].shift(fill_value=0)
    turns["prompt_delta"] = turns["prompt_tokens"] - before
    return turns.sort_values(["session", "turn", "engine", "repeat"], kind="stable"), sessions


def _names(summary: Summary) -> list[str]:
    """In the recording's order, as far as any run tells it."""
    return list(dict.fromkeys(session for run in summary.runs for session in run.sessions))


def _totals(turns: pd.DataFrame) -> Mapping[str, float]:
    """As the comparison counts them: a repeated session with its mean."""
    if not len(turns):
        return {}
    sums = turns.groupby(["session_id", "repeat"])["stream_s"].sum(min_count=1)
    return {str(session): float(value) for session, value in sums.groupby("session_id").mean().dropna().items()}


def _reached(turns: pd.DataFrame) -> Mapping[str, int]:
    return (
        {} if not len(turns) else {str(s): int(n) + 1 for s, n in turns.groupby("session_id")["turn"].max().items()}
    )


def _whole(values: pd.Series) -> list[int | None]:
    return [None if pd.isna(value) else int(value) for value in values.tolist()]


def _milliseconds(values: pd.Series) -> list[float | None]:
    return [None if pd.isna(value) else _short(1e3 * value) for value in values.tolist()]


def _short(value: float) -> float:
    short = float(f"{value:.4g}")
    return int(short) if short.is_integer() else short


def _numbered(values: pd.Series, known: Sequence[str]) -> list[int | None]:
    number = {word: i for i, word in enumerate(known)}
    return [None if pd.isna(value) else number[value] for value in values.tolist()]
