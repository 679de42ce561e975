"""CSV files to rows of text, in Python workers: by the names in each file's own header, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ematix_flow.specs import Source

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

FILE, ROW, MALFORMED = "_flow_file", "_flow_row", "_flow_malformed"
_BLOCK_BYTES = 4 << 20

Batches = Iterator["pa.RecordBatch"]


@dataclass(frozen=True)
class CsvOptions:
    delimiter: str = ","
    header: bool = True
    quote: str = '"'
    escape: str | None = None
    null_value: str = ""

    @classmethod
    def of(cls, source: Source) -> CsvOptions:
        given = {
            "delimiter": source.csv_delimiter,
            "header": source.csv_header,
            "quote": source.csv_quote,
            "escape": source.csv_escape,
            "null_value": source.csv_null_value,
        }
        return cls(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]


def raw_schema(columns: Sequence[str], listing: DataFrame) -> StructType:
    """What `csv_rows` gives: the file's columns as text, where each row came from, and what the listing said."""
    from pyspark.sql.types import LongType, StringType, StructType

    schema = StructType()
    for name in (*columns, FILE, MALFORMED):
        schema = schema.add(name, StringType())
    schema = schema.add(ROW, LongType())
    return StructType([*schema.fields, *[f for f in listing.schema.fields if f.name != "path"]])


def csv_rows(columns: Sequence[str], options: CsvOptions) -> Callable[[Batches], Batches]:
    """A function for `mapInArrow` over a listing of files."""

    def read(listing: Batches) -> Batches:
        for files in listing:
            for index in range(files.num_rows):
                facts = {name: files.column(name)[index] for name in files.schema.names}
                path = facts.pop("path").as_py()
                for batch in _read_file(path, list(columns), options):
                    yield _with_facts(batch, facts)

    return read


def opened(file: Path | BytesIO, columns: list[str] | None, options: CsvOptions, bad: Any = None) -> Any:
    """Reads all fields as texts: those of `columns`, or all that the header names. `bad` is asked about each line that
    has more or fewer fields."""
    import pyarrow as pa
    from pyarrow import csv

    return csv.open_csv(
        file,
        read_options=csv.ReadOptions(
            use_threads=False,
            block_size=_BLOCK_BYTES,
            column_names=None if options.header or columns is None else columns,
        ),
        parse_options=csv.ParseOptions(
            delimiter=options.delimiter,
            quote_char=options.quote,
            escape_char=options.escape or False,
            newlines_in_values=True,
            invalid_row_handler=bad,
        ),
        convert_options=csv.ConvertOptions(
            check_utf8=False,
            default_column_type=pa.string(),
            column_types=dict.fromkeys(columns or (), pa.string()),
            include_columns=columns,
            include_missing_columns=columns is not None,
            null_values=[options.null_value],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )


def _read_file(path: str, columns: list[str], options: CsvOptions) -> Iterator[dict[str, Any]]:
    import pyarrow as pa

    local = Path(path.removeprefix("file:"))
    if local.stat().st_size == 0:
        return
    malformed: list[Any] = []

    def keep(row: Any) -> str:
        malformed.append(row)
        return "skip"

    reader = opened(local, columns, options, keep)
    row = 0
    for block in reader:
        size = block.num_rows
        yield {
            **dict(zip(columns, block.columns, strict=True)),
            FILE: pa.repeat(local.as_uri(), size),
            MALFORMED: pa.nulls(size, pa.string()),
            ROW: pa.array(range(row, row + size), pa.int64()),
        }
        row += size
    if malformed:
        yield {
            **{name: pa.nulls(len(malformed), pa.string()) for name in columns},
            FILE: pa.repeat(local.as_uri(), len(malformed)),
            MALFORMED: pa.array([bad.text for bad in malformed], pa.string()),
            # Below zero: these lines are not among the rows that were counted above.
            ROW: pa.array([-bad.number for bad in malformed], pa.int64()),
        }


def _with_facts(columns: dict[str, Any], facts: dict[str, Any]) -> pa.RecordBatch:
    import pyarrow as pa

    size = len(columns[ROW])
    return pa.RecordBatch.from_pydict(columns | {name: pa.repeat(value, size) for name, value in facts.items()})
