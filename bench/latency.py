"""Kafka -> Kafka at a steady pace: how long a row takes from one topic to the other, and where; beside Kafka Streams,
exactly once with a commit every 100 ms, and Spark's own source and sink, at least once, which take turns with it.

A row is sent every millisecond with the time at which it was sent; a consumer of committed records notes when it comes
out. The rows of the first seconds, in which Java warms up, are not counted. With a window, it is
the time from a window's end to its row; the event time is the time of sending.

    python -m bench.latency [--rows-per-second 1000] [--seconds 60] [--rounds 3] [--only stateless|tumbling] [--alone]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer

from bench.kafka_streams import FOR_LATENCY, KafkaStreams, kafka_streams
from ematix_flow.specs import SparkSettings
from ematix_flow.streams.run import run_spec
from ematix_flow.streams.runner import BatchReport
from ematix_flow.streams.session import session_for
from ematix_flow.streams.steps import STEPS
from ematix_flow.toml import load_toml
from examples.orders.text import bar
from tests.services.kafka import OwnKafka, own_kafka

PARTITIONS, KEYS, SCHEMA = 2, 1000, "id long, customer string, at timestamp"
# Before rows count: in the first round, and in the others.
WARM_SECONDS, WARM_AGAIN_SECONDS = 40, 10
# Rows go on for a while after those that count, because the next ones close a window; then the last ones are awaited.
AFTER_SECONDS, WAIT_SECONDS = 2, 6
_BUCKETS = (25, 50, 75, 100, 150, 200, 300, 400, 600, 800, 1000, 1500, 2000, 5000)
WINDOW = """
[transform.window]
kind = "tumbling"
duration_ms = 1000
group_by = ["customer"]
event_time_column = "at"
[[transform.window.aggregations]]
agg = "count"
as = "orders"
"""


@dataclass
class Measured:
    latencies: list[float] = field(default_factory=list)
    """In milliseconds."""
    steps: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    rows: list[int] = field(default_factory=list)
    batch_ends: list[float] = field(default_factory=list)
    began: float = 0.0
    """When rows began to count."""

    def batch(self, report: BatchReport) -> None:
        if report.consumed and time.time() > self.began:
            self.rows.append(report.consumed)
            self.batch_ends.append(time.time())
            for step in STEPS:
                self.steps[step].append(1000 * report.seconds.get(step, 0.0))


def declared(kafka: OwnKafka, operator: str, source: str, target: str) -> str:
    cluster = f'kind = "kafka"\nbootstrap_servers = "{kafka.bootstrap}"'
    sql = '[transform]\nsql = "SELECT *, _key FROM source"' if operator == "stateless" else ""
    key = "_key" if operator == "stateless" else "customer"
    return (
        f'pipeline_name = "{operator}"\ndelivery = "exactly_once"\n[spark]\nmaster = "local[2]"\n[source]\n{cluster}\n'
        f'query = "{source}"\nschema = "{SCHEMA}"\n{sql}\n'
        f'{WINDOW if operator == "tumbling" else ""}\n[target]\n{cluster}\ntopic = "{target}"\n'
        f'message_key_column = "{key}"\n'
    )


def sent(row: Any, operator: str) -> float:
    """When the clock of a row of the target began to run, in seconds."""
    return datetime.fromisoformat(row["at" if operator == "stateless" else "window_end"]).timestamp()


@dataclass
class Place:
    """Where a contender works."""

    kafka: OwnKafka
    streams: KafkaStreams
    folder: Path
    operator: str
    found: Measured
    source: str = ""
    target: str = ""

    @contextmanager
    def ours(self) -> Iterator[None]:
        (spec,) = load_toml(text=declared(self.kafka, self.operator, self.source, self.target))
        stop = threading.Event()
        running = threading.Thread(target=lambda: run_spec(spec, stop=stop, on_batch=self.found.batch))
        os.environ["EMATIX_FLOW_HOME"] = str(self.folder / self.target)
        running.start()
        yield
        stop.set()
        running.join()

    @contextmanager
    def kafka_streams(self) -> Iterator[None]:
        windows = self.operator == "tumbling"
        self.streams.start(self.source, self.target, "exactly_once_v2", FOR_LATENCY, rows="sent", windows=windows)
        yield
        self.streams.stop()

    @contextmanager
    def spark(self) -> Iterator[None]:
        from pyspark.sql import functions as F

        servers = self.kafka.bootstrap
        spark = session_for(SparkSettings(master="local[2]"), jar_groups={"kafka"})
        read = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers)
        rows = read.option("subscribe", self.source).option("startingOffsets", "earliest").load()
        parsed = rows.select("key", F.from_json(F.col("value").cast("string"), SCHEMA).alias("row"))
        result = parsed.select("key", F.to_json("row").alias("value"))
        if self.operator == "tumbling":
            known = parsed.select("row.*").withWatermark("at", "0 seconds")
            counted = known.groupBy(F.window("at", "1 second"), "customer").agg(F.count("*").alias("orders"))
            row = F.struct("window.start", F.col("window.end").alias("window_end"), "customer", "orders")
            result = counted.select(F.col("customer").alias("key"), F.to_json(row).alias("value"))
        write = result.writeStream.format("kafka").option("kafka.bootstrap.servers", servers)
        query = write.option("topic", self.target).option("checkpointLocation", f"{self.folder}/{self.target}").start()
        yield
        query.stop()


OURS = "ematix-flow, exactly once"
CONTENDERS: dict[str, Callable[[Place], AbstractContextManager[None]]] = {
    OURS: Place.ours,
    "Kafka Streams, exactly once": Place.kafka_streams,
    "Spark's own, at least once": Place.spark,
}


def measure(place: Place, contender: str, pace: int, warm: float, seconds: float) -> None:
    kafka, found = place.kafka, place.found
    place.source, place.target = kafka.new_topic(PARTITIONS), kafka.new_topic(PARTITIONS)
    found.began = time.time() + warm
    ending = found.began + seconds
    # Processes of their own, as those who write and read topics are.
    apart = multiprocessing.get_context("spawn")
    results = apart.Queue()
    told = (kafka.bootstrap, place.target, place.operator, found.began, ending, results)
    reading = apart.Process(target=_read, args=told)
    sending = apart.Process(target=_send, args=(kafka.bootstrap, place.source, pace, ending + AFTER_SECONDS))
    with CONTENDERS[contender](place):
        for one in (reading, sending):
            one.start()
        found.latencies += results.get()
        for one in (reading, sending):
            one.join()


def _send(bootstrap: str, topic: str, pace: int, until: float) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    begin, number = time.time(), 0
    while (now := time.time()) < until:
        if (wait := begin + number / pace - now) > 0:
            time.sleep(wait)
        at = datetime.fromtimestamp(time.time(), UTC).isoformat()
        value = json.dumps({"id": number, "customer": f"c{number % KEYS}", "at": at})
        producer.produce(topic, value, key=f"c{number % KEYS}", partition=number % PARTITIONS)
        producer.poll(0)
        number += 1
    producer.flush()


def _read(bootstrap: str, topic: str, operator: str, since: float, until: float, results: Any) -> None:
    """The latencies of rows whose clock began to run since then, in milliseconds."""
    settings = {"group.id": topic, "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    consumer = Consumer({"bootstrap.servers": bootstrap, **settings, "fetch.wait.max.ms": 10})
    consumer.subscribe([topic])
    found = []
    while time.time() < until + WAIT_SECONDS:
        for message in consumer.consume(1000, 0.01):
            begin = sent(json.loads(message.value()), operator)
            if since < begin < until:
                found.append(1000 * (time.time() - begin))
    consumer.close()
    results.put(found)


def show(operator: str, found: Measured) -> None:
    took = sorted(found.latencies)
    what = "from one topic to the other" if operator == "stateless" else "from the end of a window to its row"
    print(f"\n{operator}, exactly once: {len(took):,} rows, milliseconds {what}")
    print(f"  {_shares(took)}\n")
    if not found.rows:
        print("  no batch came while rows counted: Java takes longer to start here than the first rows are left out")
        return
    low = 0
    for high in (*_BUCKETS, float("inf")):
        count = sum(low <= one < high for one in took)
        if count:
            print(f"  {low:>5} to {high:>5g}  {bar(count, len(took), 40)} {100 * count / len(took):5.1f} %")
        low = int(high) if high != float("inf") else low
    between = [1000 * (b - a) for a, b in zip(found.batch_ends, found.batch_ends[1:], strict=False)]
    rows, pause = statistics.median(found.rows), statistics.median(between)
    print(f"\n  a batch has {rows:,.0f} rows and comes every {pause:,.0f} ms")
    known = 0.0
    for step in STEPS:
        known += statistics.median(found.steps[step])
        print(
            f"  {step:8} {statistics.median(found.steps[step]):8.1f} ms   p99 {_at(sorted(found.steps[step]), 99):8.1f}"
        )
    print(f"  {'Spark':8} {pause - known:8.1f} ms   to plan the batch, and to note that it is done")


def _shares(took: Sequence[float]) -> str:
    return "   ".join(f"p{share:g} {_at(took, share):5,.0f}" for share in (50, 90, 99, 99.9, 100))


def _at(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share / 100))] if ordered else float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows-per-second", type=int, default=1000)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["stateless", "tumbling"])
    parser.add_argument("--alone", action="store_true", help="without the others")
    options = parser.parse_args()
    contenders = [OURS] if options.alone else list(CONTENDERS)
    with (
        tempfile.TemporaryDirectory(prefix="ematix-flow-bench-") as work,
        own_kafka() as kafka,
        kafka_streams(kafka.bootstrap) as streams,
    ):
        print(f"{options.rows_per_second:,} rows a second for {options.seconds} s, {PARTITIONS} partitions; ", end="")
        print(f"{os.cpu_count()} cores {platform.machine()}")
        for operator in [options.only] if options.only else ["stateless", "tumbling"]:
            places = {name: Place(kafka, streams, Path(work), operator, Measured()) for name in contenders}
            for number in range(options.rounds):
                warm = WARM_AGAIN_SECONDS if number else WARM_SECONDS
                for name in contenders:
                    measure(places[name], name, options.rows_per_second, warm, options.seconds / options.rounds)
            show(operator, places[OURS].found)
            print(f"\n  {operator}, in the same {options.rounds} rounds, milliseconds")
            for name in contenders:
                took = sorted(places[name].found.latencies)
                print(f"  {name:28} {_shares(took)}   {len(took):,} rows", flush=True)


if __name__ == "__main__":
    main()
