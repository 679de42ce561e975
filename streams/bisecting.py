"""Finding the rows on which a batch fails, where Spark says only that it does: halves are tried down to single rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ematix_flow.streams.envelope import Origin
from ematix_flow.streams.failures import is_of_a_row, spark_words

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NUMBER = "_flow_number"
# As the same failure is called where Spark says which row it is.
_CODES = {
    "CAST_INVALID_INPUT": "bad-cast",
    "CAST_OVERFLOW": "bad-cast",
    "DIVIDE_BY_ZERO": "divide-by-zero",
    "REMAINDER_BY_ZERO": "divide-by-zero",
    "USER_RAISED_EXCEPTION": "raised",
}


def without_culprits(
    rows: DataFrame, work: Callable[[DataFrame], DataFrame], origin: Origin
) -> tuple[DataFrame, list[str]]:
    """The rows on which `work` does not fail, and the errors of the others."""
    from pyspark.sql import functions as F

    # The same rows get the same numbers whenever the batch is read.
    numbered = rows.withColumn(_NUMBER, F.monotonically_increasing_id())
    found = _culprits(numbered, work)
    if not found:
        return rows, []
    listed = [(number, _CODES.get(said, "transform-failed"), words) for number, (said, words) in found.items()]
    culprits = F.broadcast(rows.sparkSession.createDataFrame(listed, f"{_NUMBER} long, code string, words string"))
    bad = numbered.join(culprits, _NUMBER)
    error = origin.error(bad, "transform", F.col("code"), F.col("words"))
    errors = [row[0] for row in bad.select(error).collect()]
    return numbered.where(~F.col(_NUMBER).isin(list(found))).drop(_NUMBER), errors


def _culprits(rows: DataFrame, work: Callable[[DataFrame], DataFrame]) -> dict[int, tuple[str, str]]:
    """The numbers of the rows on which `work` fails by itself, each with Spark's condition and words."""
    from pyspark.sql import functions as F

    found: dict[int, tuple[str, str]] = {}
    # Numbers of one partition are consecutive; between two partitions there is a gap of billions.
    parts = rows.groupBy(F.spark_partition_id()).agg(F.min(_NUMBER), F.max(_NUMBER)).collect()
    waiting = [(low, high) for _, low, high in parts]
    while waiting:
        low, high = waiting.pop()
        failure = _failure(work(rows.where(F.col(_NUMBER).between(low, high)).drop(_NUMBER)))
        if failure is None:
            continue
        if low == high:
            found[low] = failure
        else:
            middle = (low + high) // 2
            waiting += [(low, middle), (middle + 1, high)]
    return found


def _failure(rows: DataFrame) -> tuple[str, str] | None:
    from pyspark.errors import PySparkException

    try:
        rows.write.format("noop").mode("overwrite").save()
    except PySparkException as error:
        if not is_of_a_row(error):
            raise
        return spark_words(error)
    return None
