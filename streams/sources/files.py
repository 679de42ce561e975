"""Files as a stream: Spark's own file source tracks which files were read, in order of modification time, once each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from ematix_flow.connections import ObjectStoreLocalConnection
from ematix_flow.specs import Source
from ematix_flow.state.store import LocalStore
from ematix_flow.streams.decode import DECODERS
from ematix_flow.streams.envelope import wrapped
from ematix_flow.streams.reasons import why_bad_json
from ematix_flow.streams.sources.base import SourceNotFound
from ematix_flow.streams.sources.listing import bytes_per_row, is_pattern, line_of, visible_files
from ematix_flow.streams.sources.schemas import fixed_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Spark forgets, and then never reads, a file that is older than the newest one by more than this; a week by default.
_EVERY_FILE_COUNTS = "36500d"


class FileSource:
    replayable = True

    def __init__(
        self,
        source: Source,
        connection: ObjectStoreLocalConnection,
        name: str,
        store: LocalStore,
        session: SparkSession,
    ) -> None:
        self._source = source
        self._name = name
        self._path = str(Path(connection.path) / source.query) if source.query else connection.path
        if not is_pattern(self._path) and not Path(self._path).exists():
            raise SourceNotFound(
                f"source {name!r}: {Path(self._path).absolute()} does not exist",
                next_step="create the folder, or correct `path` and `query` of the source",
            )
        self.payload_format = str(connection.format)
        self.payload_schema = fixed_schema(source, name, self.payload_format, self._path, store, session)

    def read(self, session: SparkSession) -> DataFrame:
        reader = session.readStream.options(maxFileAge=_EVERY_FILE_COUNTS, **self._limits())
        decoded = DECODERS[self.payload_format](reader, self._path, self.payload_schema, self._source)
        return wrapped(decoded, self._name, self.payload_schema, self._source.event_time_column)

    def reason(self, payload: bytes) -> str:
        return why_bad_json(payload, self.payload_schema)

    def place(self, position: str, payload: bytes) -> str:
        file = Path(unquote(position.rpartition("#")[0]).removeprefix("file:"))
        number = line_of(file, payload)
        return f"{file} line {number}" if number else str(file)

    def release(self, batch: int) -> None:
        """Files stay where they are; the log of files already read is part of the checkpoint."""

    def _limits(self) -> dict[str, int]:
        """Spark never splits a file over two batches, and limits a batch by files or by bytes, not by rows: rows are
        turned into bytes with the size of a row in the files that are there at the start."""
        files, rows = self._source.max_files_per_batch, self._source.max_rows_per_batch
        if rows is None:
            return {} if files is None else {"maxFilesPerTrigger": files}
        row_size, file_size = bytes_per_row(visible_files(self._path), self.payload_format)
        if not row_size:
            return {"maxFilesPerTrigger": 1}
        if files is not None and files * file_size < rows * row_size:
            return {"maxFilesPerTrigger": files}
        return {"maxBytesPerTrigger": max(1, round(rows * row_size))}
