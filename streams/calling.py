"""How Spark calls the runner with each batch.

PySpark's own `foreachBatch` makes a Python session anew for every batch, by a dozen questions to Java; all batches of a
query run in one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter


def with_each_batch(writer: DataStreamWriter, run: Callable[[DataFrame, int], None]) -> DataStreamWriter:
    from pyspark.java_gateway import ensure_callback_server_started

    session = writer._spark  # noqa: SLF001
    gateway = session.sparkContext._gateway  # noqa: SLF001
    assert gateway is not None
    helper = gateway.jvm.org.apache.spark.sql.execution.streaming.sources.PythonForeachBatchHelper
    helper.callForeachBatch(writer._jwrite, _called(run, session))  # noqa: SLF001
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    return writer


def _called(run: Callable[[DataFrame, int], None], session: Any) -> Any:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.utils import ForeachBatchFunction

    class Called(ForeachBatchFunction):
        known: SparkSession | None = None

        def call(self, jdf: Any, batch_id: int) -> None:
            if self.known is None:
                self.known = SparkSession(self.session.sparkContext, jdf.sparkSession())
            self.func(DataFrame(jdf, self.known), batch_id)

    return Called(session, run)
