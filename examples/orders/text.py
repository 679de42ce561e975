"""Plain text for a terminal of 100 columns: headings, facts, aligned tables. Bold only where a person is looking."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

WIDTH = 96


def title(words: str) -> None:
    print(f"\n{_bold(words)}\n{'─' * len(words)}")


def heading(words: str) -> None:
    print(f"\n{_bold(words)}")


def line(words: str) -> None:
    print(f"  {words}", flush=True)


def paragraph(words: str, *, indent: int = 0) -> None:
    print(textwrap.fill(words, WIDTH, initial_indent=" " * indent, subsequent_indent=" " * indent))


def facts(named: Mapping[str, str]) -> None:
    print()
    width = max(map(len, named))
    for name, fact in named.items():
        line(f"{name:<{width}}   {fact}")


def table(
    names: Sequence[str], rows: Sequence[Sequence[str]], *, left: Sequence[int] = (0,), total: bool = False
) -> None:
    """Columns in `left` are words, the others are numbers and end at the same place. `total`: the last row is a sum."""
    widths = [max(len(cell) for cell in column) for column in zip(names, *rows, strict=True)]

    def joined(cells: Sequence[str]) -> str:
        aligned = [c.ljust(w) if i in left else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True))]
        return "   ".join(aligned).rstrip()

    rule = "─" * (sum(widths) + 3 * (len(widths) - 1))
    lines = [joined(row) for row in rows]
    if total:
        lines.insert(-1, rule)
    print()
    for each in (joined(names), rule, *lines):
        line(each)


def commands(lines: Sequence[tuple[str, str]]) -> None:
    width = max(len(command) for command, words in lines if words)
    for command, words in lines:
        line(f"{command:<{width}}   {words}".rstrip())


def bar(part: float, whole: float, width: int) -> str:
    """A share as blocks, to an eighth of one."""
    eighths = round(8 * width * part / whole)
    return ("█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8]).ljust(width)[:width]


@contextmanager
def waiting(words: str) -> Iterator[None]:
    """Says what is being waited for; nothing moves, so that a log file stays readable."""
    print(f"  {words} ...", end="", flush=True)
    yield
    print(" done", flush=True)


def _bold(words: str) -> str:
    return f"\x1b[1m{words}\x1b[0m" if sys.stdout.isatty() and "NO_COLOR" not in os.environ else words
