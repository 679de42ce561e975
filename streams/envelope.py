"""What travels beside the columns of the payload: when a row happened, where it came from, and what is wrong with it.

`_event_ts` is usable by name but not part of `*`. Columns that begin with `_flow_` are ours alone. `_flow_error` is
NULL for a good row; for a bad one it holds everything its dead letter needs. Bad rows are tagged, never raised; the
runner splits by the tag. What only some pipelines need is carried only there, because on the way of millions of rows
every byte counts.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from ematix_flow.cdc.changes import RECORD_KEY, TOMBSTONE
from ematix_flow.errors import DeclarationError, Problem
from ematix_flow.sinks.ahead import AHEAD, TABLE
from ematix_flow.sinks.base import EVENT_TIME, ORDER, PART
from ematix_flow.specs import PipelineSpec
from ematix_flow.state.kernel import GONE
from ematix_flow.streams.columns import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

    from ematix_flow.streams.one_pass import Needed

EVENT_TS = "_event_ts"
ERROR = "_flow_error"
POSITION = "_flow_position"
SOURCE = "_flow_source"
"""Where the rows of several sources are together: the name of the source of each."""
PAYLOAD = "_flow_payload"
KEY = "_flow_key"
"""What a dead-letter topic needs beside the payload: the key of the record, and its time."""
NUMBER = "_flow_number"
"""A number of the row's own that a repeated batch gives it again, from sources that know one."""
IS_BAD = f"{ERROR} IS NOT NULL"
IS_GOOD = f"{ERROR} IS NULL"
OURS = "_flow_"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
CALENDAR = datetime.min.replace(tzinfo=UTC) - _EPOCH, datetime.max.replace(tzinfo=UTC) - _EPOCH
"""The first and the last moment that a row can have, since 1970."""


@dataclass(frozen=True)
class Carried:
    """What this pipeline needs to know of each row beyond its columns."""

    position: bool = False
    """Where it came from: to tell of a row that fails, or to keep it."""
    payload: bool = False
    """The row as the source has it: to keep one that fails, or to find its line."""
    order: bool = False
    """When it happened and which came later: to find the last one of a key."""
    time: bool = False
    """When it happened: to find its window."""
    key: bool = False
    """The key and the time of the record, to send it to a dead-letter topic."""
    number: bool = False
    """A number of its own: to know it again if a table refuses it."""
    part: bool = False
    """Which part of the batch it belongs to: to write each part once."""
    several: bool = False
    """Rows of other sources are beside it, whose numbers and parts must not be its own."""
    changes: bool = False
    """It is a change of a table: its text is needed, and a record without a value is no bad row."""
    record_key: bool = False
    """The key of the record, which tells that of a table."""
    named: frozenset[str] = frozenset()
    """Columns that the declaration calls by name and that may lie beside the payload, such as `_key`."""
    ahead: Needed | None = None
    """All that is wanted of a good row, where a source may read many of them at once, before Spark does."""

    @classmethod
    def by(cls, spec: PipelineSpec, *, refusing: bool = False) -> Carried:
        """`refusing` says that some target may refuse single rows."""
        first = spec.transform.join or spec.transform.window
        is_told = spec.transform.on_error != "drop" or (first is not None and first.late_data == "dlq")
        return cls(
            position=is_told,
            payload=is_told or spec.transform.cdc is not None,
            order=first is None and any(target.mode in {"merge", "scd2"} for target in spec.targets),
            time=first is not None and first.event_time_column == EVENT_TS,
            key=spec.has_dead_letter_topic,
            number=first is None and refusing,
            part=first is None and spec.delivery == "exactly_once",
            several=len(spec.sources) > 1,
            changes=spec.transform.cdc is not None,
            record_key=spec.transform.cdc is not None and spec.transform.cdc.unlisted == "create",
            named=_named(spec),
        )


def _named(spec: PipelineSpec) -> frozenset[str]:
    """Words that begin with `_`, wherever a declaration may name a column."""
    transform = spec.transform
    texts: list[object] = [transform.sql, transform.window, transform.join]
    for target in spec.targets:
        texts += [target.message_key_column, target.headers_column, target.partition_column, target.topic_column]
        texts += [*target.keys, *target.partition_by]
    return frozenset(re.findall(r"(?<!\w)_\w+", " ".join(map(str, texts)).lower()))


def as_bytes(payload: Column) -> Column:
    return payload.cast("binary")


def as_json_bytes(payload: Column) -> Column:
    """For a payload that is a struct of columns. Spark alone would stop at the milliseconds of a time."""
    from pyspark.sql import functions as F

    micros = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
    return F.to_json(payload, {"timestampFormat": f"{micros}XXX", "timestampNTZFormat": micros}).cast("binary")


@dataclass(frozen=True)
class Decoded:
    """Rows as a decoder read them, and expressions over them. One projection evaluates all of it, so that what only a
    bad row needs costs a good one nothing."""

    rows: DataFrame
    columns: Mapping[str, Column]
    """The payload's columns, in the order of the schema."""
    arrived: Column
    """When the source received the row."""
    order: Column
    """Which of two rows came later, as far as the source can tell without counting them."""
    wrong: Column
    """Whether the row cannot be read; code and message are looked at only then."""
    code: str
    message: Column
    position: Column
    payload: Column
    """The row as the source has it: its bytes, or a struct of its columns. `Origin.rendered` makes bytes of it."""
    key: Column | None = None
    number: Column | None = None
    part: Column | None = None
    """Where Spark may bring the rows of a repeated batch in another order of tasks, see `NUMBER` and `PART`."""
    gone: Column | None = None
    """Whether the row was deleted in the source; targets of mode merge take it away."""
    timed: bool = False
    """The time of arrival is a column of the rows, so that nobody has to be asked for that of a bad row."""
    beside: Mapping[str, Column] = field(default_factory=dict)
    """What the source knows of a row beyond its payload, for pipelines that name it; not part of `*`."""
    ahead: Column | None = None
    """`AHEAD`, where most rows were read before."""


@dataclass(frozen=True)
class BadRow:
    """What is kept of a row that cannot be used."""

    position: str
    source: str
    stage: str
    code: str
    message: str | None
    event_ts: datetime | None
    payload: bytes | None
    """None if there is none, as of a tombstone."""
    key: bytes | None = None
    arrived: datetime | None = None

    @classmethod
    def read(cls, error: str) -> BadRow:
        """From `_flow_error`."""
        facts = json.loads(error)
        record = facts.get("record") or {}
        return cls(
            position=facts.get("position", ""),
            source=facts.get("source", ""),
            stage=facts["stage"],
            code=facts["code"],
            message=facts.get("message"),
            event_ts=_moment(facts.get("event_micros")),
            payload=_bytes(facts.get("payload")),
            key=_bytes(record.get("key")),
            arrived=_moment(record.get("micros")),
        )


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def _moment(micros: int | None) -> datetime | None:
    return None if micros is None else _EPOCH + timedelta(microseconds=micros)


@dataclass(frozen=True)
class Origin:
    """What is the same for all rows of a source, and belongs into the error of any of them."""

    source: str
    rendered: Callable[[Column], Column] = as_bytes

    def error(self, rows: DataFrame, stage: str, code: Column, message: Column) -> Column:
        """The text of `_flow_error` for a row that failed after it was wrapped."""
        from pyspark.sql import functions as F

        carried = {
            POSITION: {"position": F.col(POSITION), "source": F.lit(self.source)},
            PAYLOAD: {"payload": self.rendered(F.col(PAYLOAD))},
            EVENT_TIME: {"event_micros": F.unix_micros(EVENT_TIME)},
            KEY: {"record": F.col(KEY)},
        }
        if SOURCE in rows.columns:
            carried[POSITION]["source"] = F.col(SOURCE)
        known = [facts for column, facts in carried.items() if column in rows.columns]
        return _error(stage, code, {"message": message}, *known)


def with_itself_as_payload(rows: DataFrame, columns: Sequence[str]) -> DataFrame:
    """For rows that are of no one row of a source; `as_json_bytes` renders them."""
    from pyspark.sql import functions as F

    return rows.withColumn(PAYLOAD, F.struct(*[F.col(quoted(name)) for name in columns]))


def wrapped(
    decoded: Decoded, origin: Origin, carried: Carried, schema: StructType, event_time_column: str | None
) -> DataFrame:
    """Decoded rows as the rest of the pipeline sees them: the payload's columns, `_event_ts`, and what is ours."""
    from pyspark.sql import functions as F

    declared = _event_time(decoded, origin.source, schema, event_time_column)
    moment = decoded.arrived if declared is None else declared[1]
    at_hand = declared is not None or decoded.timed
    known: dict[str, Column] = {}
    if carried.position:
        known = {"position": decoded.position, "source": F.lit(origin.source)}
        known["payload"] = origin.rendered(decoded.payload)
        # Otherwise the source is asked, once per bad row, when it arrived.
        known["event_micros"] = F.unix_micros(moment) if at_hand else F.lit(None).cast("long")

    record: Column | None = None
    if carried.key and decoded.key is not None:
        record = F.struct(decoded.key.alias("key"), F.unix_micros(decoded.arrived).alias("micros"))
        known["record"] = record

    def error(stage: str, code: str, message: Column) -> Column:
        return _error(stage, F.lit(code), {**known, "message": message})

    nothing = decoded.payload.isNull() | (F.trim(decoded.payload.cast("string")) == "null")
    unusable = decoded.wrong & ~nothing if carried.changes else decoded.wrong
    wrong = F.when(unusable, error("decode", decoded.code, decoded.message))
    if (missing := _missing(decoded.columns, schema)) is not None and not carried.changes:
        wrong = wrong.when(missing.isNotNull(), error("decode", decoded.code, missing))
    if declared is not None and (carried.order or carried.time):
        message = _no_time(declared[0], decoded.columns[declared[0]])
        wrong = wrong.when(moment.isNull(), error("event_time", "no-event-time", message))
    columns = dict(decoded.columns)
    if event_time_column not in (None, EVENT_TS):
        # Then a column of the payload that has this name is not what it says.
        columns[EVENT_TS] = moment
    columns.setdefault(EVENT_TS, moment)
    for name in carried.named & decoded.beside.keys():
        columns.setdefault(name, decoded.beside[name])
    columns[ERROR] = wrong if decoded.ahead is None else F.when(decoded.ahead[TABLE].isNull(), wrong)
    number, part = decoded.number, decoded.part
    if carried.several and number is not None and part is not None:
        number = F.xxhash64(F.lit(origin.source), decoded.position)
        part = F.concat_ws("/", F.lit(origin.source), part)
    timed = carried.order or carried.time or (carried.payload and at_hand)
    ours = {
        POSITION: decoded.position if carried.position else None,
        PAYLOAD: decoded.payload if carried.payload else None,
        EVENT_TIME: moment if timed else None,
        ORDER: decoded.order if carried.order else None,
        KEY: record,
        RECORD_KEY: decoded.key if carried.record_key else None,
        NUMBER: number if carried.number else None,
        PART: part if carried.part else None,
        GONE: decoded.gone,
        AHEAD: decoded.ahead,
        TOMBSTONE: F.coalesce(decoded.wrong & nothing, F.lit(False)) if carried.changes else None,
    }
    columns |= {name: column for name, column in ours.items() if column is not None}
    return decoded.rows.select(*[column.alias(name) for name, column in columns.items()])


def _missing(columns: Mapping[str, Column], schema: StructType) -> Column | None:
    """In words, which column is NULL that must not be."""
    from pyspark.sql import functions as F

    required = [field.name for field in schema.fields if not field.nullable and field.name in columns]
    words = [F.when(columns[name].isNull(), F.lit(f"column {name}: NULL, but it is NOT NULL")) for name in required]
    return F.coalesce(*words) if words else None


def _error(stage: str, code: Column, *known: Mapping[str, Column]) -> Column:
    """A text, because an empty struct costs every good row a tenth of its time and an empty text nothing."""
    from pyspark.sql import functions as F

    facts = {name: value for some in known for name, value in some.items()}
    return F.to_json(F.struct(F.lit(stage).alias("stage"), code.alias("code"), *[v.alias(n) for n, v in facts.items()]))


def _event_time(decoded: Decoded, source: str, schema: StructType, declared: str | None) -> tuple[str, Column] | None:
    """The column that the event time comes from, and the time."""
    from pyspark.sql.types import DatetimeType, NumericType, StringType

    names = list(decoded.columns)
    if declared is not None and declared not in names:
        problem = Problem(f"source {source!r} event_time_column", f'found "{declared}"', allowed=", ".join(names))
        raise DeclarationError("event time", [problem])
    if declared is not None and not isinstance(schema[declared].dataType, DatetimeType | NumericType | StringType):
        found = f'column "{declared}" is {schema[declared].dataType.simpleString()}'
        problem = Problem(f"source {source!r} event_time_column", found, allowed="a time, a text or a number")
        raise DeclarationError("event time", [problem])
    name = declared or (EVENT_TS if EVENT_TS in names else None)
    return None if name is None else (name, as_timestamp(decoded.columns[name], schema[name].dataType))


def _no_time(name: str, column: Column) -> Column:
    from pyspark.sql import functions as F

    unreadable = F.concat(F.lit(f'column {name}: cannot read "'), column.cast("string"), F.lit('" as a time'))
    return F.coalesce(unreadable, F.lit(f"column {name}: there is no event time"))


def as_timestamp(column: Column, kind: DataType) -> Column:
    """Numbers are milliseconds since 1970, as everywhere in this API. What is no time becomes NULL, and so does one
    that no calendar has, such as milliseconds that were taken for seconds: the watermark would never come back."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import IntegralType, NumericType

    if isinstance(kind, NumericType):
        first, last = (moment // timedelta(milliseconds=1) for moment in CALENDAR)
        whole = isinstance(kind, IntegralType)
        moment = F.timestamp_millis(column) if whole else F.timestamp_micros(F.floor(column * 1000).cast("long"))
        return F.when(column.between(first, last), moment)
    first, last = (moment // timedelta(microseconds=1) for moment in CALENDAR)
    moment = column.try_cast("timestamp")
    return F.when(F.unix_micros(moment).between(first, last), moment)
