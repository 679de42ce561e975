"""The SQL that brings staged rows into a table, mode by mode, in words that all SQL databases share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ematix_flow.sinks.ordering import ROW_HASH
from ematix_flow.state.kernel import GONE
from ematix_flow.table import VALID_FROM

TIMELINE = "_flow_timeline"
IS_DELETED = "_is_deleted"
"""Column that a soft delete flips."""
SEEN_AT = "_seen_at"
"""Column that tells when the source showed the key of a version last, for targets with a `ttl`."""


class Counted(str):
    """A statement, and what the rows are that it touches: inserted, updated, deleted or closed."""

    __slots__ = ("what",)
    what: str

    def __new__(cls, sql: str, what: str) -> Counted:
        made = super().__new__(cls, sql)
        made.what = what
        return made


@dataclass(frozen=True)
class Dialect:
    """The words in which databases differ."""

    same: str = "{} IS NOT DISTINCT FROM {}"
    """How two values are compared of which both may be NULL."""
    differs: str = "{} IS DISTINCT FROM {}"
    drop_temporary: str = "DROP TABLE"
    joins_first: bool = False
    """UPDATE and DELETE join other rows before they say what to do."""


@dataclass(frozen=True)
class Load:
    """Rows on their way into a table."""

    table: str
    """Qualified and quoted."""
    source: str
    """The staged rows: a table, or a query in parentheses."""
    columns: tuple[str, ...]
    """Of the staged rows. scd2 brings `valid_from` and `row_hash` with them."""
    keys: tuple[str, ...] = ()
    filled: Mapping[str, str] = field(default_factory=dict)
    """Columns that every written row gets, with their literal."""
    firm: frozenset[str] = frozenset()
    """Keys that are NULL in no staged row, so that `=`, for which there may be an index, finds them."""
    dialect: Dialect = Dialect()
    compared: Mapping[str, str] = field(default_factory=dict)
    """How a value is written to be compared, for columns whose type knows no equality or not the right one."""
    withdraws: bool = False
    """The staged rows have `GONE`."""
    updates: tuple[str, ...] = ()
    """The only columns that a row that is there gets, if any are named."""
    decides: tuple[str, ...] = ()
    """The only columns that tell whether it has changed, if any are named."""
    absent: str = ""
    """What becomes of rows whose key no staged row has: nothing, `hard` or `soft`."""
    moment: str = ""
    """Now, as a literal; for rows that are closed."""
    stale: str = ""
    """A time as a literal: versions that scd2 holds open are closed if their key was not shown since."""
    identity: tuple[str, ...] = ()
    """What tells the rows of the table apart, quoted, in a database that cannot delete by a join."""

    @property
    def content(self) -> tuple[str, ...]:
        """The columns that may change while the key stays."""
        fixed = {name.lower() for name in (*self.keys, VALID_FROM)}
        return tuple(name for name in self.columns if name.lower() not in fixed)

    @property
    def changing(self) -> tuple[str, ...]:
        """The columns that an update writes."""
        chosen = {name.lower() for name in self.updates}
        return tuple(name for name in self.content if not chosen or name.lower() in chosen)

    def insert(self, more: Mapping[str, str] | None = None) -> str:
        """The start of an INSERT that reads staged rows as `s`; whoever calls it says which ones."""
        values = {name: f"s.{quoted(name)}" for name in self.columns} | dict(self.filled) | dict(more or {})
        return (
            f"INSERT INTO {self.table} ({', '.join(map(quoted, values))}) "
            f"SELECT {', '.join(values.values())} FROM {self.source} AS s"
        )

    def update(self, where: str) -> str:
        """Bring the content of staged rows `s` into rows `t` of the table."""
        values = {name: f"s.{quoted(name)}" for name in self.changing} | dict(self.filled)
        return self.update_from(self.source, "s", values, where)

    def update_from(self, other: str, alias: str, values: Mapping[str, str], where: str) -> str:
        """Give columns of rows `t` of the table values that may come from another table or query."""
        if self.dialect.joins_first:
            assigned = ", ".join(f"t.{quoted(name)} = {value}" for name, value in values.items())
            return f"UPDATE {self.table} AS t JOIN {other} AS {alias} ON {where} SET {assigned}"
        assigned = ", ".join(f"{quoted(name)} = {value}" for name, value in values.items())
        return f"UPDATE {self.table} AS t SET {assigned} FROM {other} AS {alias} WHERE {where}"

    def delete(self, where: str) -> str:
        """Remove rows `t` of the table that meet staged rows `s`."""
        if self.dialect.joins_first:
            return f"DELETE t FROM {self.table} AS t JOIN {self.source} AS s ON {where}"
        if not self.identity:
            return f"DELETE FROM {self.table} AS t USING {self.source} AS s WHERE {where}"
        found = ", ".join(f"t.{name}" for name in self.identity)
        met = f"SELECT {found} FROM {self.source} AS s JOIN {self.table} AS t ON {where}"
        return f"DELETE FROM {self.table} WHERE ({', '.join(self.identity)}) IN ({met})"

    def same_key(self, one: str, other: str) -> str:
        compared = {name: "{} = {}" if name in self.firm else self.dialect.same for name in self.keys}
        return " AND ".join(
            form.format(f"{one}.{quoted(name)}", f"{other}.{quoted(name)}") for name, form in compared.items()
        )

    def differs(self, one: str, other: str) -> str:
        """In any column that counts."""
        chosen = {name.lower() for name in self.decides}
        counting = [n for n in self.content if n.lower() in chosen] if chosen else self.changing
        cases = [self.dialect.differs.format(self._compared(one, n), self._compared(other, n)) for n in counting]
        if self.absent == "soft":
            cases.append(f"{one}.{quoted(IS_DELETED)} IS NOT FALSE")
        return " OR ".join(cases)

    def without_match(self, what: str) -> str:
        """Rows `t` of the table whose key no staged row has."""
        unmatched = f"NOT EXISTS (SELECT 1 FROM {self.source} AS s WHERE {self.same_key('t', 's')})"
        return f"{what} AND {unmatched}" if what else unmatched

    def delete_absent(self) -> str:
        target = f"DELETE t FROM {self.table} AS t" if self.dialect.joins_first else f"DELETE FROM {self.table} AS t"
        return f"{target} WHERE {self.without_match('')}"

    def update_absent(self, values: Mapping[str, str], what: str) -> str:
        return self.update_all(values, self.without_match(what))

    def update_all(self, values: Mapping[str, str], where: str) -> str:
        prefix = "t." if self.dialect.joins_first else ""
        assigned = ", ".join(f"{prefix}{quoted(name)} = {value}" for name, value in values.items())
        return f"UPDATE {self.table} AS t SET {assigned} WHERE {where}"

    def _compared(self, alias: str, name: str) -> str:
        return self.compared.get(name, "{}").format(f"{alias}.{quoted(name)}")


def append(load: Load) -> list[str]:
    return [Counted(load.insert(), "inserted")]


def truncate(load: Load) -> list[str]:
    return [Counted(f"DELETE FROM {load.table}", "deleted"), Counted(load.insert(), "inserted")]


def merge(load: Load) -> list[str]:
    """New keys are inserted; a row that is there is touched only if it differs, and deleted if it is withdrawn."""
    same_key = load.same_key("t", "s")
    if load.withdraws:
        # First, so that what has to be unique is free for the rows that stay.
        delete = Counted(load.delete(f"{same_key} AND s.{GONE}"), "deleted")
        staying = f"(SELECT * FROM {load.source} AS s WHERE {GONE} IS NOT TRUE)"
        return [delete, *merge(replace(load, source=staying, withdraws=False))]
    missing = f"NOT EXISTS (SELECT 1 FROM {load.table} AS t WHERE {same_key})"
    statements = [Counted(f"{load.insert()} WHERE {missing}", "inserted")]
    if differs := load.differs("t", "s"):
        statements.insert(0, Counted(load.update(f"{same_key} AND ({differs})"), "updated"))
    # First, so that what has to be unique is free for the rows that stay.
    if load.absent == "hard":
        statements.insert(0, Counted(load.delete_absent(), "deleted"))
    if load.absent == "soft":
        gone = load.update_absent({IS_DELETED: "TRUE"}, f"t.{quoted(IS_DELETED)} IS NOT TRUE")
        statements.insert(0, Counted(gone, "deleted"))
    return list(statements)


def scd2(load: Load) -> list[str]:
    """The timeline is what the history of every staged key will be; then rows are changed, inserted and ended."""
    at_same_time = f"{load.same_key('t', 's')} AND t.valid_from = s.valid_from"
    staying = f" AND s.{GONE} IS NOT TRUE" if load.withdraws else ""
    ended_at_once = Counted(load.delete(f"{at_same_time} AND s.{GONE}"), "deleted") if load.withdraws else ""
    placed = f"n.existed = 0{staying} AND {load.same_key('n', 's')} AND n.valid_from = s.valid_from"
    end = {"valid_to": "n.valid_to", "is_current": "n.valid_to IS NULL"}
    moved = load.dialect.differs.format("t.valid_to", "n.valid_to")
    ended = f"n.existed = 1 AND {load.same_key('t', 'n')} AND t.valid_from = n.valid_from AND {moved}"
    return [
        # A row that was there for no time at all has no version.
        *([ended_at_once] if ended_at_once else []),
        f"CREATE TEMPORARY TABLE {TIMELINE} AS {_timeline(load)}",
        Counted(load.update(f"{at_same_time} AND t.{ROW_HASH} <> s.{ROW_HASH}"), "updated"),
        Counted(f"{load.insert(end)} JOIN {TIMELINE} AS n ON {placed}", "inserted"),
        Counted(load.update_from(TIMELINE, "n", end, ended), "closed"),
        f"{load.dialect.drop_temporary} {TIMELINE}",
        *_closing(load),
    ]


def _closing(load: Load) -> list[str]:
    """Versions whose key the source no longer shows end now; a key that it shows again goes on."""
    if not load.absent and not load.stale:
        return []
    closed = {"valid_to": load.moment, "is_current": "FALSE"}
    statements: list[str] = []
    if load.absent:
        statements.append(Counted(load.update_absent(closed, "t.is_current"), "closed"))
    if load.stale:
        seen = {SEEN_AT: load.moment}
        statements += [
            # The time of a version that was there before the ttl begins now.
            load.update_all(seen, f"t.is_current AND t.{quoted(SEEN_AT)} IS NULL"),
            load.update_from(load.source, "s", seen, f"{load.same_key('t', 's')} AND t.is_current"),
            Counted(load.update_all(closed, f"t.is_current AND t.{quoted(SEEN_AT)} < {load.stale}"), "closed"),
        ]
    keys = ", ".join(map(quoted, load.keys))
    ranked = f"SELECT *, ROW_NUMBER() OVER (PARTITION BY {keys} ORDER BY valid_from DESC) AS _flow_rank FROM"
    last = replace(load, source=f"(SELECT * FROM ({ranked} {load.source} AS r) AS q WHERE _flow_rank = 1)")
    again = last.insert({VALID_FROM: load.moment, "valid_to": "NULL", "is_current": "TRUE"})
    open_now = f"SELECT 1 FROM {load.table} AS t WHERE {load.same_key('t', 's')} AND t.is_current"
    return [*statements, Counted(f"{again} WHERE NOT EXISTS ({open_now})", "inserted")]


def _timeline(load: Load) -> str:
    """Keys, `valid_from`, `existed` and the new `valid_to` of every version, for the keys of the staged rows.

    `span` numbers the stretch from one version of the table to the next. `span_end` is where its version ends, which
    is before the next one starts if the key was closed in between; what lies after it is `beyond`. A staged version
    equal to the one in force just before it is left out; a version of the table never is.
    """
    keys = ", ".join(map(quoted, load.keys))
    of = {alias: ", ".join(f"{alias}.{quoted(key)}" for key in load.keys) for alias in "ts"}
    at_same_time = f"{load.same_key('t', 's')} AND t.valid_from = s.valid_from"
    return f"""
WITH versions AS (
    SELECT {of["t"]}, t.valid_from, t.valid_to, 1 AS existed, COALESCE(s.row_hash, t.row_hash) AS row_hash
    FROM (SELECT DISTINCT {keys} FROM {load.source} AS s) AS k
    JOIN {load.table} AS t ON {load.same_key("t", "k")}
    LEFT JOIN {load.source} AS s ON {at_same_time}
    UNION ALL
    SELECT {of["s"]}, s.valid_from, NULL, 0, s.row_hash
    FROM {load.source} AS s
    WHERE NOT EXISTS (SELECT 1 FROM {load.table} AS t WHERE {at_same_time})
), spans AS (
    SELECT *, SUM(existed) OVER (PARTITION BY {keys} ORDER BY valid_from) AS span FROM versions
), bounded AS (
    SELECT *, MAX(valid_to) OVER (PARTITION BY {keys}, span) AS span_end FROM spans
), sided AS (
    SELECT *, CASE WHEN span_end <= valid_from THEN 1 ELSE 0 END AS beyond FROM bounded
), compared AS (
    SELECT *, LAG(row_hash) OVER (PARTITION BY {keys}, span, beyond ORDER BY valid_from) AS hash_before FROM sided
), kept AS (
    SELECT *, LEAD(valid_from) OVER (PARTITION BY {keys} ORDER BY valid_from) AS next_from
    FROM compared WHERE existed = 1 OR {load.dialect.differs.format("row_hash", "hash_before")}
)
SELECT {keys}, valid_from, existed,
    CASE WHEN beyond = 0 AND (next_from IS NULL OR span_end < next_from) THEN span_end ELSE next_from END AS valid_to
FROM kept"""


MODES: Mapping[str, Callable[[Load], list[str]]] = {
    "append": append,
    "truncate": truncate,
    "merge": merge,
    "scd2": scd2,
}


def create_table(
    table: str, columns: Mapping[str, str], primary_key: Sequence[str], unique: Iterable[Sequence[str]] = ()
) -> str:
    """`columns` are the types by name, with NOT NULL where it applies."""
    parts = [f"{quoted(name)} {kind}" for name, kind in columns.items()]
    if primary_key:
        parts.append(f"PRIMARY KEY ({', '.join(map(quoted, primary_key))})")
    parts += [f"UNIQUE ({', '.join(map(quoted, names))})" for names in unique]
    return f"CREATE TABLE {table} ({', '.join(parts)})"


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
