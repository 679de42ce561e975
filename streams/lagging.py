"""How far a running pipeline is behind its sources. Sources that know it say here how to find out, and whoever is asked
for numbers, asks then: a pipeline that has nothing to do, or hangs, would not tell by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Lag:
    records: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """By topic and partition, how many records are there that no committed batch has."""
    seconds: float = 0.0
    """How long the oldest of them has been waiting."""


_asking: dict[str, dict[str, Callable[[], Lag | None]]] = {}


def tells(pipeline: str, source: str, ask: Callable[[], Lag | None]) -> None:
    """From now on, `ask` tells the lag of this source."""
    _asking.setdefault(pipeline, {})[source] = ask


def lag_of(pipeline: str) -> Lag | None:
    """Over all sources that tell it; None if none does, or can now."""
    told = [lag for ask in _asking.get(pipeline, {}).values() if (lag := ask()) is not None]
    if not told:
        return None
    records = {place: count for lag in told for place, count in lag.records.items()}
    return Lag(records, max(lag.seconds for lag in told))
