"""Payload bytes to columns, for files: one decoder per format, each tagging the rows that it cannot read.

A decoder gives the columns of the schema, by name, plus the four columns that `envelope.wrapped` turns into `_flow`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ematix_flow.specs import Source
from ematix_flow.streams.csv_reader import FILE, MALFORMED, ROW, CsvOptions, csv_rows, raw_schema
from ematix_flow.streams.envelope import ARRIVED, PAYLOAD, POSITION, REASON, reason
from ematix_flow.streams.sources.listing import folder_columns

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamReader
    from pyspark.sql.types import StructField, StructType

Decoder = Callable[["DataStreamReader", str, "StructType", Source], "DataFrame"]

_CORRUPT = "_flow_corrupt"
_BLOCK = "concat(_metadata.file_path, '#', _metadata.file_block_start)"


def json_lines(reader: DataStreamReader, path: str, schema: StructType, source: Source) -> DataFrame:
    """Spark gives a line that does not fit the schema back whole, byte for byte."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType, StructType

    options = {"columnNameOfCorruptRecord": _CORRUPT, "lineSep": "\n"}
    with_corrupt = StructType([*schema.fields]).add(_CORRUPT, StringType())
    rows = reader.options(**options).format("json").schema(with_corrupt).load(path)
    return rows.select(
        *[F.col(f"`{name}`") for name in schema.fieldNames()],
        F.expr(_BLOCK).alias(POSITION),
        F.col("_metadata.file_modification_time").alias(ARRIVED),
        F.col(_CORRUPT).cast("binary").alias(PAYLOAD),
        reason(F.col(_CORRUPT).isNotNull(), "decode", "bad-json").alias(REASON),
    )


def csv(reader: DataStreamReader, path: str, schema: StructType, source: Source) -> DataFrame:
    """Columns are matched by the header's names, so that files may differ in order and have columns we do not know."""
    from pyspark.sql import functions as F

    folders = [field for field in schema.fields if field.name in folder_columns(path)]
    listing = reader.format("binaryFile").schema(_listing_schema(folders)).load(path).drop("content", "length")
    in_file = [field for field in schema.fields if field not in folders]
    names = [field.name for field in in_file]
    raw = listing.mapInArrow(csv_rows(names, CsvOptions.of(source)), raw_schema(names, listing))
    wrong_shape = F.when(F.col(MALFORMED).isNotNull(), F.lit("the line does not have as many fields as the header"))
    words = F.coalesce(wrong_shape, *[_misfit(field) for field in in_file])
    return raw.select(
        *[F.col(f"`{f.name}`").try_cast(f.dataType).alias(f.name) for f in schema.fields],
        F.concat_ws("#", FILE, ROW).alias(POSITION),
        F.col("modificationTime").alias(ARRIVED),
        F.coalesce(MALFORMED, F.to_csv(F.struct(*[F.col(f"`{n}`") for n in names]))).cast("binary").alias(PAYLOAD),
        reason(words.isNotNull(), "decode", "bad-csv", words).alias(REASON),
    )


def _listing_schema(folders: list[StructField]) -> StructType:
    from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType, TimestampType

    kinds = {"path": StringType(), "modificationTime": TimestampType(), "length": LongType(), "content": BinaryType()}
    return StructType([*(StructField(name, kind) for name, kind in kinds.items()), *folders])


def _misfit(field: StructField) -> Column:
    from pyspark.sql import functions as F

    text = F.col(f"`{field.name}`")
    words = F.concat(F.lit(f'column {field.name}: cannot read "'), text, F.lit(f'" as {field.dataType.simpleString()}'))
    return F.when(text.isNotNull() & text.try_cast(field.dataType).isNull(), words)


def _columnar(form: str) -> Decoder:
    def read(reader: DataStreamReader, path: str, schema: StructType, source: Source) -> DataFrame:
        from pyspark.sql import functions as F

        rows = reader.format(form).schema(schema).load(path)
        return rows.select(
            *[F.col(f"`{name}`") for name in schema.fieldNames()],
            F.expr(_BLOCK).alias(POSITION),
            F.col("_metadata.file_modification_time").alias(ARRIVED),
            F.to_json(F.struct(*[F.col(f"`{name}`") for name in schema.fieldNames()])).cast("binary").alias(PAYLOAD),
            reason(F.lit(False), "decode", "").alias(REASON),
        )

    return read


def csv_reader_options(source: Source) -> dict[str, Any]:
    """The same choices for Spark's own reader, which only looks at the names and types of the columns."""
    options = CsvOptions.of(source)
    return {"sep": options.delimiter, "header": options.header, "quote": options.quote, "nullValue": options.null_value}


DECODERS: dict[str, Decoder] = {
    "json_lines": json_lines,
    "csv": csv,
    "parquet": _columnar("parquet"),
    "orc": _columnar("orc"),
}
