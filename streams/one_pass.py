"""Windows over JSON records in one pass: the workers that read the bytes keep what the windows need, many rows as one.

Otherwise every row would become one of Spark's between two visits to Python. It is done where nothing but names of
columns lies between the record and the window; a record that is not plain passes as it came, so that there is one judge
of what is a bad row, and the rows come to the window in the order that they would have had.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from ematix_flow.errors import FlowError
from ematix_flow.specs import PipelineSpec
from ematix_flow.specs.window import BY_ANOTHER, Window
from ematix_flow.state.kernel import TIME
from ematix_flow.streams.ahead import AHEAD, KIND, marks
from ematix_flow.streams.envelope import CALENDAR, ERROR, EVENT_TS
from ematix_flow.streams.json_reader import are_known, reader
from ematix_flow.streams.transform import STREAM, parsed

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

VALUE, TIMESTAMP = "value", "timestamp"


@dataclass(frozen=True)
class Needed:
    """What a window needs of each record."""

    columns: Mapping[str, str]
    """Its names -> those of the payload."""
    time: str | None
    """The column of the payload that holds the event time; without one it is that of the record."""


def needed(spec: PipelineSpec, schema: StructType) -> Needed | None:
    """None if more is done to a row than giving its columns names; `schema` is that of the payload."""
    from pyspark.sql.types import DoubleType, FloatType, IntegralType, TimestampType

    window, transform = spec.transform.window, spec.transform
    if window is None or window.kind == "session" or window.late_data == "dlq":
        return None
    if len(spec.sources) > 1 or transform.join or transform.lookups or not are_known(schema.fields):
        return None
    names, columns = _names(transform.sql, transform.dialect, schema.names), _columns(window)
    if names is None or not names.keys() >= columns:
        return None
    # Keys that are equal are written alike, which takes more than reading them where -0.0 is 0.0.
    if any(isinstance(schema[names[key]].dataType, FloatType | DoubleType) for key in window.group_by):
        return None
    declared = spec.sources[0].event_time_column or (EVENT_TS if EVENT_TS in schema.names else None)
    time = declared if window.event_time_column == EVENT_TS else names.get(window.event_time_column, "")
    if names.get(EVENT_TS, declared) != declared:
        # There are two of this name.
        return None
    if time is not None and not (
        time in schema.names and isinstance(schema[time].dataType, TimestampType | IntegralType)
    ):
        return None
    return Needed({name: names[name] for name in columns}, time)


def read_ahead(records: DataFrame, schema: StructType, wanted: Needed) -> DataFrame:
    """Records with `AHEAD`: what was read of many of them, and all others as they are. They have a column `value`, and
    `timestamp` where that is the event time."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import DataType, StructType

    read = _reading(to_arrow_schema(schema, timezone="UTC"), wanted)
    return records.mapInArrow(read, StructType([*records.schema.fields]).add(AHEAD, DataType.fromDDL(KIND)))


def _names(sql: str | None, dialect: str, columns: list[str]) -> dict[str, str] | None:
    """The columns of the SELECT -> those of the payload; None if it does more than to name them."""
    from sqlglot import exp

    if sql is None:
        return {name: name for name in columns}
    try:
        tree = parsed(sql, dialect)
    except FlowError:
        # Spark may understand it, or tells what is wrong.
        return None
    clauses = {name.rstrip("_") for name, clause in tree.args.items() if clause}
    if clauses != {"expressions", "from"} or not _is_only(tree.find(exp.From).this, STREAM):
        return None
    names: list[tuple[str, str]] = []
    for one in tree.expressions:
        column = one.this if isinstance(one, exp.Alias) else one
        if isinstance(column, exp.Star) and not any(column.args.values()):
            names += [(name, name) for name in columns]
        elif isinstance(column, exp.Column) and _is_only(column, column.name) and column.name in columns:
            names.append((one.alias_or_name, column.name))
        else:
            return None
    found = dict(names)
    return found if len({name.lower() for name in found}) == len(names) else None


def _is_only(part: Any, name: str) -> bool:
    """Without a qualifier, an alias or anything else."""
    return bool(part.name == name and {key for key, value in part.args.items() if value} == {"this"})


def _columns(window: Window) -> set[str]:
    """Those that it names, besides the event time."""
    given = {one.column or "" for one in window.aggregations}
    given |= {one.mode or "" for one in window.aggregations if one.agg in BY_ANOTHER}
    inputs = {name.strip() for text in given for name in text.split(",")}
    return {*window.group_by, *inputs} - {""}


def _reading(schema: pa.Schema, wanted: Needed) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    read = reader(schema)

    def reading(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        import pyarrow.compute as pc

        from ematix_flow.streams.packing import as_bytes

        for batch in batches:
            rows = read(batch[VALUE])
            columns = {name: pc.struct_field(rows, [given]) for name, given in wanted.columns.items()}
            time = _moment(batch[TIMESTAMP] if wanted.time is None else pc.struct_field(rows, [wanted.time]))
            table = pa.table({**columns, TIME: time, ERROR: pa.nulls(len(rows))})
            is_read = pc.and_(rows.is_valid(), time.is_valid())
            rest, places = batch.slice(0, 0), pa.nulls(0, pa.int64())
            if not pc.all(is_read).as_py():
                is_left = pc.invert(is_read)
                places = pc.cumulative_sum(is_read.cast(pa.int64())).filter(is_left)
                table, rest = table.filter(is_read), batch.filter(is_left)
            left = [pa.concat_arrays([pa.nulls(1, column.type), column]) for column in rest.columns]
            ahead = marks(as_bytes(table), len(table), places)
            yield pa.RecordBatch.from_arrays([*left, ahead], [*batch.schema.names, AHEAD])

    return reading


def _moment(column: pa.Array) -> pa.Array:
    """As `envelope.as_timestamp` has it."""
    import pyarrow as pa
    import pyarrow.compute as pc

    unit = timedelta(milliseconds=1) if pa.types.is_integer(column.type) else timedelta(microseconds=1)
    first, last = (moment // unit for moment in CALENDAR)
    number = column.cast(pa.int64())
    is_time = pc.and_(pc.greater_equal(number, first), pc.less_equal(number, last))
    micros = pc.multiply(pc.if_else(is_time, number, None), unit // timedelta(microseconds=1))
    return micros.cast(pa.timestamp("us", "UTC"))
