"""A real Debezium reads a real database in which a lot is going on, while the pipeline that mirrors its tables is
killed again and again. In the end the mirror is the source, row by row."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import duckdb
import psycopg
import pytest

from ematix_flow import run_pipeline
from tests.docs.snippets import ROOT
from tests.services.debezium import Debezium
from tests.services.kafka import kafka
from tests.services.mysql import MySQL, OwnMySQL
from tests.services.mysql import connected as mysql_connected
from tests.services.postgres import OwnPostgres, Postgres, postgres

pytestmark = [pytest.mark.usefixtures("spark"), pytest.mark.slow]

KILLS = 2
DECLARATION = """
pipeline_name = "mirror"
[source]
kind = "kafka"
bootstrap_servers = "{bootstrap}"
query = "{prefix}\\\\..*\\\\.(customers|orders)"
max_rows_per_batch = 3000
[transform.cdc]
schema_evolution = "evolve"
[transform.cdc.tables.customers]
table = "customers"
keys = ["id"]
[transform.cdc.tables.orders]
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


class InPostgres:
    """The database whose log is read, and what its SQL calls things."""

    moment, flag = "timestamp", "boolean"
    customer = "ON CONFLICT (id) DO UPDATE SET balance = excluded.balance, name = excluded.name"
    order = "ON CONFLICT (shop, nr) DO UPDATE SET paid = excluded.paid"

    def __init__(self) -> None:
        self.server = OwnPostgres()
        self.url = self.server.new_database()

    def connected(self) -> Any:
        return psycopg.connect(self.url)


class InMySQL(InPostgres):
    moment, flag = "datetime(6)", "boolean"
    customer = "AS n ON DUPLICATE KEY UPDATE balance = n.balance, name = n.name"
    order = "AS n ON DUPLICATE KEY UPDATE paid = n.paid"

    def __init__(self) -> None:
        self.server = OwnMySQL()
        self.url = self.server.new_database()

    def connected(self) -> Any:
        db = mysql_connected(self.url)
        db.autocommit(False)
        return db


class Workload(threading.Thread):
    """Changes of everything that can change, in transactions of which one is long, until it is told to end."""

    def __init__(self, source: InPostgres) -> None:
        super().__init__()
        self._source, self._random, self.over = source, random.Random(5), threading.Event()
        self.done = 0

    def prepare(self) -> None:
        flag, moment = self._source.flag, self._source.moment
        columns = f"id bigint PRIMARY KEY, name varchar(99), balance numeric(12, 2), since {moment}, note text"
        self._source.server.query(self._source.url, f"CREATE TABLE customers ({columns})")
        columns = f"shop varchar(9), nr int, placed date, paid {flag}, PRIMARY KEY (shop, nr)"
        self._source.server.query(self._source.url, f"CREATE TABLE orders ({columns})")
        for key in range(20):
            self._source.server.query(self._source.url, f"INSERT INTO customers (id, name) VALUES ({key}, 'first')")

    def run(self) -> None:
        with closing(self._source.connected()) as long, closing(self._source.connected()) as db:
            while not self.over.is_set():
                self._change(long, range(1000, 1050))
                for _ in range(self._random.randrange(1, 8)):
                    self._change(db, range(200))
                db.commit()
                self.done += 1
                if self.done % 50 == 0:
                    long.commit()
                if self.done == 50:
                    db.cursor().execute("ALTER TABLE customers ADD COLUMN city varchar(9)")
                    db.commit()
                time.sleep(0.01)
            long.commit()

    def _change(self, db: Any, keys: range) -> None:
        chosen, key = self._random, self._random.choice(keys)
        run = db.cursor().execute
        big = "".join(chosen.choices("abcdefgh", k=9_000)) if chosen.random() < 0.1 else "short"
        match chosen.randrange(7):
            case 0 | 1 | 2:
                run(
                    "INSERT INTO customers (id, name, balance, since, note) VALUES (%s, %s, %s, now(), %s) "
                    + self._source.customer,
                    (key, f"name {chosen.random()}", round(chosen.uniform(-99, 99), 2), big),
                )
                if self.done > 50:
                    run("UPDATE customers SET city = 'Oslo' WHERE id = %s", (key,))
            case 3:
                run("DELETE FROM customers WHERE id = %s", (key,))
            case 4:
                # PostgreSQL does not log a large value that stays, and Debezium makes a delete and a create of this.
                run("DELETE FROM customers WHERE id = %s", (key + 5000,))
                run("UPDATE customers SET id = %s WHERE id = %s AND length(note) < 100", (key + 5000, key))
            case 5:
                run(
                    "INSERT INTO orders VALUES (%s, %s, %s, %s) " + self._source.order,
                    (chosen.choice("ab"), key, f"2026-01-{key % 28 + 1:02}", chosen.random() < 0.5),
                )
            case _:
                run("DELETE FROM orders WHERE shop IN ('a', 'b') AND nr = %s", (key,))


def everything(url: str, table: str) -> list[tuple[Any, ...]]:
    server = MySQL if url.startswith("mysql") else Postgres
    return list(server.query(url, f"SELECT * FROM {table} ORDER BY 1, 2"))


def test_the_example_runs_with_one_command() -> None:
    command = [sys.executable, "-m", "examples.cdc.demo"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.rstrip().splitlines()[-1].split() == ["bern", "1", "2026-03-03"]


@pytest.mark.parametrize("source_of", [InPostgres, InMySQL])
def test_the_mirror_is_the_source(source_of: type[InPostgres], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source, broker, prefix = source_of(), kafka(), f"t{uuid4().hex[:8]}"
    mirror = postgres().new_database()
    text = DECLARATION.format(bootstrap=broker.bootstrap, prefix=prefix, url=mirror)
    workload = Workload(source)
    workload.prepare()
    debezium = Debezium(source.url, broker.bootstrap, prefix)
    workload.start()
    chosen = random.Random(3)
    for _ in range(KILLS):
        _killed_after(chosen.uniform(12, 20), text, tmp_path)
    workload.over.set()
    workload.join()
    source.server.query(source.url, "INSERT INTO orders VALUES ('last', 0, NULL, NULL)")
    deadline = time.monotonic() + 60
    while not any(row[0] == "last" for row in _mirrored(text, mirror)):
        assert time.monotonic() < deadline, debezium.log.read_text(errors="replace")[-3000:]
    debezium.stop()
    assert workload.done > 50
    for table in ("customers", "orders"):
        wanted = everything(source.url, table)
        assert everything(mirror, table) == wanted
        with duckdb.connect("mirror.duckdb", read_only=True) as db:
            assert db.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall() == wanted


def _mirrored(text: str, mirror: str) -> list[tuple[Any, ...]]:
    run_pipeline(config_str=text, bounded=True)
    try:
        return everything(mirror, "orders")
    except psycopg.errors.UndefinedTable:
        return []


def _killed_after(seconds: float, text: str, folder: Path) -> None:
    """The pipeline as a daemon, in the middle of whatever it does then."""
    (folder / "mirror.toml").write_text(text, encoding="utf-8")
    command = [str(Path(sys.executable).with_name("flow")), "consume", "mirror.toml"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, start_new_session=True, stdout=log, stderr=log)
    try:
        process.wait(seconds)
        raise AssertionError((folder / "log").read_text(encoding="utf-8"))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
