"""Makes order events as JSON lines: most as they should be, some late, some that no reader can use.

`python events.py FOLDER` writes them; the same `--seed` gives the same bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

FILES, EVENTS_PER_FILE, SEED = 12, 500, 7
LATE, BAD = 0.03, 0.01
"""Shares of all events."""

_FIRST_DAY = datetime(2026, 3, 2, 6, 0, tzinfo=UTC)
_COUNTRIES = {"de": 30, "fr": 22, "it": 14, "es": 12, "nl": 9, "pl": 8, "at": 5}
_PRICES = {"lamp-02": 49.9, "chair-11": 129.0, "desk-03": 389.0, "rug-27": 84.5, "shelf-08": 59.95, "mug-14": 12.5}

Event = dict[str, object]


@dataclass(frozen=True)
class Made:
    """What was written, to be compared with what a pipeline makes of it."""

    files: int
    events: int
    late: int
    bad: int


def write_events(folder: Path, *, seed: int = SEED, files: int = FILES, per_file: int = EVENTS_PER_FILE) -> Made:
    """Write `files` files, each the events that arrived in one hour, in the order of their arrival."""
    folder.mkdir(parents=True, exist_ok=True)
    chance = random.Random(seed)
    late = bad = 0
    began = time.time() - files
    for number in range(files):
        hour = _FIRST_DAY + timedelta(days=seed, hours=number)
        arrivals = sorted(hour + timedelta(seconds=chance.uniform(0, 3600)) for _ in range(per_file))
        lines = []
        for index, received in enumerate(arrivals):
            event, is_late = _event(chance, f"{seed}-{number * per_file + index:06d}", received)
            is_bad = chance.random() < BAD
            lines.append(chance.choice(_DAMAGES)(event) if is_bad else json.dumps(event))
            bad += is_bad
            late += is_late and not is_bad
        file = folder / f"orders-{seed}-{number:02d}.jsonl"
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        # A pipeline takes files in the order in which they were last changed; these are a second apart.
        os.utime(file, (began + number, began + number))
    return Made(files, files * per_file, late, bad)


def _event(chance: random.Random, order: str, received: datetime) -> tuple[Event, bool]:
    is_late = chance.random() < LATE
    # An order from a telephone without a network arrives when there is one again.
    delay = timedelta(hours=chance.uniform(2, 30)) if is_late else timedelta(seconds=chance.expovariate(1 / 20))
    sku = chance.choice(list(_PRICES))
    event: Event = {
        "order_id": f"o-{order}",
        "customer_id": f"c-{chance.randrange(900):04d}",
        "country": chance.choices(list(_COUNTRIES), weights=list(_COUNTRIES.values()))[0],
        "sku": sku,
        "quantity": chance.choices([1, 2, 3, 6], weights=[70, 20, 7, 3])[0],
        "unit_price": _PRICES[sku],
        "ordered_at": (received - delay).isoformat(timespec="milliseconds"),
        "received_at": received.isoformat(timespec="milliseconds"),
    }
    return event, is_late


def _truncated(event: Event) -> str:
    return json.dumps(event)[:-30]


def _wrong_type(event: Event) -> str:
    return json.dumps(event | {"quantity": "two"})


def _bad_timestamp(event: Event) -> str:
    return json.dumps(event | {"ordered_at": "yesterday noon"})


def _not_an_object(event: Event) -> str:
    return json.dumps(list(event.values()))


_DAMAGES: tuple[Callable[[Event], str], ...] = (_truncated, _wrong_type, _bad_timestamp, _not_an_object)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write order events as JSON lines.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=SEED, help="another seed is another day (default %(default)s)")
    parser.add_argument("--files", type=int, default=FILES)
    parser.add_argument("--events-per-file", type=int, default=EVENTS_PER_FILE)
    given = parser.parse_args()
    made = write_events(given.folder, seed=given.seed, files=given.files, per_file=given.events_per_file)
    print(f"{made.events:,} events in {made.files} files: {made.late} late, {made.bad} malformed")


if __name__ == "__main__":
    main()
