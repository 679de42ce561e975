"""The columns of a payload: declared, or inferred at the first start and fixed in the checkpoint from then on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, cast

from ematix_flow.errors import DeclarationError, Problem
from ematix_flow.specs import Source
from ematix_flow.state.home import file_name
from ematix_flow.state.store import Store
from ematix_flow.streams.decode import csv_reader_options
from ematix_flow.streams.sources.base import NoColumns, NothingToInfer
from ematix_flow.streams.sources.listing import PLAIN_FILES, is_pattern, visible_files
from ematix_flow.streams.sources.nanoseconds import as_times, nanosecond_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrameReader, SparkSession
    from pyspark.sql.types import DataType, StructField, StructType

# Enough to meet the rare columns, little enough not to read a large backlog twice.
_INFERRED_FILES = 1000
_INFERRED_BYTES = 256 << 20
_LOOKED_AT = 1 << 20

_CORRUPT = "_corrupt_record"


def fixed_schema(source: Source, name: str, form: str, path: str, store: Store, session: SparkSession) -> StructType:
    from pyspark.sql.types import StructType

    if (known := known_schema(source, name, store)) is not None:
        return known
    files = _sample([file for file in visible_files(path) if file.stat().st_size])
    if not files:
        raise NothingToInfer(
            f"source {name!r}: there is no file in {path} yet to infer the columns from",
            next_step='declare them, for example schema = "id long, amount double, ts timestamp", or add a first file',
        )
    # The base makes folders such as `day=2026-01-01` a column.
    base = {} if is_pattern(path) or Path(path).is_file() else {"basePath": path}
    # The names are those of files that are there; a bracket in one is no pattern.
    reading = telling_case(session) if form == "json_lines" else session
    reader = reading.read.options(**PLAIN_FILES, **base, __globPaths__="false")
    inferred = _INFER[form](reader, [str(file) for file in files], source)
    schema = StructType([field for field in inferred.fields if field.name != _CORRUPT])
    if not schema.fields:
        raise NoColumns(
            f"source {name!r}: not one of {len(files)} files in {path} could be read as {form}",
            next_step='declare the columns, for example schema = "id long, ts timestamp", or correct `format`',
        )
    fix_schema(schema, name, store)
    return schema


def known_schema(source: Source, name: str, store: Store) -> StructType | None:
    """Declared, or as it was at the first start; None before that."""
    from pyspark.sql.types import StructType

    if source.schema is not None:
        return declared_schema(source.schema, name)
    known = store.recall(_memory(name))
    return None if known is None else StructType.fromJson(json.loads(known))


def fix_schema(schema: StructType, name: str, store: Store) -> None:
    store.remember(_memory(name), schema.json())


def _memory(name: str) -> str:
    return f"schema.{file_name(name)}.json"


def declared_schema(ddl: str, name: str) -> StructType:
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    try:
        return cast(StructType, _without_lengths(StructType.fromDDL(ddl)))
    except PySparkException as error:
        problem = Problem(
            f"source {name!r} schema",
            f'found "{ddl}", which Spark cannot read',
            allowed='for example "id long, ts timestamp"',
        )
        raise DeclarationError("schema", [problem]) from error


def _without_lengths(kind: DataType) -> DataType:
    """The length of a text is for a target to keep, and Spark has it in tables only."""
    from pyspark.sql import types

    match kind:
        case types.CharType() | types.VarcharType():
            return types.StringType()
        case types.ArrayType():
            return types.ArrayType(_without_lengths(kind.elementType), kind.containsNull)
        case types.MapType():
            values = _without_lengths(kind.valueType)
            return types.MapType(_without_lengths(kind.keyType), values, kind.valueContainsNull)
        case types.StructType():
            fields = [(f.name, _without_lengths(f.dataType), f.nullable, f.metadata) for f in kind.fields]
            return types.StructType([types.StructField(*field) for field in fields])
    return kind


def _sample(files: list[Path]) -> list[Path]:
    chosen: list[Path] = []
    size = 0
    for file in files[:_INFERRED_FILES]:
        size += file.stat().st_size
        if chosen and size > _INFERRED_BYTES:
            break
        chosen.append(file)
    return chosen


def telling_case(session: SparkSession) -> SparkSession:
    """For objects with keys such as `id` and `ID`, which are one column twice for Spark."""
    other = session.newSession()
    other.conf.set("spark.sql.caseSensitive", "true")
    return other


def infer_json(reader: DataFrameReader, files: list[str], source: Source | None = None) -> StructType:
    """By a reader that tells case. Of keys that differ only in it, the column is the one that comes first."""
    with Path(files[0]).open("rb") as lines:
        beginning = lines.read(_LOOKED_AT)

    def place(field: StructField) -> int:
        found = beginning.find(json.dumps(field.name, ensure_ascii=False).encode())
        return _LOOKED_AT if found < 0 else found

    return cast("StructType", _each_once(reader.json(files).schema, place))


def _each_once(kind: DataType, place: Callable[[StructField], int]) -> DataType:
    from pyspark.sql.types import ArrayType, StructField, StructType

    if isinstance(kind, ArrayType):
        return ArrayType(_each_once(kind.elementType, place))
    if not isinstance(kind, StructType):
        return kind
    first: dict[str, StructField] = {}
    for field in sorted(kind.fields, key=place):
        first.setdefault(field.name.lower(), field)
    kept = [field for field in kind.fields if first[field.name.lower()] is field]
    return StructType([StructField(field.name, _each_once(field.dataType, place)) for field in kept])


def _infer_csv(reader: DataFrameReader, files: list[str], source: Source) -> StructType:
    return reader.options(**csv_reader_options(source), inferSchema=True).csv(files).schema


def _infer_columnar(form: str) -> Callable[[DataFrameReader, list[str], Source], StructType]:
    def infer(reader: DataFrameReader, files: list[str], source: Source) -> StructType:
        # One odd file must not hide the columns of the others.
        inferred = reader.option("mergeSchema", True).format(form).load(files).schema
        return as_times(inferred, nanosecond_columns(map(Path, files))) if form == "parquet" else inferred

    return infer


_INFER = {
    "json_lines": infer_json,
    "csv": _infer_csv,
    "parquet": _infer_columnar("parquet"),
    "orc": _infer_columnar("orc"),
}
