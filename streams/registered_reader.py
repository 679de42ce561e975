"""Records that name a schema of a registry to columns, in Python workers, one Arrow batch at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from ematix_flow.sinks.schema_registry import HEADER_BYTES, Registry, SchemaId, UnknownSchema
from ematix_flow.streams.columns import quoted
from ematix_flow.streams.decode import Parsed

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

_ROW, _PROBLEM = "_flow_decoded", "_flow_problem"
# A schema of an id never changes.
_known: set[tuple[Registry, SchemaId]] = set()

ReadRecord = Callable[[SchemaId, bytes], dict[str, Any]]
"""The row of a record, from the id of its schema and what follows its header; or `Unreadable`, or `UnknownSchema`."""


class Unreadable(Exception):
    """What is wrong with a record, for a person."""


def registered_columns(
    rows: DataFrame, column: str, schema: StructType, registry: Registry, reading: Callable[[], ReadRecord]
) -> Parsed:
    """`reading` is called in each worker."""
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.types import to_arrow_type
    from pyspark.sql.types import StringType, StructField, StructType

    # Otherwise Spark would believe that there is no NULL, and see 0 in its place.
    schema = StructType([StructField(field.name, field.dataType) for field in schema.fields])
    wide = StructType([*rows.schema.fields]).add(_ROW, schema).add(_PROBLEM, StringType())
    kind = to_arrow_type(schema, timezone="UTC")
    return Parsed(
        rows=rows.mapInArrow(partial(_decoded, column, registry, reading, kind), wide),
        columns={field.name: F.col(f"{_ROW}.{quoted(field.name)}") for field in schema.fields},
        wrong=F.col(_PROBLEM).isNotNull(),
        message=F.col(_PROBLEM),
    )


def _decoded(
    column: str,
    registry: Registry,
    reading: Callable[[], ReadRecord],
    kind: pa.DataType,
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    read = _asking_once(reading())
    for batch in batches:
        rows, problems = [], []
        for value in batch.column(column).to_pylist():
            row, problem = read_record(value, registry, read)
            rows.append(row)
            problems.append(problem)
        yield batch.append_column(_ROW, _typed(rows, problems, kind)).append_column(
            _PROBLEM, pa.array(problems, pa.string())
        )


def read_record(
    value: bytes | None, registry: Registry, read: Callable[[SchemaId, bytes], Any]
) -> tuple[Any, str | None]:
    """What `read` makes of it, or what is wrong with it."""
    if value is None:
        return None, "the record has no value: it is a tombstone"
    found = registry.opened(value)
    if found is None:
        return None, f"the record does not begin as those do that name a schema of a registry: {registry.beginning}"
    id, content = found
    try:
        return read(id, content), None
    except UnknownSchema:
        return None, f"schema {id} is not in the registry"
    except Unreadable as problem:
        return None, str(problem)


def _asking_once(read: ReadRecord) -> ReadRecord:
    """A registry that does not have a schema is not asked for it again with every record; it is by the next task."""
    unknown: dict[SchemaId, str] = {}

    def reading(id: SchemaId, content: bytes) -> dict[str, Any]:
        if id in unknown:
            raise UnknownSchema(unknown[id])
        try:
            return read(id, content)
        except UnknownSchema as error:
            unknown[id] = error.found
            raise

    return reading


def unnamed_schema(value: Column, registry: Registry) -> Column:
    """What is wrong with the header of a record that can be read without its schema; NULL if nothing is."""
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.functions import arrow_udf

    # Spark can tell the signature of a plain function only.
    function = arrow_udf(lambda headers: _problems(registry, headers), "string")  # type: ignore[call-overload]
    found: Column = function(F.substring(value, 1, HEADER_BYTES))
    return found


def _problems(registry: Registry, headers: pa.Array) -> pa.Array:
    import pyarrow as pa

    def looked_up(id: SchemaId, _: bytes) -> None:
        if (registry, id) not in _known:
            registry.schema(id)
            _known.add((registry, id))

    given = headers.to_pylist()
    problems = {header: read_record(header, registry, looked_up)[1] for header in set(given)}
    return pa.array([problems[header] for header in given], pa.string())


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
