"""Kafka -> Kafka: this product against Spark's own source and sink, and against Kafka Streams, on one broker, in turn.

Spark's own is at least once, and has neither bad rows nor counts. Bytes are passed as they are; JSON is decoded to
columns and encoded again; windows count and add up the rows of a second for each of a thousand customers. Everything
runs over a tenth of the rows before the clock starts, `--warm` times; this product and Spark's own in one Java process,
Kafka Streams in another. The clock of each starts before its topic is made and its query planned or its threads
started, and stops when its last record is committed. Each second round goes the other way round.

    python -m bench.kafka [--rows 1000000] [--rounds 3] [--warm 5] [--only bytes|JSON|windows]
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from bench.kafka_streams import FOR_THROUGHPUT, KafkaStreams, kafka_streams
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
    def __init__(self, kafka: OwnKafka, spark: SparkSession, streams: KafkaStreams, work: Path) -> None:
        self.kafka, self.spark, self.streams, self.work, self.runs = kafka, spark, streams, work, 0

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

    def streams_json(self, source: str) -> str:
        return self._streams(source, "exactly_once_v2")

    def streams_json_at_least_once(self, source: str) -> str:
        return self._streams(source, "at_least_once")

    def streams_windows(self, source: str) -> str:
        return self._streams(source, "exactly_once_v2", windows=True)

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

    def _streams(self, source: str, guarantee: str, *, windows: bool = False) -> str:
        target = self.kafka.new_topic(PARTITIONS)
        self.streams.start(source, target, guarantee, FOR_THROUGHPUT, rows="orders", windows=windows)
        self.streams.finish()
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


CONTENDERS: Mapping[str, Callable[[Bench, str], str]] = {
    "bytes, Spark's own, at least once": Bench.spark_bytes,
    "bytes, ematix-flow, exactly once": Bench.flow_bytes,
    "JSON, Spark's own, at least once": Bench.spark_json,
    "JSON, Kafka Streams, at least once": Bench.streams_json_at_least_once,
    "JSON, ematix-flow, at least once": Bench.flow_json_at_least_once,
    "JSON, ematix-flow, exactly once": Bench.flow_json,
    "JSON, Kafka Streams, exactly once": Bench.streams_json,
    "windows, Spark's own, at least once": Bench.spark_windows,
    "windows, ematix-flow, exactly once": Bench.flow_windows,
    "windows, Kafka Streams, exactly once": Bench.streams_windows,
}


def expected(name: str, rows: int) -> int:
    """How many records come out. The others leave the windows of the last second open."""
    if not name.startswith("windows"):
        return rows
    open_windows = 0 if "ematix-flow" in name else 1
    return KEYS * (rows // ROWS_PER_SECOND - open_windows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm", type=int, default=5)
    parser.add_argument("--only", choices=["bytes", "JSON", "windows"], default="")
    options = parser.parse_args()
    contenders = {name: run for name, run in CONTENDERS.items() if name.startswith(options.only)}
    with (
        tempfile.TemporaryDirectory(prefix="ematix-flow-bench-") as work,
        own_kafka() as kafka,
        kafka_streams(kafka.bootstrap) as streams,
    ):
        os.environ["EMATIX_FLOW_HOME"] = work
        spark = session_for(SparkSettings(master="local[2]"), jar_groups={"kafka"})
        bench = Bench(kafka, spark, streams, Path(work))
        warm, source = bench.fill(options.rows // 10), bench.fill(options.rows)
        print(
            f"{options.rows:,} JSON records in {PARTITIONS} partitions; {os.cpu_count()} cores {platform.machine()}\n"
        )
        for _ in range(options.warm):
            for name in contenders:
                _run(bench, name, warm)
        seconds: dict[str, list[float]] = {name: [] for name in contenders}
        for number in range(options.rounds):
            for name in list(contenders)[:: -1 if number % 2 else 1]:
                seconds[name].append(_run(bench, name, source, expected(name, options.rows)))
        _show(seconds, options.rows)
        spark.stop()


def _run(bench: Bench, name: str, source: str, asked: int | None = None) -> float:
    """How long it took, in seconds. So many records are asked for, or none are counted."""
    began = time.perf_counter()
    target = CONTENDERS[name](bench, source)
    took = time.perf_counter() - began
    if "Kafka Streams" in name:
        bench.streams.closed()
    if asked is not None and (there := len(bench.kafka.read(target))) != asked:
        sys.exit(f"{name}: {there:,} records instead of {asked:,}")
    bench.kafka.delete_topic(target)
    return took


def _show(seconds: Mapping[str, Sequence[float]], rows: int) -> None:
    """With the medians of the ratios of the rounds: to Spark's own, and to Kafka Streams with the same guarantee."""
    print(f"{'':40}{'':>12}    {'to Spark':>10}{'to Kafka Streams':>18}")
    for name, took in seconds.items():
        work, who, delivery = name.split(", ")
        line = f"{name:40}{rows / statistics.median(took):>12,.0f} r/s"
        if who == "ematix-flow":
            baseline = f"{work}, Spark's own, at least once"
            line += f"{_ratio(seconds[baseline], took):>9.2f}x"
            rival = f"{work}, Kafka Streams, {delivery}"
            line += f"{_ratio(seconds[rival], took):>17.2f}x" if rival in seconds else ""
        print(line)


def _ratio(others: Sequence[float], ours: Sequence[float]) -> float:
    return statistics.median(other / our for other, our in zip(others, ours, strict=True))


if __name__ == "__main__":
    main()
