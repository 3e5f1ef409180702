"""Rates of one or several logs as a table and as JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from analysis.server_logs.rates import DECODE_FROM, PREFILL_FROM, Rate, WindowRate, alone, rates
from analysis.server_logs.requests import Log
from analysis.tables.table import Cell, Column, Line, Table, absent, count, number, words

VERSION = 1
FORMULAS = (
    "prefill: new tokens (those of the prompt that no cache held) / prefill time; aggregate = Σ tokens / Σ time over "
    "the requests with as many new tokens",
    f"decode: (generated − 1) / (last token − first token), over the requests with ≥ {DECODE_FROM} generated; "
    "older versions of llama-server print generated / time, which is higher by 1 / (generated − 1)",
    "median: over requests, of each one's tokens / time; n: requests that count",
)


def table(logs: Sequence[Log]) -> Table:
    """A metric a row, a log a column; the second one over the first where there are two."""
    heads = [Column("metric", "metric")]
    heads += [Column(name, name) for name in names(logs)]
    if len(logs) == 2:
        heads.append(Column("ratio", "ratio"))
    return Table(
        name="server_logs",
        title="Tokens a second, from the servers' own logs",
        heads=tuple(heads),
        lines=tuple(_lines(logs)),
        formulas=FORMULAS,
    )


def names(logs: Sequence[Log]) -> list[str]:
    """File names, with as many folders as tell them apart."""
    depth = 1
    while True:
        short = ["/".join(log.path.parts[-depth:]) for log in logs]
        if len(set(short)) == len(short) or depth > max(len(log.path.parts) for log in logs):
            return short
        depth += 1


def _lines(logs: Sequence[Log]) -> list[Line]:
    by_log = [rates(log) for log in logs]
    lines = [_line("requests", [count(log.requests) for log in logs])]
    for at, at_least in enumerate(PREFILL_FROM):
        which = f"prefill, requests with ≥ {at_least:,} new tokens"
        found = [each[at] for each in by_log]
        lines.append(_line(f"{which}, aggregate", [_aggregate(rate) for rate in found]))
        lines.append(_line(f"{which}, median", [_median(rate) for rate in found]))
    found = [each[-1] for each in by_log]
    which = f"decode, requests with ≥ {DECODE_FROM} generated"
    lines.append(_line(f"{which}, aggregate", [_aggregate(rate) for rate in found]))
    lines.append(_line(f"{which}, median", [_median(rate) for rate in found]))
    if any(log.windows for log in logs):
        lines.append(_line("decode, the server's own averages with one request running, median", _windows(logs)))
    return lines


def _line(name: str, cells: list[Cell]) -> Line:
    if len(cells) != 2:
        return (words(name), *cells)
    before, after = cells
    if name == "requests":
        return (words(name), *cells, words(""))
    if not before.number or after.number is None:
        return (words(name), *cells, absent("one of the logs has no such number"))
    return (words(name), *cells, number(after.number / before.number, lambda value: f"{value:.2f}×"))


def _aggregate(rate: Rate) -> Cell:
    return number(
        rate.aggregate,
        lambda value: f"{_digits(value)} tok/s (n={rate.requests:,})",
        why=f"no request with {rate.at_least:,} such tokens and its time",
    )


def _median(rate: Rate) -> Cell:
    return number(rate.median, lambda value: f"{_digits(value)} tok/s", why="no such request")


def _windows(logs: Sequence[Log]) -> list[Cell]:
    return [_window(alone(log)) for log in logs]


def _window(found: WindowRate) -> Cell:
    return number(
        found.median,
        lambda value: f"{_digits(value)} tok/s (n={found.windows:,})",
        why="the log holds no such average",
    )


def _digits(value: float) -> str:
    return f"{value:,.2f}" if value < 100 else f"{value:,.1f}"


def lacking(logs: Sequence[Log]) -> list[str]:
    """What a reader must know of logs that don't carry everything."""
    return list(
        dict.fromkeys(
            f"{name}: {log.server}'s log lacks {what}"
            for name, log in zip(names(logs), logs, strict=True)
            for what in log.lacks
        )
    )


def as_json(logs: Sequence[Log]) -> dict[str, Any]:
    """``{"version", "formulas", "logs": [{path, server, requests, lacks, rates, windows}], "ratios"}``.

    A rate is ``{phase, at_least, requests, tokens, seconds, aggregate, median}`` in tokens and seconds; ``ratios`` is
    the second log over the first, null unless there are two.
    """
    found = [rates(log) for log in logs]
    return {
        "version": VERSION,
        "formulas": list(FORMULAS),
        "logs": [
            {
                "path": str(log.path),
                "server": log.server,
                "requests": log.requests,
                "lacks": list(log.lacks),
                "rates": [asdict(rate) for rate in each],
                "windows": asdict(alone(log)) if log.windows else None,
            }
            for log, each in zip(logs, found, strict=True)
        ],
        "ratios": [_ratio(*pair) for pair in zip(*found, strict=True)] if len(logs) == 2 else None,
    }


def _ratio(before: Rate, after: Rate) -> dict[str, Any]:
    return {
        "phase": before.phase,
        "at_least": before.at_least,
        "aggregate": _over(after.aggregate, before.aggregate),
        "median": _over(after.median, before.median),
    }


def _over(after: float | None, before: float | None) -> float | None:
    return None if after is None or not before else after / before
