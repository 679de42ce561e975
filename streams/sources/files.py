"""Files as a stream: Spark's own file source tracks which files were read, in order of modification time, once each."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from ematix_flow.connections import ObjectStoreLocalConnection
from ematix_flow.errors import DeclarationError, Problem
from ematix_flow.specs import Source
from ematix_flow.state.store import Store
from ematix_flow.streams.csv_lines import format_of, names_in, original_lines, values
from ematix_flow.streams.csv_reader import CsvOptions
from ematix_flow.streams.decode import DECODERS, EXACT_POSITIONS, rendered
from ematix_flow.streams.envelope import Carried, Origin, wrapped
from ematix_flow.streams.reasons import why_bad_json
from ematix_flow.streams.sources.base import SourceNotFound
from ematix_flow.streams.sources.listing import (
    average_sizes,
    folder_columns,
    is_pattern,
    line_of,
    lines_of,
    visible_files,
)
from ematix_flow.streams.sources.schemas import fixed_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Spark forgets, and then never reads, a file that is older than the newest one by more than this; a week by default.
_EVERY_FILE_COUNTS = "36500d"
_DEEP = "`**` only before the names of files, as in `**/*.csv`"


class FileSource:
    replayable = True
    ranged = False

    def __init__(
        self,
        source: Source,
        connection: ObjectStoreLocalConnection,
        name: str,
        batch_bytes: int | None,
        store: Store,
        session: SparkSession,
    ) -> None:
        self._batch_bytes = batch_bytes
        self._source = source
        self._name = name
        # Absolute, because Spark would look below the folder in which its Java process was started.
        self._path = str(Path(connection.path).absolute() / source.query)
        if "/" in self._path.partition("/**/")[2]:
            raise DeclarationError(f"source {name!r}", [Problem("query", f'found "{source.query}"', _DEEP)])
        if not is_pattern(self._path) and not Path(self._path).exists():
            raise SourceNotFound(
                f"source {name!r}: {self._path} does not exist",
                next_step="create the folder, or correct `path` and `query` of the source",
            )
        self.payload_format = str(connection.format)
        self.exact_positions = self.payload_format in EXACT_POSITIONS
        self.origin = Origin(name, rendered(self.payload_format, source))
        self.payload_schema = fixed_schema(source, name, self.payload_format, self._path, store, session)

    def read(self, session: SparkSession, carried: Carried) -> DataFrame:
        reader = session.readStream.options(maxFileAge=_EVERY_FILE_COUNTS, **self._limits())
        decoded = DECODERS[self.payload_format](reader, self._path, self.payload_schema, self._source)
        return wrapped(decoded, self.origin, carried, self.payload_schema, self._source.event_time_column)

    def reason(self, payload: bytes) -> str:
        return why_bad_json(payload, self.payload_schema)

    def arrived(self, position: str) -> datetime | None:
        if self._source.event_time_column is not None:
            return None
        file = _file(position)
        return datetime.fromtimestamp(file.stat().st_mtime, UTC) if file.exists() else None

    def lines(self, file: str, payloads: Collection[bytes]) -> Mapping[bytes, Sequence[int]]:
        path = _file(f"{file}#")
        return lines_of(path, payloads) if self.payload_format == "json_lines" and path.exists() else {}

    def originals(self, read: Mapping[str, bytes]) -> dict[str, tuple[bytes, str]]:
        """Positions of CSV rows with what was read there -> their lines as they are in the file, and what these are."""
        options, folders = CsvOptions.of(self._source), folder_columns(self._path)
        columns = [name for name in self.payload_schema.fieldNames() if name not in folders]
        by_file: dict[Path, dict[int, str]] = {}
        for position in read if self.payload_format == "csv" else ():
            # A number below zero is that of a line that was kept as it is.
            if (number := int(position.rpartition("#")[2])) >= 0:
                by_file.setdefault(_file(position), {})[number] = position
        found: dict[str, tuple[bytes, str]] = {}
        for file, rows in by_file.items():
            header, lines = original_lines(file, rows, options) if file.exists() else (b"", {})
            names = names_in(header, options) if header else columns
            for number, line in lines.items():
                fields, before = values(line, names, options), values(read[rows[number]], columns, options)
                # If the lines were counted otherwise than the reader counts them, what was read is better than another.
                if fields and before and all(fields.get(name) == value for name, value in before.items()):
                    found[rows[number]] = line, "csv" if names == columns else format_of(header)
        return found

    def place(self, position: str, payload: bytes) -> str:
        file = _file(position)
        number = line_of(file, payload)
        return f"{file} line {number}" if number else str(file)

    @property
    def takes_all(self) -> bool:
        return {self._source.max_files_per_batch, self._source.max_rows_per_batch, self._batch_bytes} == {None}

    def release(self, batch: int) -> None:
        """Files stay where they are; the log of files already read is part of the checkpoint."""

    def _limits(self) -> dict[str, int]:
        """Spark never splits a file over two batches, and limits a batch either by files or by bytes: rows are turned
        into bytes, and bytes into files, with the sizes of the files that are there at the start."""
        files, rows, size = self._source.max_files_per_batch, self._source.max_rows_per_batch, self._batch_bytes
        if rows is None and (files is None or size is None):
            given = {"maxFilesPerTrigger": files, "maxBytesPerTrigger": size}
            return {option: limit for option, limit in given.items() if limit is not None}
        row_size, file_size = average_sizes(visible_files(self._path), self.payload_format)
        if not row_size:
            # Nothing to measure yet.
            return {"maxFilesPerTrigger": files if files is not None and rows is None else 1}
        limits = [] if rows is None else [max(1, round(rows * row_size))]
        smallest = min(limits if size is None else [*limits, size])
        if files is not None and files * file_size < smallest:
            return {"maxFilesPerTrigger": files}
        return {"maxBytesPerTrigger": smallest}


def _file(position: str) -> Path:
    """From `file:///the%20path#...`, as Spark and `Path.as_uri` write it."""
    return Path(unquote(position.rpartition("#")[0]).removeprefix("file://").removeprefix("file:"))
