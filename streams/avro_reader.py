"""Avro in Confluent's form to columns, in Python workers: each record by the schema that it was written with."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from ematix_flow.sinks.avro import plain
from ematix_flow.sinks.schema_registry import HEADER_BYTES, MAGIC, Registry, UnknownSchema
from ematix_flow.streams.decode import Parsed

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

_ROW, _PROBLEM = "_flow_avro", "_flow_problem"

Reader = Callable[[io.BytesIO], Any]
_writers: dict[tuple[str, int], Any] = {}


def avro_columns(rows: DataFrame, column: str, schema: StructType, registry: Registry, reader: str | None) -> Parsed:
    """`reader` is the schema that all records are read as, as Avro resolves one with the other; without it each is read
    as it was written."""
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.types import to_arrow_type
    from pyspark.sql.types import StringType, StructType

    wide = StructType([*rows.schema.fields]).add(_ROW, schema).add(_PROBLEM, StringType())
    kind = to_arrow_type(schema, timezone="UTC")
    decoded = rows.mapInArrow(partial(_decoded, column, registry, reader, kind), wide)
    return Parsed(
        rows=decoded,
        columns={field.name: F.col(f"{_ROW}.`{field.name}`") for field in schema.fields},
        wrong=F.col(_PROBLEM).isNotNull(),
        message=F.col(_PROBLEM),
    )


def _decoded(
    column: str, registry: Registry, reader: str | None, kind: pa.DataType, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    import fastavro
    import pyarrow as pa

    wanted = None if reader is None else fastavro.parse_schema(plain(json.loads(reader)))
    for batch in batches:
        rows, problems = [], []
        for value in batch.column(column).to_pylist():
            row, problem = _read(value, registry, wanted)
            rows.append(row)
            problems.append(problem)
        yield batch.append_column(_ROW, _typed(rows, problems, kind)).append_column(
            _PROBLEM, pa.array(problems, pa.string())
        )


def _read(value: bytes | None, registry: Registry, wanted: Any) -> tuple[Any, str | None]:
    """The row, or what is wrong with it."""
    import fastavro

    if value is None:
        return None, "the record has no value: it is a tombstone"
    if len(value) < HEADER_BYTES or value[:1] != MAGIC:
        return None, "the record does not begin as those do that name a schema of a registry: 0, then four bytes of id"
    id = int.from_bytes(value[1:HEADER_BYTES], "big")
    try:
        writer = _writer(registry, id)
    except UnknownSchema:
        return None, f"schema {id} is not in the registry"
    content = io.BytesIO(value[HEADER_BYTES:])
    try:
        row = fastavro.schemaless_reader(content, writer, wanted)
    except Exception as error:  # noqa: BLE001 - fastavro raises whatever the bytes lead it to
        return None, f"the record cannot be read with schema {id}: {str(error) or type(error).__name__}"
    if not isinstance(row, dict):
        return None, f"schema {id} is no record"
    return row, None


def _writer(registry: Registry, id: int) -> Any:
    """A schema of an id never changes."""
    import fastavro

    known = _writers.get((registry.url, id))
    if known is None:
        known = fastavro.parse_schema(plain(json.loads(registry.schema(id).text)))
        _writers[registry.url, id] = known
    return known


def _typed(rows: list[Any], problems: list[str | None], kind: pa.DataType) -> pa.Array:
    """All at once, and one by one only if one of them does not fit; that one gets a problem."""
    import pyarrow as pa

    try:
        return pa.array(rows, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        fitting: list[Any] = []
        for number, row in enumerate(rows):
            try:
                pa.array([row], kind)
                fitting.append(row)
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                fitting.append(None)
                problems[number] = f"the record does not fit the declared columns: {error}"
        return pa.array(fitting, kind)
