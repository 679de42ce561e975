"""Joins of two streams against Spark's own, on the same files, with the same state provider, in one process, one after
the other; then the whole product beside ematix-flow 1.0.0, the Rust engine whose API it follows, each in a process of
its own.

    python -m bench.joins [--rows 400000] [--large 4000000]
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.measure import peak_memory_mb, report
from bench.original import VERSION, answer_of, original

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SIDES = ("left", "right")
COLUMNS = "key long, amount long, _event_ts timestamp"
BOUND_SECONDS = 60
# Per side and second of event time, over so many keys: a row has between one and two partners.
PER_SECOND, KEYS = 800, 60_000
BATCHES = 8
JOIN = f"""
[transform.join]
left_source = "left"
right_source = "right"
left_keys = ["key"]
right_keys = ["key"]
time_window_ms = {BOUND_SECONDS * 1000}
kind = "inner"
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=400_000, help="per side")
    parser.add_argument("--large", type=int, default=4_000_000, help="per side, for the memory of the product")
    parser.add_argument("--ours", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ours:
        _product(*map(Path, options.ours))
        return
    print(f"{os.cpu_count()} cores; {BOUND_SECONDS} s bound, {BATCHES} batches")
    with _files(options.rows) as folder:
        _against_spark(folder, options.rows)
        _beside_the_original(folder, options.rows)
    with _files(options.large) as folder:
        _told("this product", options.large, _run_product(folder))


def _against_spark(folder: Path, rows: int) -> None:
    from ematix_flow.specs import SparkSettings
    from ematix_flow.streams.session import WITH_STATE, session_for

    session = session_for(SparkSettings(conf={"spark.driver.memory": "6g"}), conf=WITH_STATE)
    # Twice, one after the other, because whoever comes first warms Java up for both; the second time counts.
    for turn in range(2):
        found = {
            name: _run(plan(folder, session), folder / f"checkpoint-{name}-{turn}") for name, plan in PLANS.items()
        }
    assert len({matches for _, matches in found.values()}) == 1, found
    ours, spark = (statistics.median(found[name][0]) for name in PLANS)
    total = {name: sum(times) / 1000 for name, (times, _) in found.items()}
    print(
        f"{rows:,} x {rows:,} rows, {found['ours'][1]:,} matches: a batch takes ours {ours:,.0f} ms, "
        f"spark {spark:,.0f} ms, {spark / ours:.2f}x; all ours {total['ours']:.1f} s, spark {total['spark']:.1f} s",
        flush=True,
    )
    session.stop()


def _run(joined: DataFrame, checkpoint: Path) -> tuple[list[int], int]:
    """Milliseconds of each batch, and how many matches there were."""
    matches = []

    def take(batch: DataFrame, _: int) -> None:
        matches.append(batch.count())

    writer = joined.writeStream.foreachBatch(take).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    query.awaitTermination()
    times = [progress["durationMs"]["addBatch"] for progress in query.recentProgress if progress["numInputRows"]]
    return times, sum(matches)


def _read(folder: Path, side: str, session: SparkSession) -> DataFrame:
    return session.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 2).parquet(str(folder / side))


def _ours(folder: Path, session: SparkSession) -> DataFrame:
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.types import to_arrow_schema

    from ematix_flow.joins.kernel import SIDE
    from ematix_flow.joins.operator import join_operator
    from ematix_flow.specs import Join
    from ematix_flow.streams.envelope import ERROR
    from ematix_flow.streams.stateful import Input, stateful
    from ematix_flow.streams.tagging import KEEP

    join = Join(
        left_source="left",
        right_source="right",
        left_keys=("key",),
        right_keys=("key",),
        time_window_ms=BOUND_SECONDS * 1000,
    )
    inputs = []
    for number, side in enumerate(SIDES):
        rows = _read(folder, side, session).withColumn(ERROR, F.lit(None).cast("string"))
        columns = {f"{side}_{name}": F.col(name) for name in ("key", "amount", "_event_ts")}
        columns[SIDE] = F.lit(number).cast("byte")
        inputs.append(Input(rows, "_event_ts", columns, [F.col("key")]))
    schema = to_arrow_schema(_read(folder, "left", session).schema, timezone="UTC")
    return stateful(inputs, join_operator(join, schema, schema, [pa.int64()])).where(KEEP)


def _spark(folder: Path, session: SparkSession) -> DataFrame:
    from pyspark.sql import functions as F

    left, right = (
        _read(folder, side, session)
        .select(*[F.col(name).alias(f"{side}_{name}") for name in ("key", "amount", "_event_ts")])
        .withWatermark(f"{side}__event_ts", "0 seconds")
        for side in SIDES
    )
    near = F.expr(
        f"left_key = right_key AND right__event_ts BETWEEN left__event_ts - INTERVAL {BOUND_SECONDS} SECONDS "
        f"AND left__event_ts + INTERVAL {BOUND_SECONDS} SECONDS"
    )
    return left.join(right, near)


PLANS = {"ours": _ours, "spark": _spark}


def _beside_the_original(folder: Path, rows: int) -> None:
    _told("this product", rows, _run_product(folder))
    text = _declared(folder, folder / "original", "")
    _told(f"ematix-flow {VERSION}", rows, original(text, 2 * rows, folder / "environment"))


def _run_product(folder: Path) -> dict[str, Any]:
    return answer_of(["-m", "bench.joins", "--ours", str(folder), str(folder / "product")])


def _told(name: str, rows: int, facts: dict[str, Any]) -> None:
    (began, _), (ended, read) = facts["seen"][0], facts["seen"][-1]
    speed, memory = f"{read / max(ended - began, 0.001):,.0f} rows/s", f"{facts['memory_mb']:,.0f} MB"
    print(f"{rows:,} x {rows:,} rows  {name:20} {speed:>18} {memory:>10}  {read:,} rows read", flush=True)


def _product(folder: Path, work: Path) -> None:
    from ematix_flow.streams.run import run_spec
    from ematix_flow.toml import load_toml

    seen = [(time.perf_counter(), 0)]

    def on_batch(batch: Any) -> None:
        seen.append((time.perf_counter(), batch.consumed + seen[-1][1]))

    os.environ["EMATIX_FLOW_HOME"] = f"{work}-home"
    source = f'max_files_per_batch = 2\nschema = "{COLUMNS}"'
    run_spec(load_toml(text=_declared(folder, work, source))[0], bounded=True, on_batch=on_batch)
    report(seen=seen, memory_mb=peak_memory_mb())


def _declared(folder: Path, outbox: Path, source: str) -> str:
    outbox.mkdir()
    sources = "".join(
        f'[[sources]]\nkind = "object_store_local"\npath = "{folder}"\nquery = "{side}"\nformat = "parquet"\n{source}\n'
        for side in SIDES
    )
    target = f'[target]\nkind = "object_store_local"\npath = "{outbox}"\nformat = "parquet"\nprefix = "out"\n'
    store = (
        f'[state_store]\nkind = "local"\npath = "{outbox}-state"\n' if source else '[state_store]\nkind = "in_memory"\n'
    )
    return f'pipeline_name = "joins"\n{sources}{target}{store}{JOIN}'


@contextmanager
def _files(rows: int) -> Iterator[Path]:
    """Two files per side and batch, in order of time."""
    folder = Path(tempfile.mkdtemp(prefix="bench-joins-"))
    rng, each = np.random.default_rng(7), rows // (2 * BATCHES)
    try:
        for side in SIDES:
            (folder / side).mkdir()
            for number in range(2 * BATCHES):
                at = 1_767_225_600_000_000 + (np.arange(each) + number * each) * (1_000_000 // PER_SECOND)
                columns = {"key": rng.integers(0, KEYS, each), "amount": rng.integers(0, 1000, each)}
                table = pa.table({**columns, "_event_ts": pa.array(at).cast(pa.timestamp("us", "UTC"))})
                file = folder / side / f"{number:04}.parquet"
                pq.write_table(table, file)
                os.utime(file, (1_767_225_600 + number,) * 2)
        yield folder
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
