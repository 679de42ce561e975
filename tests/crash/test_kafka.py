"""From Kafka to Kafka, exactly once, with kill -9 at every step and at any time: a reader of committed records finds
each row once, in the order of its key."""

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ematix_flow.state.dead_letters import DeadLetters
from ematix_flow.state.home import dead_letters_of
from ematix_flow.streams.steps import CRASH_AT, STEPS
from tests.services.kafka import Kafka, own_kafka
from tests.topics import Topics
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("spark")]

KILLS = int(os.environ.get("EMATIX_FLOW_KILLS", "20"))
# Before and while a part is sent, when another one may have been committed.
INSIDE = ("apply/before-sending", "apply/before-commit", "apply/after-commit")
PARTITIONS, KEYS = 3, 6
# So many records wait that they come to the target many as one.
BACKLOG = 120_000
PER_MINUTE = """
[transform.window]
kind = "tumbling"
duration_ms = 60000
group_by = ["shop"]
event_time_column = "at"
[[transform.window.aggregations]]
agg = "count"
as = "orders"
"""


class Shop:
    """Orders with growing numbers, each of one of a few keys, in a topic."""

    def __init__(self, kafka: Kafka, folder: Path, operator: str, padding: int = 0) -> None:
        self.padding = padding
        self.topics, self.kafka, self.operator = Topics(kafka, folder), kafka, operator
        self.source, self.target = kafka.new_topic(PARTITIONS), kafka.new_topic(2)
        self.dead = kafka.new_topic()
        self.sent = 0

    def orders(self, count: int) -> None:
        for i in range(self.sent, self.sent + count):
            at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=i // 10)
            row = {"id": i, "shop": f"s{i % KEYS}", "at": at.isoformat()}
            if self.padding:
                row["padding"] = random.Random(i).randbytes(self.padding).hex()
            self.kafka.produce(self.source, row, key=row["shop"], partition=i % PARTITIONS)
        self.kafka.flush()
        self.sent += count

    @property
    def declaration(self) -> str:
        return self.topics.toml(
            self.source,
            schema="id long, shop string, at timestamp" + (", padding string" if self.padding else ""),
            reading=f"max_rows_per_batch = {self.sent // 4}",
            on_error="dlq",
            target=self.target,
            writing='message_key_column = "shop"',
            top=f'delivery = "exactly_once"\ndead_letter_topic = "{self.dead}"',
            more=PER_MINUTE if self.operator == "stateful" else "",
        )

    def run(self) -> None:
        from ematix_flow import run_pipeline

        run_pipeline(config_str=self.declaration, bounded=True)

    def check(self) -> None:
        found: dict[str, list[Any]] = defaultdict(list)
        for message in self.kafka.read(self.target):
            row = json.loads(message.value())
            assert message.key().decode() == row["shop"]
            found[row["shop"]].append(row)
        if self.operator != "stateful":
            ids = {f"s{key}": [i for i in range(self.sent) if i % KEYS == key] for key in range(KEYS)}
            assert {shop: [row["id"] for row in rows] for shop, rows in found.items()} == ids
        else:
            minutes = Counter((f"s{i % KEYS}", i // 10) for i in range(self.sent))
            windows = Counter((shop, row["window_start"]) for shop, rows in found.items() for row in rows)
            assert set(windows.values()) == {1}
            counts = [row["orders"] for rows in found.values() for row in rows]
            assert (len(counts), sum(counts)) == (len(minutes), self.sent)


def victim(declaration: str, folder: Path, **more: str) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.crash.victim"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])} | more,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None
    process.stdin.write(declaration.encode())
    process.stdin.close()
    return process


@pytest.mark.parametrize(
    ("operator", "point"),
    [
        *(("stateless", point) for point in (*STEPS, *INSIDE)),
        *(("stateful", point) for point in ("apply", *INSIDE)),
        *(("backlog", point) for point in ("stage", "save", "apply", INSIDE[0], "divert")),
    ],
)
def test_a_kill_at_any_step_loses_and_doubles_nothing(kafka: Kafka, tmp_path: Path, operator: str, point: str) -> None:
    shop = Shop(kafka, tmp_path, operator)
    shop.orders(BACKLOG if operator == "backlog" else 120)
    kafka.send(shop.source, ["broken"], partition=0, key="k")
    with victim(shop.declaration, tmp_path, **{CRASH_AT: f"{point}@1"}) as process:
        ended = process.wait(240)
        assert ended == -signal.SIGKILL, process.stderr and process.stderr.read()
    shop.run()
    shop.check()
    letters = DeadLetters(dead_letters_of("orders"))
    assert [letter.payload for letter in letters.all()] == [b"broken"]
    letters.close()
    assert [(m.key(), m.value()) for m in kafka.read(shop.dead)] == [(b"k", b"broken")]


@pytest.mark.parametrize("orders", [44_000, BACKLOG])
@pytest.mark.parametrize("point", INSIDE[1:])
def test_the_death_of_a_worker_loses_and_doubles_nothing(kafka: Kafka, tmp_path: Path, point: str, orders: int) -> None:
    """Batches of several megabytes and more than ten thousand rows, which workers send."""
    shop = Shop(kafka, tmp_path, "stateless", padding=100)
    shop.orders(orders)
    with victim(shop.declaration, tmp_path, **{CRASH_AT: f"{point}@1"}) as process:
        # It is an error of the batch and leaves the process alive.
        assert process.wait(240) == 1, process.stderr and process.stderr.read()
    shop.run()
    shop.check()


@pytest.mark.parametrize(
    ("operator", "first", "more"), [("stateless", 2000, 200), ("stateful", 2000, 200), ("backlog", BACKLOG, BACKLOG)]
)
def test_kills_at_any_time_lose_and_double_nothing(
    kafka: Kafka, tmp_path: Path, operator: str, first: int, more: int
) -> None:
    chance = random.Random(17)
    shop = Shop(kafka, tmp_path, operator)
    shop.orders(first)
    declaration = shop.declaration
    for _ in range(math.ceil(KILLS / 3)):
        with victim(declaration, tmp_path) as process:
            # Most of the life of such a process is the start of Java; what is of interest comes after it.
            wait_until = time.monotonic() + chance.uniform(5, 14)
            while process.poll() is None and time.monotonic() < wait_until:
                time.sleep(0.01)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            elif process.returncode:
                assert process.stderr is not None
                pytest.fail(process.stderr.read().decode())
        shop.orders(more)
    shop.run()
    shop.check()


@pytest.mark.parametrize("operator", ["stateless", "stateful", "backlog"])
def test_a_broker_that_dies_and_comes_back_loses_and_doubles_nothing(tmp_path: Path, operator: str) -> None:
    with own_kafka() as broker:
        shop = Shop(broker, tmp_path, operator)
        shop.orders(BACKLOG if operator == "backlog" else 4000)
        many_batches = shop.declaration.replace(f"batch = {shop.sent // 4}", f"batch = {shop.sent // 40}")
        with victim(many_batches, tmp_path) as process:
            wait_for(lambda: broker.read(shop.target))
            broker.kill()
            broker.start()
            # It may have noticed nothing, or have ended with an error that passes.
            assert process.wait(150) in {0, 1}
        shop.run()
        shop.check()
