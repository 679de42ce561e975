"""The data source that Spark runs: plans batches in a process beside the driver, and reads them on the executors."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from ematix_flow.streams.sources.database.base import Database, Slice, SourceColumn, SourceRefused, arrow_schema
from ematix_flow.streams.sources.database.position import Position, between, hashed

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

AT = "_flow_read_at"
"""Hidden column: when the batch was planned."""
_KEY, _BEFORE, _WITHIN = "_flow_key", "_flow_before", "_flow_within"
# The offset of a batch holds a number of eight bytes for each.
_MOST_SEEN = 1_000_000


@dataclass(frozen=True)
class Reading:
    """What is read, and how."""

    database: Database
    relation: str
    """What stands after FROM."""
    table: str
    """As declared, if it is a table and no query."""
    columns: tuple[SourceColumn, ...]
    run: str
    """Tells the runs of a pipeline apart: each takes one snapshot."""
    partitions: int = 1
    max_rows: int | None = None
    incremental: str = ""
    keys: tuple[str, ...] = ()
    lookback: int = 0


@dataclass
class Part(InputPartition):
    """What one task reads. The rows to leave out are known by the hashes of their keys."""

    sql: str
    at: int
    snapshot: str = ""
    read_before: frozenset[int] = frozenset()
    read_now: frozenset[int] = frozenset()
    by_key: bool = field(default=False)


def data_source(reading: Reading, schema: StructType, name: str) -> type[DataSource]:
    """A class of its own for each source, because what a class holds travels with it, and options would be shown."""

    class OfDatabase(DataSource):
        @classmethod
        def name(cls) -> str:
            return name

        def schema(self) -> StructType:
            return schema

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
            return Incremental(reading) if reading.incremental else Snapshots(reading)

    return OfDatabase


class _Reader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, reading: Reading) -> None:
        self._of, self._database = reading, reading.database

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._of.max_rows) if self._of.max_rows and self._of.incremental else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Spark's call at the start of a bounded run."""

    def commit(self, end: dict[str, Any]) -> None:
        self._database.release()

    def stop(self) -> None:
        self._database.release()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Part)
        wires = [(column.name, column.wire) for column in self._of.columns]
        with _marked(self._database):
            yield from _finished(partition, self._database, wires)

    def _selected(self, more: Sequence[str] = ()) -> str:
        columns = [f"{c.expression} AS {self._database.quoted(c.name)}" for c in self._of.columns]
        return f"SELECT {', '.join([*columns, *more])} FROM {self._of.relation}"


class Snapshots(_Reader):
    """All rows, once per run. A batch that a crash left unfinished is this run's."""

    def __init__(self, reading: Reading) -> None:
        super().__init__(reading)
        self._planned: dict[str, Any] | None = None
        self._taken = False

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"snapshot": 0, "run": "", "at": 0}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        if self._taken or start["run"] == self._of.run:
            return start
        if self._planned is None:
            self._planned = {"snapshot": start["snapshot"] + 1, "run": self._of.run, "at": _now()}
        return self._planned

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if start["snapshot"] == end["snapshot"]:
            return []
        self._taken = True
        with _marked(self._database):
            self._database.release()
            slices = self._database.slices(self._of.table, self._of.partitions) if self._of.table else [Slice()]
            snapshot = self._database.hold() if len(slices) > 1 else ""
        whole = self._selected()
        return [Part(f"{whole} WHERE {s.where}" if s.where else whole, end["at"], snapshot) for s in slices]


class Incremental(_Reader):
    """Rows whose value in a column is higher than before, and those of nearly the same value that were not there."""

    def __init__(self, reading: Reading) -> None:
        super().__init__(reading)
        self._column = self._database.quoted(reading.incremental)
        self._last: Position | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return Position().to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        with _marked(self._database):
            self._last = self._up_to(self._highest())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        begin = Position.from_json(start)
        with _marked(self._database):
            end = self._end(begin, limit)
        nothing_new = end.value is None or (end.value == begin.value and end.seen <= begin.seen)
        return start if nothing_new else end.to_json()

    def _end(self, begin: Position, limit: ReadLimit) -> Position:
        last = self._last or self._up_to(self._highest())
        if begin.value is not None and (last.value is None or last.value < begin.value):
            # The row of the highest value is gone; others may still have come late.
            return self._up_to(begin.value)
        if last.value is not None and isinstance(limit, ReadMaxRows):
            nearest = self._after(begin, limit.max_rows)
            if nearest is not None and nearest < last.value:
                return self._up_to(nearest)
        return last

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin, until = Position.from_json(start), Position.from_json(end)
        if begin.same(until):
            return []
        with _marked(self._database):
            self._database.release()
            lowest = begin.low(self._of.lookback) if begin.value is not None else self._lowest()
            edges = self._edges(begin.value if begin.value is not None else lowest, until.value)
            snapshot = self._database.hold() if edges else ""
            return [
                Part(
                    self._between(begin, until, low, high),
                    until.at,
                    snapshot,
                    read_before=begin.seen,
                    read_now=until.seen,
                    by_key=True,
                )
                for low, high in zip([lowest, *edges], [*edges, None], strict=True)
            ]

    def _edges(self, low: Any, high: Any) -> list[Any]:
        many = self._of.partitions if self._database.parallel else 1
        return between(low, high, many) if many > 1 else []

    def _between(self, begin: Position, until: Position, low: Any, high: Any) -> str:
        """From `low` on, to below `high` or, in the last part, to the end of the batch."""
        literal, column = self._database.literal, self._column
        before = f"{column} <= {literal(begin.value)}" if begin.value is not None else "1 = 0"
        within = f"{column} >= {literal(until.low(self._of.lookback))}"
        hidden = [
            f"{self._database.key_text(self._of.keys)} AS {_KEY}",
            f"CASE WHEN {before} THEN 1 ELSE 0 END AS {_BEFORE}",
            f"CASE WHEN {within} THEN 1 ELSE 0 END AS {_WITHIN}",
        ]
        conditions = [f"{column} >= {literal(low)}"] if low is not None else []
        conditions.append(f"{column} < {literal(high)}" if high is not None else f"{column} <= {literal(until.value)}")
        return f"{self._selected(hidden)} WHERE {' AND '.join(conditions)}"

    def _highest(self) -> Any:
        return self._database.rows(f"SELECT MAX({self._column}) FROM {self._of.relation}")[0][0]

    def _lowest(self) -> Any:
        return self._database.rows(f"SELECT MIN({self._column}) FROM {self._of.relation}")[0][0]

    def _after(self, begin: Position, rows: int) -> Any:
        """The value at which a batch of so many rows ends; all rows of that value belong to it."""
        above = f" WHERE {self._column} > {self._database.literal(begin.value)}" if begin.value is not None else ""
        where = above or f" WHERE {self._column} IS NOT NULL"
        found = self._database.rows(
            f"SELECT {self._column} FROM {self._of.relation}{where} ORDER BY {self._column} LIMIT 1 OFFSET {rows - 1}"
        )
        return found[0][0] if found else None

    def _up_to(self, value: Any) -> Position:
        if value is None:
            return Position(at=_now())
        low = Position(value).low(self._of.lookback)
        literal = self._database.literal
        found = self._database.rows(
            f"SELECT {self._database.key_text(self._of.keys)} FROM {self._of.relation} "
            f"WHERE {self._column} >= {literal(low)} AND {self._column} <= {literal(value)} LIMIT {_MOST_SEEN + 1}"
        )
        if len(found) > _MOST_SEEN:
            raise SourceRefused(
                f"{self._database.whose}: more than {_MOST_SEEN:,} rows have the highest value of "
                f"{self._of.incremental}, or one that is looked back at",
                next_step="choose a finer incremental_column, or a shorter lookback",
            )
        return Position(value, frozenset(hashed(key for (key,) in found)), _now())


def _finished(part: Part, database: Database, wires: Sequence[tuple[str, Any]]) -> Iterator[pa.RecordBatch]:
    """The rows of a part, without those that belong to another batch, and with the time of the batch."""
    import pyarrow as pa
    from pyspark.sql.types import LongType, StringType

    hidden = [(_KEY, StringType()), (_BEFORE, LongType()), (_WITHIN, LongType())] if part.by_key else []
    schema = arrow_schema([*wires, *hidden])
    for found in database.batches(part.sql, schema, part.snapshot):
        batch = _of_this_batch(found, part) if part.by_key else found
        moment = pa.repeat(pa.scalar(part.at, pa.timestamp("us", "UTC")), batch.num_rows)
        names = [name for name, _ in wires]
        yield pa.record_batch([*(batch[name] for name in names), moment], names=[*names, AT])


def _of_this_batch(batch: pa.RecordBatch, part: Part) -> pa.RecordBatch:
    import pyarrow as pa

    before, within = (batch[name].to_pylist() for name in (_BEFORE, _WITHIN))
    if not any(before) and not any(within):
        return batch
    keys = batch[_KEY]
    mask = [True] * batch.num_rows
    for index, (old, near) in enumerate(zip(before, within, strict=True)):
        if old or near:
            (key,) = hashed([keys[index].as_py()])
            mask[index] = not (old and key in part.read_before) and not (near and key not in part.read_now)
    return batch.filter(pa.array(mask))


class _marked:  # noqa: N801 - a context, not a thing
    """Errors of the driver, so that they are found again in what Spark makes of them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, SourceRefused):
            raise error.marked() from error
        if isinstance(error, TypeError):
            raise SourceRefused(
                f"{self._database.whose}: {error}", next_step="choose another incremental_column"
            ).marked() from error
        if isinstance(error, Exception) and (known := self._database.failure(error)) is not None:
            raise known.marked() from error


def _now() -> int:
    return time.time_ns() // 1000
