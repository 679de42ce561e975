"""Avro in Confluent's form to columns, in Python workers: each record by the schema that it was written with."""

from __future__ import annotations

import io
import json
from functools import partial
from typing import TYPE_CHECKING, Any

from ematix_flow.sinks.avro import plain
from ematix_flow.sinks.schema_registry import Registry, SchemaId
from ematix_flow.streams.decode import Parsed
from ematix_flow.streams.registered_reader import ReadRecord, Unreadable, registered_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

_writers: dict[tuple[Registry, SchemaId], Any] = {}


def avro_columns(rows: DataFrame, column: str, schema: StructType, registry: Registry, reader: str | None) -> Parsed:
    """`reader` is the schema that all records are read as, as Avro resolves one with the other; without it each is read
    as it was written."""
    return registered_columns(rows, column, schema, registry, partial(_reading, registry, reader))


def _reading(registry: Registry, reader: str | None) -> ReadRecord:
    import fastavro

    wanted = None if reader is None else fastavro.parse_schema(plain(json.loads(reader)))
    return partial(_read, registry, wanted)


def _read(registry: Registry, wanted: Any, id: SchemaId, content: bytes) -> dict[str, Any]:
    import fastavro

    writer = _writer(registry, id)
    try:
        row = fastavro.schemaless_reader(io.BytesIO(content), writer, wanted)
    except Exception as error:
        raise Unreadable(f"the record cannot be read with schema {id}: {str(error) or type(error).__name__}") from error
    if not isinstance(row, dict):
        raise Unreadable(f"schema {id} is no record")
    return row


def _writer(registry: Registry, id: SchemaId) -> Any:
    """A schema of an id never changes."""
    import fastavro

    known = _writers.get((registry, id))
    if known is None:
        known = fastavro.parse_schema(plain(json.loads(registry.schema(id).text)))
        _writers[registry, id] = known
    return known
