"""Payload bytes to columns, for files: one decoder per format, each telling which rows it cannot read, and why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ematix_flow.specs import Source
from ematix_flow.streams.columns import quoted
from ematix_flow.streams.csv_reader import FILE, MALFORMED, ROW, CsvOptions, csv_rows, raw_schema
from ematix_flow.streams.envelope import Decoded, as_bytes, as_json_bytes
from ematix_flow.streams.json_values import STRICTLY, fitting, overflow, wider
from ematix_flow.streams.sources.listing import folder_columns, for_spark, visible_files
from ematix_flow.streams.sources.nanoseconds import as_numbers, nanosecond_columns, time_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamReader
    from pyspark.sql.types import StructField, StructType

Decoder = Callable[["DataStreamReader", str, "StructType", Source], Decoded]

_CORRUPT, _END = "_flow_corrupt", "_flow_end"
_LINE, _JSON, _PLAIN = "value", "_flow_json", "_flow_plain"
# Spark's parser takes more for JSON than JSON is.
_STRICTLY = {"allowSingleQuotes": "false", **STRICTLY}
_BLANKS = " \t\r\n"


def json_lines(reader: DataStreamReader, path: str, schema: StructType, source: Source) -> Decoded:
    """Lines are read as text, so that each can be kept byte for byte, and parsed from there."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType, StructField, StructType

    folders = _folders(path, schema)
    with_folders = StructType([StructField(_LINE, StringType()), *folders])
    text = _loaded(reader.option("lineSep", "\n").format("text").schema(with_folders), path, folders)
    # An empty line is no row.
    lines = text.where(F.col(_LINE).endswith("}") | (F.trim(_LINE, F.lit(_BLANKS)) != ""))
    parsed = json_text(lines, _LINE, [field for field in schema.fields if field not in folders])
    columns = _by_name(schema) | parsed.columns
    return Decoded(
        rows=parsed.rows,
        columns=columns,
        arrived=F.col("_metadata.file_modification_time"),
        order=_file_order(),
        wrong=parsed.wrong,
        code="bad-json",
        message=parsed.message,
        position=_block(),
        payload=F.col(_LINE),
    )


@dataclass(frozen=True)
class Parsed:
    """JSON that has become columns."""

    rows: DataFrame
    columns: dict[str, Column]
    wrong: Column
    message: Column


def json_text(rows: DataFrame, text: str, fields: Sequence[StructField], plain: Column | None = None) -> Parsed:
    """From a column of texts, each of which is to be one JSON object. `plain` is a struct of the fields where somebody
    has read them already; the text of such a row is not looked at."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType, StructField, StructType

    if plain is not None:
        rows = rows.withColumn(_PLAIN, plain)
        rows = rows.withColumn(text, F.when(F.col(_PLAIN).isNull(), F.col(text)))
    ending = _ending(F.col(text))
    in_text = StructType([StructField(field.name, wider(field.dataType)) for field in fields])
    in_text = in_text.add(_CORRUPT, StringType()).add(_END, StringType())
    parsed = F.from_json(ending, in_text, {"columnNameOfCorruptRecord": _CORRUPT, **_STRICTLY})
    with_times = StructType([StructField(field.name, wider(field.dataType, times=False)) for field in fields])
    again = F.from_json(ending, with_times, _STRICTLY)
    wrong = F.col(f"{_JSON}.{_CORRUPT}").isNotNull() | ~_is_one_object(F.col(text))
    # Spark would put a question mark in the place of each byte that is no text.
    wrong |= ~F.is_valid_utf8(text)
    columns: dict[str, Column] = {}
    for field in fields:
        name, found = field.name, F.col(f"{_JSON}.{quoted(field.name)}")
        columns[name], misfit = fitting(found, field.dataType, again[name])
        wrong = wrong if misfit is None else wrong | misfit
    too_large = overflow([(columns[field.name], field.dataType) for field in fields], F.col(text))
    wrong = wrong if too_large is None else wrong | too_large
    whole = F.to_json(F.struct(*columns.values()))
    if plain is not None:
        is_plain = F.col(_PLAIN).isNotNull()
        wrong = ~is_plain & wrong
        columns = {
            name: F.when(is_plain, F.col(f"{_PLAIN}.{quoted(name)}")).otherwise(found)
            for name, found in columns.items()
        }
    # NULL, but it names every column: Spark does not even parse what nobody asks for, and whether a row is bad must not
    # depend on who asks.
    return Parsed(rows.withColumn(_JSON, parsed), columns, wrong, F.when(whole.isNull(), whole))


def _ending(text: Column) -> Column:
    """Spark's parser stops at the end of the first object and does not look at what follows. A text with one brace, at
    its end, cannot have anything after it; any other gets a last member, which the first object has only if it ends
    where the text does."""
    from pyspark.sql import functions as F

    opened = _without_last_byte(_trimmed(text))
    return F.when(_has_one_brace(text), text).otherwise(F.concat(opened, F.lit(f',"{_END}":1}}')))


def _has_one_brace(text: Column) -> Column:
    """As its last character."""
    trimmed = _trimmed(text)
    return trimmed.endswith("}") & ~_without_last_byte(trimmed).contains("}")


def _without_last_byte(text: Column) -> Column:
    """By bytes, because Spark counts characters one by one."""
    from pyspark.sql import functions as F

    return F.substring(text.cast("binary"), F.lit(1), F.octet_length(text) - 1).cast("string")


def _is_one_object(text: Column) -> Column:
    from pyspark.sql import functions as F

    return _has_one_brace(text) | (_trimmed(text).endswith("}") & F.col(f"{_JSON}.{_END}").isNotNull())


def _trimmed(text: Column) -> Column:
    """Without what JSON allows after an object, such as the first half of a line end of Windows. Most texts have
    nothing to trim, and looking for it costs as much as a copy."""
    from pyspark.sql import functions as F

    return F.when(text.endswith("}"), text).otherwise(F.rtrim(text, F.lit(_BLANKS)))


def csv(reader: DataStreamReader, path: str, schema: StructType, source: Source) -> Decoded:
    """Columns are matched by the header's names, so that files may differ in order and have columns we do not know."""
    from pyspark.sql import functions as F

    folders = _folders(path, schema)
    listing = _loaded(reader.format("binaryFile").schema(_listing_schema(folders)), path, folders)
    listing = listing.drop("content", "length")
    in_file = [field for field in schema.fields if field not in folders]
    names = [field.name for field in in_file]
    wrong_shape = F.when(F.col(MALFORMED).isNotNull(), F.lit("the line does not have as many fields as the header"))
    texts = [not_text(F.col(quoted(name))) for name in names]
    message = F.coalesce(wrong_shape, *texts, *[_misfit(field) for field in in_file])
    return Decoded(
        rows=listing.mapInArrow(csv_rows(names, CsvOptions.of(source)), raw_schema(names, listing)),
        columns={field.name: F.col(quoted(field.name)).try_cast(field.dataType) for field in schema.fields},
        arrived=F.col("modificationTime"),
        order=F.struct("modificationTime", FILE, ROW),
        wrong=message.isNotNull(),
        code="bad-csv",
        message=message,
        position=F.concat_ws("#", FILE, ROW),
        payload=F.struct(MALFORMED, *[F.col(quoted(name)) for name in names]),
    )


def csv_bytes(payload: Column, options: CsvOptions) -> Column:
    """The line as it was, where it could not be cut into fields; otherwise its fields, written as CSV again."""
    from pyspark.sql import functions as F

    written = F.to_csv(payload.dropFields(MALFORMED), writer_options(options))
    return F.coalesce(payload[MALFORMED], written).cast("binary")


def writer_options(options: CsvOptions) -> dict[str, str]:
    """So that the same options read the fields back as they were."""
    return {
        "sep": options.delimiter,
        "quote": options.quote,
        "escape": options.escape or options.quote,
        "nullValue": options.null_value,
        "ignoreLeadingWhiteSpace": "false",
        "ignoreTrailingWhiteSpace": "false",
    }


def _columnar(form: str) -> Decoder:
    def read(reader: DataStreamReader, path: str, schema: StructType, source: Source) -> Decoded:
        """A file that is not of its format fails as a whole: no row of it can be told apart."""
        from pyspark.sql import functions as F

        nanoseconds = nanosecond_columns(visible_files(path)) if form == "parquet" else set()
        in_file = as_numbers(schema, nanoseconds)
        finer = [one for one, found in zip(schema, in_file, strict=True) if one != found]
        columns = _by_name(schema) | {field.name: time_of(field) for field in finer}
        return Decoded(
            rows=_loaded(reader.format(form).schema(in_file), path, _folders(path, schema)),
            columns=columns,
            arrived=F.col("_metadata.file_modification_time"),
            order=_file_order(),
            wrong=F.lit(False),
            code=f"bad-{form}",
            message=F.lit(None).cast("string"),
            position=_block(),
            payload=F.struct(*columns.values()),
        )

    return read


DECODERS: dict[str, Decoder] = {
    "json_lines": json_lines,
    "csv": csv,
    "parquet": _columnar("parquet"),
    "orc": _columnar("orc"),
}
EXACT_POSITIONS = frozenset({"csv"})
"""Formats whose rows have a number of their own; others only know the block of the file that a row lies in."""


def rendered(form: str, source: Source) -> Callable[[Column], Column]:
    """How the payload of a format becomes the bytes that are kept."""
    if form == "csv":
        return partial(csv_bytes, options=CsvOptions.of(source))
    return as_bytes if form == "json_lines" else as_json_bytes


def csv_reader_options(source: Source) -> dict[str, Any]:
    """The same choices for Spark's own reader, which only looks at the names and types of the columns."""
    options = CsvOptions.of(source)
    return {"sep": options.delimiter, "header": options.header, "quote": options.quote, "nullValue": options.null_value}


def _by_name(schema: StructType) -> dict[str, Column]:
    from pyspark.sql import functions as F

    return {name: F.col(quoted(name)) for name in schema.fieldNames()}


def _folders(path: str, schema: StructType) -> list[StructField]:
    """The columns that stand in the names of folders, not in the files."""
    names = folder_columns(path)
    return [field for field in schema.fields if field.name in names]


def _loaded(reader: DataStreamReader, path: str, folders: list[StructField]) -> DataFrame:
    """All that is below the path; but if folders are columns, Spark has to find them itself, and looks at no others."""
    place, options = for_spark(path)
    return reader.options(recursiveFileLookup=not folders, **options).load(place)


def _block() -> Column:
    """Not from `_metadata`, whose columns Spark copies into every row as soon as one of them is named."""
    from pyspark.sql import functions as F

    return F.expr("concat(input_file_name(), '#', input_file_block_start())")


def _file_order() -> Column:
    """Files in order of their time, as batches take them, then by place in the file."""
    from pyspark.sql import functions as F

    return F.struct(
        F.col("_metadata.file_modification_time").alias("time"),
        F.input_file_name().alias("file"),
        F.input_file_block_start().alias("block"),
    )


def _listing_schema(folders: list[StructField]) -> StructType:
    """What Spark says of a file whose content it does not read."""
    from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType, TimestampType

    kinds = {"path": StringType(), "modificationTime": TimestampType(), "length": LongType(), "content": BinaryType()}
    return StructType([*(StructField(name, kind) for name, kind in kinds.items()), *folders])


def not_text(text: Column) -> Column:
    """What to say of bytes that are no text; Spark and databases would put a question mark in their place."""
    from pyspark.sql import functions as F

    return F.when(~F.is_valid_utf8(text), F.lit("not UTF-8 text"))


def _misfit(field: StructField) -> Column:
    from pyspark.sql import functions as F

    text = F.col(quoted(field.name))
    words = F.concat(F.lit(f'column {field.name}: cannot read "'), text, F.lit(f'" as {field.dataType.simpleString()}'))
    return F.when(text.isNotNull() & text.try_cast(field.dataType).isNull(), words)
