"""How tables look in a terminal, whatever they say; `console` fills them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Literal

from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from undelta.cli.app import printable

MISSING = "n/a"
FOLDED = 9  # columns that a name has at least


def draw_table(
    titles: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    words: Collection[str],
    fold: Collection[str] = (),
    spare: Sequence[str] = (),
    least: int | None = None,
    **form: Any,
) -> None:
    """Columns of words to the left, of numbers to the right; those that may be folded are at least so wide.

    Where a terminal is narrow, the columns that can be spared are left out, one after the other.
    """
    console, lines = Console(), [*rows]
    gone: set[str] = set()
    for title in (None, *spare):
        gone |= {title} if title else set()
        table = Table(**form)
        kept = [index for index, one in enumerate(titles) if one not in gone]
        for index in kept:
            side: Literal["left", "right"] = "left" if titles[index] in words else "right"
            if titles[index] in fold:
                table.add_column(titles[index], justify=side, overflow="fold", min_width=least or FOLDED)
            else:
                cells = [titles[index], *(printable(row[index]) for row in lines)]
                table.add_column(titles[index], justify=side, no_wrap=True, min_width=max(map(cell_len, cells)))
        for row in lines:
            table.add_row(*(Text(printable(row[index])) for index in kept))
        whole = console.options.update(max_width=1000)  # or it would say what it is cut to
        if Measurement.get(console, whole, table).minimum <= console.width:
            break
    console.print(table)


def number(value: float | None, form: str) -> str:
    """A cell."""
    return MISSING if value is None else f"{value:{form}}"
