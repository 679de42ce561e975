"""The first rows of a pipeline as they would be written, without writing them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, Any

from ematix_flow.config import connect
from ematix_flow.specs import PipelineSpec, StateStore, Target
from ematix_flow.state.store import open_store
from ematix_flow.streams.columns import quoted
from ematix_flow.streams.envelope import IS_GOOD, Carried
from ematix_flow.streams.failures import spark_errors_in_words
from ematix_flow.streams.needs import jar_groups_of
from ematix_flow.streams.session import session_for
from ematix_flow.streams.sources.database.base import arrow_schema
from ematix_flow.streams.sources.database.source import DATABASES, DatabaseSource
from ematix_flow.streams.sources.opening import open_source
from ematix_flow.streams.transform import selected, stream_names

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def first_rows(spec: PipelineSpec, rows: int, spark: SparkSession | None, *, whole: bool) -> list[dict[str, Any]]:
    """Through the transform and the normalizers of the first target. `whole` if the transform has to see every row of
    the source, because it leaves some out."""
    session = session_for(spec.spark, jar_groups=jar_groups_of(spec), spark=spark)

    def written(found: DataFrame, most: int) -> list[dict[str, Any]]:
        if spec.transform.sql:
            found = selected(spec.transform.sql, dict.fromkeys(stream_names(spec), found))
        made = _normalized(found, spec.targets[0]).limit(most)
        return [row.asDict(recursive=True) for row in made.collect()]

    with spark_errors_in_words():
        if spec.sources[0].kind in DATABASES and not whole:
            return written(_selected(spec, rows, session), rows)
        return _streamed(spec, rows, session, written)


def _streamed(
    spec: PipelineSpec,
    rows: int,
    session: SparkSession,
    written: Callable[[DataFrame, int], list[dict[str, Any]]],
) -> list[dict[str, Any]]:
    """What a first run would begin with. Its state is forgotten at once."""
    nowhere = spec.model_copy(update={"state_store": StateStore(kind="in_memory")})
    found: list[dict[str, Any]] = []
    failed: list[Exception] = []
    with closing(open_store(nowhere)) as store:
        source = open_source(nowhere, 0, store, session)
        columns = [quoted(column) for column in source.payload_schema.fieldNames()]
        good = source.read(session, Carried()).where(IS_GOOD).select(*columns)

        def look(batch: DataFrame, _: int) -> None:
            if len(found) < rows and not failed:
                try:
                    found.extend(written(batch, rows - len(found)))
                except Exception as error:  # noqa: BLE001 - Spark would only say that its query failed
                    failed.append(error)

        writer = good.writeStream.foreachBatch(look).option("checkpointLocation", str(store.checkpoint))
        writer.trigger(availableNow=True).start().awaitTermination()
    if failed:
        raise failed[0]
    return found


def _selected(spec: PipelineSpec, rows: int, session: SparkSession) -> DataFrame:
    import pyarrow as pa
    from pyspark.sql import functions as F

    source = spec.sources[0]
    looked = DatabaseSource.look(source, connect(source.connection), spec.source_names[0])
    database = looked.database
    chosen = ", ".join(f"{column.expression} AS {database.quoted(column.name)}" for column in looked.columns)
    schema = arrow_schema([(column.name, column.wire) for column in looked.columns])
    with database.in_words():
        batches = list(database.batches(f"SELECT {chosen} FROM {looked.relation} LIMIT {rows:d}", schema, ""))
    found = session.createDataFrame(pa.Table.from_batches(batches, schema=schema))
    return found.select(
        *(F.col(quoted(column.name)).try_cast(column.type).alias(column.name) for column in looked.columns)
    )


def _normalized(rows: DataFrame, target: Target) -> DataFrame:
    """In the types that the table has. What Spark has no plain type for is left as it is."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, MapType, StructType

    definition = target.table.definition if target.table else None
    if definition is None:
        return rows
    plain = {f.name for f in rows.schema.fields if not isinstance(f.dataType, ArrayType | MapType | StructType)}
    made = {
        column.name: F.expr(column.expression).try_cast(column.type.spark_type)
        for column in definition.columns
        if column.name in plain
        or (column.normalizers and (column.normalizers[0].derived or column.name in rows.columns))
    }
    rows = rows.withColumns(made)
    first = [name for name in definition.column_names if name in rows.columns]
    others = [name for name in rows.columns if name not in first and name.lower() not in definition.only_read]
    return rows.select(*map(quoted, (*first, *others)))
