"""Figure 6 of the paper: prefill and decode of each engine, its waits by turn type, its TPOT over context."""

from analysis import wording
from analysis.compare import TURN_KINDS
from analysis.figures.colours import Look
from analysis.figures.figure import Figure, blank, error_bars, short, spec
from analysis.figures.marks import add_line, add_phase
from analysis.summary import Summary
from analysis.wording import KIND_WORDS


def phases(part: Summary, looks: dict[str, Look]) -> list[Figure]:
    made = [_stacks(part, looks), _waits(part, looks), _over_context(part, looks)]
    return [figure for figure in made if figure]


def _stacks(part: Summary, looks: dict[str, Look]) -> Figure | None:
    engines = [engine for engine in part.engines if engine.total_request_s]
    if not engines:
        return None
    rows = list(reversed(engines))  # plotly draws the first one lowest
    names, colours = [engine.label for engine in rows], [looks[engine.key].colour for engine in rows]
    figure = blank()
    times = {
        "prefill (TTFT)": [engine.client_prefill_s or 0.0 for engine in rows],
        "decode": [engine.client_decode_s or 0.0 for engine in rows],
    }
    times["end of the stream"] = [
        (engine.total_request_s or 0.0) - prefill - decode
        for engine, prefill, decode in zip(rows, *times.values(), strict=True)
    ]
    for (name, values), (opacity, pattern) in zip(times.items(), ((1, ""), (0.75, "/"), (0.5, "x")), strict=True):
        add_phase(figure, name, values, names, colours, opacity=opacity, pattern=pattern)
    figure.update_layout(barmode="stack", bargap=0.35)
    figure.update_xaxes(title="total request time (s)", rangemode="tozero")
    figure.update_yaxes(automargin=True)
    said = "; ".join(
        f"{e.label} {wording.seconds(e.client_prefill_s)} prefill and {wording.seconds(e.client_decode_s)} decode "
        f"of {wording.seconds(e.total_request_s)}"
        for e in engines
    )
    return Figure(
        name="phases",
        title="Figure 6a · Where the time goes",
        caption=f"Total request time by phase, as the client saw it: {said}.",
        spec=spec(figure),
        height=150 + 46 * len(rows),
        wide=True,
    )


def _waits(part: Summary, looks: dict[str, Look]) -> Figure | None:
    kinds = [
        kind for kind in TURN_KINDS if kind != "first" and any(kind in engine.medians.ttft for engine in part.engines)
    ]
    engines = [engine for engine in part.engines if any(kind in engine.medians.ttft for kind in kinds)]
    if not engines:
        return None
    figure, said = blank(), []
    for engine in engines:
        found = {KIND_WORDS[kind]: engine.medians.ttft[kind] for kind in kinds if kind in engine.medians.ttft}
        figure.add_bar(
            x=list(found),
            y=short([median.value for median in found.values()]),
            name=engine.label,
            marker={"color": looks[engine.key].colour},
            error_y=error_bars([median.interval for median in found.values()], [m.value for m in found.values()]),
            hovertemplate="%{x} %{y:.3s}s<extra>" + engine.label + "</extra>",
        )
        said.append(f"{engine.label} " + ", ".join(f"{name} {wording.median(m)}" for name, m in found.items()))
    figure.update_layout(barmode="group")
    figure.update_yaxes(title="median TTFT (s)", rangemode="tozero")
    return Figure(
        name="waits",
        title="Figure 6c · The wait by turn type",
        caption=f"Median TTFT, with its interval where there is one: {'; '.join(said)}.",
        spec=spec(figure),
    )


def _over_context(part: Summary, looks: dict[str, Look]) -> Figure | None:
    figure, said = blank(), []
    for engine in part.engines:
        found = (
            [each for each in part.slices[engine.key].by_context if each.tpot] if engine.key in part.slices else []
        )
        if len(found) < 2:
            continue
        medians = [each.tpot for each in found if each.tpot]
        add_line(
            figure,
            looks[engine.key],
            engine.label,
            [each.middle for each in found],
            [1e3 * median.value for median in medians],
            hover="%{y:.3s} ms at %{x:,.0f} tokens",
            error_y=error_bars([m.interval for m in medians], [m.value for m in medians], scale=1e3),
        )
        said.append(f"{engine.label} " + ", ".join(wording.milliseconds(m.value) for m in medians))
    if not said:
        return None
    figure.update_xaxes(title="context (tokens), median of each quartile of the turns", rangemode="tozero")
    figure.update_yaxes(title="median TPOT (ms)", rangemode="tozero")
    return Figure(
        name="tpot-context",
        title="Figure 6d · TPOT over context length",
        caption=f"Quartiles of the turns by the tokens of their prompts, shortest first: {'; '.join(said)}.",
        spec=spec(figure),
    )
