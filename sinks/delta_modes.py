"""How staged rows enter a Delta table, mode by mode, each in one commit that also carries the fence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from ematix_flow.sinks.delta_table import DeltaTable
from ematix_flow.sinks.delta_types import has_map, quoted
from ematix_flow.sinks.tables import IS_DELETED, SEEN_AT
from ematix_flow.state.kernel import GONE
from ematix_flow.table import VALID_FROM

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

_VIEW = "_flow_staged"


@dataclass(frozen=True)
class Load:
    """Rows on their way into a table."""

    table: DeltaTable
    rows: DataFrame
    """As staged. scd2 brings `valid_from` and `row_hash` with them."""
    application: str
    batch: int
    keys: tuple[str, ...] = ()
    filled: Mapping[str, Column] = field(default_factory=dict)
    """Columns that every written row gets."""
    updates: tuple[str, ...] = ()
    """The only columns that a row that is there gets, if any are named."""
    decides: tuple[str, ...] = ()
    """The only columns that tell whether it has changed, if any are named."""
    absent: str = ""
    """What becomes of rows whose key no staged row has: nothing, `hard` or `soft`."""
    moment: datetime | None = None
    """Now; for rows that are closed."""
    stale: datetime | None = None
    """Versions that scd2 holds open are closed if their key was not shown since."""

    @property
    def complete(self) -> DataFrame:
        return self.rows.withColumns(dict(self.filled))

    @property
    def content(self) -> list[str]:
        """The columns that may change while the key stays."""
        fixed = {name.lower() for name in (*self.keys, VALID_FROM, GONE)}
        return [name for name in self.rows.columns if name.lower() not in fixed]


Counts = Mapping[str, int]
"""What became of how many rows; none where all of them were added."""


def append(load: Load) -> Counts:
    _write(load, "append")
    return {}


def truncate(load: Load) -> Counts:
    held = load.table.rows().count()
    _write(load, "overwrite")
    return {"inserted": load.rows.count(), "deleted": held}


def merge(load: Load) -> Counts:
    """New keys are inserted; a row that is there is touched only if it differs, and deleted if it is withdrawn."""
    types = {f.name: f.dataType for f in load.rows.schema.fields}
    changing = _among(load.content, load.updates)
    same = [_same(name, types[name]) for name in (_among(load.content, load.decides) if load.decides else changing)]
    soft = load.absent == "soft"
    if soft:
        same.append(f"t.{IS_DELETED} <=> false")
    withdraws = GONE in load.rows.columns
    delete = f"WHEN MATCHED AND s.{GONE} THEN DELETE"
    update = f"WHEN MATCHED AND NOT ({' AND '.join(same)}) THEN UPDATE SET {_set([*changing, *load.filled])}"
    new = f"NOT MATCHED AND s.{GONE} IS NOT TRUE" if withdraws else "NOT MATCHED"
    insert = insert_clause([name for name in load.complete.columns if name != GONE], new)
    gone = {
        "hard": "WHEN NOT MATCHED BY SOURCE THEN DELETE",
        "soft": f"WHEN NOT MATCHED BY SOURCE AND t.{IS_DELETED} IS NOT TRUE THEN UPDATE SET {IS_DELETED} = true",
    }
    clauses = [*([delete] if withdraws else []), *([update] if same else []), insert]
    clauses += [gone[load.absent]] if load.absent else []
    absent = _absent(load).where(f"{IS_DELETED} IS NOT TRUE").count() if soft else 0
    inserted, updated, deleted = merge_rows(load, load.complete, same_keys(load.keys), *clauses)
    updated -= absent
    staged = load.rows.where(f"{GONE} IS NOT TRUE").count() if withdraws else load.rows.count()
    return {
        "inserted": inserted,
        "updated": updated,
        "deleted": deleted + absent,
        "unchanged": max(0, staged - inserted - updated),
    }


def scd2(load: Load) -> Counts:
    changes = _changes(load).persist()
    try:
        counts = {row["_flow_what"]: row["count"] for row in changes.groupBy("_flow_what").count().collect()}
        ends = ("valid_to", "is_current", *([SEEN_AT] if load.stale else []))
        gone = [f"WHEN MATCHED AND s.{GONE} THEN DELETE"] if GONE in changes.columns else []
        merge_rows(
            load,
            changes,
            f"{same_keys(load.keys)} AND t.{VALID_FROM} = s.{VALID_FROM}",
            *gone,
            f"WHEN MATCHED AND s._flow_what = 'updated' THEN UPDATE SET "
            f"{_set([*load.content, *load.filled, 'valid_to', 'is_current'])}",
            f"WHEN MATCHED THEN UPDATE SET {_set(ends)}",
            insert_clause([name for name in changes.columns if name not in {"_flow_what", GONE}]),
        )
    finally:
        changes.unpersist()
    counts.pop("seen", None)
    written = counts.get("inserted", 0) + counts.get("updated", 0)
    return {**counts, "unchanged": max(0, load.rows.count() - written)}


MODES: Mapping[str, Callable[[Load], Counts]] = {
    "append": append,
    "truncate": truncate,
    "merge": merge,
    "scd2": scd2,
}


def _among(names: Sequence[str], chosen: Sequence[str]) -> list[str]:
    """All of them, if none is chosen."""
    low = {name.lower() for name in chosen}
    return [name for name in names if not low or name.lower() in low]


def _same(name: str, kind: DataType) -> str:
    if has_map(kind):
        return f"to_json(struct(t.{quoted(name)})) <=> to_json(struct(s.{quoted(name)}))"
    return f"t.{quoted(name)} <=> s.{quoted(name)}"


def _absent(load: Load) -> DataFrame:
    """The rows of the table whose key no staged row has."""
    from pyspark.sql import functions as F

    return load.table.rows().alias("t").join(load.rows.alias("s"), F.expr(same_keys(load.keys)), "left_anti")


def _changes(load: Load) -> DataFrame:
    """The rows of history that a batch inserts or changes.

    The versions of the table, the moments at which they end, and the staged versions are one timeline per key. A
    staged version that equals what was in force just before it is left out; each other one ends where the next entry
    begins. A version of the table always stays, with the content of a staged one that begins at the same moment. Where
    a staged row is gone, it only ends what is before it; a version that begins at the same moment goes.
    """
    from pyspark.sql import functions as F

    keys = [quoted(key) for key in load.keys]
    same = F.expr(same_keys(load.keys))
    touched = load.table.rows().alias("t").join(load.rows.alias("s"), on=same, how="left_semi")
    # The three kinds sort in this order where they stand at the same moment: closing, held, staged.
    versions = touched.selectExpr(
        *keys,
        "inline(array("
        "struct(valid_from, valid_to, row_hash, 'held' AS _flow_kind), "
        "struct(valid_to AS valid_from, NULL AS valid_to, NULL AS row_hash, 'closing' AS _flow_kind)))",
    ).where("valid_from IS NOT NULL")
    staged = load.complete.selectExpr("*", "'staged' AS _flow_kind")
    entries = staged.unionByName(versions, allowMissingColumns=True)
    along = f"OVER (PARTITION BY {', '.join(keys)} ORDER BY valid_from, _flow_kind)"
    placed = entries.selectExpr(
        "*",
        f"lag(row_hash) {along} AS _flow_hash_before",
        f"lag(valid_to) {along} AS _flow_end_before",
        f"_flow_kind = 'staged' AND lag(_flow_kind) {along} <=> 'held' AND lag(valid_from) {along} <=> valid_from "
        "AS _flow_replaces",
        f"_flow_kind = 'held' AND lead(_flow_kind) {along} <=> 'staged' AND lead(valid_from) {along} <=> valid_from "
        "AS _flow_replaced",
    )
    repeats = "_flow_kind = 'staged' AND row_hash <=> _flow_hash_before"
    kept = placed.where(f"NOT _flow_replaced AND (_flow_replaces OR NOT ({repeats}))")
    ended = kept.selectExpr(
        "*", f"lead(valid_from) {along} AS _flow_end", f"_flow_kind = 'staged' AND NOT ({repeats}) AS _flow_is_new"
    )
    end_differs = "NOT (_flow_end <=> if(_flow_replaces, _flow_end_before, valid_to))"
    seen = "WHEN _flow_end IS NULL THEN 'seen'" if load.stale else ""
    what = (
        "CASE WHEN _flow_is_new THEN if(_flow_replaces, 'updated', 'inserted') "
        f"WHEN {end_differs} THEN 'closed' {seen} END"
    )
    changed = ended.where("_flow_kind <> 'closing'")
    if GONE in load.rows.columns:
        changed = changed.where(f"{GONE} IS NOT TRUE OR _flow_replaces")
    changed = changed.selectExpr(
        *map(quoted, load.complete.columns),
        "_flow_end AS valid_to",
        "_flow_end IS NULL AS is_current",
        f"{what} AS _flow_what",
    )
    if load.stale:
        changed = changed.withColumn(SEEN_AT, F.lit(load.moment))
    written = changed.where("_flow_what IS NOT NULL")
    return _with_closed(load, written, _shown_again(load, entries)) if load.absent or load.stale else written


def _with_closed(load: Load, changes: DataFrame, again: DataFrame) -> DataFrame:
    """Versions whose key the source no longer shows end now; a key that it shows again goes on."""
    from pyspark.sql import functions as F

    gone = _absent(load).where("is_current")
    if load.stale and not load.absent:
        # The time of a version that was there before the ttl begins now.
        gone = gone.where((F.col(SEEN_AT) < F.lit(load.stale)) | F.col(SEEN_AT).isNull())
    held = F.col(SEEN_AT).isNull() if load.stale and not load.absent else F.lit(False)
    closed = gone.select(
        *(F.col(quoted(name)) for name in (*load.keys, VALID_FROM)),
        F.when(~held, F.lit(load.moment)).alias("valid_to"),
        held.alias("is_current"),
        F.when(held, "seen").otherwise("closed").alias("_flow_what"),
        *([F.lit(load.moment).alias(SEEN_AT)] if load.stale else []),
    )
    return changes.unionByName(closed, allowMissingColumns=True).unionByName(again)


def _shown_again(load: Load, entries: DataFrame) -> DataFrame:
    """The last staged version of keys whose timeline ends with a closing."""
    from pyspark.sql import functions as F

    keys = [quoted(key) for key in load.keys]
    last = f"row_number() OVER (PARTITION BY {', '.join(keys)} ORDER BY valid_from DESC, _flow_kind DESC)"
    closed = entries.selectExpr(*keys, "_flow_kind", f"{last} AS _flow_rank")
    closed = closed.where("_flow_rank = 1 AND _flow_kind = 'closing'")
    newest = load.complete.selectExpr("*", f"{last.partition(', _flow_kind')[0]}) AS _flow_rank")
    rows = newest.where("_flow_rank = 1").drop("_flow_rank")
    rows = rows.alias("t").join(closed.alias("s"), F.expr(same_keys(load.keys)), "left_semi")
    return rows.withColumns(
        {
            VALID_FROM: F.lit(load.moment),
            "valid_to": F.lit(None).cast("timestamp"),
            "is_current": F.lit(True),
            "_flow_what": F.lit("inserted"),
        }
    )


def _write(load: Load, mode: str) -> None:
    writer = load.complete.write.format("delta").mode(mode).option("partitionOverwriteMode", "static")
    writer.option("txnAppId", load.application).option("txnVersion", load.batch).save(load.table.path)


def merge_rows(load: Load, source: DataFrame, on: str, *clauses: str) -> tuple[int, int, int]:
    """How many rows were inserted, updated and deleted."""
    session = source.sparkSession
    source.createOrReplaceTempView(_VIEW)
    try:
        with _fenced(load):
            merging = f"MERGE INTO {load.table.sql_name} AS t USING {_VIEW} AS s ON {on} {' '.join(clauses)}"
            (done,) = session.sql(merging).collect()
            return done["num_inserted_rows"], done["num_updated_rows"], done["num_deleted_rows"]
    finally:
        session.catalog.dropTempView(_VIEW)


@contextmanager
def _fenced(load: Load) -> Iterator[None]:
    """A statement takes from the session what a writer takes from its options."""
    settings = load.table.session.conf
    prefix = "spark.databricks.delta.write"
    settings.set(f"{prefix}.txnAppId", load.application)
    settings.set(f"{prefix}.txnVersion", str(load.batch))
    try:
        yield
    finally:
        settings.unset(f"{prefix}.txnAppId")
        settings.unset(f"{prefix}.txnVersion")


def same_keys(keys: Sequence[str]) -> str:
    return " AND ".join(f"t.{quoted(key)} <=> s.{quoted(key)}" for key in keys)


def _set(names: Sequence[str]) -> str:
    return ", ".join(f"{quoted(name)} = s.{quoted(name)}" for name in names)


def insert_clause(names: Sequence[str], when: str = "NOT MATCHED") -> str:
    columns, values = (", ".join(f"{of}{quoted(name)}" for name in names) for of in ("", "s."))
    return f"WHEN {when} THEN INSERT ({columns}) VALUES ({values})"
