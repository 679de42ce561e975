"""PostgreSQL -> Debezium -> Kafka -> DuckDB, with one command: a mirror that follows what happens to two tables.

    python -m examples.cdc.demo

The servers are those of the tests: each is started here and ended with the demo. The first start fetches Debezium.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import duckdb

from ematix_flow import run_pipeline
from examples.orders import text
from tests.services import server
from tests.services.debezium import Debezium
from tests.services.kafka import kafka
from tests.services.postgres import OwnPostgres

DECLARATION = Path(__file__).with_name("mirror.toml")
KEYS = {"customers": "id", "orders": "shop, number"}
ACTS = {
    "The tables as they are": [
        "CREATE TABLE customers (id bigint PRIMARY KEY, name text, balance numeric(10, 2))",
        "CREATE TABLE orders (shop text, number int, placed date, PRIMARY KEY (shop, number))",
        "INSERT INTO customers VALUES (1, 'Ann', 10.50), (2, 'Bob', 0), (3, 'Cem', -3.20)",
        "INSERT INTO orders VALUES ('oslo', 1, '2026-03-01'), ('rome', 1, '2026-03-02')",
    ],
    "Updates, a delete, a key that changes": [
        "UPDATE customers SET balance = balance + 5 WHERE id < 3",
        "DELETE FROM customers WHERE id = 3",
        "UPDATE orders SET number = 7 WHERE shop = 'rome'",
    ],
    "A new column, and a table that is emptied": [
        "ALTER TABLE customers ADD COLUMN city text",
        "INSERT INTO customers VALUES (4, 'Dan', 1.00, 'Bern')",
        "TRUNCATE orders",
        "INSERT INTO orders VALUES ('bern', 1, '2026-03-03')",
    ],
}


def main() -> None:
    text.title("A mirror of a database")
    with tempfile.TemporaryDirectory(prefix="mirror-") as folder:
        try:
            show(Path(folder))
        finally:
            server.end_all()


def show(folder: Path) -> None:
    mirror = folder / "mirror.duckdb"
    with text.waiting("PostgreSQL and Kafka"):
        database, broker = OwnPostgres(), kafka()
        source = database.new_database()
    os.environ |= {"KAFKA": broker.bootstrap, "MIRROR": str(mirror)}
    os.environ["EMATIX_FLOW_HOME"] = str(folder / "home")
    for number, (words, statements) in enumerate(ACTS.items()):
        text.heading(words)
        for statement in statements:
            database.query(source, statement)
            text.line(statement)
        if number == 0:
            with text.waiting("Debezium"):
                Debezium(source, broker.bootstrap, "shop")
        changes = _followed(source, mirror)
        text.line(", ".join(f"{count} {what}" for what, count in changes.items() if count))
        for table, keys in KEYS.items():
            names, rows = _content(mirror, table, keys)
            text.table(names, [[str(value) for value in row] for row in rows], left=range(len(names)))


def _followed(source: str, mirror: Path) -> dict[str, int]:
    """Run the pipeline until the mirror shows what the source does: Debezium needs a moment to read the log."""
    counts: dict[str, int] = {}
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        for what, number in run_pipeline(DECLARATION, bounded=True).changes.items():
            counts[what] = counts.get(what, 0) + number
        if all(_same(source, mirror, table, keys) for table, keys in KEYS.items()):
            return counts
        time.sleep(0.2)
    raise SystemExit("the mirror does not follow the source")


def _same(source: str, mirror: Path, table: str, keys: str) -> bool:
    if not mirror.exists():
        return False
    try:
        found = _content(mirror, table, keys)[1]
    except duckdb.CatalogException:
        return False
    return found == OwnPostgres.query(source, f"SELECT * FROM {table} ORDER BY {keys}")


def _content(mirror: Path, table: str, keys: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    with duckdb.connect(str(mirror), read_only=True) as db:
        found = db.execute(f"SELECT * FROM {table} ORDER BY {keys}")
        return [column[0] for column in found.description or ()], found.fetchall()


if __name__ == "__main__":
    main()
