"""JSON records for topics, most of them plain and some awkward, and the dead letters that come of them."""

import json
import random
from datetime import UTC, datetime
from typing import Any

from ematix_flow.state.dead_letters import DeadLetters
from ematix_flow.state.home import dead_letters_of
from tests.services.kafka import Kafka, Value

BEGIN = 1_767_225_600
SCHEMA = "id long, customer string, amount double, price decimal(12,2), ms long, ts timestamp, o struct<x: long>"


def at(second: float) -> str:
    return datetime.fromtimestamp(BEGIN + second, UTC).isoformat().replace("+00:00", "Z")


def record(number: int, second: float, **other: Any) -> dict[str, Any]:
    amount = number % 977 / 7
    return {
        "id": number, "customer": f"c{number % 7}", "amount": amount, "price": round(amount, 2),
        "ms": int((BEGIN + second) * 1000), "ts": at(second), "o": {"x": number}, **other,
    }  # fmt: skip


def awkward(number: int, second: float) -> Value:
    """Among plain records: some that only Spark reads, some that nobody can read, some that are late."""
    plain = record(number, second)
    choices: list[Value] = [
        None, b"", b"\xff{", "[1]", "null", "broken", json.dumps(plain) + "}", {**plain, "ts": None},
        {**plain, "ts": "yesterday"}, {**plain, "ts": "0000-12-31T00:00:00Z"}, {**plain, "ms": 1 << 62},
        {**plain, "ms": None}, {**plain, "id": "x"}, {**plain, "o": [1]}, {"id": number},
        # Good ones that are not plain.
        json.dumps(plain, indent=1), json.dumps(plain) + "\n", {**plain, "ts": at(second).replace("T", " ")[:-1]},
        {**plain, "amount": "1.5"}, {**plain, "price": "1e1"}, {**plain, "ts": at(second)[:10]},
        # Plain ones that are not like the others.
        {**plain, "customer": None}, {**plain, "amount": None}, {**plain, "unknown": {"a": [1, {"b": None}]}},
        {**plain, "o": {"x": 1, "y": [[]]}}, record(number, second - 5), record(number, -86_400), plain,
        {key: plain[key] for key in reversed(plain)}, {**plain, "ts": at(second).replace("Z", "+02:00")},
    ]  # fmt: skip
    return choices[number % len(choices)]


def fill(kafka: Kafka, topic: str, numbers: range, *, seed: int) -> None:
    """Rows of a second come together, to two partitions; some come twice. Awkward ones come together, too: where there
    is one among a few dozen, all of these are left to Spark."""
    chance = random.Random(seed)
    for number in numbers:
        second = number / 100
        is_awkward = chance.random() < (0.4 if number // 100 % 5 == 3 else 0.002)
        value = awkward(number, second) if is_awkward else record(number, second)
        for _ in range(2 if chance.random() < 0.05 else 1):
            kafka.produce(topic, value, key=f"k{number}", partition=number % 2, timestamp=(BEGIN + number) * 1000)
    kafka.flush()


def letters(name: str) -> list[tuple[Any, ...]]:
    kept = DeadLetters(dead_letters_of(name))
    found = [(one.position, one.stage, one.error_code, one.error, one.event_ts, one.payload) for one in kept.all()]
    kept.close()
    return found
