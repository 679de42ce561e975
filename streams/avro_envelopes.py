"""Change envelopes in Avro as the JSON that Kafka Connect would have written, in Python workers: each record with what
the schema that it was written with says of its rows."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from ematix_flow.sinks.schema_registry import Registry, SchemaId
from ematix_flow.streams.registered_reader import Unreadable, read_record

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

PROBLEM = "_flow_avro_problem"
"""Column beside the text: why a record could not be read."""
_ROWS = ("before", "after")
_CONNECT, _TIME = "org.apache.kafka.connect.data.", "io.debezium.time."
# What Avro calls them by itself; Connect's converter says `connect.name` as well.
_LOGICAL = {
    "date": f"{_CONNECT}Date", "decimal": f"{_CONNECT}Decimal", "time-millis": f"{_CONNECT}Time",
    "time-micros": f"{_TIME}MicroTime", "timestamp-millis": f"{_CONNECT}Timestamp",
    "timestamp-micros": f"{_TIME}MicroTimestamp", "local-timestamp-millis": f"{_CONNECT}Timestamp",
    "local-timestamp-micros": f"{_TIME}MicroTimestamp",
}  # fmt: skip
_KINDS = {"int": "int32", "long": "int64", "fixed": "bytes", "enum": "string", "record": "struct"}
_writers: dict[tuple[Registry, SchemaId], tuple[Any, str]] = {}


def envelope_texts(rows: DataFrame, column: str, text: str, registry: Registry) -> DataFrame:
    """With `text`, the envelope as JSON with its schema, and `PROBLEM`; one of the two is NULL."""
    from pyspark.sql.types import StringType, StructType

    wide = StructType([*rows.schema.fields]).add(text, StringType()).add(PROBLEM, StringType())
    return rows.mapInArrow(partial(_texts, column, text, registry), wide)


def _texts(column: str, text: str, registry: Registry, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    read = partial(_text, registry)
    for batch in batches:
        done = [read_record(value, registry, read) for value in batch.column(column).to_pylist()]
        texts, problems = (pa.array([one[place] for one in done], pa.string()) for place in (0, 1))
        yield batch.append_column(text, texts).append_column(PROBLEM, problems)


def _text(registry: Registry, id: SchemaId, content: bytes) -> str:
    import fastavro

    writer, said = _writer(registry, id)
    try:
        row = fastavro.schemaless_reader(io.BytesIO(content), writer, None)
    except Exception as error:
        raise Unreadable(f"the record cannot be read with schema {id}: {str(error) or type(error).__name__}") from error
    return f'{{"schema": {said}, "payload": {json.dumps(row, default=_octets)}}}'


def _octets(value: Any) -> str:
    return base64.b64encode(value).decode()


def _writer(registry: Registry, id: SchemaId) -> tuple[Any, str]:
    """A schema of an id never changes."""
    import fastavro

    known = _writers.get((registry, id))
    if known is None:
        schema = json.loads(registry.schema(id).text)
        known = fastavro.parse_schema(_bare(schema)), connect_schema(schema)
        _writers[registry, id] = known
    return known


def _bare(schema: Any) -> Any:
    """Without logical types: Connect's JSON has the numbers and bytes themselves."""
    if isinstance(schema, list):
        return [_bare(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: value for key, value in schema.items() if key != "logicalType"}
    return {key: _bare(value) if key in {"type", "items", "values", "fields"} else value for key, value in kept.items()}


def connect_schema(schema: Mapping[str, Any]) -> str:
    """What the JSON converter would say of the rows of an envelope."""
    known: dict[str, Any] = {}
    _collect(schema, known)
    rows = [field for field in schema.get("fields", ()) if field["name"] in _ROWS]
    return json.dumps({"fields": [{"field": field["name"], **_field(field["type"], known)} for field in rows]})


def _collect(schema: Any, known: dict[str, Any]) -> None:
    """Records and enumerations by name: `before` and `after` share one, and only the first is written out."""
    if isinstance(schema, list):
        for one in schema:
            _collect(one, known)
    elif isinstance(schema, dict):
        if "name" in schema and schema.get("type") in {"record", "enum", "fixed"}:
            known[schema["name"]] = known[f"{schema.get('namespace')}.{schema['name']}"] = schema
        for key in ("type", "items", "values"):
            _collect(schema.get(key), known)
        for field in schema.get("fields", ()):
            _collect(field["type"], known)


def _field(schema: Any, known: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(schema, list):
        others = [one for one in schema if one != "null"]
        return _field(others[0], known) if len(others) == 1 else {"type": "string"}
    if isinstance(schema, str):
        return _field(known[schema], known) if schema in known else {"type": _KINDS.get(schema, schema)}
    kind = schema["type"]
    if not isinstance(kind, str):
        return _field(kind, known)
    found: dict[str, Any] = {"type": _KINDS.get(kind, kind)}
    if logical := schema.get("connect.name") or _LOGICAL.get(schema.get("logicalType", "")):
        found["name"] = logical
        sizes = {"scale": schema.get("scale", 0), "connect.decimal.precision": schema.get("precision", 38)}
        found["parameters"] = {key: str(size) for key, size in sizes.items()} | schema.get("connect.parameters", {})
    match kind:
        case "record":
            found["fields"] = [{"field": one["name"], **_field(one["type"], known)} for one in schema["fields"]]
        case "array":
            found["items"] = _field(schema["items"], known)
        case "map":
            found |= {"keys": {"type": "string"}, "values": _field(schema["values"], known)}
    return found
