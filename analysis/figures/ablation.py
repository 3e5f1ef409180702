"""Figure 8 of the paper: prefill and decode of each configuration, and its decode step."""

from analysis import wording
from analysis.figures.colours import Look
from analysis.figures.figure import Figure, blank, short, spec
from analysis.figures.marks import add_phase
from analysis.summary import Summary
from analysis.tables.ablation import Step, steps


def ablation(part: Summary, looks: dict[str, Look]) -> list[Figure]:
    """Nothing where no engine ran with several settings."""
    found = list(reversed(steps(part)))  # plotly draws the first one lowest
    return [figure for figure in (_phases(found, looks), _decode_steps(found, looks)) if figure]


def _phases(found: list[Step], looks: dict[str, Look]) -> Figure | None:
    whole = [step for step in found if step.prefill_s is not None and step.decode_s is not None]
    if not whole:
        return None
    figure = blank()
    names, colours = [step.name for step in whole], [looks[step.key].colour for step in whole]
    for name, values, opacity in (
        ("prefill", [step.prefill_s or 0.0 for step in whole], 1.0),
        ("decode", [step.decode_s or 0.0 for step in whole], 0.6),
    ):
        add_phase(figure, name, values, names, colours, opacity=opacity)
    for step in whole:
        figure.add_annotation(
            x=(step.prefill_s or 0.0) + (step.decode_s or 0.0),
            y=step.name,
            text=wording.seconds(step.total_s),
            showarrow=False,
            xanchor="left",
            xshift=4,
        )
    figure.update_layout(barmode="stack", bargap=0.35)
    highest = max((step.prefill_s or 0.0) + (step.decode_s or 0.0) for step in whole)
    figure.update_xaxes(title="time (s), labelled with the total", range=short([0, 1.2 * highest]))
    figure.update_yaxes(automargin=True)
    said = "; ".join(f"{step.name} {wording.seconds(step.total_s)}" for step in reversed(whole))
    return Figure(
        name="ablation",
        title="Figure 8a · Ablation: prefill and decode",
        caption=f"Prefill and decode of each configuration, labelled with its total time: {said}.",
        spec=spec(figure),
        height=150 + 46 * len(whole),
        wide=True,
    )


def _decode_steps(found: list[Step], looks: dict[str, Look]) -> Figure | None:
    known = [(step, step.step_ms) for step in found if step.step_ms is not None]
    if not known:
        return None
    figure = blank()
    figure.add_bar(
        x=short([value for _, value in known]),
        y=[step.name for step, _ in known],
        orientation="h",
        showlegend=False,
        text=[f"{value:.1f}" for _, value in known],
        textposition="outside",
        cliponaxis=False,
        marker={"color": [looks[step.key].colour for step, _ in known]},
        hovertemplate="%{x:.3s} ms<extra>%{y}</extra>",
    )
    figure.update_xaxes(title="decode time per step (ms)", rangemode="tozero")
    figure.update_yaxes(automargin=True)
    said = "; ".join(f"{step.name} {wording.milliseconds(value / 1e3)}" for step, value in reversed(known))
    return Figure(
        name="ablation-step",
        title="Figure 8c · Ablation: decode step",
        caption=f"Σ decode time / Σ decode steps of each configuration: {said}.",
        spec=spec(figure),
        height=150 + 46 * len(known),
        wide=True,
    )
