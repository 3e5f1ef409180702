"""What a table is: text for a reader, the numbers behind it for programs, the formulas of its columns."""

from collections.abc import Callable
from dataclasses import dataclass

from analysis import wording
from analysis.stats import Interval, Median
from analysis.wording import ABSENT

PAPER = "paper, other machine"
"""Where the numbers of a reference row come from; no statistic reads them."""


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    """As shown."""
    name: str = ""
    """As in ``tables/*.csv``, with the unit: ``ttft_tool_s``. Empty: words that no program needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What is shown, and the number behind it in its column's unit. An absent one says why."""

    text: str
    number: float | None = None
    low: float | None = None
    high: float | None = None
    best: bool = False
    """The best of its column, where a table says which."""
    why: str = ""
    """Why there is no number; empty where there is one, and in a cell of words."""


Line = tuple[Cell, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    name: str
    """Of the file in ``tables/``, without its ending."""
    title: str
    heads: tuple[Column, ...]
    """The first one names the row; the others hold numbers."""
    lines: tuple[Line, ...]
    formulas: tuple[str, ...] = ()
    engines: tuple[str, ...] = ()
    """Key of each row's engine, where a row is one: the page shows its colour."""
    sources: tuple[str, ...] = ()
    """Whose numbers each row holds: empty for these records', else ``PAPER``. Empty where all are these records'."""

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(head.title for head in self.heads)

    @property
    def rows(self) -> tuple[tuple[str, ...], ...]:
        """Text only; a row of the paper's says so in its first cell."""
        return tuple(tuple(cell.text for cell in line) for line in self.lines)

    def source(self, row: int) -> str:
        return self.sources[row] if self.sources else ""


def words(text: str) -> Cell:
    return Cell(text=text)


def absent(why: str) -> Cell:
    return Cell(text=ABSENT, why=why)


def number(
    value: float | None,
    show: Callable[[float], str],
    *,
    why: str = "not measured",
    scale: float = 1.0,
    interval: Interval | None = None,
) -> Cell:
    """A cell from a value; ``scale`` brings value and interval into the column's unit."""
    if value is None:
        return absent(why)
    low, high = (None, None) if interval is None else (interval.low * scale, interval.high * scale)
    return Cell(text=show(value), number=value * scale, low=low, high=high)


def count(value: int | None, *, why: str = "not measured") -> Cell:
    return number(value, lambda known: f"{known:,.0f}", why=why)


def seconds(value: float | None, *, why: str = "not measured") -> Cell:
    return number(value, wording.seconds, why=why)


def percent(value: float | None, *, why: str = "not compared", interval: Interval | None = None) -> Cell:
    return number(value, wording.percent, why=why, scale=100, interval=interval)


def ends(interval: Interval | None, *, why: str, scale: float = 100) -> Cell:
    """An interval in a cell of its own, in percent."""
    if interval is None:
        return absent(why)
    return Cell(text=wording.percent_interval(interval), low=interval.low * scale, high=interval.high * scale)


def median(value: Median | None, unit: str = "s", *, why: str = "no such turn was measured", note: str = "") -> Cell:
    """In ``unit``, ``s`` or ``ms``, with its interval where there is one."""
    if value is None:
        return absent(why)
    return number(
        value.value,
        lambda _: wording.median(value, unit) + note,
        scale=1e3 if unit == "ms" else 1.0,
        interval=value.interval,
    )


def share(part: int, whole: int, *, why: str) -> Cell:
    """``12/13``; the number is the part, its whole is in the text only."""
    return Cell(text=wording.share(part, whole), number=part) if whole else absent(why)


def markdown(table: Table) -> str:
    """A GitHub table; cells are escaped, so that a name can't break it."""
    rules = [":--", *["--:"] * (len(table.columns) - 1)]
    rows = [[_bold(cell) for cell in line] for line in table.lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in (map(escaped, table.columns), rules, *rows))


def _bold(cell: Cell) -> str:
    return f"**{escaped(cell.text)}**" if cell.best else escaped(cell.text)


def escaped(text: str) -> str:
    """Text that Markdown shows as it is, in one line of a table."""
    for character in "\\|`*_<>[]":
        text = text.replace(character, "\\" + character)
    return " ".join(text.split())
