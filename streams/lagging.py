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


Ask = Callable[[], Lag | None]

_asking: dict[str, tuple[object, dict[str, Ask]]] = {}


def tells(pipeline: str, run: object, source: str, ask: Ask) -> None:
    """From now on, and until another run of the pipeline tells something, `ask` tells the lag of this source."""
    if pipeline not in _asking or _asking[pipeline][0] is not run:
        _asking[pipeline] = (run, {})
    _asking[pipeline][1][source] = ask


def lag_of(pipeline: str) -> Lag | None:
    """Over all sources that tell it; None if none does, or can now."""
    # A join before a window is a stage of its own, and has the sources.
    stages = [_asking[name][1] for name in (pipeline, f"{pipeline} (join)") if name in _asking]
    told = [lag for sources in stages for ask in sources.values() if (lag := ask()) is not None]
    if not told:
        return None
    records = {place: count for lag in told for place, count in lag.records.items()}
    return Lag(records, max(lag.seconds for lag in told))
