"""`python -m examples.fraud.demo`: from Avro orders to alerts, exactly once, on a broker of its own, with a crash."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any

import fastavro

from ematix_flow.streams.steps import CRASH_AT
from examples.fraud.orders import SCHEMA, Alert, encoded, expected, orders
from examples.orders import text
from tests.services.kafka import OwnKafka
from tests.services.schema_registry import SchemaRegistry
from tests.services.server import end_all

ORDERS = 20_000
DECLARATION = Path(__file__).with_name("fraud.toml")
# The rows of the batch are in Kafka, and nothing else knows it yet.
WORST = "release@1"


def main() -> None:
    text.title("Suspicious orders become alerts")
    try:
        with text.waiting("starting a broker and a schema registry"):
            kafka, registry = OwnKafka(), SchemaRegistry()
        with tempfile.TemporaryDirectory(prefix="ematix-flow-fraud-") as folder:
            show(kafka, registry, Path(folder))
    finally:
        end_all()


def show(kafka: OwnKafka, registry: SchemaRegistry, folder: Path) -> None:
    for topic in ("orders", "alerts"):
        kafka.new_topic(2, topic)
    schema_id = registry.register("orders-value", SCHEMA)
    with text.waiting(f"sending {ORDERS:,} orders in Avro"):
        for order in orders(ORDERS):
            kafka.produce("orders", encoded(order, schema_id), key=order["card"], partition=order["id"] % 2)
        kafka.flush()
    env = os.environ | {"KAFKA": kafka.bootstrap, "SCHEMA_REGISTRY": registry.url, "EMATIX_FLOW_HOME": str(folder)}

    text.heading("flow run fraud.toml --bounded, killed in its second batch")
    killed, printed = _flow(env | {CRASH_AT: WORST})
    if killed >= 0:
        sys.exit(f"it was not killed:\n{printed}")
    text.line(f"ended by {signal.Signals(-killed).name}: the transaction is committed, the batch is not")
    text.heading("flow run fraud.toml --bounded, again")
    ended, printed = _flow(env)
    if ended:
        sys.exit(printed)
    print(printed)
    wanted, found = expected(orders(ORDERS)), _alerts(kafka, registry)
    text.heading("what a consumer of committed records finds in alerts")
    text.table(
        ["card", "minute", "orders", "total", "countries"],
        [_cells(key, alert) for key, alert in sorted(found, key=lambda one: -one[1].orders)[:5]],
        left=(0, 1, 4),
    )
    if dict(found) != wanted or len(found) != len(wanted):
        sys.exit(f"{len(found)} alerts are there, and {len(wanted)} should be")
    print()
    text.line(f"{len(found):,} alerts, as many as there should be, each once and with the right numbers")


def _flow(env: dict[str, str]) -> tuple[int, str]:
    command = [sys.executable, "-P", "-m", "ematix_flow.ops.cli", "run", str(DECLARATION), "--bounded"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.rstrip() or done.stderr.rstrip()


def _alerts(kafka: OwnKafka, registry: SchemaRegistry) -> list[tuple[tuple[str, datetime], Alert]]:
    found = []
    for message in kafka.read("alerts"):
        row = _decoded(message.value(), registry)
        found.append(((row["card"], row["window_start"]), Alert(row["orders"], row["total"], set(row["countries"]))))
    return found


def _decoded(value: bytes, registry: SchemaRegistry) -> Any:
    """By the schema that the pipeline has registered."""
    schema = json.loads(registry.text(int.from_bytes(value[1:5], "big")))
    return fastavro.schemaless_reader(io.BytesIO(value[5:]), fastavro.parse_schema(schema), None)


def _cells(key: tuple[str, datetime], alert: Alert) -> list[str]:
    countries = ", ".join(sorted(alert.countries))
    return [key[0], f"{key[1]:%H:%M}", str(alert.orders), f"{alert.total:,}", countries]


if __name__ == "__main__":
    main()
