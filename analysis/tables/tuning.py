"""The curve of a tuning: what each value took, and which one is chosen."""

from analysis.summary import Summary
from analysis.tables import formulas as said
from analysis.tables.plain import time_s
from analysis.tables.table import Cell, Column, Line, Table, count, words
from analysis.tuning import Trial, Tuning, tunings


def tuning_table(part: Summary) -> Table:
    found = tunings(part)
    several = len({tuning.engine for tuning in found}) > 1
    settings = ", ".join(dict.fromkeys(tuning.setting for tuning in found))
    return Table(
        name="tuning",
        title=f"Tuning · {settings}",
        heads=(
            Column("value", "value"),
            Column("total request time (s)", "total_request_s"),
            Column("prefill (s)", "prefill_s"),
            Column("decode (s)", "decode_s"),
            Column("TTFT after tool (s)", "ttft_tool_s"),
            Column("sessions", "sessions"),
            Column("", "chosen"),
        ),
        lines=tuple(_line(trial, tuning, several=several) for tuning in found for trial in tuning.trials),
        engines=tuple(trial.run.key for tuning in found for trial in tuning.trials),
        formulas=(
            "chosen: the least total request time over the sessions that every value finished; of equals the first",
            "prefill, decode: as the engine reports them, or the client's Σ TTFT and Σ (last token − first) where it "
            "does not report them on every turn",
            said.TOTAL,
            *(guard(tuning) for tuning in found),
        ),
    )


def _line(trial: Trial, tuning: Tuning, *, several: bool) -> Line:
    engine = trial.engine
    reported = engine.server_prefill_s is not None and engine.server_decode_s is not None
    prefill_s = engine.server_prefill_s if reported else engine.client_prefill_s
    decode_s = engine.server_decode_s if reported else engine.client_decode_s
    chosen, tool = trial is tuning.chosen, engine.medians.ttft.get("tool")
    why = f"{trial.run.status}: {trial.run.error or 'no session that every value finished'}"
    return (
        words(f"{tuning.engine}: {trial.value}" if several else trial.value),
        _marked(time_s(trial.objective_s, why=why), chosen),
        time_s(prefill_s, why=why),
        time_s(decode_s, why=why),
        time_s(tool.value if tool else None, why="no turn after a tool output"),
        count(engine.sessions),
        Cell(text="chosen" if chosen else "", number=float(chosen)),
    )


def _marked(cell: Cell, best: bool) -> Cell:
    return Cell(text=cell.text, number=cell.number, best=best, why=cell.why)


def guard(tuning: Tuning) -> str:
    """Which sessions were looked at, and that held-out ones were not."""
    splits = sorted({trial.split or "of no named split" for trial in tuning.trials})
    workloads = ", ".join(dict.fromkeys(str(trial.run.result["workload"]["name"]) for trial in tuning.trials))
    if tuning.guarded:
        return (
            f"guard, {tuning.engine}: every run replayed {' and '.join(splits)} sessions of {workloads}; held-out "
            "sessions were not touched"
        )
    return f"guard, {tuning.engine}: BROKEN, sessions of {workloads} are {' and '.join(splits)}; nothing is chosen"
