"""A real Debezium reads a real database in which a lot is going on, while the pipeline that mirrors its tables is
killed again and again. In the end every mirror is the source, row by row, and every history is its log. The mirrors
take whole transactions."""

import json
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import duckdb
import psycopg
import pytest
from deltalake import DeltaTable

from ematix_flow import run_pipeline
from tests.docs.snippets import ROOT
from tests.services.debezium import Debezium
from tests.services.kafka import Kafka, kafka
from tests.services.mysql import MySQL, OwnMySQL, mariadb
from tests.services.mysql import connected as mysql_connected
from tests.services.postgres import OwnPostgres, Postgres, postgres

pytestmark = [pytest.mark.usefixtures("spark"), pytest.mark.slow]

KILLS = 2
DECLARATION = """
pipeline_name = "{mode}"
[source]
kind = "kafka"
bootstrap_servers = "{bootstrap}"
query = "{prefix}\\\\.(.*\\\\.(customers|orders)|transaction)"
max_rows_per_batch = 10000
[transform.cdc]
schema_evolution = "evolve"
transactional = {transactional}
[transform.cdc.tables.customers]
table = "{mode}_customers"
keys = ["id"]
[transform.cdc.tables.orders]
table = "{mode}_orders"
keys = ["shop", "nr"]
"""
TABLES = {
    "customers": ("id", "name", "balance", "since", "note", "city"),
    "orders": ("shop", "nr", "placed", "paid"),
}
VERSION = ("shop", "nr", "placed", "paid", "valid_from", "valid_to")
Rows = list[tuple[Any, ...]]


class Mirrors:
    """Every target that takes changes."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._postgres, self._mariadb = folder, postgres().new_database(), mariadb().new_database()

    def declared(self, mode: str) -> str:
        places = {
            "duckdb": f'path = "{self._folder}/mirror.duckdb"',
            "sqlite": f'path = "{self._folder}/mirror.sqlite"',
            "delta_local": f'path = "{self._folder}/mirror"',
            "postgres": f'url = "{self._postgres}"',
            "mysql": f'url = "{self._mariadb}"',
        }
        return "".join(f'[[targets]]\nkind = "{kind}"\n{place}\nmode = "{mode}"\n' for kind, place in places.items())

    def read(self, table: str, columns: Sequence[str]) -> dict[str, Rows]:
        query = f"SELECT {', '.join(columns)} FROM {table}"
        with duckdb.connect(str(self._folder / "mirror.duckdb"), read_only=True) as db:
            db.execute("SET TimeZone = 'UTC'")
            found = {"duckdb": db.execute(query).fetchall()}
        with closing(sqlite3.connect(self._folder / "mirror.sqlite")) as lite:
            found["sqlite"] = lite.execute(query).fetchall()
        lake = DeltaTable(self._folder / "mirror" / table).to_pyarrow_table(columns=list(columns)).to_pylist()
        found["delta_local"] = [tuple(row.values()) for row in lake]
        found["postgres"] = Postgres.query(self._postgres, query)
        found["mysql"] = MySQL.query(self._mariadb, query)
        return {target: told(rows) for target, rows in found.items()}


def told(rows: Sequence[Sequence[Any]]) -> Rows:
    """Sorted, and each value as every database would say it."""
    return sorted((tuple(map(_word, row)) for row in rows), key=str)


def _word(value: Any) -> str | None:
    if isinstance(value, datetime):
        utc = value.astimezone(UTC) if value.tzinfo else value
        return utc.replace(tzinfo=None).isoformat(timespec="microseconds")
    if isinstance(value, bool):
        return str(int(value))
    return None if value is None else str(value).removesuffix("Z")


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
        # Otherwise the long transaction locks also what lies between its rows.
        db.cursor().execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
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
                time.sleep(0.05)
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
                for shop in "ab":
                    run("DELETE FROM orders WHERE shop = %s AND nr = %s", (shop, key))


def test_the_example_runs_with_one_command() -> None:
    command = [sys.executable, "-m", "examples.cdc.demo"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.rstrip().splitlines()[-1].split() == ["bern", "1", "2026-03-03"]


@pytest.mark.parametrize("source_of", [InPostgres, InMySQL])
def test_the_mirror_is_the_source_and_the_history_its_log(
    source_of: type[InPostgres], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source, broker, prefix, mirrors = source_of(), kafka(), f"t{uuid4().hex[:8]}", Mirrors(tmp_path)
    pipelines = {
        mode: DECLARATION.format(mode=mode, bootstrap=broker.bootstrap, prefix=prefix, transactional=whole)
        + mirrors.declared(mode)
        for mode, whole in {"merge": "true", "scd2": "false"}.items()
    }
    workload = Workload(source)
    workload.prepare()
    debezium = Debezium(source.url, broker.bootstrap, prefix, provide_transaction_metadata="true")
    workload.start()
    chosen = random.Random(3)
    for _ in range(KILLS):
        for text in pipelines.values():
            _killed_after(chosen.uniform(15, 25), text, tmp_path)
    workload.over.set()
    workload.join()
    source.server.query(source.url, "INSERT INTO orders VALUES ('last', 0, NULL, NULL)")
    log = _log_of_orders(broker, prefix, lambda: debezium.log.read_text(errors="replace")[-3000:])
    debezium.stop()
    assert workload.done > 50
    for text in pipelines.values():
        assert run_pipeline(config_str=text, bounded=True).held_changes == 0
    for table, columns in TABLES.items():
        wanted = told(source.server.query(source.url, f"SELECT {', '.join(columns)} FROM {table}"))
        for target, found in mirrors.read(f"merge_{table}", columns).items():
            assert found == wanted, (target, table)
    wanted = told(_versions(log))
    for target, found in mirrors.read("scd2_orders", VERSION).items():
        assert found == wanted, target


def _log_of_orders(broker: Kafka, prefix: str, why: Callable[[], str]) -> list[dict[str, Any]]:
    """All changes, once the last one and the end of its transaction are there."""
    deadline = time.monotonic() + 60
    while True:
        topics = [
            name
            for name in broker.admin.list_topics(timeout=10).topics
            if name.startswith(prefix) and name.endswith(".orders")
        ]
        values = [message.value() for topic in topics for message in broker.read(topic)]
        changes = [json.loads(value)["payload"] for value in values if value is not None]
        if changes and (changes[-1]["after"] or {}).get("shop") == "last":
            news = [json.loads(message.value())["payload"] for message in broker.read(f"{prefix}.transaction")]
            ended = {_number(one["id"]) for one in news if one["status"] == "END"}
            if _number(changes[-1]["transaction"]["id"]) in ended:
                return changes
        assert time.monotonic() < deadline, why()


def _number(transaction: str) -> str:
    """Without the place in the log, which PostgreSQL's connector puts behind it."""
    return re.sub(r"^(\d+):\d+$", r"\1", transaction)


def _versions(log: Sequence[dict[str, Any]]) -> Rows:
    """What each row was, from when to when: of one millisecond the last change counts, and one that changes nothing
    begins no version."""
    rows: dict[tuple[str, int], dict[datetime, tuple[Any, ...] | None]] = {}
    for change in log:
        row = change["after"] or change["before"]
        of_key = rows.setdefault((row["shop"], row["nr"]), {})
        at = datetime.fromtimestamp(change["source"]["ts_ms"] / 1000, UTC)
        at = max(at, *of_key) if of_key else at
        day = row["placed"] and date(1970, 1, 1) + timedelta(days=row["placed"])
        of_key[at] = None if change["op"] == "d" else (day, row["paid"])
    versions: Rows = []
    for key, states in rows.items():
        held: tuple[Any, ...] | None = None
        began = None
        for at, state in [*sorted(states.items()), (None, None)]:
            if state == held and at is not None:
                continue
            if held is not None:
                versions.append((*key, *held, began, at))
            held, began = state, at
    return versions


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
