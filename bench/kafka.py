"""Kafka -> Kafka: this product against Spark's own source and sink, on one broker and in one Spark, in turn.

Spark's own is at least once, and has neither bad rows nor counts. Bytes are passed as they are; JSON is decoded to
columns and encoded again. Everything runs once over a tenth of the rows before the clock starts.

    python -m bench.kafka [--rows 1000000] [--rounds 3]
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

PARTITIONS = 2


class Bench:
    def __init__(self, kafka: OwnKafka, spark: SparkSession, work: Path) -> None:
        self.kafka, self.spark, self.work, self.runs = kafka, spark, work, 0

    def fill(self, rows: int) -> str:
        topic = self.kafka.new_topic(PARTITIONS)
        for i in range(rows):
            second = i * 86_400 // rows
            at = f"2026-01-01T{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}Z"
            value = (
                f'{{"id": {i}, "customer": "c{i % 9973}", "amount": {i % 100_000 / 100}, "country": "DE", '
                f'"paid": true, "ts": "{at}"}}'
            )
            self.kafka.produce(topic, value, key=f"c{i % 9973}", partition=i % PARTITIONS)
        self.kafka.flush()
        return topic

    def spark_bytes(self, source: str) -> str:
        return self._spark(source, lambda rows: rows.select("key", "value"))

    def spark_json(self, source: str) -> str:
        def passed(rows: Any) -> Any:
            parsed = rows.select("key", F.from_json(F.col("value").cast("string"), SCHEMA).alias("o"))
            return parsed.select("key", F.to_json(F.struct("o.*")).alias("value"))

        return self._spark(source, passed)

    def flow_bytes(self, source: str) -> str:
        return self._flow(source, "raw_bytes", "exactly_once", "SELECT value, _key FROM source")

    def flow_json(self, source: str) -> str:
        return self._flow(source, "json", "exactly_once", "SELECT *, _key FROM source")

    def flow_json_at_least_once(self, source: str) -> str:
        return self._flow(source, "json", "at_least_once", "SELECT *, _key FROM source")

    def _spark(self, source: str, work: Callable[[Any], Any]) -> str:
        target, servers = self.kafka.new_topic(PARTITIONS), self.kafka.bootstrap
        read = self.spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers)
        rows = work(read.option("subscribe", source).option("startingOffsets", "earliest").load())
        write = rows.writeStream.format("kafka").option("kafka.bootstrap.servers", servers).option("topic", target)
        write.option("checkpointLocation", self._place()).trigger(availableNow=True).start().awaitTermination()
        return target

    def _flow(self, source: str, form: str, delivery: str, sql: str) -> str:
        target = self.kafka.new_topic(PARTITIONS)
        cluster = f'kind = "kafka"\nbootstrap_servers = "{self.kafka.bootstrap}"\npayload_format = "{form}"'
        schema = f'schema = "{SCHEMA}"' if form == "json" else ""
        os.environ["EMATIX_FLOW_HOME"] = self._place()
        run_pipeline(
            config_str=f'pipeline_name = "bench"\ndelivery = "{delivery}"\n[source]\n{cluster}\nquery = "{source}"\n'
            f'{schema}\n[transform]\nsql = "{sql}"\non_error = "drop"\n[target]\n{cluster}\ntopic = "{target}"\n'
            'message_key_column = "_key"\n',
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
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ematix-flow-bench-") as work, own_kafka() as kafka:
        os.environ["EMATIX_FLOW_HOME"] = work
        spark = session_for(SparkSettings(master="local[2]"), jar_groups={"kafka"})
        bench = Bench(kafka, spark, Path(work))
        warm, source = bench.fill(options.rows // 10), bench.fill(options.rows)
        print(
            f"{options.rows:,} JSON records in {PARTITIONS} partitions; {os.cpu_count()} cores {platform.machine()}\n"
        )
        for run, _ in CONTENDERS.values():
            run(bench, warm)
        seconds: dict[str, list[float]] = {name: [] for name in CONTENDERS}
        for _ in range(options.rounds):
            for name, (run, _) in CONTENDERS.items():
                began = time.perf_counter()
                target = run(bench, source)
                seconds[name].append(time.perf_counter() - began)
                if (there := len(kafka.read(target))) != options.rows:
                    sys.exit(f"{name}: {there:,} records instead of {options.rows:,}")
                kafka.delete_topic(target)
        for name, (_, other) in CONTENDERS.items():
            ratio = statistics.median(o / s for o, s in zip(seconds[other or name], seconds[name], strict=True))
            compared = f"{ratio:>8.2f}x" if other else ""
            print(f"{name:40}{options.rows / statistics.median(seconds[name]):>12,.0f} r/s{compared}")
        spark.stop()


if __name__ == "__main__":
    main()
