"""How staged rows enter a Delta table, mode by mode, each in one commit that also carries the fence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ematix_flow.sinks.delta_table import DeltaTable
from ematix_flow.sinks.delta_types import has_map, quoted
from ematix_flow.state.kernel import GONE
from ematix_flow.table import VALID_FROM

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

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

    @property
    def complete(self) -> DataFrame:
        return self.rows.withColumns(dict(self.filled))

    @property
    def content(self) -> list[str]:
        """The columns that may change while the key stays."""
        fixed = {name.lower() for name in (*self.keys, VALID_FROM, GONE)}
        return [name for name in self.rows.columns if name.lower() not in fixed]


def append(load: Load) -> None:
    _write(load, "append")


def truncate(load: Load) -> None:
    _write(load, "overwrite")


def merge(load: Load) -> None:
    """New keys are inserted; a row that is there is touched only if it differs, and deleted if it is withdrawn."""
    types = {f.name: f.dataType for f in load.rows.schema.fields}
    same = [
        f"to_json(struct(t.{quoted(name)})) <=> to_json(struct(s.{quoted(name)}))"
        if has_map(types[name])
        else f"t.{quoted(name)} <=> s.{quoted(name)}"
        for name in load.content
    ]
    withdraws = GONE in load.rows.columns
    delete = f"WHEN MATCHED AND s.{GONE} THEN DELETE"
    update = f"WHEN MATCHED AND NOT ({' AND '.join(same)}) THEN UPDATE SET {_set([*load.content, *load.filled])}"
    new = f"NOT MATCHED AND s.{GONE} IS NOT TRUE" if withdraws else "NOT MATCHED"
    insert = insert_clause([name for name in load.complete.columns if name != GONE], new)
    clauses = [*([delete] if withdraws else []), *([update] if same else []), insert]
    merge_rows(load, load.complete, same_keys(load.keys), *clauses)


def scd2(load: Load) -> None:
    changes = _changes(load)
    ends = ("valid_to", "is_current")
    gone = [f"WHEN MATCHED AND s.{GONE} THEN DELETE"] if GONE in changes.columns else []
    merge_rows(
        load,
        changes,
        f"{same_keys(load.keys)} AND t.{VALID_FROM} = s.{VALID_FROM}",
        *gone,
        f"WHEN MATCHED AND s._flow_is_new THEN UPDATE SET {_set([*load.content, *load.filled, *ends])}",
        f"WHEN MATCHED THEN UPDATE SET {_set(ends)}",
        insert_clause([name for name in changes.columns if name not in {"_flow_is_new", GONE}]),
    )


MODES: Mapping[str, Callable[[Load], None]] = {
    "append": append,
    "truncate": truncate,
    "merge": merge,
    "scd2": scd2,
}


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
    changed = ended.where(f"_flow_kind <> 'closing' AND (_flow_is_new OR {end_differs})")
    if GONE in load.rows.columns:
        changed = changed.where(f"{GONE} IS NOT TRUE OR _flow_replaces")
    return changed.selectExpr(
        *map(quoted, load.complete.columns),
        "_flow_end AS valid_to",
        "_flow_end IS NULL AS is_current",
        "_flow_is_new",
    )


def _write(load: Load, mode: str) -> None:
    writer = load.complete.write.format("delta").mode(mode).option("partitionOverwriteMode", "static")
    writer.option("txnAppId", load.application).option("txnVersion", load.batch).save(load.table.path)


def merge_rows(load: Load, source: DataFrame, on: str, *clauses: str) -> None:
    session = source.sparkSession
    source.createOrReplaceTempView(_VIEW)
    try:
        with _fenced(load):
            session.sql(f"MERGE INTO {load.table.sql_name} AS t USING {_VIEW} AS s ON {on} {' '.join(clauses)}")
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
