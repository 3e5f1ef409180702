"""Which of a table's formulas defines which of its columns."""

import re
from collections.abc import Sequence

from analysis.tables.table import Table

_TERM = re.compile(r"(?:^|; )([^;:=()]{1,60}?)(?: = |: )")


def column_formulas(table: Table) -> list[str | None]:
    """For each column the formula of the table that defines it, if one does; the longest term that fits wins.

    A formula defines its terms: what stands before a `` = `` or ``: ``, several with commas between.
    """
    terms = [
        (term.strip(), formula)
        for formula in table.formulas
        for found in _TERM.finditer(formula)
        for term in found[1].split(", ")
        if term.strip()
    ]
    return [_defined(column, terms) for column in table.columns]


def _defined(column: str, terms: Sequence[tuple[str, str]]) -> str | None:
    fitting = [(len(term), formula) for term, formula in terms if _names(term, column)]
    return max(fitting, key=lambda pair: pair[0])[1] if fitting else None


def _names(term: str, column: str) -> bool:
    """Whether the term stands in the column's name as whole words."""
    return re.search(rf"(?<!\w){re.escape(term)}(?!\w)", column) is not None
