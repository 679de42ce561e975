"""Changes of a table into PostgreSQL: this product, one upsert per change in the manner of Debezium's JDBC sink, and
ematix-flow 1.0.0, the Rust engine whose API this product follows; on the same JSON lines, one after the other.

    python -m bench.cdc [--changes 1000000] [--keys 100000]
    python -m bench.cdc --snapshot 5000000      # this product alone: the rows of a table that was there already
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import psycopg

from bench.measure import peak_memory_mb, report
from bench.original import DEADLINE_SECONDS, VERSION, answer_of, original
from tests.services import server
from tests.services.postgres import postgres

PER_FILE = 50_000
PER_BATCH = 5
# Changes per second, below which something is wrong.
SLOWEST = 5_000
# What the JDBC sink writes in one transaction unless it is told otherwise.
PER_TRANSACTION = 500
TABLE = "CREATE TABLE customers (id bigint PRIMARY KEY, name text, city text, amount double precision, note text)"
UPSERT = """INSERT INTO customers (id, name, city, amount, note) VALUES (%s, %s, %s, %s, %s)
ON CONFLICT (id) DO UPDATE SET name = excluded.name, city = excluded.city, amount = excluded.amount,
note = excluded.note"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--snapshot", type=int, default=0, metavar="ROWS")
    parser.add_argument("--without-original", action="store_true")
    parser.add_argument("--ours", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ours:
        _ours(*options.ours)
        return
    folder = Path(tempfile.mkdtemp(prefix="bench-cdc-"))
    try:
        if options.snapshot:
            written = _written(folder / "in", options.snapshot, (_read_row(row) for row in range(options.snapshot)))
            print(f"a snapshot of {options.snapshot:,} rows, {written / 1e6:,.0f} MB; {os.cpu_count()} cores")
            _measured(folder, options.snapshot, _table())
            return
        changes = _changes(options.changes, options.keys)
        written = _written(folder / "in", options.changes, changes)
        print(f"{options.changes:,} changes of {options.keys:,} keys, {written / 1e6:,.0f} MB; {os.cpu_count()} cores")
        _compare(folder, options.changes, with_original=not options.without_original)
    finally:
        server.end_all()
        shutil.rmtree(folder)


def _compare(folder: Path, changes: int, *, with_original: bool) -> None:
    urls = {name: _table() for name in ("ours", "upserts", "original")}
    _measured(folder, changes, urls["ours"])
    some = min(changes, 200_000)
    _line("one upsert per change", some, _upserts(folder / "in", urls["upserts"], some))
    if some == changes:
        assert _content(urls["ours"]) == _content(urls["upserts"])
    if with_original:
        theirs = original(_declared(folder / "in", urls["original"], ""), changes, folder / "original")
        (began, _), (ended, read) = theirs["seen"]
        _line(f"ematix-flow {VERSION}", read, max(ended - began, 1e-9), f"{read:,} of {changes:,} read")


def _measured(folder: Path, changes: int, url: str) -> None:
    command = ["-m", "bench.cdc", "--ours", str(folder / "in"), str(folder / "home"), url]
    facts = answer_of(command, deadline=max(DEADLINE_SECONDS, changes / SLOWEST))
    steps = ", ".join(f"{step} {seconds:.1f}" for step, seconds in facts["steps"].items() if seconds >= 0.1)
    _line("this product", changes, facts["seconds"], f"{facts['memory_mb']:,.0f} MB; seconds by step: {steps}")
    _line("from the second batch on", facts["later"], facts["later_seconds"])


def _table() -> str:
    url = postgres().new_database()
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(TABLE)
    return url


def _content(url: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as db:
        return db.execute("SELECT * FROM customers ORDER BY id").fetchall()


def _line(name: str, changes: int, seconds: float, more: str = "") -> None:
    print(f"  {name:26} {changes / seconds:>9,.0f} changes/s  {seconds:>7.1f} s  {more}", flush=True)


def _upserts(inbox: Path, url: str, most: int) -> float:
    began = time.perf_counter()
    with psycopg.connect(url) as db:
        for number, change in zip(range(most), _read(inbox), strict=False):
            if change["op"] == "d":
                db.execute("DELETE FROM customers WHERE id = %s", (change["before"]["id"],))
            else:
                db.execute(UPSERT, tuple(change["after"].values()))
            if number % PER_TRANSACTION == PER_TRANSACTION - 1:
                db.commit()
    return time.perf_counter() - began


def _read(inbox: Path) -> Iterator[dict[str, Any]]:
    for file in sorted(inbox.iterdir()):
        with file.open(encoding="utf-8") as lines:
            yield from map(json.loads, lines)


def _ours(inbox: str, home: str, url: str) -> None:
    from ematix_flow.streams.run import run_spec
    from ematix_flow.toml import load_toml

    os.environ["EMATIX_FLOW_HOME"] = home
    reports: list[tuple[float, Any]] = []
    began = time.perf_counter()
    spec = load_toml(text=_declared(Path(inbox), url, f"max_files_per_batch = {PER_BATCH}"))[0]
    run_spec(spec, bounded=True, on_batch=lambda batch: reports.append((time.perf_counter(), batch)))
    steps: dict[str, float] = {}
    for _, batch in reports:
        for step, seconds in batch.seconds.items():
            steps[step] = steps.get(step, 0) + seconds
    (first, _), (last, _) = reports[0], reports[-1]
    report(
        seconds=last - began,
        later=sum(batch.consumed for _, batch in reports[1:]),
        later_seconds=last - first,
        steps=steps,
        memory_mb=peak_memory_mb(),
    )


def _declared(inbox: Path, url: str, source: str) -> str:
    return f"""
pipeline_name = "changes"
source_query = ""
[source]
kind = "object_store_local"
path = "{inbox}"
format = "json_lines"
{source}
[transform.cdc]
envelope = "debezium"
[target]
kind = "postgres"
url = "{url}"
mode = "merge"
[target.table]
schema = "public"
name = "customers"
primary_key = ["id"]
"""


def _written(inbox: Path, changes: int, lines: Iterator[str]) -> int:
    """How many characters."""
    inbox.mkdir(parents=True)
    written = 0
    for number in range(-(-changes // PER_FILE)):
        file = inbox / f"{number:04}.jsonl"
        with file.open("w", encoding="utf-8") as some:
            written += sum(map(some.write, islice(lines, PER_FILE)))
        os.utime(file, (1_767_225_600 + number,) * 2)
    return written


def _changes(changes: int, keys: int) -> Iterator[str]:
    """As Debezium writes them; every key is there before it is changed."""
    chosen, there = random.Random(7), set[int]()
    for place in range(changes):
        key = chosen.randrange(keys)
        op = "c" if key not in there else "d" if chosen.random() < 0.05 else "u"
        (there.discard if op == "d" else there.add)(key)
        yield _envelope(op, key, place, chosen.choice(("Oslo", "Rome", "Bern")))


def _read_row(number: int) -> str:
    """All rows of a snapshot are of one place in the log."""
    return _envelope("r", number, 1, "Oslo")


def _envelope(op: str, key: int, place: int, city: str) -> str:
    row = {
        "id": key, "name": f"name {place}", "city": city, "amount": place / 8,
        "note": f"the note of change {place}, which is a little longer",
    }  # fmt: skip
    source = {
        "version": "3.6.2.Final", "connector": "postgresql", "name": "shop", "ts_ms": 1_767_225_600_000 + place,
        "snapshot": "false", "db": "shop", "schema": "public", "table": "customers", "txId": place, "lsn": place,
    }  # fmt: skip
    rows = {"before": row if op == "d" else None, "after": None if op == "d" else row}
    return json.dumps({**rows, "source": source, "op": op, "ts_ms": source["ts_ms"]}) + "\n"


if __name__ == "__main__":
    main()
