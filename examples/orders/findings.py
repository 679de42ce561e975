"""What the demo looks up after its run: the table in DuckDB and the dead letters."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import duckdb

from ematix_flow.state.dead_letters import DeadLetter, DeadLetters
from ematix_flow.state.home import dead_letters_of
from ematix_flow.streams.sources.listing import line_of

_BY_COUNTRY = """
SELECT country, count(*), sum(revenue), count(*) FILTER (late)
FROM orders GROUP BY country ORDER BY sum(revenue) DESC
"""


class Sales(NamedTuple):
    country: str
    orders: int
    revenue: Decimal
    late: int


class Rejection(NamedTuple):
    reason: str
    rows: int
    example: str
    place: str


def by_country(database: Path) -> list[Sales]:
    with duckdb.connect(str(database), read_only=True) as db:
        return [Sales(*row) for row in db.execute(_BY_COUNTRY).fetchall()]


def total(rows: Iterable[Sales]) -> Sales:
    orders, revenue, late = 0, Decimal(0), 0
    for row in rows:
        orders, revenue, late = orders + row.orders, revenue + row.revenue, late + row.late
    return Sales("all", orders, revenue, late)


def rejections(pipeline: str) -> list[Rejection]:
    """One line per reason, the most frequent first, with the part of the first such payload that shows it."""
    with closing(DeadLetters(dead_letters_of(pipeline))) as store:
        letters = store.all()
    by_reason: dict[str, list[DeadLetter]] = {}
    for letter in letters:
        by_reason.setdefault(_reason(letter)[0], []).append(letter)
    rows = [Rejection(reason, len(those), _shown(those[0]), _place(those[0])) for reason, those in by_reason.items()]
    return sorted(rows, key=lambda row: (-row.rows, row.reason))


def _reason(letter: DeadLetter) -> tuple[str, str]:
    """What was expected, and what was found, which differs from row to row."""
    expected, _, found = re.split(r"(, found |: )", letter.error, maxsplit=1)
    return expected, found


def _shown(letter: DeadLetter) -> str:
    payload, found = (letter.payload or b"").decode(), _reason(letter)[1]
    field = re.search(r'"\w+": ' + re.escape(found), payload)
    if field:
        return field.group()
    return payload[:24] + " ..." if payload.startswith("[") else "... " + payload.rpartition(", ")[2]


def _place(letter: DeadLetter) -> str:
    file = Path(unquote(letter.position.rpartition("#")[0]).removeprefix("file:"))
    return f"{file.name}:{line_of(file, letter.payload or b'')}"
