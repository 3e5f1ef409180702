"""Numbers as the paper prints them: the unit is in the column's title."""

from analysis import wording
from analysis.paper import Row
from analysis.tables.table import PAPER, Cell, absent, number, words

NOT_PRINTED = "the paper does not print it"


def plain(value: float) -> str:
    """``16,950.1``, ``2.36``, ``0.0412``: a tenth, a hundredth, or three digits, whichever says more."""
    if abs(value) >= 1:
        return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.2f}"
    return f"{value:.3g}"


def time_s(value: float | None, *, why: str = "not measured") -> Cell:
    return number(value, plain, why=why)


def tpot_ms(value: float) -> str:
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def reference(row: Row | None, field: str, text: str = "{:,}") -> Cell:
    """A cell of the paper's."""
    value = None if row is None else row[field]
    return absent(NOT_PRINTED) if value is None else Cell(text=text.format(value), number=float(value))


def reference_percent(row: Row | None) -> Cell:
    if row is None or row["saved"] is None:
        return absent(NOT_PRINTED)
    return Cell(text=f"{row['saved']:.1f} %", number=row["saved"])


def reference_interval(row: Row | None) -> Cell:
    if row is None or row["low"] is None:
        return absent(NOT_PRINTED)
    return Cell(text=f"{row['low']:.1f}–{row['high']:.1f} %", low=row["low"], high=row["high"])


def reference_share(row: Row | None) -> Cell:
    if row is None or row["won"] is None:
        return absent(NOT_PRINTED)
    return Cell(text=wording.share(row["won"], row["sessions"]), number=float(row["won"]))


def marked(label: str) -> Cell:
    """The first cell of a row of the paper's."""
    return words(f"{label} · {PAPER}")
