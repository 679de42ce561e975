"""kill -9 while changes are applied, and between the rows of a Delta table and its gate: a restart goes on as if
nothing had happened, and an older change that comes afterwards still meets the gate."""

import json
from dataclasses import dataclass
from typing import Any

import pytest

from tests.crash.test_kill_at_each_step import Case, killed
from tests.orders import Orders

pytestmark = [pytest.mark.usefixtures("spark"), pytest.mark.slow]

SCHEMA = "id long, name string"


@dataclass(frozen=True)
class ChangeCase:
    target: str
    point: str


CASES = [
    ChangeCase("duckdb", "apply"),
    ChangeCase("duckdb", "apply/before-commit"),
    ChangeCase("postgres", "apply/before-commit"),
    ChangeCase("postgres", "divert"),
    ChangeCase("mysql", "divert"),
    ChangeCase("delta_local", "apply/before-gate"),
]


def change(op: str, place: int, id: int, name: str | None = None) -> dict[str, Any]:
    row = {"id": id} if name is None else {"id": id, "name": name}
    rows = {"before": row, "after": None} if op == "d" else {"before": None, "after": row}
    return {"op": op, **rows, "source": {"lsn": place}}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.target} at {case.point}")
def test_changes_are_applied_once_and_in_their_order(orders: Orders, case: ChangeCase) -> None:
    read = {
        "duckdb": orders.in_database,
        "postgres": orders.in_postgres,
        "mysql": orders.in_mysql,
        "delta_local": orders.in_delta,
    }[case.target]
    orders.arrive("0.jsonl", [change("c", 1, 1, "a"), change("c", 2, 2, "b"), change("c", 3, 3, "c")])
    orders.arrive("1.jsonl", [change("u", 10, 1, "new"), change("d", 11, 2), change("c", 12, 4, "d")])
    text = orders.toml(
        schema=SCHEMA,
        source="max_files_per_batch = 1",
        targets=(case.target,),
        table='mode = "merge"\nkeys = ["id"]',
        more="[transform.cdc]\n",
    )
    killed(text, Case("local", "local", "stateless", case.point, "merge", (case.target,)), orders.folder)
    result = orders.run_text(text)
    wanted = [(1, "new"), (3, "c"), (4, "d")]
    assert sorted(read("SELECT id, name FROM orders")) == wanted
    assert result.batches == 1
    orders.arrive("2.jsonl", [change("u", 5, 1, "old"), change("u", 6, 2, "old"), json.dumps(None)])
    result = orders.run_text(text)
    assert sorted(read("SELECT id, name FROM orders")) == wanted
    assert (result.changes["idempotent_skipped"], result.changes["skipped"]) == (2, 1)


def test_between_two_tables_of_one_stream(orders: Orders) -> None:
    def of(table: str, one: dict[str, Any]) -> dict[str, Any]:
        return {**one, "source": {**one["source"], "schema": "s", "table": table}}

    orders.arrive("0.jsonl", [of("a", change("c", 1, 1, "a")), of("b", change("c", 2, 1, "b"))])
    orders.arrive("1.jsonl", [of("a", change("u", 3, 1, "new")), of("b", change("d", 4, 1))])
    text = orders.toml(
        schema=SCHEMA,
        source="max_files_per_batch = 1",
        table='mode = "merge"\nkeys = ["id"]',
        more='[transform.cdc.tables."s.a"]\ntable = "a"\n[transform.cdc.tables."s.b"]\ntable = "b"\n',
    )
    killed(text, Case("local", "local", "stateless", "apply/b", "merge", ("duckdb",)), orders.folder)
    assert orders.in_database("SELECT id, name FROM a") == [(1, "new")]
    assert orders.in_database("SELECT id, name FROM b") == [(1, "b")]
    result = orders.run_text(text)
    assert orders.in_database("SELECT id, name FROM a") == [(1, "new")]
    assert orders.in_database("SELECT id, name FROM b") == []
    assert result.changes_by_table["s.b"]["deletes"] == 1
    assert "s.a" not in result.changes_by_table
