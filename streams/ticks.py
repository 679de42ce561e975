"""Ticks: an internal stream that moves the watermark when no row does, so that a quiet stream's windows close.

A tick is a file in the checkpoint, and Spark's own file source reads it: so a repeated batch has the same ticks, and
they are kept wherever the checkpoint is.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ematix_flow.state import durable
from ematix_flow.state.kernel import TIME, Operator
from ematix_flow.state.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Ticks:
    """Of one source. They come to the watermark as its rows do."""

    def __init__(self, store: Store, source: int, lateness_ms: int) -> None:
        self._folder = store.checkpoint / "ticks" / str(source)
        self._lateness_us = lateness_ms * 1000
        durable.make(self._folder)

    def read(self, session: SparkSession) -> DataFrame:
        """Rows that have nothing but `TIME`."""
        from pyspark.sql import functions as F

        # Each is read once; what was read is of no use, and a daemon may run for years.
        ticks = session.readStream.schema("micros long").option("cleanSource", "delete").json(str(self._folder))
        return ticks.select(F.timestamp_micros("micros").alias(TIME))

    def move(self, watermark: int, latest: int | None) -> bool:
        """Let the next batch move the watermark of the source to this, in microseconds since 1970. False if it is there
        already, given the latest time that came from the source."""
        return self.reach(watermark + self._lateness_us, latest)

    def reach(self, time: int, latest: int | None) -> bool:
        """As a row of this time would."""
        if latest is not None and time <= latest:
            return False
        self._write(f"{'n' if time < 0 else 'p'}{abs(time)}", time)
        return True

    def repeat(self, time: int) -> None:
        """As a row that came before."""
        self._write(f"again-{uuid.uuid4().hex}", time)

    def _write(self, name: str, time: int) -> None:
        file = self._folder / f"{name}.json"
        if not file.exists():
            durable.write(file, json.dumps({"micros": time}))


def ticks_of(inputs: Sequence[object], operator: Operator, store: Store) -> tuple[Ticks, ...]:
    return tuple(Ticks(store, number, operator.lateness_ms) for number in range(len(inputs)))
