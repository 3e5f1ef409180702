"""Figure 4 of the paper: what ours saves of each other engine's time in each session."""

import numpy as np

from analysis import wording
from analysis.figures.colours import Look
from analysis.figures.figure import Figure, blank, short, spec
from analysis.subject import against, in_paper_order, subject
from analysis.summary import Summary


def savings(part: Summary, looks: dict[str, Look]) -> Figure | None:
    """A row an engine, a point a session, the median marked; None where nothing was compared."""
    ours = subject(part)
    if ours is None:
        return None
    figure, said = blank(), []
    engines = [engine for engine in in_paper_order(part, last=ours.key) if engine.key in part.pairing.engines]
    rows = [(engine, found) for engine in engines if (found := against(part, engine.key, ours.key))]
    for engine, found in reversed(rows):  # plotly draws the first one lowest
        look = looks[engine.key]
        values = [100 * value for value in found.saved_by_session.values()]
        middle = float(np.median(values))
        figure.add_scatter(
            x=short(values),
            y=[engine.label] * len(values),
            text=list(found.saved_by_session),
            name=engine.label,
            mode="markers",
            showlegend=False,
            marker={"color": look.colour, "symbol": look.symbol, "size": 9, "opacity": 0.75},
            hovertemplate="%{text}: saved %{x:.1f} %<extra>against " + engine.label + "</extra>",
        )
        figure.add_scatter(
            x=short([middle]),
            y=[engine.label],
            name=engine.label,
            mode="markers+text",
            showlegend=False,
            text=[wording.percent(middle / 100)],
            textposition="top center",
            marker={"color": look.colour, "symbol": "line-ns-open", "size": 22, "line": {"width": 3}},
            hovertemplate="median %{x:.1f} %<extra>against " + engine.label + "</extra>",
        )
        said.append(
            f"{engine.label} between {wording.percent(min(values) / 100)} and {wording.percent(max(values) / 100)}, "
            f"median {wording.percent(middle / 100)}"
        )
    figure.update_xaxes(title=f"request time saved by {ours.label} (%)", zeroline=True, zerolinewidth=2)
    figure.update_yaxes(automargin=True)
    return Figure(
        name="savings",
        title=f"Figure 4 · What {ours.label} saves in each session",
        caption=f"Share of each engine's time that {ours.label} saves, a point a session, the median labelled: "
        f"{'; '.join(reversed(said))}.",
        spec=spec(figure),
        height=170 + 56 * len(rows),
        wide=True,
    )
