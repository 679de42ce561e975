"""Dead letters in a Delta table beside the vault of a state store, together with those of other pipelines.

Whatever needs to know all letters works on a copy in SQLite, and what it changed goes back in one commit. A letter that
was replayed well leaves a row with the `generation`, so that a repeated batch does not bring it back.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote

from ematix_flow.secrets import redact_text
from ematix_flow.state import durable
from ematix_flow.state.dead_letters import COLUMNS, LETTERS, TABLES, TOLD, Cursor, DeadLetter, DeadLetters, letter_of
from ematix_flow.state.vault import StateStoreUnavailable

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable
    from deltalake.table import TableMerger

R = TypeVar("R")

_FIELDS = ("letters_of", *COLUMNS, "replay", "generation")
_ALL_BUT_PAYLOAD = tuple(field for field in _FIELDS if field != "payload")
_LIGHT = tuple(field for field in (*COLUMNS, "replay") if field != "payload")
_TIMES = ("event_ts", "failed_at")
_REPLAYED = "replayed"

# Whoever reads what was replaced meanwhile is done within a day; a daemon commits too often to keep it for a week.
_SETTINGS = {
    "delta.checkpointInterval": "20",
    "delta.logRetentionDuration": "interval 1 days",
    "delta.deletedFileRetentionDuration": "interval 1 days",
}
_MANY_FILES = 100

# Another process writes letters at the same time, for moments only.
_PATIENCE_SECONDS = 30.0
_PAUSE_SECONDS = 0.05

# More than are put at once; above this, reading all letters is quicker than comparing each with so many ids.
_FEW_IDS = 5_000

# Those that are `told` bring a payload; the copy has none of the payloads that were there.
_WATCH = """
CREATE TEMP TABLE changed (id TEXT NOT NULL, told INTEGER NOT NULL);
CREATE TEMP TRIGGER added AFTER INSERT ON dead_letters BEGIN INSERT INTO changed VALUES (new.id, 1); END;
CREATE TEMP TRIGGER told AFTER UPDATE OF payload ON dead_letters BEGIN INSERT INTO changed VALUES (new.id, 1); END;
CREATE TEMP TRIGGER changed AFTER UPDATE ON dead_letters BEGIN INSERT INTO changed VALUES (new.id, 0); END;
CREATE TEMP TRIGGER gone AFTER DELETE ON dead_letters BEGIN INSERT INTO changed VALUES (old.id, 0); END;
CREATE TEMP TRIGGER forgotten AFTER DELETE ON replayed BEGIN INSERT INTO changed VALUES (old.id, 0); END;
"""
_CHANGES = f"""
SELECT {", ".join(COLUMNS)}, replay, generation, max(told) AS told
FROM changed LEFT JOIN dead_letters USING (id) LEFT JOIN replayed USING (id) GROUP BY id"""


class DeltaDeadLetters(DeadLetters):
    def __init__(self, path: str, pipeline: str, generation: str = "") -> None:
        """`path` is that of the table; the first letter makes it."""
        self._path, self._pipeline, self._generation = path, pipeline, generation
        self._local = None if "://" in path else Path(path).absolute()
        self._facts = {"generation": generation}
        self._mine = f"letters_of = {_quoted(pipeline)}"

    def close(self) -> None:
        """Nothing stays open."""

    def _run(self, work: Callable[[Cursor], R]) -> R:
        def attempt() -> R:
            table = self._table()
            with closing(self._copied(table, _LIGHT)) as db:
                db.executescript(_WATCH)
                result = work(db.cursor())
                db.row_factory = sqlite3.Row
                changes = [self._change_of(dict(row)) for row in db.execute(_CHANGES)]
            if changes:
                self._ship(table or self._created(), changes)
            return result

        return self._repeated(attempt)

    def _put(self, letters: Sequence[DeadLetter]) -> int:
        """Without a copy. A batch is rarely repeated, so that most letters are new, and are only appended."""
        rows = {one.id: {column: getattr(one, column) for column in COLUMNS} for one in letters}
        source = _arrow({**row, "letters_of": self._pipeline} for row in rows.values())

        def attempt() -> int:
            from deltalake import write_deltalake

            table = self._table() or self._created()
            if any(batch.num_rows for batch in self._read(table, ("id",), rows)):
                return self._tell_anew(table, source)
            before = table.version()
            write_deltalake(table, source, mode="append")
            self._flush(before)
            self._tidy(table)
            return len(rows)

        return self._repeated(attempt)

    def _letters(self, ids: Sequence[str]) -> Iterator[DeadLetter]:
        with closing(self._repeated(lambda: self._copied(self._table() if ids else None, COLUMNS, ids))) as db:
            yield from map(letter_of, db.execute(self.dialect.sql(LETTERS), {"ids": self.dialect.value(list(ids))}))

    def _copied(
        self, table: DeltaTable | None, fields: Sequence[str], ids: Iterable[str] | None = None
    ) -> sqlite3.Connection:
        # Without a name: on the disk as far as it does not fit into memory, and gone with the connection.
        db = sqlite3.connect("")
        db.executescript(TABLES)
        # Two of one id are there if a process that was paused, and was replaced meanwhile, wrote them, too.
        add = "INSERT OR REPLACE INTO {} ({}) VALUES ({})".format
        adding = add("dead_letters", ", ".join(fields), ", ".join("?" * len(fields)))
        for batch in self._read(table, (*fields, "generation"), ids) if table else ():
            columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
            columns |= {name: [self.dialect.value(moment) for moment in columns[name]] for name in _TIMES}
            rows = list(zip(*columns.values(), strict=True))
            db.executemany(adding, (row[:-1] for row in rows if row[-1] is None))
            replayed = ((row[0], row[-1]) for row in rows if row[-1] is not None)
            db.executemany(add("replayed", "id, generation", "?, ?"), replayed)
        return db

    def _read(
        self, table: DeltaTable, fields: Sequence[str], ids: Iterable[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows of the pipeline, at least those of `ids`."""
        import pyarrow as pa
        from deltalake import QueryBuilder

        chosen = None if ids is None else list(ids)
        some = "" if chosen is None or len(chosen) > _FEW_IDS else f" AND id IN ({', '.join(map(_quoted, chosen))})"
        sql = f"SELECT {', '.join(fields)} FROM letters WHERE {self._mine}{some}"
        return map(pa.record_batch, QueryBuilder().register("letters", table).execute(sql))

    def _change_of(self, row: dict[str, Any]) -> dict[str, Any]:
        """As the table has it: a row without status is to go."""
        times = {name: datetime.fromisoformat(row[name]) if row[name] else None for name in _TIMES}
        row |= times | {"letters_of": self._pipeline, "told": bool(row["told"])}
        if row["status"] is not None:
            return row | {"generation": None}
        return row if row["generation"] is None else row | {"status": _REPLAYED, "told": True}

    def _ship(self, table: DeltaTable, changes: Sequence[Mapping[str, Any]]) -> None:
        before = table.version()
        (
            self._merging(table, _arrow(changes, told=True))
            .when_matched_delete(predicate="s.status IS NULL")
            .when_matched_update(_from_source(_FIELDS), predicate="s.told")
            .when_matched_update(_from_source(_ALL_BUT_PAYLOAD))
            .when_not_matched_insert(_from_source(_FIELDS), predicate="s.status IS NOT NULL")
            .execute()
        )
        self._flush(before)

    def _tell_anew(self, table: DeltaTable, source: pa.Table) -> int:
        """Letters some of which are known, or were replayed."""
        before = table.version()
        done = (
            self._merging(table, source)
            .when_matched_update(_from_source(TOLD), predicate="t.generation IS NULL")
            .when_matched_update(_from_source(_FIELDS), predicate=f"t.generation <> {_quoted(self._generation)}")
            .when_not_matched_insert(_from_source(_FIELDS))
            .execute()
        )
        self._flush(before)
        return int(done["num_target_rows_inserted"] + done["num_target_rows_updated"])

    def _merging(self, table: DeltaTable, source: pa.Table) -> TableMerger:
        return table.merge(source, f"t.{self._mine} AND t.id = s.id", source_alias="s", target_alias="t")

    def _table(self) -> DeltaTable | None:
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        try:
            return DeltaTable(self._path)
        except TableNotFoundError:
            return None

    def _created(self) -> DeltaTable:
        from deltalake import DeltaTable

        if self._local:
            durable.make(self._local)
        table = DeltaTable.create(
            self._path, _schema(), mode="ignore", partition_by=["letters_of"], configuration=_SETTINGS
        )
        self._flush(before=-1)
        return table

    def _flush(self, before: int) -> None:
        """What was committed after version `before`. The library leaves it to the system when that reaches the disk."""
        if self._local is None:
            return
        log, version = self._local / "_delta_log", before + 1
        while (entry := log / f"{version:020d}.json").exists():
            actions = map(json.loads, entry.read_text(encoding="utf-8").splitlines())
            for file in [self._local / unquote(action["add"]["path"]) for action in actions if "add" in action]:
                # Another process may have made one out of many meanwhile.
                with suppress(FileNotFoundError):
                    durable.sync(file)
                    durable.sync(file.parent)
            durable.sync(entry)
            version += 1
        durable.sync(log)
        durable.sync(self._local)

    def _tidy(self, table: DeltaTable) -> None:
        """Each put leaves a small file."""
        from deltalake.exceptions import CommitFailedError

        whose = [("letters_of", "=", self._pipeline)]
        if len(table.file_uris(file_pruning_predicate=whose)) > _MANY_FILES:
            # Whoever is changing letters now comes first; the next put tries again.
            with suppress(CommitFailedError):
                table.optimize.compact(partition_filters=whose)
                table.vacuum(dry_run=False)

    def _repeated(self, attempt: Callable[[], R]) -> R:
        """From the start again, if another process has changed letters meanwhile."""
        from deltalake.exceptions import CommitFailedError, DeltaError

        until = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                return attempt()
            except (DeltaError, OSError) as error:
                if not isinstance(error, CommitFailedError) or time.monotonic() > until:
                    raise self._unavailable(error) from error
                time.sleep(_PAUSE_SECONDS)

    def _unavailable(self, error: Exception) -> StateStoreUnavailable:
        words = redact_text(" ".join(str(error).split()))
        return StateStoreUnavailable(
            f"the dead letters in Delta table {redact_text(self._path)} cannot be used: {words}",
            next_step="check `path` of the state store, and who may read and write there",
        )


def _schema() -> pa.Schema:
    import pyarrow as pa

    kinds = {"attempt": pa.int32(), "payload": pa.binary()} | dict.fromkeys(_TIMES, pa.timestamp("us", "UTC"))
    return pa.schema([(field, kinds.get(field, pa.string())) for field in _FIELDS])


def _arrow(rows: Iterable[Mapping[str, Any]], *, told: bool = False) -> pa.Table:
    import pyarrow as pa

    schema = _schema()
    return pa.Table.from_pylist(list(rows), schema=schema.append(pa.field("told", pa.bool_())) if told else schema)


def _from_source(fields: Iterable[str]) -> dict[str, str]:
    return {field: f"s.{field}" for field in fields}


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
