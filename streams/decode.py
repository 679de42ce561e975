"""Payload bytes to columns, for files: one decoder per format, each telling which rows it cannot read, and why."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ematix_flow.specs import Source
from ematix_flow.streams.csv_reader import FILE, MALFORMED, ROW, CsvOptions, csv_rows, raw_schema
from ematix_flow.streams.envelope import Decoded
from ematix_flow.streams.sources.listing import folder_columns

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.streaming.readwriter import DataStreamReader
    from pyspark.sql.types import StructField, StructType

Decoder = Callable[["DataStreamReader", str, "StructType", Source], Decoded]

_CORRUPT = "_flow_corrupt"


def json_lines(reader: DataStreamReader, path: str, schema: StructType, source: Source) -> Decoded:
    """Spark gives a line that does not fit the schema back whole, byte for byte."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType, StructType

    options = {"columnNameOfCorruptRecord": _CORRUPT, "lineSep": "\n"}
    with_corrupt = StructType([*schema.fields]).add(_CORRUPT, StringType())
    columns = _by_name(schema)
    whole = F.to_json(F.struct(*columns.values()))
    return Decoded(
        rows=reader.options(**options).format("json").schema(with_corrupt).load(path),
        columns=columns,
        arrived=F.col("_metadata.file_modification_time"),
        wrong=F.col(_CORRUPT).isNotNull(),
        code="bad-json",
        # NULL, but it names every column: Spark does not even parse what nobody asks for, and whether a row is bad
        # must not depend on who asks.
        message=F.when(whole.isNull(), whole),
        position=_block(),
        payload=F.col(_CORRUPT),
    )


def csv(reader: DataStreamReader, path: str, schema: StructType, source: Source) -> Decoded:
    """Columns are matched by the header's names, so that files may differ in order and have columns we do not know."""
    from pyspark.sql import functions as F

    folders = [field for field in schema.fields if field.name in folder_columns(path)]
    listing = reader.format("binaryFile").schema(_listing_schema(folders)).load(path).drop("content", "length")
    in_file = [field for field in schema.fields if field not in folders]
    names = [field.name for field in in_file]
    wrong_shape = F.when(F.col(MALFORMED).isNotNull(), F.lit("the line does not have as many fields as the header"))
    message = F.coalesce(wrong_shape, *[_misfit(field) for field in in_file])
    return Decoded(
        rows=listing.mapInArrow(csv_rows(names, CsvOptions.of(source)), raw_schema(names, listing)),
        columns={field.name: F.col(f"`{field.name}`").try_cast(field.dataType) for field in schema.fields},
        arrived=F.col("modificationTime"),
        wrong=message.isNotNull(),
        code="bad-csv",
        message=message,
        position=F.concat_ws("#", FILE, ROW),
        payload=F.coalesce(MALFORMED, F.to_csv(F.struct(*[F.col(f"`{name}`") for name in names]))),
    )


def _columnar(form: str) -> Decoder:
    def read(reader: DataStreamReader, path: str, schema: StructType, source: Source) -> Decoded:
        """A file that is not of its format fails as a whole: no row of it can be told apart."""
        from pyspark.sql import functions as F

        columns = _by_name(schema)
        return Decoded(
            rows=reader.format(form).schema(schema).load(path),
            columns=columns,
            arrived=F.col("_metadata.file_modification_time"),
            wrong=F.lit(False),
            code=f"bad-{form}",
            message=F.lit(None).cast("string"),
            position=_block(),
            payload=F.to_json(F.struct(*columns.values())),
        )

    return read


DECODERS: dict[str, Decoder] = {
    "json_lines": json_lines,
    "csv": csv,
    "parquet": _columnar("parquet"),
    "orc": _columnar("orc"),
}


def csv_reader_options(source: Source) -> dict[str, Any]:
    """The same choices for Spark's own reader, which only looks at the names and types of the columns."""
    options = CsvOptions.of(source)
    return {"sep": options.delimiter, "header": options.header, "quote": options.quote, "nullValue": options.null_value}


def _by_name(schema: StructType) -> dict[str, Column]:
    from pyspark.sql import functions as F

    return {name: F.col(f"`{name}`") for name in schema.fieldNames()}


def _block() -> Column:
    """Not from `_metadata`, whose columns Spark copies into every row as soon as one of them is named."""
    from pyspark.sql import functions as F

    return F.expr("concat(input_file_name(), '#', input_file_block_start())")


def _listing_schema(folders: list[StructField]) -> StructType:
    """What Spark says of a file whose content it does not read."""
    from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType, TimestampType

    kinds = {"path": StringType(), "modificationTime": TimestampType(), "length": LongType(), "content": BinaryType()}
    return StructType([*(StructField(name, kind) for name, kind in kinds.items()), *folders])


def _misfit(field: StructField) -> Column:
    from pyspark.sql import functions as F

    text = F.col(f"`{field.name}`")
    words = F.concat(F.lit(f'column {field.name}: cannot read "'), text, F.lit(f'" as {field.dataType.simpleString()}'))
    return F.when(text.isNotNull() & text.try_cast(field.dataType).isNull(), words)
