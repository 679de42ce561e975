"""Dead letters as a stream: what a replay has put into its inbox, decoded as the source decodes its own rows."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import unquote

from ematix_flow.specs import PipelineSpec, Source
from ematix_flow.state import durable
from ematix_flow.state.dead_letters import DeadLetter
from ematix_flow.state.store import ReplayStore, Store
from ematix_flow.streams.columns import quoted
from ematix_flow.streams.csv_lines import header_of, names_in, values
from ematix_flow.streams.csv_reader import CsvOptions
from ematix_flow.streams.decode import Parsed, json_text, not_text
from ematix_flow.streams.envelope import Carried, Decoded, Origin, wrapped
from ematix_flow.streams.sources.base import NoColumns, NothingToInfer, StreamSource
from ematix_flow.streams.sources.opening import open_source

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructField

# Names of ours, because the payload's columns stand beside them.
_ID, _OF, _BYTES, _POSITION, _ARRIVED, _FOLDERS, _RECORD, _FIELDS = (
    "_flow_letter", "_flow_of", "_flow_bytes", "_flow_where", "_flow_arrived", "_flow_folders", "_flow_record",
    "_flow_fields",
)  # fmt: skip
_SPOOL = (
    f"{_ID} string, {_OF} string, {_BYTES} binary, {_POSITION} string, {_ARRIVED} timestamp, "
    f"{_FOLDERS} map<string, string>, {_FIELDS} map<string, string>, "
    f"{_RECORD} struct<key: binary, headers: array<struct<key: string, value: binary>>, timestamp: timestamp>"
)
_TEXT, _PARSED, _CORRUPT = "_flow_text", "_flow_parsed", "_flow_corrupt"

_CODED = frozenset({"csv", "avro", "protobuf", "json_schema"})
_LETTERS_AT_ONCE = 1000
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


def open_letters(spec: PipelineSpec, index: int, store: Store, session: SparkSession) -> StreamSource:
    assert isinstance(store, ReplayStore)
    try:
        original = open_source(spec, index, store, session)
    except NothingToInfer as error:
        # Waiting for input, as a pipeline would, does not help: its letters are there already.
        raise NoColumns(error.found, next_step=error.next_step) from error
    return LettersSource(spec.sources[index], original, store.inbox)


class LettersSource:
    """Takes the place of the source that letters once came from, and reads those of its own. The position of a row is
    the id of its letter, so that a row that fails again is known as the letter that it was."""

    replayable: ClassVar[bool] = True
    ranged: ClassVar[bool] = False
    exact_positions = True

    def __init__(self, declared: Source, original: StreamSource, inbox: Path) -> None:
        self._declared, self._original, self._inbox = declared, original, inbox
        self.payload_format = original.payload_format
        self.payload_schema = original.payload_schema
        self.origin = Origin(original.origin.source)

    def read(self, session: SparkSession, carried: Carried) -> DataFrame:
        from pyspark.sql import functions as F

        spooled = session.readStream.schema(_SPOOL).option("maxFileAge", "36500d").parquet(str(self._inbox))
        spooled = spooled.where(F.col(_OF) == self.origin.source)
        fields, folders = self.payload_schema.fields, self._folders()
        in_payload = [field for field in fields if field.name not in folders]
        parsed = self._parsed(spooled, in_payload)
        in_folder = {field.name: F.col(_FOLDERS)[field.name].try_cast(field.dataType) for field in fields}
        beside = getattr(self._original, "beside_of_letters", None)
        decoded = Decoded(
            rows=parsed.rows,
            columns=in_folder | parsed.columns,
            arrived=F.col(_ARRIVED),
            order=_order(),
            wrong=parsed.wrong,
            code=f"bad-{self.payload_format.replace('_', '-') if self.payload_format in _CODED else 'json'}",
            message=parsed.message,
            position=F.col(_ID),
            payload=F.col(_BYTES),
            beside=beside(F.col(_POSITION), F.col(_RECORD), F.col(_ARRIVED)) if beside else {},
        )
        return wrapped(decoded, self.origin, carried, self.payload_schema, self._declared.event_time_column)

    def _parsed(self, spooled: DataFrame, in_payload: list[StructField]) -> Parsed:
        from pyspark.sql import functions as F

        by_source = getattr(self._original, "parsed", None)
        if by_source is not None:
            found: Parsed = by_source(spooled, _BYTES)
            return found
        with_text = spooled.withColumn(_TEXT, F.col(_BYTES).cast("string"))
        if self.payload_format != "csv":
            return json_text(with_text, _TEXT, in_payload)
        one = _from_csv(in_payload, CsvOptions.of(self._declared))
        return Parsed(with_text.withColumn(_PARSED, one.struct), one.columns, one.wrong, one.message)

    def reason(self, payload: bytes) -> str:
        return self._original.reason(payload)

    def lines(self, file: str, payloads: Collection[bytes]) -> Mapping[bytes, Sequence[int]]:
        return {}

    def place(self, position: str, payload: bytes) -> str:
        return f"dead letter {position}"

    def arrived(self, position: str) -> datetime | None:
        """A letter keeps the time that it has."""
        return None

    def release(self, batch: int) -> None:
        """The replay clears its inbox when all is done."""

    def _folders(self) -> set[str]:
        """The columns that stood in the names of folders, and so are no part of any payload."""
        if self.payload_format in {"parquet", "orc"}:
            return set()
        from pyarrow.parquet import ParquetFile

        letters = (file for path in self._inbox.glob("*.parquet") for file in ParquetFile(path).iter_batches(1))
        first = next(letters, None)
        return set() if first is None else {name for name, _ in first.column(_FOLDERS)[0].as_py()}


def spool(letters: Iterator[DeadLetter], file: Path, spec: PipelineSpec) -> None:
    """Write letters to where `LettersSource` finds them, all or nothing."""
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    time = pa.timestamp("us", "UTC")
    headers = pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()}))
    schema = pa.schema(
        {
            _ID: pa.string(),
            _OF: pa.string(),
            _BYTES: pa.binary(),
            _POSITION: pa.string(),
            _ARRIVED: time,
            _FOLDERS: pa.map_(pa.string(), pa.string()),
            _FIELDS: pa.map_(pa.string(), pa.string()),
            _RECORD: pa.struct({"key": pa.binary(), "headers": headers, "timestamp": time}),
        }
    )
    options = {name: CsvOptions.of(one) for name, one in zip(spec.source_names, spec.sources, strict=True)}
    draft = file.with_name(f".{file.stem}.draft")
    with ParquetWriter(draft, schema) as writer:
        while some := list(islice(letters, _LETTERS_AT_ONCE)):
            writer.write_batch(_batch(some, schema, options))
    durable.sync(draft)
    draft.replace(file)
    durable.sync(file.parent)


def _batch(letters: list[DeadLetter], schema: pa.Schema, options: Mapping[str, CsvOptions]) -> pa.RecordBatch:
    import pyarrow as pa

    rows = [
        (
            letter.id,
            letter.source,
            letter.payload,
            letter.position,
            letter.event_ts,
            list(_folders_of(letter.position).items()),
            _fields_of(letter, options.get(letter.source, CsvOptions())),
            _record_of(letter),
        )
        for letter in letters
    ]
    return pa.record_batch([list(column) for column in zip(*rows, strict=True)], schema=schema)


def _fields_of(letter: DeadLetter, options: CsvOptions) -> list[tuple[str, str | None]] | None:
    """Of a CSV line whose fields are not those of the schema, in that order."""
    header = header_of(letter.payload_format)
    fields = values(letter.payload or b"", names_in(header, options), options) if header else None
    return None if fields is None else list(fields.items())


def _record_of(letter: DeadLetter) -> dict[str, object]:
    headers = [{"key": name, "value": value} for name, value in letter.headers] or None
    return {"key": letter.key, "headers": headers, "timestamp": letter.arrived}


def _folders_of(position: str) -> dict[str, str | None]:
    """What folders such as `day=2026-01-01` in the path of a file stand for."""
    folders = unquote(position.rpartition("#")[0]).split("/")[:-1]
    named = (folder.partition("=") for folder in folders if "=" in folder)
    return {name: None if value == _NO_VALUE else unquote(value) for name, _, value in named}


@dataclass(frozen=True)
class _Parsed:
    """How a CSV line becomes columns; all but `struct` are over rows that have the struct as `_PARSED`."""

    struct: Column
    columns: dict[str, Column]
    wrong: Column
    message: Column


def _from_csv(fields: list[StructField], options: CsvOptions) -> _Parsed:
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType, StructField, StructType

    def text(field: StructField) -> Column:
        value = F.col(f"{_PARSED}.{quoted(field.name)}")
        if options.null_value:
            value = F.nullif(F.coalesce(value, F.lit("")), F.lit(options.null_value))
        return F.when(F.col(_FIELDS).isNull(), value).otherwise(F.col(_FIELDS)[field.name])

    schema = StructType([StructField(name, StringType()) for name in (*(field.name for field in fields), _CORRUPT)])
    given = {
        "sep": options.delimiter,
        "quote": options.quote,
        "escape": options.escape or options.quote,
        # Equal to no field, so that only a field of no characters at all is NULL, and "" is an empty text.
        "nullValue": "\x00",
        "columnNameOfCorruptRecord": _CORRUPT,
    }
    # The position of a line that did not fit its header has a number below zero; without the header, nobody knows
    # which of its fields is which.
    torn = F.col(_POSITION).rlike(r"#-\d+$") | F.col(_PARSED).isNull() | F.col(f"{_PARSED}.{_CORRUPT}").isNotNull()
    torn &= F.col(_FIELDS).isNull()
    shape = F.when(torn, F.lit("the line does not have as many fields as the header"))
    message = F.coalesce(shape, not_text(F.col(_TEXT)), *[_misfit(text(field), field) for field in fields])
    return _Parsed(
        struct=F.from_csv(F.col(_TEXT), schema.simpleString(), given),
        columns={field.name: text(field).try_cast(field.dataType) for field in fields},
        wrong=message.isNotNull(),
        message=message,
    )


def _misfit(text: Column, field: StructField) -> Column:
    from pyspark.sql import functions as F

    words = F.concat(F.lit(f'column {field.name}: cannot read "'), text, F.lit(f'" as {field.dataType.simpleString()}'))
    return F.when(text.isNotNull() & text.try_cast(field.dataType).isNull(), words)


def _order() -> Column:
    """By file and place in it, as far as the position tells."""
    from pyspark.sql import functions as F

    place = F.substring_index(F.substring_index(_POSITION, "#", -1), "+", 1).try_cast("long")
    return F.struct(F.substring_index(_POSITION, "#", 1).alias("file"), place.alias("place"))
