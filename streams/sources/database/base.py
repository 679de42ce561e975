"""What a database that rows come from does in its own way, and how it says that it cannot."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from ematix_flow.errors import FlowError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

# What a worker of Spark raises comes back as the text of its traceback; so the facts stand in one line of it.
_MARK = "ematix-flow-source"


class SourceRefused(FlowError):
    """A database does not let a source read what it names."""

    code = "source-refused"

    def marked(self) -> RuntimeError:
        """As an error that can be found again in what Spark makes of it."""
        kind = "unavailable" if self.transient else "refused"
        words = [part.replace("\n", " ").replace("|", "/") for part in (self.found, self.next_step)]
        return RuntimeError(f"{_MARK}|{kind}|{words[0]}|{words[1]}|")

    @staticmethod
    def found_in(error: BaseException) -> SourceRefused | None:
        """From what ended a query; None if it was something else."""
        found = re.search(rf"{_MARK}\|(\w+)\|([^|]*)\|([^|]*)\|", str(error))
        if found is None:
            return None
        kind = SourceUnavailable if found[1] == "unavailable" else SourceRefused
        return kind(found[2], next_step=found[3])


class SourceUnavailable(SourceRefused):
    """A database cannot be reached or is busy; that passes."""

    code = "source-unavailable"
    transient = True


@dataclass(frozen=True)
class SourceColumn:
    """A column of a table or query, and how its values come from the database to Spark."""

    name: str
    type: DataType
    """As Spark holds its values."""
    expression: str
    """What is selected for it."""
    wire: DataType
    """As its values arrive; Spark casts them to the type of the column."""


@dataclass(frozen=True)
class Slice:
    """A part of a snapshot that one task reads."""

    where: str = ""


class Database(ABC):
    """Travels to the processes that plan and read. Every call opens what it needs and closes it again."""

    product: ClassVar[str]
    typed: ClassVar[bool] = True
    """Every column has a type, and not only the values that are in it now."""
    text: ClassVar[str]
    """The type to which a key is cast to be compared as text."""

    def __init__(self, place: str, whose: str) -> None:
        self.place, self.whose = place, whose

    @abstractmethod
    def columns(self, relation: str) -> list[SourceColumn]:
        """Of a table or query that stands after FROM."""

    @abstractmethod
    def named(self, table: str) -> str:
        """A table of the declaration, `name` or `schema.name`, as it stands after FROM."""

    @abstractmethod
    def primary_key(self, table: str) -> tuple[str, ...]:
        """Of a table as the declaration names it; none if it has none."""

    @abstractmethod
    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """A few rows, for planning."""

    @abstractmethod
    def batches(self, sql: str, schema: pa.Schema, snapshot: str) -> Iterator[pa.RecordBatch]:
        """The rows of a query, piece by piece."""

    @abstractmethod
    def literal(self, value: Any) -> str:
        """A value that this database gave, in SQL."""

    @abstractmethod
    def failure(self, error: Exception) -> SourceRefused | None:
        """What an error of the driver means; None if it is not one."""

    def quoted(self, name: str) -> str:
        return '"' + name.replace('"', '""') + '"'

    def key_text(self, keys: Sequence[str]) -> str:
        """The keys of a row as one text."""
        parts = [f"COALESCE(CAST({self.quoted(key)} AS {self.text}), '~')" for key in keys]
        return self.joined(parts)

    def joined(self, parts: Sequence[str]) -> str:
        return " || '\x1f' || ".join(parts)

    def hold(self) -> str:
        """Begin a snapshot that several readers can share, and keep it until `release`; its name, if there is one."""
        return ""

    def release(self) -> None:  # noqa: B027 - most hold none
        """Let go of the snapshot."""

    def slices(self, table: str, most: int) -> list[Slice]:
        """How a snapshot of a table is read in parallel without losing its consistency."""
        return [Slice()]

    @property
    def parallel(self) -> bool:
        """Whether several readers at once are of use."""
        return False

    def refused(self, words: str, next_step: str) -> SourceRefused:
        return SourceRefused(f"{self.whose}: {self.product} at {self.place} refuses: {words}", next_step=next_step)

    def unavailable(self, words: str) -> SourceUnavailable:
        return SourceUnavailable(
            f"{self.whose}: {self.product} at {self.place} cannot be read now: {words}",
            next_step="see whether the server runs and can be reached; the batch is tried again",
        )

    @contextmanager
    def in_words(self) -> Iterator[None]:
        """Errors of the driver as ours."""
        try:
            yield
        except Exception as error:
            known = self.failure(error)
            if known is None:
                raise
            raise known from error


def arrow_schema(columns: Sequence[tuple[str, DataType]]) -> pa.Schema:
    """As Spark expects it of a data source."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_type

    return pa.schema([pa.field(name, to_arrow_type(kind, timezone="UTC")) for name, kind in columns])


def spark_schema(columns: Sequence[tuple[str, DataType]]) -> StructType:
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(name, kind) for name, kind in columns])


def first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
