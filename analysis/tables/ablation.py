"""Table 8 of the paper: what each setting of an engine does to prefill, decode and the total."""

from dataclasses import dataclass

from analysis.paper import Reference, Row
from analysis.summary import EngineSummary, Summary
from analysis.tables import formulas as said
from analysis.tables.plain import NOT_PRINTED, marked, plain, time_s
from analysis.tables.table import PAPER, Cell, Column, Line, Table, absent, number, words
from analysis.variants import variants


@dataclass(frozen=True, slots=True)
class Step:
    """One configuration. Times are the engine's where it reports them on every turn, else the client's."""

    key: str
    name: str
    total_s: float
    prefill_s: float | None
    decode_s: float | None
    step_ms: float | None
    """Client's decode time over decode steps."""


def steps(part: Summary) -> list[Step]:
    """The variants of a part in the order they ran; empty where no engine ran with several settings."""
    made = []
    for variant in variants(part.runs):
        engine = next(engine for engine in part.engines if engine.key == variant.run.key)
        if engine.total_request_s is not None:
            made.append(_step(part, engine, variant.name))
    return made


def _step(part: Summary, engine: EngineSummary, name: str) -> Step:
    turns = part.turns[(part.turns["engine"] == engine.key) & part.turns["tpot_s"].notna()]
    tokens = float((turns["output_tokens"] - turns["first_chunk_tokens"].astype(float)).sum())
    reported = engine.server_prefill_s is not None and engine.server_decode_s is not None
    return Step(
        key=engine.key,
        name=name,
        total_s=engine.total_request_s or 0.0,
        prefill_s=engine.server_prefill_s if reported else engine.client_prefill_s,
        decode_s=engine.server_decode_s if reported else engine.client_decode_s,
        step_ms=1e3 * float(turns["decode_s"].sum()) / tokens if tokens else None,
    )


def ablation_table(part: Summary, reference: Reference | None) -> Table:
    found = steps(part)
    paper = _paper_lines(reference) if reference and found else []
    return Table(
        name="table_8",
        title="Table 8 · Ablation",
        heads=(
            Column("configuration", "configuration"),
            Column("total (s)", "total_request_s"),
            Column("prefill (s)", "prefill_s"),
            Column("decode (s)", "decode_s"),
            Column("decode step (ms)", "decode_step_ms"),
        ),
        lines=(*(_line(step) for step in found), *(line for _, line in paper)),
        engines=(*(step.key for step in found), *(key for key, _ in paper)),
        sources=("",) * len(found) + (PAPER,) * len(paper),
        formulas=(
            "prefill, decode: as the engine reports them, or the client's Σ TTFT and Σ (last token − first) where it "
            "does not report them on every turn; the total also counts the time outside both",
            "decode step = Σ (last token − first) / Σ (n − 1)",
            said.TOTAL,
            *((said.PAPER_ROWS,) if paper else ()),
        ),
    )


def _line(step: Step) -> Line:
    return (
        words(step.name),
        time_s(step.total_s),
        time_s(step.prefill_s),
        time_s(step.decode_s),
        number(step.step_ms, plain, why="no turn tells a TPOT"),
    )


def _paper_lines(paper: Reference) -> list[tuple[str, Line]]:
    lines = [(_paper_engine(row["configuration"]), _phases(row)) for row in paper.table_8]
    for workload, field in (("SWE", "swe_ms"), ("τ²-bench", "tau2_ms")):
        lines += [
            (_paper_engine(row["configuration"]), _decode_step(row, workload, row[field]))
            for row in paper.table_8_steps
        ]
    return lines


def _paper_engine(configuration: str) -> str:
    known = {"layer placement": "llamacpp_layers", "llama.cpp expert cache": "llamacpp_cache", "buun": "buun"}
    return known.get(configuration, "ostinato")


def _phases(row: Row) -> Line:
    times = (Cell(text=f"{row[name]:,.1f}", number=row[name]) for name in ("total_s", "prefill_s", "decode_s"))
    return (marked(f"{row['configuration']}, {row['set']}"), *times, absent(NOT_PRINTED))


def _decode_step(row: Row, workload: str, step_ms: float) -> Line:
    step = Cell(text=f"{step_ms:.2f}", number=step_ms)
    return (marked(f"{row['configuration']}, decode on {workload}"), *(absent(NOT_PRINTED),) * 3, step)
