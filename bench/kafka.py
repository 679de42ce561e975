"""Kafka -> Kafka: this product against Spark's own source and sink, on one broker and in one Spark, in turn.

Spark's own is at least once, and has neither bad rows nor counts. Bytes are passed as they are; JSON is decoded to
columns and encoded again; windows count and add up the rows of a second for each of a thousand customers. Everything
runs over a tenth of the rows before the clock starts, `--warm` times.

    python -m bench.kafka [--rows 1000000] [--rounds 3] [--warm 2] [--only bytes|JSON|windows]
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from bench.measure import SCHEMA
from ematix_flow import run_pipeline
from ematix_flow.specs import SparkSettings
from ematix_flow.streams.session import session_for
from tests.services.kafka import OwnKafka, own_kafka

PARTITIONS, KEYS, ROWS_PER_SECOND = 2, 1000, 10_000
WINDOW = """
[transform.window]
kind = "tumbling"
duration_ms = 1000
group_by = ["customer"]
event_time_column = "ts"
[[transform.window.aggregations]]
agg = "count"
as = "orders"
[[transform.window.aggregations]]
agg = "sum"
column = "amount"
as = "amount"
"""


class Bench:
    def __init__(self, kafka: OwnKafka, spark: SparkSession, work: Path) -> None:
        self.kafka, self.spark, self.work, self.runs = kafka, spark, work, 0

    def fill(self, rows: int) -> str:
        topic = self.kafka.new_topic(PARTITIONS)
        for i in range(rows):
            second = i // ROWS_PER_SECOND
            at = f"2026-01-01T{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}Z"
            value = (
                f'{{"id": {i}, "customer": "c{i % KEYS}", "amount": {i % 100_000 / 100}, "country": "DE", '
                f'"paid": true, "ts": "{at}"}}'
            )
            self.kafka.produce(topic, value, key=f"c{i % KEYS}", partition=i % PARTITIONS)
        self.kafka.flush()
        return topic

    def spark_bytes(self, source: str) -> str:
        return self._spark(source, lambda rows: rows.select("key", "value"))

    def spark_json(self, source: str) -> str:
        def passed(rows: Any) -> Any:
            parsed = rows.select("key", F.from_json(F.col("value").cast("string"), SCHEMA).alias("o"))
            return parsed.select("key", F.to_json(F.struct("o.*")).alias("value"))

        return self._spark(source, passed)

    def spark_windows(self, source: str) -> str:
        def grouped(rows: Any) -> Any:
            parsed = rows.select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("o")).select("o.*")
            groups = parsed.withWatermark("ts", "0 seconds").groupBy(F.window("ts", "1 second"), "customer")
            sums = groups.agg(F.count("*").alias("orders"), F.sum("amount").alias("amount"))
            row = F.struct("window.start", "window.end", "customer", "orders", "amount")
            return sums.select(F.col("customer").alias("key"), F.to_json(row).alias("value"))

        return self._spark(source, grouped)

    def flow_bytes(self, source: str) -> str:
        return self._flow(source, "raw_bytes", "exactly_once", "SELECT value, _key FROM source")

    def flow_json(self, source: str) -> str:
        return self._flow(source, "json", "exactly_once", "SELECT *, _key FROM source")

    def flow_json_at_least_once(self, source: str) -> str:
        return self._flow(source, "json", "at_least_once", "SELECT *, _key FROM source")

    def flow_windows(self, source: str) -> str:
        return self._flow(source, "json", "exactly_once", "SELECT customer, amount, ts FROM source", "customer", WINDOW)

    def _spark(self, source: str, work: Callable[[Any], Any]) -> str:
        target, servers = self.kafka.new_topic(PARTITIONS), self.kafka.bootstrap
        read = self.spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers)
        rows = work(read.option("subscribe", source).option("startingOffsets", "earliest").load())
        write = rows.writeStream.format("kafka").option("kafka.bootstrap.servers", servers).option("topic", target)
        write.option("checkpointLocation", self._place()).trigger(availableNow=True).start().awaitTermination()
        return target

    def _flow(self, source: str, form: str, delivery: str, sql: str, key: str = "_key", operator: str = "") -> str:
        target = self.kafka.new_topic(PARTITIONS)
        cluster = f'kind = "kafka"\nbootstrap_servers = "{self.kafka.bootstrap}"\npayload_format = "{form}"'
        schema = f'schema = "{SCHEMA}"' if form == "json" else ""
        os.environ["EMATIX_FLOW_HOME"] = self._place()
        run_pipeline(
            config_str=f'pipeline_name = "bench"\ndelivery = "{delivery}"\n[source]\n{cluster}\nquery = "{source}"\n'
            f'{schema}\n[transform]\nsql = "{sql}"\non_error = "drop"\n{operator}\n[target]\n{cluster}\n'
            f'topic = "{target}"\nmessage_key_column = "{key}"\n',
            bounded=True,
            spark=self.spark,
        )
        return target

    def _place(self) -> str:
        self.runs += 1
        return str(self.work / str(self.runs))


CONTENDERS: dict[str, tuple[Callable[[Bench, str], str], str]] = {
    "bytes, Spark's own, at least once": (Bench.spark_bytes, ""),
    "bytes, ematix-flow, exactly once": (Bench.flow_bytes, "bytes, Spark's own, at least once"),
    "JSON, Spark's own, at least once": (Bench.spark_json, ""),
    "JSON, ematix-flow, at least once": (Bench.flow_json_at_least_once, "JSON, Spark's own, at least once"),
    "JSON, ematix-flow, exactly once": (Bench.flow_json, "JSON, Spark's own, at least once"),
    "windows, Spark's own, at least once": (Bench.spark_windows, ""),
    "windows, ematix-flow, exactly once": (Bench.flow_windows, "windows, Spark's own, at least once"),
}


def expected(name: str, rows: int) -> int:
    """How many records come out. Spark's own leaves the windows of the last second open."""
    if not name.startswith("windows"):
        return rows
    open_windows = 1 if "Spark" in name else 0
    return KEYS * (rows // ROWS_PER_SECOND - open_windows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm", type=int, default=2)
    parser.add_argument("--only", choices=["bytes", "JSON", "windows"], default="")
    options = parser.parse_args()
    contenders = {name: how for name, how in CONTENDERS.items() if name.startswith(options.only)}
    with tempfile.TemporaryDirectory(prefix="ematix-flow-bench-") as work, own_kafka() as kafka:
        os.environ["EMATIX_FLOW_HOME"] = work
        spark = session_for(SparkSettings(master="local[2]"), jar_groups={"kafka"})
        bench = Bench(kafka, spark, Path(work))
        warm, source = bench.fill(options.rows // 10), bench.fill(options.rows)
        print(
            f"{options.rows:,} JSON records in {PARTITIONS} partitions; {os.cpu_count()} cores {platform.machine()}\n"
        )
        for _ in range(options.warm):
            for run, _ in contenders.values():
                run(bench, warm)
        seconds: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(options.rounds):
            for name, (run, _) in contenders.items():
                began = time.perf_counter()
                target = run(bench, source)
                seconds[name].append(time.perf_counter() - began)
                if (there := len(kafka.read(target))) != (asked := expected(name, options.rows)):
                    sys.exit(f"{name}: {there:,} records instead of {asked:,}")
                kafka.delete_topic(target)
        for name, (_, other) in contenders.items():
            ratio = statistics.median(o / s for o, s in zip(seconds[other or name], seconds[name], strict=True))
            compared = f"{ratio:>8.2f}x" if other else ""
            print(f"{name:40}{options.rows / statistics.median(seconds[name]):>12,.0f} r/s{compared}")
        spark.stop()


if __name__ == "__main__":
    main()
