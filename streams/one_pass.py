"""JSON records in one pass: the workers that read the bytes keep what a window or a target needs, many rows as one.

Otherwise every row would become one of Spark's between two visits to Python. It is done where nothing but names of
columns lies between the record and the window or the target; a record that is not plain passes as it came, so that
there is one judge of what is a bad row, and the rows come in the order that they would have had.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from ematix_flow.errors import FlowError
from ematix_flow.sinks.ahead import AHEAD, KIND, marks
from ematix_flow.sinks.base import Made, Sink, TakesTables, TakesThere, Taking
from ematix_flow.specs import PipelineSpec
from ematix_flow.specs.window import BY_ANOTHER, Window
from ematix_flow.state.kernel import TIME
from ematix_flow.streams.envelope import CALENDAR, ERROR, EVENT_TS
from ematix_flow.streams.json_reader import are_known, reader
from ematix_flow.streams.transform import STREAM, parsed

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

VALUE, TIMESTAMP = "value", "timestamp"
# Columns of a record that are the same for all that come together.
_PLACE = ("topic", "partition")
# What SQL may name beside the payload.
_BESIDE = {"key": "binary", "topic": "string", "partition": "int", "offset": "bigint", TIMESTAMP: "timestamp"}


@dataclass(frozen=True)
class Needed:
    """What a window or a target needs of each record."""

    columns: Mapping[str, str]
    """Its names -> those of the payload."""
    time: str | None = None
    """The column of the payload that holds the event time of a window; without one it is that of the record."""
    beside: Mapping[str, str] = field(default_factory=dict)
    """Its names -> those of the record."""
    made: Made | None = None
    """What a target needs of rows with these columns; without it, they go to a window."""
    taking: Taking | None = None
    """How the target may have it where it is made."""


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


def needed_by(sink: Sink, spec: PipelineSpec, schema: StructType) -> Needed | None:
    """The same for the only target of a pipeline without an operator."""
    from pyspark.sql.types import DataType, StructField, StructType

    transform = spec.transform
    if transform.window or transform.join or transform.cdc or transform.lookups or not isinstance(sink, TakesTables):
        return None
    if len(spec.sources) > 1 or spec.sources[0].event_time_column or not are_known(schema.fields):
        return None
    kinds = {f"_{name}": DataType.fromDDL(kind) for name, kind in _BESIDE.items()}
    kinds |= {one.name: one.dataType for one in schema.fields}
    names = _names(transform.sql, transform.dialect, schema.names, beside=kinds.keys() - schema.names)
    if names is None or EVENT_TS in {*names, *schema.names}:
        return None
    made = sink.tables(StructType([StructField(name, kinds[given]) for name, given in names.items()]))
    columns = {name: given for name, given in names.items() if given in schema.names}
    beside = {name: given[1:] for name, given in names.items() if given not in schema.names}
    taking = sink.taking if isinstance(sink, TakesThere) else None
    return None if made is None else Needed(columns, beside=beside, made=made, taking=taking)


def read_ahead(records: DataFrame, schema: StructType, wanted: Needed) -> DataFrame:
    """Records with `AHEAD`: what was read of many of them, and all others as they are. They have a column `value`, and
    `timestamp` where that is the event time."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import DataType, StructType

    read = _reading(to_arrow_schema(schema, timezone="UTC"), wanted)
    return records.mapInArrow(read, StructType([*records.schema.fields]).add(AHEAD, DataType.fromDDL(KIND)))


def _names(sql: str | None, dialect: str, columns: list[str], beside: Collection[str] = ()) -> dict[str, str] | None:
    """The columns of the SELECT -> those of the payload or beside it; None if it does more than to name them."""
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
        elif isinstance(column, exp.Column) and _is_only(column, column.name) and column.name in {*columns, *beside}:
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

        taker = wanted.taking() if wanted.taking else None
        at_once = 0
        for batch in batches:
            if taker is not None and taker.is_left():
                # Spark may not like a task that does not take all of its rows.
                continue
            at_once = max(at_once, len(batch))
            table, is_read = _read(read(batch[VALUE]), batch, wanted)
            rest, places = batch.slice(0, 0), pa.nulls(0, pa.int64())
            if not pc.all(is_read).as_py():
                if taker is not None:
                    taker.leave()
                    continue
                is_left = pc.invert(is_read)
                places = pc.cumulative_sum(is_read.cast(pa.int64())).filter(is_left)
                table, rest = table.filter(is_read), batch.filter(is_left)
            count = len(table)
            made = wanted.made(table) if wanted.made else table
            if taker is None:
                ahead = marks(as_bytes(made), count, places, at_once)
            else:
                taker.take(_part(batch), made)
                ahead = marks(b"", 0, places, at_once)
            own = len(ahead) - len(rest)
            left = [
                pa.concat_arrays([_of_all(name, batch, own), column])
                for name, column in zip(rest.schema.names, rest.columns, strict=True)
            ]
            yield pa.RecordBatch.from_arrays([*left, ahead], [*batch.schema.names, AHEAD])

    return reading


def _read(rows: pa.Array, batch: pa.RecordBatch, wanted: Needed) -> tuple[pa.Table, pa.Array]:
    """What is needed of all rows, and which of them are plain."""
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = {name: pc.struct_field(rows, [given]) for name, given in wanted.columns.items()}
    if wanted.made is None:
        time = _moment(batch[TIMESTAMP] if wanted.time is None else pc.struct_field(rows, [wanted.time]))
        return pa.table({**columns, TIME: time, ERROR: pa.nulls(len(rows))}), pc.and_(rows.is_valid(), time.is_valid())
    beside = {name: batch[given] for name, given in wanted.beside.items()}
    return pa.table({**columns, **beside}), rows.is_valid()


def _part(batch: pa.RecordBatch) -> str:
    """As the source names it, see `PART`."""
    return "/".join(str(batch[name][0]) for name in _PLACE)


def _of_all(name: str, batch: pa.RecordBatch, rows: int) -> pa.Array:
    """What rows have that stand for many."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if name == TIMESTAMP:
        return pa.repeat(pc.max(batch[name]), rows)
    return pa.repeat(batch[name][0], rows) if name in _PLACE and len(batch) else pa.nulls(rows, batch[name].type)


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
