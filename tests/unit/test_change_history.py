"""Changes in a table of versions, in SQL alone; no Spark."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import duckdb
import pytest

from ematix_flow.sinks.base import AT, CHANGE, TALLY
from ematix_flow.sinks.changes import AT_LENGTH, Gate, apply_history, gate_tables
from ematix_flow.sinks.tables import Load
from ematix_flow.state.kernel import GONE

GATE = Gate("gate", "truncates", "t")
COLUMNS = ("id", "name", "valid_from", "row_hash")
HIDDEN = (CHANGE, GONE, AT, *TALLY)


@pytest.fixture(params=["sqlite", "duckdb"])
def db(request: pytest.FixtureRequest) -> Iterator[Any]:
    with closing(sqlite3.connect(":memory:") if request.param == "sqlite" else duckdb.connect()) as opened:
        opened.execute(
            "CREATE TABLE t (id INT, name TEXT, valid_from INT, row_hash TEXT, valid_to INT, is_current BOOL)"
        )
        opened.execute(
            f"CREATE TABLE staged (id INT, name TEXT, valid_from INT, row_hash TEXT, {CHANGE} TEXT, {GONE} BOOL, "
            f"{AT} TEXT, {', '.join(f'{name} INT' for name in TALLY)})"
        )
        for statement in gate_tables(GATE, {"id": "INT"}, "INT"):
            opened.execute(statement)
        yield opened


def arrive(db: Any, *changes: tuple[str, int, int, str | None]) -> tuple[list[Any], dict[str, int]]:
    """Changes are an operation, a place, a time and what the name of row 1 is then. The versions, and the counts."""
    db.execute("DELETE FROM staged")
    for op, place, moment, name in changes:
        tally = [int(op == one) for one in "cud"] + [0]
        row = (
            1,
            name,
            moment,
            name or "gone",
            "d" if op == "d" else "u",
            op == "d",
            str(place).zfill(AT_LENGTH),
            *tally,
        )
        db.execute(f"INSERT INTO staged VALUES ({', '.join('?' * len(row))})", row)
    identity = ("rowid",) if isinstance(db, sqlite3.Connection) else ()
    load = Load("t", "staged", COLUMNS, ("id",), withdraws=True, identity=identity)
    _, counts = apply_history(db.execute, load, GATE, lambda _: 0, staged=(*COLUMNS, *HIDDEN))
    found = db.execute("SELECT name, valid_from, valid_to, is_current FROM t ORDER BY valid_from").fetchall()
    return [tuple(row) for row in found], {what: count for what, count in counts.items() if count}


def test_a_delete_ends_what_comes_after_it(db: Any) -> None:
    assert arrive(db, ("d", 5, 50, None)) == ([], {"deletes": 1})
    assert arrive(db, ("c", 3, 30, "a")) == ([("a", 30, 50, False)], {"creates": 1})
    late = ("u", 2, 20, "first"), ("u", 4, 50, "in the moment of its end")
    versions = [("first", 20, 30, False), ("a", 30, 50, False)]
    assert arrive(db, *late) == (versions, {"updates": 1, "idempotent_skipped": 1})
    versions.append(("again", 60, None, True))
    assert arrive(db, ("c", 6, 60, "again")) == (versions, {"creates": 1})
    # What a change has followed is no longer the end.
    versions[1:] = [("a", 30, 40, False), ("b", 40, 50, False), ("again", 60, None, True)]
    assert arrive(db, ("u", 4, 40, "b"))[0] == versions
    versions[-1:] = [("again", 60, 70, False)]
    assert arrive(db, ("d", 7, 70, None))[0] == versions
    assert arrive(db, ("d", 7, 70, None))[0] == versions
