"""The SQL of each mode as text, and what it does to a table, without Spark."""

import sqlite3
from collections.abc import Iterator
from typing import Any

import duckdb
import pytest

from ematix_flow.sinks.refusing import refused_rows
from ematix_flow.sinks.tables import MODES, Load, create_table

LOAD = Load('"t"', "s1", ("id", 'na"me'), ("id",), {"_batch_id": "'p/1'"})


def test_a_merge_is_an_update_of_what_differs_and_an_insert_of_what_is_new() -> None:
    assert MODES["merge"](LOAD) == [
        'UPDATE "t" AS t SET "na""me" = s."na""me", "_batch_id" = \'p/1\' FROM s1 AS s '
        'WHERE t."id" IS NOT DISTINCT FROM s."id" AND (t."na""me" IS DISTINCT FROM s."na""me")',
        'INSERT INTO "t" ("id", "na""me", "_batch_id") SELECT s."id", s."na""me", \'p/1\' FROM s1 AS s '
        'WHERE NOT EXISTS (SELECT 1 FROM "t" AS t WHERE t."id" IS NOT DISTINCT FROM s."id")',
    ]


def test_a_merge_of_keys_alone_changes_no_row() -> None:
    (insert,) = MODES["merge"](Load('"t"', "s1", ("id",), ("id",)))
    assert insert.startswith("INSERT")


def test_a_table_with_its_keys() -> None:
    assert create_table('"t"', {"id": "BIGINT NOT NULL", "name": "TEXT"}, ["id"], [["name", "id"]]) == (
        'CREATE TABLE "t" ("id" BIGINT NOT NULL, "name" TEXT, PRIMARY KEY ("id"), UNIQUE ("name", "id"))'
    )


@pytest.fixture(params=["duckdb", "sqlite"])
def db(request: pytest.FixtureRequest) -> Iterator[Any]:
    made: Any = duckdb.connect() if request.param == "duckdb" else sqlite3.connect(":memory:", isolation_level=None)
    columns = "id BIGINT, name TEXT, valid_from BIGINT, valid_to BIGINT, is_current BOOLEAN, row_hash TEXT"
    for table in ("t", "s1"):
        made.execute(f"CREATE TABLE {table} ({columns})")
    yield made
    made.close()


@pytest.mark.parametrize(
    ("staged", "history"),
    [
        pytest.param((2, "b"), [(1, "a", 2), (2, "b", 3), (5, "a", 7)], id="within the closed version"),
        pytest.param((2, "a"), [(1, "a", 3), (5, "a", 7)], id="unchanged within it"),
        pytest.param((4, "a"), [(1, "a", 3), (4, "a", 5), (5, "a", 7)], id="in the gap, whatever was there before"),
        pytest.param((8, "a"), [(1, "a", 3), (5, "a", 7), (8, "a", None)], id="after the end"),
        pytest.param((0, "a"), [(0, "a", 1), (1, "a", 3), (5, "a", 7)], id="before the beginning"),
        pytest.param((5, "b"), [(1, "a", 3), (5, "b", 7)], id="instead of a closed version"),
    ],
)
def test_scd2_respects_a_key_that_was_closed(db: Any, staged: tuple[int, str], history: list[Any]) -> None:
    """Between 3 and 5, and from 7 on, the key did not exist."""
    db.execute("INSERT INTO t VALUES (1, 'a', 1, 3, FALSE, 'a'), (1, 'a', 5, 7, FALSE, 'a')")
    db.execute("INSERT INTO s1 (id, name, valid_from, row_hash) VALUES (1, ?, ?, ?)", (staged[1], staged[0], staged[1]))
    for statement in MODES["scd2"](Load("t", "s1", ("id", "name", "valid_from", "row_hash"), ("id",))):
        db.execute(statement)
    found = db.execute("SELECT valid_from, name, valid_to FROM t ORDER BY valid_from").fetchall()
    assert found == history
    (current,) = db.execute("SELECT count(*) FROM t WHERE is_current").fetchone()
    assert current == sum(end is None for *_, end in history)


@pytest.mark.parametrize("bad", [set(), {0}, {99}, {3, 4, 50}, set(range(0, 100, 7)), set(range(100))])
def test_rows_that_fail_alone_or_with_an_earlier_one_are_found(bad: set[int]) -> None:
    """Row 60 conflicts with row 20, whichever of them is tried with others."""
    tried = 0

    def attempt(first: int, last: int, without: Any) -> str | None:
        nonlocal tried
        tried += 1
        rows = set(range(first, last + 1)) - set(without)
        if broken := rows & bad:
            return f"bad {min(broken)}"
        return "conflict" if {20, 60} <= rows else None

    refused = refused_rows(range(100), attempt)
    conflicting = {60} if not {20, 60} & bad else set()
    assert list(refused) == sorted(bad | conflicting)
    assert all(refused[row] == f"bad {row}" for row in bad)
    assert tried <= 2 * max(len(bad), 1) * 7 + 20
