"""Nexmark's queries 5, 7, 8 and 11, as far as windows go, with the answers of DuckDB over the same events."""

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
