"""The main figures as SVG or PNG, for Markdown and other places without a script; needs the extra ``static``."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from typing import Any, Literal

import numpy as np

from analysis import wording
from analysis.compare import TURN_KINDS, AnalysisError
from analysis.figures.colours import Look, looks
from analysis.summary import EngineSummary, Summary

Format = Literal["svg", "png"]
FORMATS: tuple[Format, ...] = ("svg", "png")
_WIDTH_IN = 8.0
_ROW_IN = 0.34
_FEW_DECADES = 30
"""A wider range of times has room for labels at 1, 10, 100 only."""
_DPI = 160
_TEXT, _QUIET, _LINE = "#1b1f24", "#566069", "#d8dde3"
_KIND_TITLES = {"first": "first turn", "tool": "after a tool output", "user": "after a user message"}
_DASHES = ("-", "--", ":", "-.")
_STYLE: Any = {
    "font.size": 10, "axes.edgecolor": _LINE, "axes.labelcolor": _QUIET, "axes.titlecolor": _TEXT,
    "axes.titlelocation": "left", "axes.titleweight": "bold", "axes.titlesize": 11, "axes.spines.top": False,
    "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True, "grid.color": _LINE,
    "grid.linewidth": 0.6, "text.color": _TEXT, "xtick.color": _QUIET, "ytick.color": _QUIET,
    "xtick.labelcolor": _TEXT, "ytick.labelcolor": _TEXT, "legend.frameon": False, "svg.hashsalt": "report",
}  # fmt: skip
"""The salt gives the same ids, and so the same bytes, for the same records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    name: str
    """Of the file, without its ending."""
    title: str
    """Its text alternative, too."""
    content: bytes


def pictures(summary: Summary, form: Format) -> list[Picture]:
    """Saved share, TTFT distribution and phase stacks, those that the records can fill. White ground.

    Raises:
        AnalysisError: matplotlib is not there.
    """
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise AnalysisError(
            "pictures need matplotlib; install the extra: pip install 'ostinato-replay[static]'"
        ) from error
    from matplotlib.figure import Figure

    made = []
    with mpl.rc_context(_STYLE):
        for name, title, paint, height_in in _everything(summary):
            figure = Figure(figsize=(_WIDTH_IN, height_in), layout="constrained")
            paint(figure)
            content = BytesIO()
            # Without a date, so that the same records give the same bytes.
            metadata: Mapping[str, str | None] = {"Date": None, "Title": title} if form == "svg" else {"Title": title}
            figure.savefig(content, format=form, dpi=_DPI, facecolor="white", metadata=metadata)
            made.append(Picture(name=name, title=title, content=content.getvalue()))
    return made


_Drawing = tuple[str, str, Callable[[Any], None], float]
"""Name, title, what paints it, height in inches."""


def _everything(summary: Summary) -> Iterator[_Drawing]:
    by_engine = looks(summary)
    for number, part in enumerate(summary.parts):
        for name, title, paint, height_in in _drawings(part, by_engine):
            if summary.panels:
                yield f"{name}-{number + 1}", f"{wording.experiment(part)}: {title}", paint, height_in
            else:
                yield name, title, paint, height_in


def _drawings(summary: Summary, by_engine: Mapping[str, Look]) -> Iterator[_Drawing]:
    against = [c for c in summary.comparisons if c.baseline == summary.baseline]
    if against:
        baseline = summary.label(str(summary.baseline))
        title = f"Time saved against {baseline}"
        paint = partial(_saved, summary=summary, by_engine=by_engine, title=title)
        yield "saved", title, paint, 1.1 + _ROW_IN * len(against)
    kinds = [kind for kind in TURN_KINDS if any(kind in engine.medians.ttft for engine in summary.engines)]
    if kinds:
        title = "TTFT by turn type: share of turns whose first token arrived within a time"
        rows = -(-len(summary.engines) // 4)
        paint = partial(_ttft, summary=summary, by_engine=by_engine, kinds=kinds, title=title)
        yield "ttft", title, paint, 3.2 + 0.22 * rows
    timed = [engine for engine in summary.engines if engine.total_request_s]
    if timed:
        title = "Total request time: prefill, then decode"
        paint = partial(_phases, by_engine=by_engine, engines=timed, title=title)
        yield "phases", title, paint, 1.1 + _ROW_IN * len(timed)


def _saved(figure: Any, summary: Summary, by_engine: Mapping[str, Look], title: str) -> None:
    """Saved share with its interval, one row an engine; small points are the sessions."""
    against = [c for c in summary.comparisons if c.baseline == summary.baseline]
    axes = figure.add_subplot(title=title)
    for row, c in enumerate(against):
        colour = by_engine[c.candidate].colour
        sessions = [100 * saved for saved in c.saved_by_session.values()]
        axes.plot(sessions, [row] * len(sessions), "o", color=colour, alpha=0.3, markersize=4, markeredgewidth=0)
        if c.interval is not None:
            axes.plot([100 * c.interval.low, 100 * c.interval.high], [row, row], color=colour, linewidth=2.5)
        axes.plot([100 * c.saved], [row], "D", color=colour, markersize=7, markeredgecolor="white")
    axes.axvline(0, color=_QUIET, linewidth=1)
    _rows(axes, [f"{summary.label(c.candidate)}  {wording.percent(c.saved)}" for c in against])
    axes.set_xlabel("saved (%): diamond all sessions, line 95 % interval, points single sessions")


def _ttft(figure: Any, summary: Summary, by_engine: Mapping[str, Look], kinds: list[str], title: str) -> None:
    """Empirical distributions on a log axis, the marker at the median; one panel a turn type."""
    from matplotlib.ticker import LogLocator

    panels = figure.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
    lines: dict[str, Any] = {}
    for axes, kind in zip(panels, kinds, strict=True):
        turns = summary.turns[summary.turns["kind"] == kind]
        for number, engine in enumerate(summary.engines):
            if kind not in engine.medians.ttft:
                continue
            ttft_s = np.sort(turns.loc[turns["engine"] == engine.key, "ttft_s"].to_numpy(np.float64))
            shares = np.arange(1, len(ttft_s) + 1) / len(ttft_s)
            look = {"color": by_engine[engine.key].colour, "linestyle": _DASHES[number % len(_DASHES)]}
            (lines[engine.label],) = axes.step(ttft_s, shares, where="post", linewidth=1.6, **look)
            axes.plot([engine.medians.ttft[kind].value], [0.5], "o", color=look["color"], markersize=5)
        axes.set_xscale("log", subs=(2, 5))
        if turns["ttft_s"].max() < _FEW_DECADES * turns["ttft_s"].min():
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(lambda value, _: wording.tick(float(f"{value:.3g}")))
        axes.xaxis.set_minor_formatter(lambda *_: "")
        axes.set_title(_KIND_TITLES[kind], fontweight="normal")
    panels[0].yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold", fontsize=11)
    figure.legend(lines.values(), lines.keys(), loc="outside lower left", ncols=4, fontsize=9)


def _phases(figure: Any, by_engine: Mapping[str, Look], engines: list[EngineSummary], title: str) -> None:
    axes = figure.add_subplot(title=title)
    for row, engine in enumerate(engines):
        colour, total_s = by_engine[engine.key].colour, engine.total_request_s or 0.0
        prefill_s = engine.client_prefill_s or 0.0
        axes.barh(row, prefill_s, color=colour, height=0.62)
        axes.barh(row, total_s - prefill_s, left=prefill_s, color=colour, alpha=0.5, height=0.62)
    _rows(axes, [f"{engine.label}  {wording.seconds(engine.total_request_s)}" for engine in engines])
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("seconds: prefill (Σ TTFT) in full colour, decode lighter")


def _rows(axes: Any, labels: list[str]) -> None:
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
