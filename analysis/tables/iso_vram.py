"""Engines at the same VRAM budgets: one row a run that was given one."""

from dataclasses import dataclass

from analysis.subject import name_of
from analysis.summary import Summary
from analysis.tables.plain import plain
from analysis.tables.table import Column, Table, number, words
from analysis.throughput import throughput
from analysis.variants import vram_gib


@dataclass(frozen=True, slots=True)
class Point:
    key: str
    engine: str
    label: str
    gib: float
    decode_per_s: float | None
    ttft_tool_s: float | None
    total_s: float | None


def points(part: Summary) -> list[Point]:
    """By engine, then by budget; empty where no run names one."""
    made = []
    for run, engine in zip(part.runs, part.engines, strict=True):
        gib = vram_gib(run)
        if gib is not None and engine.sessions:
            tool = engine.medians.ttft.get("tool")
            made.append(
                Point(
                    key=run.key,
                    engine=name_of(run.key),
                    label=str(run.result["engine"].get("label") or name_of(run.key)),
                    gib=gib,
                    decode_per_s=throughput(part.turns[part.turns["engine"] == run.key]).decode.rate,
                    ttft_tool_s=tool.value if tool else None,
                    total_s=engine.total_request_s,
                )
            )
    return sorted(made, key=lambda point: (point.engine, point.gib))


def iso_vram_table(part: Summary) -> Table:
    found = points(part)
    return Table(
        name="iso_vram",
        title="At the same VRAM budget",
        heads=(
            Column("engine", "engine"),
            Column("VRAM budget (GiB)", "vram_gib"),
            Column("decode (tok/s)", "decode_tokens_per_s"),
            Column("TTFT after tool (s)", "ttft_tool_s"),
            Column("total request time (s)", "total_request_s"),
        ),
        lines=tuple(
            (
                words(point.label),
                number(point.gib, lambda value: f"{value:g}"),
                number(point.decode_per_s, plain, why="no turn generated enough tokens"),
                number(point.ttft_tool_s, plain, why="no turn after a tool output"),
                number(point.total_s, plain),
            )
            for point in found
        ),
        engines=tuple(point.key for point in found),
        formulas=(
            "VRAM budget: as the engine was started with it, a GPU",
            "decode: Σ (n − 1) / Σ (last token − first) over the turns with ≥ 32 generated",
        ),
    )
