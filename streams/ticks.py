"""Ticks: an internal stream that moves the watermark when no row does, so that a quiet stream's windows close.

A tick is a file in the checkpoint, and Spark's own file source reads it: so a repeated batch has the same ticks, and
they are kept wherever the checkpoint is.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ematix_flow.state import durable
from ematix_flow.state.kernel import TIME
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

    def move(self, watermark: int) -> None:
        """Let the next batch move the watermark to this, in microseconds since 1970."""
        micros = watermark + self._lateness_us
        name = f"{'n' if micros < 0 else 'p'}{abs(micros)}.json"
        if not (self._folder / name).exists():
            durable.write(self._folder / name, json.dumps({"micros": micros}))
