"""The watermark: how it moves, and how rows behind it still reach an operator."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_KEY = "spark.watermarkDelayMs"
_CLOCK = "_flow_clock"
# Never earlier than a watermark. A time far in the future would be, one day, and pandas could not read it.
_NEVER = "CAST(NULL AS TIMESTAMP)"


def moved_by(rows: DataFrame, time: str, lateness_ms: int) -> DataFrame:
    """Let the watermark follow the column `time`; a NULL in it moves nothing."""
    return rows.withWatermark(time, f"{lateness_ms} milliseconds")


def never_late(rows: DataFrame) -> DataFrame:
    """Rows of which Spark leaves none out for being late, whatever their event times.

    An operator with event-time time-outs compares the column that is marked as the event time, and there must be one.
    So a constant is marked. The watermark itself is measured where `moved_by` stands, below in the plan; between the
    two, no column may keep the mark that it got there.
    """
    from pyspark.sql import functions as F

    return rows.withColumn(_CLOCK, F.expr(_NEVER).alias(_CLOCK, metadata={_KEY: 0}))
