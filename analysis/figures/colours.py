"""One colour, symbol and dash an engine, the same in every figure of every report."""

from collections.abc import Sequence
from dataclasses import dataclass

from analysis.subject import name_of
from analysis.summary import Summary

KNOWN_COLOURS = {
    "ostinato": "#D55E00",
    "llamacpp": "#0072B2",
    "llamacpp_layers": "#0072B2",
    "llamacpp_cache": "#7444F8",
    "ik_llamacpp": "#009E73",
    "buun": "#A45C8C",
    "ktransformers": "#68682C",
    "freetoken": "#F82C50",
}
"""Any two are 16 or more apart (CIE 1976 ΔE) for normal and for protan, deutan and tritan sight (Machado et al.
2009), and 3:1 or more against a white and a dark page; three of them are of Okabe & Ito (2008)."""
OTHER_COLOURS = ("#B5618F", "#A87900", "#3F97CC", "#7A7A7A", "#8C6BB1", "#6B8E23", "#C44E52", "#5F9EA0")
"""For engines that are not known here; symbol and dash say the same again."""
GREY = "#7A7A7A"
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")


def colours(engines: Sequence[str]) -> dict[str, str]:
    """Key of a run → colour, for all of ``engines``, for the names in their keys and for every known engine."""
    found = dict(KNOWN_COLOURS)
    free = iter(OTHER_COLOURS * (2 * len(engines) // len(OTHER_COLOURS) + 1))
    taken: set[str] = set()
    for key in engines:
        name = name_of(key)
        usual = found.get(name)
        if usual is None or usual in taken:
            usual = next(free)
        found[key] = usual
        found.setdefault(name, usual)
        taken.add(usual)
    return found


@dataclass(frozen=True, slots=True)
class Look:
    colour: str
    symbol: str
    dash: str


def looks(summary: Summary) -> dict[str, Look]:
    """Of every run, and of every engine's name in a panel."""
    keys = [run.key for run in summary.runs]
    by_key = colours(keys)
    found = {key: Look(by_key[key], SYMBOLS[i % len(SYMBOLS)], DASHES[i % len(DASHES)]) for i, key in enumerate(keys)}
    for key in keys:
        found.setdefault(name_of(key), found[key])
    return found
