"""Nexmark's queries 5, 7, 8, 11 and one like 20, with the answers of DuckDB over the same events."""

from random import Random
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from ematix_flow import run_pipeline
from tests.orders import Orders, aggregation
from tests.services.nexmark import events

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("spark")]

EVENTS = 200_000  # 20 seconds of event time
SCHEMA = (
    "Bid struct<auction: long, bidder: long, price: long, date_time: long>, "
    "Auction struct<seller: long, date_time: long>, Person struct<id: long, name: string, date_time: long>"
)
# query: which events, what of them, the window, and the same in DuckDB's SQL
QUERIES: dict[str, tuple[str, str, str, str]] = {
    "q5, hot items": (
        "Bid",
        "auction",
        'kind = "hopping"\nduration_ms = 2000\nhop_ms = 500\ngroup_by = ["auction"]',
        """SELECT start, start + 2000, auction, count(*)
           FROM bid, generate_series(date_time // 500 * 500 - 1500, date_time // 500 * 500, 500) AS windows(start)
           GROUP BY ALL""",
    ),
    "q7, highest bid": (
        "Bid",
        "price, bidder",
        'kind = "tumbling"\nduration_ms = 1000',
        """SELECT date_time // 1000 * 1000 AS start, start + 1000, max(price), arg_max(bidder, price) FROM bid
           GROUP BY ALL""",
    ),
    "q8, new persons": (
        "Person",
        "id",
        'kind = "tumbling"\nduration_ms = 1000\ngroup_by = ["id"]',
        "SELECT date_time // 1000 * 1000 AS start, start + 1000, id, count(*) FROM person GROUP BY ALL",
    ),
    "q8, their auctions": (
        "Auction",
        "seller",
        'kind = "tumbling"\nduration_ms = 1000\ngroup_by = ["seller"]',
        "SELECT date_time // 1000 * 1000 AS start, start + 1000, seller, count(*) FROM auction GROUP BY ALL",
    ),
    "q11, sessions": (
        "Bid",
        "bidder",
        'kind = "session"\ngap_ms = 40\ngroup_by = ["bidder"]',
        """WITH begun AS (SELECT *, date_time - lag(date_time, 1, 0) OVER each > 40 AS begins FROM bid
             WINDOW each AS (PARTITION BY bidder ORDER BY date_time)),
           numbered AS (SELECT *, sum(begins::int) OVER (PARTITION BY bidder ORDER BY date_time) AS number FROM begun)
           SELECT min(date_time), max(date_time) + 40, bidder, count(*) FROM numbered GROUP BY bidder, number""",
    ),
}
COUNT = aggregation("count", "n")
HIGHEST = aggregation("max", "price", column="price") + aggregation("arg_max", "bidder", column="bidder", mode="price")


@pytest.fixture(scope="module")
def nexmark() -> list[dict[str, Any]]:
    return events(EVENTS)


@pytest.mark.parametrize("query", QUERIES)
def test_the_answers_are_duckdbs(orders: Orders, nexmark: list[dict[str, Any]], query: str) -> None:
    kind, columns, window, answer = QUERIES[query]
    for number, batch in enumerate(cut(nexmark)):
        orders.arrive(f"{number}.jsonl", batch)
    selected = ", ".join(f"{kind}.{column}" for column in [*columns.split(", "), "date_time"])
    run_pipeline(
        config_str=orders.toml(
            schema=SCHEMA,
            source="max_files_per_batch = 1",
            sql=f"SELECT {selected} FROM source WHERE {kind} IS NOT NULL",
            more=f'[watermark]\nlateness_ms = 200\n[transform.window]\nevent_time_column = "date_time"\n{window}\n'
            + (HIGHEST if query.startswith("q7") else COUNT),
        ),
        bounded=True,
    )
    hidden = "window_start, window_end" + (", session_id" if query.startswith("q11") else "")
    found = orders.in_database(
        f"SELECT epoch_ms(window_start), epoch_ms(window_end), * EXCLUDE ({hidden}) FROM orders ORDER BY ALL"
    )
    assert found == answered(nexmark, kind, answer)
    assert found


def cut(nexmark: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Four files, and events out of order by up to a tenth of a second; the generator gives them in order."""
    chance, mixed = Random(11), []
    for begin in range(0, EVENTS, 1_000):
        some = nexmark[begin : begin + 1_000]
        mixed += chance.sample(some, len(some))
    return [mixed[begin : begin + EVENTS // 4] for begin in range(0, EVENTS, EVENTS // 4)]


def answered(nexmark: list[dict[str, Any]], kind: str, query: str) -> list[tuple[Any, ...]]:
    wanted = pa.Table.from_pylist([event[kind] for event in nexmark if kind in event])
    with duckdb.connect() as db:
        db.register(kind.lower(), wanted)
        return db.execute(f"SELECT * FROM ({query}) ORDER BY ALL").fetchall()


# Rows of two kinds of events that belong together, what is kept of each pair, and the same in DuckDB's SQL.
JOINS: dict[str, tuple[tuple[str, str], tuple[str, str], str, str, str]] = {
    "q8, persons who sell at once": (
        ("Person", "id long, name string, date_time long"),
        ("Auction", "seller long, date_time long"),
        'left_keys = ["id"]\nright_keys = ["seller"]\ntime_window_ms = 1000',
        """SELECT left_id, left_name, left_date_time DIV 1000 AS second FROM source
           WHERE left_date_time DIV 1000 = right_date_time DIV 1000""",
        """SELECT p.id, p.name, p.date_time // 1000 FROM person p JOIN auction a
           ON p.id = a.seller AND p.date_time // 1000 = a.date_time // 1000""",
    ),
    "q20, bids with their auctions": (
        ("Auction", "id long, category long, date_time long"),
        ("Bid", "auction long, price long, date_time long"),
        'left_keys = ["id"]\nright_keys = ["auction"]\nmin_delta_ms = 0\nmax_delta_ms = 2000\nkind = "left_outer"',
        "SELECT left_id, left_category, right_price FROM source WHERE left_category = 10",
        """SELECT a.id, a.category, b.price FROM auction a LEFT JOIN bid b
           ON a.id = b.auction AND b.date_time BETWEEN a.date_time AND a.date_time + 2000 WHERE a.category = 10""",
    ),
}


@pytest.mark.parametrize("query", JOINS)
def test_the_pairs_are_duckdbs(orders: Orders, nexmark: list[dict[str, Any]], query: str) -> None:
    left, right, bound, sql, answer = JOINS[query]
    sources = ""
    for kind, schema in (left, right):
        (orders.inbox / kind).mkdir()
        for number, batch in enumerate(cut(nexmark)):
            orders.arrive(f"{kind}/{number}.jsonl", [event[kind] for event in batch if kind in event])
        sources += f'[[sources]]\nkind = "object_store_local"\npath = "{orders.inbox}"\nquery = "{kind}"\n'
        sources += f'format = "json_lines"\nmax_files_per_batch = 1\nschema = "{schema}"\n'
    join = f'[transform.join]\nleft_source = "{left[0]}"\nright_source = "{right[0]}"\n{bound}\n'
    join += 'event_time_column = "date_time"\n'
    target = f'[target]\nkind = "duckdb"\npath = "{orders.database}"\n[target.table]\nname = "orders"\n'
    watermark = "[watermark]\nlateness_ms = 200\n"
    text = f'pipeline_name = "orders"\n{sources}{target}{watermark}[transform]\nsql = """{sql}"""\n{join}'
    run_pipeline(config_str=text, bounded=True)
    with duckdb.connect() as db:
        for kind, _ in (left, right):
            db.register(kind.lower(), pa.Table.from_pylist([event[kind] for event in nexmark if kind in event]))
        expected = db.execute(f"SELECT * FROM ({answer}) ORDER BY ALL").fetchall()
    assert orders.in_database() == expected
    assert expected
