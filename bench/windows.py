"""Windows against Spark's own: `groupBy(window(...), key).agg(...)` in append mode, on the same files, with the same
state provider, in one process, in turn, after each has run once to warm up. `bench.original` has rows per second,
memory and the size of the state.

    python -m bench.windows [--only NAME] [--batches 6] [--rounds 3] [--scale 1.0]
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ematix_flow.specs import Aggregation, SparkSettings, Window
from ematix_flow.streams.envelope import ERROR
from ematix_flow.streams.session import WITH_STATE, session_for
from ematix_flow.streams.stateful import input_of, stateful
from ematix_flow.windows.operator import window_operator

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SECOND = 1_000_000
COLUMNS = "key long, amount long, at timestamp"


@dataclass(frozen=True)
class Case:
    """Each batch is so many rows over so many keys, and `seconds` of event time."""

    name: str
    rows: int
    keys: int
    duration: int = 10
    hop: int = 10
    seconds: int = 30
    held: int = 0
    """Keys that the first batch brings besides, and that the others do not touch; then windows stay open."""
    target: float | None = None
    """Least ratio to Spark's own that we promise."""


CASES = (
    Case("1 thousand keys, 1 million rows", 1_000_000, 1_000, target=0.5),
    Case("1 thousand keys, 5 million rows", 5_000_000, 1_000, target=0.7),
    Case("1 million keys, 1 million rows", 1_000_000, 1_000_000, target=1.2),
    Case("hopping 60 s / 5 s, 1 thousand keys, 1 million rows", 1_000_000, 1_000, 60, 5, target=2.0),
    Case("10 thousand keys held, 10 thousand touched", 10_000, 10_000, 86_400, 86_400),
    Case("1 million keys held, 10 thousand touched", 10_000, 10_000, 86_400, 86_400, held=1_000_000),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--batches", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0)
    options = parser.parse_args()
    session = session_for(SparkSettings(conf={"spark.driver.memory": "6g"}), conf=WITH_STATE)
    print(
        f"{os.cpu_count()} cores; milliseconds per batch, medians of {options.batches - 1} after the first; "
        f"of these and of their ratios, the medians of {options.rounds} rounds\n"
    )
    for case in CASES:
        if options.only in case.name:
            _compare(case, options, session)


def _compare(case: Case, options: argparse.Namespace, session: SparkSession) -> None:
    rounds = []
    with _files(case, options.batches, options.scale) as folder:
        for number in range(options.rounds + 1):
            names = ("ours", "spark") if number % 2 else ("spark", "ours")
            times = {name: _run(name, case, folder, session, number) for name in names}
            if number:  # Java compiles what runs often: the first time is not the rule
                rounds.append([statistics.median(times[name][1 : options.batches]) for name in ("ours", "spark")])
    ours, spark = map(statistics.median, zip(*rounds, strict=True))
    ratios = [spark / ours for ours, spark in rounds]
    ratio, spread = statistics.median(ratios), f"{min(ratios):.2f}..{max(ratios):.2f}"
    promised = "" if case.target is None else f"   promised {case.target}x"
    print(f"{case.name:55} ours {ours:6.0f}   spark {spark:6.0f}   {ratio:5.2f}x ({spread}){promised}", flush=True)


def _run(name: str, case: Case, folder: Path, session: SparkSession, number: int) -> list[int]:
    checkpoint = folder / f"checkpoint-{name}-{number}"
    reader = session.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 2)
    rows = reader.parquet(str(folder / "in"))
    result = _ours(rows, case) if name == "ours" else _spark(rows, case)

    def take(batch: DataFrame, _: int) -> None:
        batch.write.format("noop").mode("overwrite").save()

    writer = result.writeStream.foreachBatch(take).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    query.awaitTermination()
    return [progress["durationMs"]["addBatch"] for progress in query.recentProgress if progress["numInputRows"]]


def _ours(rows: DataFrame, case: Case) -> DataFrame:
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.types import to_arrow_schema

    window = Window(
        kind="tumbling" if case.hop == case.duration else "hopping",
        duration_ms=case.duration * 1000,
        hop_ms=case.hop * 1000,
        group_by=("key",),
        aggregations=(
            Aggregation(agg="count", as_="n"),
            Aggregation(agg="sum", column="amount", as_="total"),
            Aggregation(agg="min", column="amount", as_="least"),
            Aggregation(agg="max", column="amount", as_="most"),
        ),
    )
    operator = window_operator(window, to_arrow_schema(rows.schema, timezone="UTC"), event_time="at")
    tagged = rows.withColumn(ERROR, F.lit(None).cast("string"))
    return stateful([input_of(tagged, operator)], operator)


def _spark(rows: DataFrame, case: Case) -> DataFrame:
    from pyspark.sql import functions as F

    window = F.window("at", f"{case.duration} seconds", f"{case.hop} seconds")
    amount = F.col("amount")
    return (
        rows.withWatermark("at", "0 seconds")
        .groupBy(window, "key")
        .agg(F.count(F.lit(1)), F.sum(amount), F.min(amount), F.max(amount))
    )


@contextmanager
def _files(case: Case, batches: int, scale: float) -> Iterator[Path]:
    """Two files per batch, so that both cores have one, in order of time."""
    folder = Path(tempfile.mkdtemp(prefix="bench-windows-"))
    (folder / "in").mkdir()
    rng = np.random.default_rng(7)
    clock = 1_767_225_600
    try:
        for number in range(2 * batches):
            rows, keys = int(case.rows * scale) // 2, int(case.keys * scale)
            key = rng.integers(0, keys, rows) if rows > keys // 2 else rng.permutation(keys)[:rows]
            if case.held and number < 2:
                key = np.concatenate([key, np.arange(number, int(case.held * scale), 2)])
            begin = clock * SECOND + number * case.seconds * SECOND // 2
            at = np.sort(rng.integers(begin, begin + case.seconds * SECOND // 2, len(key)))
            amount, moment = rng.integers(0, 1000, len(key)), pa.array(at).cast(pa.timestamp("us", "UTC"))
            table = pa.table({"key": key, "amount": amount, "at": moment})
            file = folder / "in" / f"{number:04}.parquet"
            pq.write_table(table, file)
            os.utime(file, (clock + number, clock + number))
        yield folder
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
