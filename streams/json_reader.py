"""JSON objects to columns in Python workers, by Arrow's reader, which takes less time than Spark's.

It reads what is plain: everything that it accepts, Spark reads as the same values. It says nothing of the rest, which
is left to Spark row by row, so that there is one judge of what is a bad row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructField

# Rows that are tried again together, if some among many cannot be read.
_FEW, _HOPELESS = 64, 4
# Reading takes several times as much memory.
_AT_ONCE_BYTES = 16 << 20
_WITH_SECONDS = 19
_LAST_YEAR = 9999
# Hours that Java knows too.
_ZONE = "(Z|[+-](0[0-9]|1[0-7])(:?[0-5][0-9])?)$"


def plain_objects(text: Column, fields: Sequence[StructField]) -> Column | None:
    """A struct of these fields, NULL for a text that Spark must read; None if Arrow does not know one of the types."""
    from pyspark.sql.pandas.functions import arrow_udf
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    if not are_known(fields):
        return None
    schema = StructType(list(fields))
    # Spark can tell the signature of a plain function only.
    read = reader(to_arrow_schema(schema, timezone="UTC"))
    function = arrow_udf(lambda texts: read(texts), schema)  # type: ignore[call-overload]  # noqa: PLW0108
    read_column: Column = function(text)
    return read_column


def are_known(fields: Sequence[StructField]) -> bool:
    """Whether Arrow knows all of the types."""
    return bool(fields) and all(_is_known(field.dataType, top=True) for field in fields)


def reader(schema: pa.Schema) -> Callable[[pa.Array], pa.Array]:
    """Of texts, or of bytes that are to be texts; used in workers."""
    return partial(_read, schema)


def _is_known(kind: DataType, *, top: bool) -> bool:
    from pyspark.sql import types

    if isinstance(kind, types.StructType):
        return bool(kind.fields) and all(_is_known(field.dataType, top=False) for field in kind.fields)
    if isinstance(kind, types.ArrayType):
        return _is_known(kind.elementType, top=False)
    exact = (types.LongType, types.IntegerType, types.ShortType, types.ByteType, types.DoubleType, types.BooleanType)
    # What `_as_wanted` looks at once more, it looks for among the columns only, not inside of them.
    checked = (types.FloatType, types.DecimalType, types.TimestampType, types.TimestampNTZType, types.DateType)
    return type(kind) is types.StringType or isinstance(kind, (*exact, *(checked if top else ())))


def _read(schema: pa.Schema, texts: pa.Array) -> pa.Array:
    import pyarrow as pa

    at_once = max(1, len(texts) * _AT_ONCE_BYTES // max(texts.nbytes, _AT_ONCE_BYTES))
    pieces = [_read_at_once(texts.slice(begin, at_once), schema) for begin in range(0, len(texts), at_once)]
    return pa.concat_arrays([pa.nulls(0, pa.struct(list(schema))), *pieces])


def _read_at_once(texts: pa.Array, schema: pa.Schema) -> pa.Array:
    import pyarrow.compute as pc

    if (rows := _rows(texts, schema)) is not None:
        return rows
    is_object = pc.fill_null(pc.and_not(_begin_and_end(texts), pc.match_substring(texts, "\n")), False)
    rows = _in_pieces(texts.filter(is_object), schema)
    places = pc.subtract(pc.cumulative_sum(is_object.cast("int64")), 1)
    return rows.take(pc.if_else(is_object, places, None))


def _in_pieces(texts: pa.Array, schema: pa.Schema) -> pa.Array:
    """If none of the first pieces can be read, the others cannot, either."""
    import pyarrow as pa

    kind = pa.struct(list(schema))
    found, failed = [pa.nulls(0, kind)], 0
    for begin in range(0, len(texts), _FEW):
        piece = texts.slice(begin, _FEW)
        rows = _rows(piece, schema) if failed < _HOPELESS or begin > failed * _FEW else None
        failed += rows is None
        found.append(pa.nulls(len(piece), kind) if rows is None else rows)
    return pa.concat_arrays(found)


def _rows(texts: pa.Array, schema: pa.Schema) -> pa.Array | None:
    """None if one of the texts is not plainly an object on one line, of the right types."""
    import pyarrow as pa
    import pyarrow.json as pj

    lines = _lines(texts)
    reading = pj.ReadOptions(use_threads=False, block_size=max(1 << 16, 2 * len(lines)))
    parsing = pj.ParseOptions(explicit_schema=_as_read(schema), unexpected_field_behavior="ignore")
    try:
        if not _are_apart(texts, lines):
            return None
        table = pj.read_json(pa.BufferReader(lines), reading, parsing).combine_chunks()
        # Each text is one object or more.
        if len(table) != len(texts):
            return None
        columns = [_as_wanted(table.column(field.name).chunk(0), field.type) for field in schema]
    except pa.ArrowException:
        return None
    if any(one is None or (one.null_count and not field.nullable) for one, field in zip(columns, schema, strict=True)):
        return None
    return pa.StructArray.from_arrays(columns, fields=list(schema))


def _lines(texts: pa.Array) -> pa.Buffer:
    import pyarrow as pa
    import pyarrow.compute as pc

    together = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts.cast(pa.binary()))
    joined = pc.binary_join(together, b"\n")[0]
    return joined.as_buffer() if joined.is_valid else pa.py_buffer(b"")


def _are_apart(texts: pa.Array, lines: pa.Buffer) -> bool:
    """Whether every text begins and ends as an object does and is a line of its own: what Arrow reads as so many
    objects is then one of each. It does not look whether a text is one, and does not survive a line that is no
    object."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if texts.null_count or not pc.all(_begin_and_end(texts)).as_py():
        return False
    texts.cast(pa.string()).validate(full=True)
    return bool(lines.to_pybytes().count(b"\n") == len(texts) - 1)


def _begin_and_end(texts: pa.Array) -> Any:
    import pyarrow.compute as pc

    return pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))


def _as_read(schema: pa.Schema) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([f.with_type(pa.string()) if pa.types.is_temporal(f.type) else f for f in schema])


def _as_wanted(column: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """None if Spark might understand it otherwise."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_floating(kind):
        # Not everybody spells infinity alike.
        return column if pc.all(pc.is_finite(column)).as_py() is not False else None
    if pa.types.is_decimal(kind):
        # Arrow reads more digits than a decimal has room for.
        column.validate(full=True)
    if not pa.types.is_temporal(kind):
        return column
    shortest = pc.min(pc.binary_length(column)).as_py()
    if shortest is None:
        return pa.nulls(len(column), kind)
    if pa.types.is_date(kind):
        return _in_the_calendar(column.cast(kind))
    if shortest < _WITH_SECONDS:
        return None
    if kind.tz is None:
        return _in_the_calendar(_time(column, kind))
    has_zone = pc.ends_with(column, "Z")
    if pc.all(has_zone).as_py() is False:
        has_zone = pc.match_substring_regex(column, _ZONE)
        if pc.any(has_zone).as_py() is False:
            # Without a zone it is UTC.
            return _in_the_calendar(_time(column, pa.timestamp("us")).cast(kind))
    return _in_the_calendar(_time(column, kind)) if pc.all(has_zone).as_py() is not False else None


def _in_the_calendar(times: pa.Array) -> pa.Array | None:
    import pyarrow.compute as pc

    years = [pc.year(end).as_py() for end in pc.min_max(times).values()]
    return times if all(year is None or 1 <= year <= _LAST_YEAR for year in years) else None


def _time(column: pa.Array, kind: pa.DataType) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        return column.cast(kind)
    except pa.ArrowInvalid:
        # Java and Go write nanoseconds; what is finer than a microsecond is cut off.
        fine = column.cast(pa.timestamp("ns", kind.tz))
        return pc.floor_temporal(fine, unit="microsecond").cast(kind)
