"""A real Debezium reads a real PostgreSQL in which a lot is going on, while the pipeline that mirrors its tables is
killed again and again. In the end the mirror is the source, row by row."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import duckdb
import psycopg
import pytest

from ematix_flow import run_pipeline
from tests.services.debezium import Debezium
from tests.services.kafka import kafka
from tests.services.postgres import OwnPostgres, Postgres

pytestmark = [pytest.mark.usefixtures("spark"), pytest.mark.slow]

TABLES = (
    "CREATE TABLE customers (id bigint PRIMARY KEY, name text, balance numeric(12, 2), since timestamp, note text)",
    "CREATE TABLE orders (shop text, nr int, placed date, paid boolean, PRIMARY KEY (shop, nr))",
)
KILLS = 3
DECLARATION = """
pipeline_name = "mirror"
[source]
kind = "kafka"
bootstrap_servers = "{bootstrap}"
query = "{prefix}\\\\.public\\\\..*"
max_rows_per_batch = 400
[transform.cdc]
schema_evolution = "evolve"
[transform.cdc.tables."public.customers"]
table = "customers"
keys = ["id"]
[transform.cdc.tables."public.orders"]
table = "orders"
keys = ["shop", "nr"]
[[targets]]
kind = "duckdb"
path = "mirror.duckdb"
mode = "merge"
[[targets]]
kind = "postgres"
url = "{url}"
mode = "merge"
"""


class Workload(threading.Thread):
    """Changes of everything that can change, in transactions of which one is long, until it is told to end."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url, self._random, self.over = url, random.Random(5), threading.Event()
        self.done = 0

    def run(self) -> None:
        with psycopg.connect(self._url) as long, psycopg.connect(self._url) as db:
            while not self.over.is_set():
                self._change(long, range(1000, 1050))
                with db.transaction():
                    for _ in range(self._random.randrange(1, 8)):
                        self._change(db, range(200))
                self.done += 1
                if self.done == 40:
                    db.execute("ALTER TABLE customers ADD COLUMN city text")
                    db.commit()
                if self.done % 50 == 0:
                    long.commit()
                time.sleep(0.01)

    def _change(self, db: psycopg.Connection[Any], keys: range) -> None:
        chosen, key = self._random, self._random.choice(keys)
        big = "".join(chosen.choices("abcdefgh", k=9_000)) if chosen.random() < 0.1 else "short"
        match chosen.randrange(7):
            case 0 | 1 | 2:
                db.execute(
                    "INSERT INTO customers (id, name, balance, since, note) VALUES (%s, %s, %s, now(), %s) "
                    "ON CONFLICT (id) DO UPDATE SET balance = excluded.balance, name = excluded.name",
                    (key, f"name {chosen.random()}", round(chosen.uniform(-99, 99), 2), big),
                )
            case 3:
                db.execute("DELETE FROM customers WHERE id = %s", (key,))
            case 4:
                # PostgreSQL does not log a large value that stays, and Debezium makes a delete and a create of this.
                db.execute(
                    "UPDATE customers SET id = %s WHERE id = %s AND length(note) < 100 AND NOT EXISTS "
                    "(SELECT 1 FROM customers WHERE id = %s)",
                    (key + 5000, key, key + 5000),
                )
            case 5:
                db.execute(
                    "INSERT INTO orders VALUES (%s, %s, DATE '2026-01-01' + %s, %s) ON CONFLICT (shop, nr) "
                    "DO UPDATE SET paid = excluded.paid",
                    (chosen.choice("ab"), key, key, chosen.random() < 0.5),
                )
            case _:
                db.execute("DELETE FROM orders WHERE nr = %s", (key,))


def everything(url: str, table: str) -> list[tuple[Any, ...]]:
    return Postgres.query(url, f"SELECT * FROM {table} ORDER BY 1, 2")


def test_the_mirror_is_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    server, broker, prefix = OwnPostgres(), kafka(), f"t{uuid4().hex[:8]}"
    source, mirror = server.new_database(), server.new_database()
    for statement in TABLES:
        Postgres.query(source, statement)
    Postgres.query(source, "INSERT INTO customers SELECT i, 'first', i, now(), 'there' FROM generate_series(1, 100) i")
    text = DECLARATION.format(bootstrap=broker.bootstrap, prefix=prefix, url=mirror)
    debezium = Debezium(source, broker.bootstrap, prefix)
    workload = Workload(source)
    workload.start()
    chosen = random.Random(3)
    for _ in range(KILLS):
        _killed_after(chosen.uniform(12, 20), text, tmp_path)
    workload.over.set()
    workload.join()
    Postgres.query(source, "INSERT INTO orders VALUES ('last', 0, NULL, NULL)")
    deadline = time.monotonic() + 60
    while not any(row[0] == "last" for row in _mirrored(text, mirror)):
        assert time.monotonic() < deadline, debezium.log.read_text(errors="replace")[-3000:]
    debezium.stop()
    assert workload.done > 50
    for table in ("customers", "orders"):
        wanted = everything(source, table)
        assert everything(mirror, table) == wanted
        with duckdb.connect("mirror.duckdb", read_only=True) as db:
            assert db.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall() == wanted


def _mirrored(text: str, mirror: str) -> list[tuple[Any, ...]]:
    run_pipeline(config_str=text, bounded=True)
    return everything(mirror, "orders")


def _killed_after(seconds: float, text: str, folder: Path) -> None:
    """The pipeline as a daemon, in the middle of whatever it does then."""
    (folder / "mirror.toml").write_text(text, encoding="utf-8")
    command = [str(Path(sys.executable).with_name("flow")), "consume", "mirror.toml"]
    process = subprocess.Popen(
        command, cwd=folder, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    try:
        process.wait(seconds)
        assert process.stderr is not None
        raise AssertionError(process.stderr.read().decode())
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
