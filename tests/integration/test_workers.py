"""Python workers of the sessions that a pipeline starts."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_what_a_worker_has_imported_is_not_looked_at_after_every_task(spark: SparkSession) -> None:
    def objects(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pandas as pd

        assert list(batches), pd.__name__
        yield pa.RecordBatch.from_pydict({"looked_at": [len(gc.get_objects())], "set_aside": [gc.get_freeze_count()]})

    def count() -> tuple[int, int]:
        (row,) = spark.range(1, numPartitions=1).mapInArrow(objects, "looked_at long, set_aside long").collect()
        return row["looked_at"], row["set_aside"]

    counts = [count() for _ in range(5)]  # a session may have several workers

    looked_at, set_aside = counts[-1]
    assert set_aside > 50_000 > looked_at, counts
