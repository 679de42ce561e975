"""The lines of a CSV file as they were: a dead letter keeps the bytes of its row, not what a reader made of them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path

from ematix_flow.streams.csv_reader import CsvOptions, opened

_FORMAT = re.compile(r"csv\((.*)\)", re.DOTALL)


def original_lines(file: Path, rows: Collection[int], options: CsvOptions) -> tuple[bytes, dict[int, bytes]]:
    """The header, and rows by their number among those that have as many fields as it has."""
    records = _records(file, options)
    header = next(records, b"") if options.header else b""
    found: dict[int, bytes] = {}
    fields, number, last = _fields(header, options) if options.header else 0, 0, max(rows, default=-1)
    for record in records:
        if number > last:
            break
        fields = fields or _fields(record, options)
        if _fields(record, options) == fields:
            if number in rows:
                found[number] = record
            number += 1
    return header, found


def names_in(header: bytes, options: CsvOptions) -> list[str]:
    with opened(BytesIO(header + b"\n"), None, replace(options, header=True)) as reader:
        return list(reader.schema.names)


def values(line: bytes, names: Sequence[str], options: CsvOptions) -> dict[str, str | None] | None:
    """The fields of a line, read as a file is read; None if they are not as many as there are names."""
    import pyarrow as pa

    try:
        with opened(BytesIO(line + b"\n"), list(names), replace(options, header=False)) as reader:
            rows = reader.read_all().cast(pa.schema([(name, pa.binary()) for name in names])).to_pylist()
    except pa.ArrowException:
        return None
    if len(rows) != 1:
        return None
    return {name: None if value is None else value.decode(errors="replace") for name, value in rows[0].items()}


def format_of(header: bytes) -> str:
    """What the payload of a letter is, if its fields are not those of the schema, in that order."""
    return f"csv({header.decode(errors='replace')})"


def header_of(payload_format: str) -> bytes | None:
    named = _FORMAT.fullmatch(payload_format)
    return named[1].encode() if named else None


def _records(file: Path, options: CsvOptions) -> Iterator[bytes]:
    """Without the ends of their lines, and without empty ones; a quoted field may go over several lines."""
    quote, whole = options.quote.encode(), b""
    with file.open("rb") as lines:
        for line in lines:
            whole += line
            if _without_escapes(whole, options).count(quote) % 2:
                continue
            if record := whole.rstrip(b"\r\n"):
                yield record.removeprefix(b"\xef\xbb\xbf")
            whole = b""
    if whole:
        yield whole.rstrip(b"\r\n")


def _fields(record: bytes, options: CsvOptions) -> int:
    quote = re.escape(options.quote.encode())
    bare = re.sub(quote + b"[^" + quote + b"]*" + quote, b"", _without_escapes(record, options))
    return bare.count(options.delimiter.encode()) + 1


def _without_escapes(record: bytes, options: CsvOptions) -> bytes:
    return re.sub(re.escape(options.escape.encode()) + b".", b"", record, flags=re.DOTALL) if options.escape else record
