"""Orders of a made-up shop in Avro, and what of them is suspicious, found without the product."""

from __future__ import annotations

import io
import json
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro

SCHEMA = json.loads(Path(__file__).with_name("order.avsc").read_text(encoding="utf-8"))
BEGIN = datetime(2026, 3, 2, 9, tzinfo=UTC)
COUNTRIES = ("DE", "FR", "IT", "PL", "SE")
CARDS = 60


@dataclass
class Alert:
    orders: int = 0
    total: Decimal = Decimal(0)
    countries: set[str] = field(default_factory=set)


def orders(count: int) -> Iterator[dict[str, Any]]:
    """In the order of their time, twenty a second; one in forty is suspicious."""
    chance = random.Random(11)
    for id in range(count):
        card = chance.randrange(CARDS)
        home = COUNTRIES[card % len(COUNTRIES)]
        abroad = chance.random() < 0.02
        large = chance.random() < 0.005
        yield {
            "id": id,
            "card": f"card-{card:03}",
            "card_country": home,
            "country": chance.choice([one for one in COUNTRIES if one != home]) if abroad else home,
            "amount": Decimal(chance.randrange(90_100, 500_000) if large else chance.randrange(100, 30_000)).scaleb(-2),
            "at": BEGIN + timedelta(milliseconds=50 * id),
        }


def encoded(order: dict[str, Any], schema_id: int) -> bytes:
    out = io.BytesIO()
    out.write(b"\x00" + schema_id.to_bytes(4, "big"))
    fastavro.schemaless_writer(out, _PARSED, order)
    return out.getvalue()


def expected(made: Iterable[dict[str, Any]]) -> dict[tuple[str, datetime], Alert]:
    """By card and minute."""
    found: dict[tuple[str, datetime], Alert] = defaultdict(Alert)
    for order in made:
        if order["country"] != order["card_country"] or order["amount"] > 900:
            alert = found[order["card"], order["at"].replace(second=0, microsecond=0)]
            alert.orders += 1
            alert.total += order["amount"]
            alert.countries.add(order["country"])
    return dict(found)


_PARSED = fastavro.parse_schema(SCHEMA)
