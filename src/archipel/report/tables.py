# SPDX-License-Identifier: Apache-2.0
"""A table of results as Markdown, CSV, LaTeX, or for the terminal and the notebook.

Columns fall into blocks, drawn one under the other with the names of the rows repeated: two narrow
tables fit where one wide one does not. CSV holds the numbers themselves, in one table.
"""

from __future__ import annotations

import csv
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape as escape_html
from io import StringIO
from shutil import get_terminal_size
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.markup import escape
from rich.table import Table as RichTable
from rich.text import Text

from archipel.errors import clean, unknown

_GAP = 2  # between columns in the terminal
_PAGE = "margin: 0.6em 0; border-collapse: collapse"  # a table in a notebook, and its cells
_CELL = dict.fromkeys(("left", "right"), "padding: 0.15em 1em 0.15em 0; vertical-align: top")
_CELL["right"] += "; white-space: nowrap"


class Column(NamedTuple):
    """A heading, its name in CSV, and the block it belongs to."""

    title: str
    key: str
    block: int = 0
    left: bool = False  # words rather than numbers
    aside: bool = False  # left out in a terminal, which is narrow


class Cell(NamedTuple):
    """What is shown, and the number behind it."""

    text: str
    value: float | None = None
    sd: float | None = None
    strong: bool = False


@dataclass(frozen=True)
class Table:
    """Rows in sections; the first column names the row and opens every block."""

    title: str
    columns: Sequence[Column]
    sections: Sequence[Sequence[Sequence[Cell]]]
    notes: Sequence[str] = ()

    def render(self, form: str) -> str:
        """Return the table as "md", "csv" or "latex".

        >>> table = Table("T", [Column("", "name")], [[[Cell("fed_avg")]]])
        >>> print(table.render("csv").strip())
        name
        fed_avg
        """
        if form not in FORMATS:
            raise unknown("format", form, FORMATS)
        return FORMATS[form](self)

    def blocks(self) -> list[list[int]]:
        """The columns of each block, by number."""
        named = range(1, len(self.columns))
        numbers = sorted({self.columns[c].block for c in named}) or [0]
        return [[0, *(c for c in named if self.columns[c].block == b)] for b in numbers]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Blocks as wide as the terminal, so that no number is broken in two."""
        yield Text(_line(self.title), style="bold")
        for block in self.blocks():
            shown = [c for c in block if not self.columns[c].aside]
            for part in self._fitting(shown, options.max_width):
                yield Text()
                yield self._shown(part, marked=console.color_system is None)
        yield Text()
        if aside := [_line(each.title) for each in self.columns if each.aside]:
            yield Text(f"Also in md, csv, latex and json: {', '.join(aside)}.", style="dim")
        for note in self.notes:
            yield Text(_line(note), style="dim")

    def _width(self, c: int) -> int:
        """Of a column whose heading is broken at spaces, and whose cells are not."""
        title = _line(self.columns[c].title)
        cells = [
            "* " * row[c].strong + _line(row[c].text)
            for section in self.sections
            for row in section
        ]
        return max(*map(cell_len, [*title.split(), *cells]), 1, cell_len(title) // 3 + 2)

    def _fitting(self, block: Sequence[int], width: int) -> list[list[int]]:
        """Cut a block where the next column would not fit."""
        parts = [[0]]
        for c in block[1:]:
            taken = sum(self._width(each) + _GAP for each in parts[-1])
            if len(parts[-1]) > 1 and taken + self._width(c) > width:
                parts.append([0])
            parts[-1].append(c)
        return parts

    def _shown(self, columns: Sequence[int], marked: bool) -> RichTable:
        shown = RichTable(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="dim")
        for c in columns:
            left = self.columns[c].left or c == 0
            shown.add_column(
                escape(_line(self.columns[c].title)),
                justify="left" if left else "right",
                vertical="bottom",
                width=self._width(c),
            )
        for number, section in enumerate(self.sections):
            if number:
                shown.add_row()
            for row in section:
                shown.add_row(*(_rich(row[c], marked) for c in columns))
        return shown


def markdown(table: Table) -> str:
    """For a README or an issue."""
    parts = [f"**{_markdown(table.title)}**"]
    for block in table.blocks():
        titles = [_markdown(table.columns[c].title) for c in block]
        rules = [":---" if table.columns[c].left or c == 0 else "---:" for c in block]
        lines = [titles, rules]
        lines += [
            [_strong(row[c], _markdown, "**{}**") for c in block]
            for section in table.sections
            for row in section
        ]
        parts.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
    if table.notes:
        parts.append("\n".join(f"- {_markdown(note)}" for note in table.notes))
    return "\n\n".join(parts) + "\n"


def latex(table: Table) -> str:
    """For a paper: `\\usepackage{booktabs}`; a table environment per block."""
    parts = []
    for number, block in enumerate(table.blocks()):
        kinds = "".join("l" if table.columns[c].left or c == 0 else "r" for c in block)
        caption = table.title + (" (continued)" if number else "")
        last = number == len(table.blocks()) - 1
        sections = [
            "\n".join(
                " & ".join(_strong(row[c], _latex, r"\textbf{{{}}}") for c in block) + r" \\"
                for row in section
            )
            for section in table.sections
        ]
        head = " & ".join(_latex(table.columns[c].title) for c in block) + r" \\"
        parts.append(
            "\n".join(
                [
                    r"\begin{table}",
                    r"\centering\small",
                    rf"\caption{{{_latex(caption)}.}}",
                    rf"\begin{{tabular}}{{{kinds}}}",
                    r"\toprule",
                    head,
                    r"\midrule",
                    "\n\\midrule\n".join(section for section in sections if section),
                    r"\bottomrule",
                    r"\end{tabular}",
                    *(_latex_notes(table.notes) if last and table.notes else []),
                    r"\end{table}",
                ]
            )
        )
    return "\n\n".join(parts) + "\n"


def html(table: Table) -> str:
    """For a notebook: no script, no style but its own, and names as they are written."""
    parts = [f"<b>{_html(table.title)}</b>"] if table.title else []
    for block in table.blocks():
        sides = ["left" if table.columns[c].left or c == 0 else "right" for c in block]
        heads = [_html(table.columns[c].title) for c in block]
        lines = [_html_row("th", heads, sides)] if any(heads) else []
        for number, section in enumerate(table.sections):
            rule = "border-top: 1px solid #d8dee6" if number else ""
            for row in section:
                cells = [_strong(row[c], _html, "<b>{}</b>") for c in block]
                lines.append(_html_row("td", cells, sides, rule))
                rule = ""
        parts.append(f'<table style="{_PAGE}">{"".join(lines)}</table>')
    parts += [f"<small>{_html(note)}</small><br>" for note in table.notes]
    return f"<div>{''.join(parts)}</div>"


def _html_row(kind: str, cells: Sequence[str], sides: Sequence[str], rule: str = "") -> str:
    written = (
        f'<{kind} style="text-align: {side}; {_CELL[side]}">{cell}</{kind}>'
        for cell, side in zip(cells, sides, strict=True)
    )
    return f'<tr style="{rule}">{"".join(written)}</tr>'


def as_text(shown: RenderableType) -> str:
    """For the Python prompt: what a terminal shows, without colours, as wide as there is room."""
    room = get_terminal_size((100, 24)).columns
    console = Console(file=StringIO(), width=room, color_system=None, legacy_windows=False)
    with console.capture() as text:
        console.print(shown)
    return "\n".join(line.rstrip() for line in text.get().splitlines())


def comma_separated(table: Table) -> str:
    """For a spreadsheet or a script: plain numbers, and the sd in columns of their own."""
    rows = [row for section in table.sections for row in section]
    spread = [any(row[c].sd is not None for row in rows) for c in range(len(table.columns))]
    head: list[str] = []
    for column, has_sd in zip(table.columns, spread, strict=True):
        head += [column.key, f"{column.key}_sd"] if has_sd else [column.key]
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    for row in rows:
        line: list[str | float | None] = []
        for c, (cell, has_sd) in enumerate(zip(row, spread, strict=True)):
            words = c == 0 or table.columns[c].left
            line.append(text_cell(cell.text) if words else cell.value)
            line += [cell.sd] if has_sd else []
        writer.writerow(line)
    return text.getvalue()


FORMATS: dict[str, Callable[[Table], str]] = {
    "md": markdown,
    "csv": comma_separated,
    "latex": latex,
}


def _line(text: str) -> str:
    """Text on one line, whatever somebody named a study."""
    return " ".join(clean(text).split())


def text_cell(text: str) -> str:
    """Text that a spreadsheet takes as text: with an apostrophe where it could be a formula.

    Spreadsheets take full-width signs as the plain ones.

    >>> text_cell("=SUM(A1)"), text_cell("\uff1dSUM(A1)"), text_cell("north")
    ("'=SUM(A1)", "'\uff1dSUM(A1)", 'north')
    """
    line = _line(text)
    plain = unicodedata.normalize("NFKC", line[:1])
    return f"'{line}" if plain[:1] in ("=", "+", "-", "@", "\u2212") else line


def _rich(cell: Cell, marked: bool) -> Text:
    """A cell's text; a strong one is bold, and has a star where nothing can be."""
    star = "* " if cell.strong and marked else ""
    return Text(star + _line(cell.text), style="bold" if cell.strong else "")


def _strong(cell: Cell, write: Callable[[str], str], form: str) -> str:
    text = write(cell.text)
    return form.format(text) if cell.strong else text


def _markdown(text: str) -> str:
    return re.sub(r"([\\|*`<\[\]]|(?<!\w)_|_(?!\w))", r"\\\1", _line(text))


_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        **{each: f"\\{each}" for each in "&%$#_{}"},
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        "±": r"$\pm$",
        "²": r"$^2$",
        "†": r"\dag{}",
        "\N{EN DASH}": "--",
        "\N{MINUS SIGN}": "$-$",
    }
)


def _html(text: str) -> str:
    return escape_html(_line(text))


def _latex(text: str) -> str:
    return _line(text).translate(_LATEX)


def _latex_notes(notes: Sequence[str]) -> list[str]:
    text = " ".join(map(_latex, notes))
    return [r"\par\smallskip", rf"\parbox{{\linewidth}}{{\footnotesize {text}}}"]
