"""The data files of a pipeline in a Delta table: how they are written, flushed and read; the table says which count."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from ematix_flow.state import durable

if TYPE_CHECKING:
    import pyarrow as pa

PARTITIONS = ("pipeline", "generation")

_LIGHT = ["path", "save", "part", "size", "digest", "gone", "batch", "saved_at"]
_GROUP_BYTES = 16 << 20
# Of a data file that is not in the table: a save may be about to put it there.
_ABANDONED_SECONDS = 600


@dataclass(frozen=True)
class Row:
    """A part of a file, or the news that it is gone."""

    path: str
    save: int
    part: int = 0
    size: int = 0
    digest: str = ""
    gone: bool = False
    batch: int | None = None
    saved_at: datetime | None = None
    content: bytes = b""


@dataclass(frozen=True)
class DataFile:
    path: str
    size: int
    generation: str

    @property
    def save(self) -> int:
        """The latest one of which it has rows."""
        return int(Path(self.path).name.partition("-")[0])


class DataFiles:
    def __init__(self, path: str, pipeline: str) -> None:
        self._path = path if "://" in path else str(Path(path).absolute())
        self._folder = hashlib.sha256(pipeline.encode()).hexdigest()[:16]

    def write(self, generation: str, save: int, rows: Iterable[Row]) -> DataFile:
        """Flushed, and not yet part of the table. The rows of one path are together and in order."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        name = f"{self._folder}/{save:020d}-{uuid4().hex}.parquet"
        place, columns = self._place_of(name), schema()
        if self._local:
            durable.make(Path(place).parent)
        with (
            self._filesystem.open_output_stream(place) as stream,
            pq.ParquetWriter(stream, columns, compression="zstd", use_dictionary=False, write_statistics=False) as out,
        ):
            for group in _groups(rows):
                out.write_table(pa.Table.from_pylist([vars(row) for row in group], columns))
        if self._local:
            durable.sync(Path(place))
            durable.sync(Path(place).parent)
        return DataFile(name, self._filesystem.get_file_info(place).size, generation)

    def index(self, file: DataFile) -> list[Row]:
        """Its rows, without their content."""
        with self._opened(file) as parquet:
            return _rows(parquet.read(_LIGHT))

    def contents(self, file: DataFile, wanted: Callable[[Row], bool] = lambda _: True) -> Iterator[Row]:
        with self._opened(file) as parquet:
            for number in range(parquet.num_row_groups):
                rows = _rows(parquet.read_row_group(number, _LIGHT))
                if any(map(wanted, rows)):
                    contents = parquet.read_row_group(number, ["content"]).column(0)
                    for row, content in zip(rows, contents, strict=True):
                        if wanted(row):
                            yield replace(row, content=content.as_py())

    def unused(self, used: Iterable[DataFile]) -> list[str]:
        """Places of data files that were forgotten, or that a process which died has written in vain."""
        from pyarrow.fs import FileSelector

        spared = {self._place_of(file.path) for file in used}
        there = self._filesystem.get_file_info(FileSelector(self._place_of(self._folder), allow_not_found=True))
        old = time.time() - _ABANDONED_SECONDS
        return [info.path for info in there if info.path not in spared and info.mtime.timestamp() < old]

    def delete(self, places: Iterable[str]) -> None:
        for place in places:
            # Others sweep, too.
            with suppress(FileNotFoundError):
                self._filesystem.delete_file(place)

    def write_beside(self, name: str, content: bytes) -> None:
        """A small file next to the table, not flushed."""
        place = self._beside(name)
        if self._local:
            Path(place).parent.mkdir(exist_ok=True)
        with self._filesystem.open_output_stream(place) as stream:
            stream.write(content)

    def read_beside(self, name: str) -> tuple[bytes, float]:
        """Its content, and how many seconds ago it was written; none if that would compare two clocks."""
        place = self._beside(name)
        with self._filesystem.open_input_stream(place) as stream:
            content: bytes = stream.read()
        written = self._filesystem.get_file_info(place).mtime.timestamp()
        return content, max(0.0, time.time() - written) if self._local else 0.0

    @property
    def _local(self) -> Path | None:
        """None where what was written is safe once the call returns."""
        from pyarrow.fs import LocalFileSystem

        return Path(self._located[1]) if isinstance(self._filesystem, LocalFileSystem) else None

    @property
    def _filesystem(self) -> Any:
        return self._located[0]

    @cached_property
    def _located(self) -> tuple[Any, str]:
        from pyarrow.fs import FileSystem, LocalFileSystem

        if "://" not in self._path:
            return LocalFileSystem(), self._path
        filesystem, path = FileSystem.from_uri(self._path)
        return filesystem, path

    def _place_of(self, name: str) -> str:
        return f"{self._located[1]}/{name}"

    def _beside(self, name: str) -> str:
        return f"{self._located[1].rpartition('/')[0]}/{name}"

    @contextmanager
    def _opened(self, file: DataFile) -> Iterator[Any]:
        import pyarrow.parquet as pq

        with self._filesystem.open_input_file(self._place_of(file.path)) as stream, pq.ParquetFile(stream) as parquet:
            yield parquet


def schema(*, whole: bool = False) -> pa.Schema:
    """Of the data files; or of the whole table, with what the log says of each file."""
    import pyarrow as pa

    return pa.schema(
        [
            *((name, pa.string()) for name in PARTITIONS if whole),
            ("path", pa.string()), ("save", pa.int64()), ("part", pa.int32()), ("size", pa.int64()),
            ("digest", pa.string()), ("gone", pa.bool_()), ("batch", pa.int64()),
            ("saved_at", pa.timestamp("us", "UTC")), ("content", pa.binary()),
        ]
    )  # fmt: skip


def _rows(table: pa.Table) -> list[Row]:
    return [Row(**facts) for facts in table.to_pylist()]


def _groups(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """As many at a time as memory holds easily."""
    group: list[Row] = []
    size = 0
    for row in rows:
        group.append(row)
        size += len(row.content)
        if size >= _GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group
