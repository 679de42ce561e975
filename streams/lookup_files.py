"""Lookups from folders: files of any format that Spark reads, with columns inferred at each read, and Delta tables."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ematix_flow.streams.failures import spark_words
from ematix_flow.streams.lookup_base import Origin
from ematix_flow.streams.sources.listing import is_pattern, visible_files

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame


class _Folder(Origin):
    @property
    def place(self) -> Path:
        """Absolute, because Spark would look below the folder in which its Java process was started."""
        below = self.lookup.query or Path(self.lookup.schema) / (self.lookup.table or "")
        return Path(self.connection.path).absolute() / below

    def copy(self, folder: Path) -> None:
        with self._in_words():
            self.rows().write.parquet(str(folder))

    def rows(self) -> DataFrame:
        raise NotImplementedError

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        try:
            yield
        except (PySparkException, Py4JError) as error:
            raise self.failed(
                f"{self.place} cannot be read: {spark_words(error)[1]}", "correct what is there, or the lookup"
            ) from error


class FilesOrigin(_Folder):
    def state(self) -> str:
        return _state(self._files())

    def rows(self) -> DataFrame:
        # One line that cannot be read, for example of a file that is still being written, fails the whole lookup.
        reader, path = self.session.read.option("mode", "FAILFAST"), str(self.place)
        match self.connection.format:
            case "json_lines":
                return reader.json(path)
            case "csv":
                return reader.csv(path, header=True, inferSchema=True)
            case form:
                return reader.option("mergeSchema", True).format(form).load(path)

    def _files(self) -> list[Path]:
        path = str(self.place)
        files = visible_files(path) if is_pattern(path) or self.place.exists() else []
        if not files:
            raise self.failed(f"there is no file at {path}", "add one, or correct `path` of the connection and `query`")
        return files


class DeltaOrigin(_Folder):
    @property
    def place(self) -> Path:
        """`shop.orders` is the table that a target of this schema and name writes, unless a folder is called so."""
        literal = super().place
        return literal if literal.exists() else literal.parent / literal.name.replace(".", "/")

    def state(self) -> str:
        log = self.place / "_delta_log"
        if not log.is_dir():
            raise self.failed(
                f"there is no Delta table at {self.place}",
                "create it, or correct `path` of the connection, `schema` and `table`",
            )
        return _state(file for file in log.rglob("*") if file.is_file())

    def rows(self) -> DataFrame:
        return self.session.read.format("delta").load(str(self.place))


def _state(files: Iterable[Path]) -> str:
    """Files are the same if they are at the same place, of the same size and were not touched."""
    stats = ((str(file), file.stat()) for file in sorted(files))
    return repr([(path, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino) for path, stat in stats])
