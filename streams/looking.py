"""The first rows of a pipeline as they would be written, without writing them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ematix_flow.config import connect
from ematix_flow.errors import NotBuilt
from ematix_flow.specs import PipelineSpec, Target
from ematix_flow.streams.session import session_for
from ematix_flow.streams.sources.database.base import arrow_schema
from ematix_flow.streams.sources.database.source import DATABASES, DatabaseSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def first_rows(spec: PipelineSpec, rows: int, spark: SparkSession | None) -> list[dict[str, Any]]:
    """Through the transform and the normalizers of the first target."""
    import pyarrow as pa
    from pyspark.sql import functions as F

    source = spec.sources[0]
    if source.kind not in DATABASES:
        raise NotBuilt(f"a preview of {source.kind!r}", instead="previews of databases run")
    looked = DatabaseSource.look(source, connect(source.connection), spec.source_names[0])
    database = looked.database
    chosen = ", ".join(f"{column.expression} AS {database.quoted(column.name)}" for column in looked.columns)
    schema = arrow_schema([(column.name, column.wire) for column in looked.columns])
    with database.in_words():
        batches = list(database.batches(f"SELECT {chosen} FROM {looked.relation} LIMIT {rows:d}", schema, ""))
    session = session_for(spec.spark, spark=spark)
    found = session.createDataFrame(pa.Table.from_batches(batches, schema=schema))
    typed = found.select(
        *(F.col(f"`{column.name}`").try_cast(column.type).alias(column.name) for column in looked.columns)
    )
    if spec.transform.sql:
        typed = session.sql(spec.transform.sql.replace(" FROM source", " FROM {source}"), source=typed)
    return [row.asDict(recursive=True) for row in _normalized(typed, spec.targets[0]).limit(rows).collect()]


def _normalized(rows: DataFrame, target: Target) -> DataFrame:
    from pyspark.sql import functions as F

    definition = target.table.definition if target.table else None
    for column in definition.columns if definition else ():
        if column.normalizers and (column.normalizers[0].derived or column.name in rows.columns):
            rows = rows.withColumn(column.name, F.expr(column.expression).try_cast(column.type.spark_type))
    return rows
