"""SQL over a whole batch: each of its rows is counted once, and a bad one kept, whatever the SELECT takes of them."""

import pytest
from pyspark.sql import DataFrame

from ematix_flow.streams.failures import BadRowError
from ematix_flow.testing import pipeline_test
from tests.orders import Orders

pytestmark = pytest.mark.usefixtures("spark")


def lookup(orders: Orders) -> str:
    """A table `names` without rows."""
    orders.in_new_database("CREATE TABLE names (id BIGINT, name VARCHAR)")
    return f'[transform.lookups.names]\nkind = "duckdb"\npath = "{orders.database}"\ntable = "names"'


@pytest.mark.parametrize(
    ("sql", "written"),
    [
        # Spark stops before it has read all.
        ("SELECT id FROM source LIMIT 1", 1),
        ("SELECT id FROM source TABLESAMPLE (2 ROWS)", 2),
        ("SELECT a.id FROM (SELECT id FROM source LIMIT 1) a JOIN (SELECT id FROM source LIMIT 1) b USING (id)", 1),
        # It knows that there is nothing to read.
        ("SELECT id FROM source LIMIT 0", 0),
        ("SELECT DISTINCT id FROM source WHERE false", 0),
        ("SELECT id FROM source WHERE EXISTS (SELECT 1 WHERE false)", 0),
        # It finds that out.
        ("SELECT id FROM source LEFT SEMI JOIN names USING (id)", 0),
        # It reads all twice.
        ("SELECT id FROM source ORDER BY id", 10),
        ("WITH x AS (SELECT * FROM source) SELECT a.id FROM x a LEFT JOIN x b ON a.id = b.id + 1", 10),
        # It reads all once.
        ("SELECT id FROM source ORDER BY id LIMIT 1", 1),
        ("SELECT count(*) AS id FROM source", 1),
    ],
)
def test_each_row_is_counted_once(orders: Orders, sql: str, written: int) -> None:
    for file in range(2):
        orders.arrive(f"{file}.jsonl", [*({"id": 5 * file + i} for i in range(5)), f"no JSON {file}"])
    more = lookup(orders) if "names" in sql else ""

    result = orders.run(sql=sql, on_error="dlq", targets=("json_lines",), more=more)

    assert (result.rows_consumed, result.dlq_rows) == (12, {"decode": 2})
    assert sorted(letter.payload for letter in orders.dead_letters()) == [b"no JSON 0", b"no JSON 1"]
    assert sum(result.rows_written.values()) == len(orders.in_files()) == written


def test_a_bad_row_that_a_limit_does_not_reach_ends_the_run(orders: Orders) -> None:
    orders.arrive("a.jsonl", [{"id": 1}, "no JSON"])

    with pytest.raises(BadRowError, match=r"a\.jsonl line 2"):
        orders.run(sql="SELECT id FROM source LIMIT 1", targets=("json_lines",))

    assert orders.in_files() == []


def test_a_batch_that_is_read_once_is_not_kept(orders: Orders, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeping it would take longer than all that is done with it."""
    monkeypatch.setattr(DataFrame, "persist", lambda *_: pytest.fail("it was kept"))
    orders.arrive("a.jsonl", [{"id": i} for i in range(5)])

    for name, sql in {
        "grouped": "SELECT id % 2 AS id, sum(amount) AS amount FROM source GROUP BY 1",
        "looked_up": "SELECT s.id, n.name FROM source s JOIN names n ON s.id = n.id",
        "first": "SELECT id FROM source WHERE id > 1 ORDER BY amount LIMIT 2",
        "numbered": "SELECT id, row_number() OVER (PARTITION BY amount ORDER BY id) AS place FROM source",
    }.items():
        more = lookup(orders) if "names" in sql else ""
        result = orders.run(name=name, sql=sql, targets=("json_lines",), more=more)
        assert result.rows_consumed == 5


def test_all_results_of_a_join_are_computed_under_a_limit() -> None:
    """What is not computed would be missing in its state."""
    sides = [
        f"""[[sources]]
name = "{name}"
kind = "object_store_local"
path = "/unused"
format = "json_lines"
schema = "id int, ts timestamp"
event_time_column = "ts"
"""
        for name in ("left", "right")
    ]
    declared = (
        'pipeline_name = "met"\n'
        + "".join(sides)
        + """[target]
kind = "duckdb"
path = "unused.duckdb"
[target.table]
name = "met"
[transform]
sql = "SELECT left_id AS id FROM source LIMIT 1"
[transform.join]
left_source = "left"
right_source = "right"
left_keys = ["id"]
right_keys = ["id"]
time_window_ms = 1000
"""
    )
    rows = [{"id": i, "ts": "2026-01-01T00:00:00Z"} for i in range(20)]
    with pipeline_test(declared) as test:
        test.feed(rows, source="left")
        assert test.run(flush=False).rows_consumed == 20
        test.feed(rows, source="right")
        assert test.run(flush=False).rows_consumed == 20
        assert len(test.rows()) == 1
