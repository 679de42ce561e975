"""What SQL databases share as targets: tables made and checked, one transaction per batch behind a fence."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from ematix_flow.errors import FlowError
from ematix_flow.sinks.base import (
    CHANGE,
    HIDDEN,
    ROW,
    Applied,
    Batch,
    Capabilities,
    Staged,
    TargetRefused,
    TargetUnavailable,
)
from ematix_flow.sinks.changes import (
    Gate,
    apply_changes,
    apply_history,
    every_change,
    gate_name,
    gate_tables,
    last_changes,
)
from ematix_flow.sinks.drift import TableColumn, Types
from ematix_flow.sinks.ordering import resolved
from ematix_flow.sinks.refusing import refused_rows
from ematix_flow.sinks.shape import Shape
from ematix_flow.sinks.tables import IS_DELETED, MODES, SEEN_AT, Counted, Load, create_table, literal, quoted
from ematix_flow.specs import CDC, Target
from ematix_flow.state.fence import Fence
from ematix_flow.state.kernel import GONE
from ematix_flow.table import VALID_FROM

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

_FENCES = """
CREATE TABLE IF NOT EXISTS _ematix_flow_fences (
    pipeline VARCHAR, target VARCHAR, generation VARCHAR, batch BIGINT, applied_at TIMESTAMPTZ,
    PRIMARY KEY (pipeline, target)
)"""


@dataclass(frozen=True)
class Query:
    """A SELECT in the database of the target."""

    sql: str
    columns: tuple[str, ...]
    """Those that go into the table; it may give the order beside them."""
    order: str = ""
    """Column by which the last row of a key counts."""


class Database(Protocol):
    """The part of a driver's connection that is used here."""

    def execute(self, sql: str, parameters: Any = ..., /) -> Any: ...
    def close(self) -> None: ...


class DatabaseSink(ABC):
    """A table of a database. A subclass knows the driver, the types and how staged rows are read."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        fenced=True,
        transactional=True,
        modes=frozenset(MODES),
        visibility="a batch appears whole, with its fence, in one transaction",
        refines=True,
        takes_changes=frozenset({"merge", "scd2"}),
        refuses=True,
    )
    product: ClassVar[str]
    begin: ClassVar[str] = "BEGIN"
    moment: ClassVar[str] = "%Y-%m-%dT%H:%M:%S.%fZ"
    """How a time is written in a literal."""
    types: ClassVar[Types]

    def __init__(self, target: Target, path: str, name: str) -> None:
        assert target.table is not None, "the spec has been checked"
        if path == ":memory:":
            raise FlowError(
                f"target {name}: an in-memory {self.product} is empty again when the batch ends",
                next_step="give the connection a file as its path",
            )
        self._path, self._name, self._mode, self._target = path, name, target.mode, target
        self._ref, self._schema = target.table, target.table.schema or "main"
        self._shape = Shape(target, target.table.full_name, self.types)
        self._changes: CDC | None = None
        self._change_counts: Counter[str] = Counter()

    # What a database does in its own way.

    @abstractmethod
    def _open(self) -> Database:
        """Opened for each batch: a file that is held open for months could not be read by anyone else."""

    @abstractmethod
    def _located(self, db: Database) -> str:
        """The table, qualified and quoted."""

    @abstractmethod
    def _columns(self, db: Database) -> list[TableColumn]:
        """Of the table as it is; none if there is no table."""

    @abstractmethod
    def _create(self, db: Database, statement: str, primary_key: Sequence[str]) -> None:
        """Run the statement that creates the table, and what else a new table needs."""

    @abstractmethod
    def _widen(self, db: Database, column: TableColumn) -> None:
        """Give a column of the table the type that it has here."""

    @abstractmethod
    def _encoded(self, rows: DataFrame) -> DataFrame:
        """Rows in the types in which they are staged."""

    @abstractmethod
    def _source(self, db: Database, staged: Staged) -> str:
        """Make the staged rows readable within a transaction; the query that reads them."""

    @abstractmethod
    def _driver_error(self) -> type[Exception]:
        """The base of the driver's errors."""

    @abstractmethod
    def _refusal(self, error: Exception) -> bool:
        """Whether an error of the driver says that a row is not accepted."""

    @abstractmethod
    def _busy(self, error: Exception) -> bool:
        """Whether an error of the driver passes when another program is done."""

    def _words(self, error: Exception) -> str:
        """What an error of the driver says."""
        return first_line(error)

    def _key_type(self, column: TableColumn) -> str:
        """The type of a key in the gate, so that it is compared as the table compares it."""
        return column.kind

    # For changes of tables.

    def take_changes(self, changes: CDC) -> None:
        """Rows will be changes."""
        self._changes = changes

    def columns(self) -> list[TableColumn]:
        """Of the table as it is now; none if there is no table."""
        with self._database() as db:
            return self._columns(db)

    def add_columns(self, columns: Sequence[TableColumn]) -> None:
        """To the table as it is."""
        with self._database() as db, transaction(db, self.begin):
            self._add(db, columns)

    def _add(self, db: Database, columns: Sequence[TableColumn]) -> None:
        for column in columns:
            kind = self.types.named(column)
            db.execute(f"ALTER TABLE {self._located(db)} ADD COLUMN {quoted(column.name)} {kind}")

    def _gate(self, db: Database) -> Gate:
        within = self._located(db).removesuffix(quoted(self._ref.name))
        soft = (self._changes.soft_delete_column if self._changes else None) or ""
        beside = within + quoted(gate_name(self._ref.name)), within + quoted("_ematix_flow_truncates")
        return Gate(*beside, self._ref.name, soft)

    def _create_gate(self, db: Database) -> None:
        there = {column.name.lower(): column for column in self._columns(db)}
        found = [there[key.lower()] for key in self._shape.keys]
        keys = {column.name: self._key_type(column) for column in found}
        moment = there[VALID_FROM].kind if self._mode == "scd2" else ""
        for statement in gate_tables(self._gate(db), keys, moment):
            db.execute(statement)

    # The calls of the commit protocol.

    def prepare(self, schema: StructType) -> StructType:
        rows = self._shape.rows(schema)
        with self._database() as db, transaction(db, self.begin):
            self._create_fences(db)
            if not self._columns(db):
                self._create_table(db, self._shape.created(rows))
            fitted = self._shape.fitted(rows, self._columns(db))
            self._add(db, fitted.added)
            for column in fitted.widened:
                self._widen(db, column)
            if self._changes is not None:
                self._create_gate(db)
        return fitted.rows

    def stage(self, rows: DataFrame, batch: Batch) -> Staged:
        folder = batch.scratch(self._name)
        rows = self._resolved(rows)
        self._encoded(rows).write.mode("overwrite").option("compression", "snappy").parquet(str(folder))
        return Staged(folder, tuple(rows.columns))

    def refusals(self, staged: Staged, batch: Batch) -> dict[int, str]:
        with self._database() as db:
            with transaction(db, "BEGIN"):
                source = self._source(db, staged)
            if ROW not in staged.columns:
                source = f"(SELECT *, ROW_NUMBER() OVER () AS {ROW} FROM {source} AS s)"
            found = db.execute(f"SELECT {ROW} FROM {source} AS s ORDER BY {ROW}").fetchall()

            def attempt(first: int, last: int, without: Collection[int]) -> str | None:
                some = f"SELECT * FROM {source} AS s WHERE {ROW} BETWEEN {first} AND {last}"
                if without:
                    some += f" AND {ROW} NOT IN ({', '.join(map(str, without))})"
                try:
                    with transaction(db, self.begin, keep=False):
                        self._load(db, staged, f"({some})", batch)
                except Exception as error:
                    if self._refusal(error):
                        return self._words(error)
                    raise
                return None

            return refused_rows([number for (number,) in found], attempt)

    def forget(self) -> None:  # noqa: B027  # not abstract: most of them hold nothing
        """What is staged lies on the disk, or in the database."""

    def apply(self, staged: Staged, batch: Batch, fence: Fence) -> Applied:
        try:
            applied = self._apply(staged, batch, fence)
        except Exception as error:
            if not self._refusal(error):
                raise
            raise TargetRefused(
                f"{self.product} refuses the rows of batch {batch.number} for table {self._name}: {self._words(error)}",
                next_step="correct the rows in the transform, or the table; nothing of the batch was written",
            ) from error
        self._forget(staged)
        return applied

    def _apply(self, staged: Staged, batch: Batch, fence: Fence) -> Applied:
        with self._database() as db, transaction(db, self.begin):
            if self._passed(db, fence):
                self._discard(db, staged)
                return Applied(done=False)
            source = self._source(db, staged)
            counts = self._load(db, staged, source, batch)
            if CHANGE not in staged.columns and self._mode in {"merge", "scd2"}:
                changed = counts["inserted"] + counts["updated"]
                counts["unchanged"] = max(0, self._staged_rows(db, staged, source) - changed)
            self._settle(db, staged, fence)
            batch.reached("apply/before-commit")
        changes = self._change_counts if CHANGE in staged.columns else {}
        return Applied(done=True, counts=counts, changes=changes)

    def load_query(self, query: Query, batch: Batch, fence: Fence) -> Applied:
        """Rows of the same database, by its own statements, in one transaction with the fence. Staging is left out
        because nothing has to be computed elsewhere."""
        try:
            with self._database() as db:
                self._enter_for_query(db)
                with transaction(db, self.begin):
                    if self._passed(db, fence):
                        return Applied(done=False)
                    staged, source = self._of_query(query), self._resolved_query(query)
                    counts = self._load(db, staged, source, batch)
                    if self._mode == "merge":
                        (rows,) = db.execute(f"SELECT COUNT(*) FROM {source} AS s").fetchone()
                        counts["unchanged"] = max(0, rows - counts["inserted"] - counts["updated"])
                    self._settle(db, staged, fence)
                    batch.reached("apply/before-commit")
        except Exception as error:
            if not self._refusal(error):
                raise
            raise TargetRefused(
                f"{self.product} refuses the rows for table {self._name}: {self._words(error)}",
                next_step="correct the query or the table; nothing was written",
            ) from error
        return Applied(done=True, counts=counts)

    def _of_query(self, query: Query) -> Staged:
        return Staged(Path(), query.columns)

    def _enter_for_query(self, db: Database) -> None:  # noqa: B027 - most are in one database only
        """Let names in a query mean what they mean to its author."""

    def _resolved_query(self, query: Query) -> str:
        """One row per key for merge: the last one by the order that is given, then as the database gives them."""
        if self._mode != "merge":
            return f"({query.sql})"
        keys, names = (", ".join(map(quoted, some)) for some in (self._shape.keys, query.columns))
        # Databases do not agree on where NULL stands; here it is the earliest.
        order = f"{quoted(query.order)} IS NULL, {quoted(query.order)} DESC, " if query.order else ""
        placed = f"SELECT q.*, ROW_NUMBER() OVER () AS _flow_place FROM ({query.sql}) AS q"
        rank = f"ROW_NUMBER() OVER (PARTITION BY {keys} ORDER BY {order}_flow_place DESC) AS _flow_rank"
        return f"(SELECT {names} FROM (SELECT p.*, {rank} FROM ({placed}) AS p) AS r WHERE _flow_rank = 1)"

    def _load(self, db: Database, staged: Staged, source: str, batch: Batch) -> Counter[str]:
        """What became of how many rows."""
        if CHANGE in staged.columns:
            applied = apply_history if self._mode == "scd2" else apply_changes
            load, names = self._planned(db, staged, source, batch), staged.columns
            rows, self._change_counts = applied(db.execute, load, self._gate(db), self._affected, staged=names)
            return rows
        counts: Counter[str] = Counter()
        for statement in MODES[self._mode](self._planned(db, staged, source, batch)):
            result = db.execute(statement)
            if isinstance(statement, Counted):
                counts[statement.what] += self._affected(result)
        return counts

    def _affected(self, result: Any) -> int:
        """How many rows a statement touched."""
        return max(0, int(result.rowcount))

    def _staged_rows(self, db: Database, staged: Staged, source: str) -> int:
        (rows,) = db.execute(f"SELECT COUNT(*) FROM {source} AS s").fetchone()
        return int(rows)

    def _planned(self, db: Database, staged: Staged, source: str, batch: Batch) -> Load:
        columns = tuple(name for name in staged.columns if name not in HIDDEN)
        there = {column.name.lower() for column in self._columns(db)}
        now, ttl = datetime.now(UTC), self._target.ttl
        values = {"_loaded_at": f"{now:{self.moment}}", "_batch_id": f"{batch.pipeline}/{batch.number}"}
        filled = {name: literal(values[name]) for name in self._shape.audit(columns) if name in there}
        if self._target.handle_deletes == "soft" and self._mode == "merge":
            filled[IS_DELETED] = "FALSE"
        if ttl is not None:
            filled[SEEN_AT] = literal(values["_loaded_at"])
        return Load(
            self._located(db),
            source,
            columns,
            self._shape.keys,
            filled,
            withdraws=GONE in staged.columns or CHANGE in staged.columns,
            updates=self._target.update_columns,
            decides=self._target.compare_columns,
            absent=self._target.handle_deletes or "",
            moment=literal(values["_loaded_at"]),
            stale=literal(f"{now - ttl:{self.moment}}") if ttl is not None else "",
        )

    def _resolved(self, rows: DataFrame) -> DataFrame:
        if CHANGE in rows.columns:
            gathered = every_change if self._mode == "scd2" else last_changes
            return gathered(rows, self._shape.keys)
        return resolved(rows, self._target)

    def _create_fences(self, db: Database) -> None:
        db.execute(_FENCES)

    def _passed(self, db: Database, fence: Fence) -> bool:
        """Whether the table has this batch already."""
        found = db.execute(
            "SELECT generation, batch FROM _ematix_flow_fences WHERE pipeline = ? AND target = ?",
            (fence.pipeline, fence.target),
        ).fetchone()
        return bool(found) and fence.passed(*found)

    def _settle(self, db: Database, staged: Staged, fence: Fence) -> None:
        """Write the fence, as the last thing in the transaction."""
        db.execute(
            "INSERT OR REPLACE INTO _ematix_flow_fences (pipeline, target, generation, batch, applied_at) "
            "VALUES (?, ?, ?, ?, CURRENT_TIMESTAMP)",
            (fence.pipeline, fence.target, fence.generation, fence.batch),
        )

    def _discard(self, db: Database, staged: Staged) -> None:  # noqa: B027 - most stage nothing there
        """Remove what is staged in the database itself."""

    def _forget(self, staged: Staged) -> None:
        """The target has the batch, now or already; what was staged is needed no more."""
        shutil.rmtree(staged.folder)

    def _failure(self, error: Exception) -> FlowError:
        if self._busy(error):
            return TargetUnavailable(
                f"another program holds {self._path}: {self._words(error)}",
                next_step="close the other program; the batch is tried again",
            )
        return FlowError(
            f"{self.product} fails at table {self._ref.full_name} in {self._path}: {self._words(error)}",
            next_step="check the table and the disk; nothing of the batch was written",
        )

    def _create_table(self, db: Database, columns: Sequence[TableColumn]) -> None:
        types = {c.name: self.types.named(c) + ("" if c.nullable else " NOT NULL") for c in columns}
        key = self._shape.primary_key(columns)
        self._create(db, create_table(self._located(db), types, key, self._shape.unique), key)

    @contextmanager
    def _database(self) -> Iterator[Database]:
        with closing(self._open()) as db:
            try:
                yield db
            except self._driver_error() as error:
                if self._refusal(error):
                    raise
                raise self._failure(error) from error


@contextmanager
def transaction(db: Database, begin: str, *, keep: bool = True) -> Iterator[None]:
    db.execute(begin)
    try:
        yield
    except BaseException:
        with suppress(Exception):  # some failures have ended the transaction already
            db.execute("ROLLBACK")
        raise
    db.execute("COMMIT" if keep else "ROLLBACK")


def first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
