"""Changes of a table on their way into one: the last one of each key, and the gate that lets no older one pass.

The gate is a table beside the target: the place in the source's log of the last change of each key, deleted keys
included. It is read and written in the transaction that writes the rows, so that it never knows more or less than they
show. Without a greater or an equal place a change is skipped, whenever and however often it comes.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ematix_flow.sinks.base import AT, CHANGE, EVENT_TIME, HIDDEN, OP, ORDER, PLACES, PRESENT, SINCE, TALLY
from ematix_flow.sinks.ordering import ROW_HASH, row_hash
from ematix_flow.sinks.tables import Counted, Load, literal, quoted, scd2
from ematix_flow.state.kernel import GONE
from ematix_flow.table import VALID_FROM

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

UPSERT, REMOVE, MARK, EMPTY = "u", "d", "s", "t"
"""Values of `CHANGE`: the row is there with these columns; it is gone; it is marked as deleted, if it is there; and
the table is empty, which has no key."""
AT_LENGTH = 41
GONE_AT = "_flow_gone_at"
"""Column of the gate of a history: when the row was deleted, if nothing has followed that yet."""
NEWER = "_flow_newer"
_GATE = "_flow_gate"
_LONGEST_NAME = 60
_MOST_PLACES = 1000
_COUNTED = {"c": "creates", "u": "updates", "d": "deletes"}


# In Spark, before anything touches the target.


def last_changes(rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    """One row per key: the last change by its place, then by arrival, with the columns that earlier changes of the
    batch brought and it does not; and how many changes it stands for."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    of_key = Window.partitionBy(*(rows[_named(key)] for key in keys))
    before = of_key.orderBy(ORDER).rowsBetween(Window.unboundedPreceding, -1)
    stale = "_flow_is_stale"
    judged = rows.withColumn(stale, F.coalesce(F.col(AT) < F.max(AT).over(before), F.lit(False)))
    counted = {
        name: F.sum(F.when((F.col(OP) == op) & ~F.col(stale), 1).otherwise(0)).over(of_key).cast("int")
        for name, op in zip(TALLY[:3], "cud", strict=True)
    }
    counted[TALLY[3]] = F.sum((F.col(stale) & (F.col(OP) != "")).cast("int")).over(of_key).cast("int")
    if PLACES in rows.columns:
        listed = F.collect_list(F.when((F.col(OP) != "") & ~F.col(stale), F.concat(OP, AT))).over(of_key)
        counted[PLACES] = F.when(F.size(listed).between(2, _MOST_PLACES), F.concat_ws("", listed))
    last, place = "_flow_is_last", F.struct(AT, ORDER)
    counted[last] = place == F.max(place).over(of_key)
    if PRESENT in rows.columns:
        # What is marked or does not have all columns depends on what came before it, which takes a second sort.
        so_far = of_key.orderBy(AT, ORDER).rowsBetween(Window.unboundedPreceding, Window.currentRow)
        inserted = F.max(F.col(CHANGE) == UPSERT).over(so_far)
        counted[CHANGE] = F.when((F.col(CHANGE) == MARK) & inserted, F.lit(UPSERT)).otherwise(F.col(CHANGE))
        counted |= _gathered(rows, keys, so_far)
    return judged.withColumns(counted).where(last).drop(last, stale, OP, EVENT_TIME, ORDER)


def every_change(rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    """One row per key and moment, with `valid_from` and `row_hash`; where the row was deleted, `GONE`. Time never goes
    back along the log of the source."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    of_key = Window.partitionBy(*(rows[_named(key)] for key in keys))
    so_far = of_key.orderBy(AT, ORDER).rowsBetween(Window.unboundedPreceding, Window.currentRow)
    gathered = _gathered(rows, keys, so_far) if PRESENT in rows.columns else {}
    gathered.pop(SINCE, None)
    names = content(rows.columns, keys)
    rows = rows.withColumns({**gathered, EVENT_TIME: F.max(EVENT_TIME).over(so_far), GONE: F.col(CHANGE) == REMOVE})
    at_once = Window.partitionBy(*(rows[_named(key)] for key in keys), rows[EVENT_TIME])
    counted = {
        name: F.sum((F.col(OP) == op).cast("int")).over(at_once).cast("int")
        for name, op in zip(TALLY[:3], "cud", strict=True)
    }
    last = "_flow_is_last"
    along = at_once.orderBy(AT, ORDER)
    rows = rows.withColumns({**counted, TALLY[3]: F.lit(0), last: F.lead(F.lit(1)).over(along).isNull()}).where(last)
    hashed = row_hash(rows, names)
    if PRESENT in rows.columns:
        # Nobody knows yet what the whole row is.
        unknown = F.instr(PRESENT, "0") > 0
        hashed = F.when(unknown, F.sha2(F.concat_ws("/", hashed, PRESENT, AT), 256)).otherwise(hashed)
    hashed = F.when(F.col(GONE), F.lit("gone")).otherwise(hashed)
    return rows.withColumns({VALID_FROM: F.col(EVENT_TIME), ROW_HASH: hashed}).drop(last, OP, EVENT_TIME, ORDER, PLACES)


def _gathered(rows: DataFrame, keys: Sequence[str], so_far: Any) -> dict[str, Column]:
    """Each column as the last change that has it says; after a delete, nothing is left of what was before."""
    from pyspark.sql import functions as F

    names = content(rows.columns, keys)
    found: dict[str, Column] = {}
    for number, name in enumerate(names, start=1):
        has = F.col(PRESENT).isNull() | (F.substring(PRESENT, number, 1) == "1") | (F.col(CHANGE) == REMOVE)
        one = F.struct(rows[_named(name)].alias("value"), F.col(AT).alias("at"))
        found[name] = F.last(F.when(has, one), ignorenulls=True).over(so_far)
    places = [F.coalesce(one["at"], F.lit("")) for one in found.values()]
    mixed = F.array_distinct(F.filter(F.array(*places, F.col(AT)), lambda at: at != ""))
    since = F.concat(*[F.rpad(place, AT_LENGTH, " ") for place in places])
    return {
        **{name: one["value"] for name, one in found.items()},
        PRESENT: F.concat(*[F.when(one.isNull(), "0").otherwise("1") for one in found.values()]),
        SINCE: F.when(F.size(mixed) > 1, since),
    }


def content(columns: Sequence[str], keys: Sequence[str]) -> list[str]:
    """The columns that may be present or not, in the order of `PRESENT`."""
    low = {key.lower() for key in keys}
    return [name for name in columns if name not in HIDDEN and name.lower() not in low]


# In the database, in one transaction with the fence.


@dataclass(frozen=True)
class Gate:
    table: str
    """Qualified and quoted, as `truncates` is."""
    truncates: str
    target: str
    """Whose truncates are meant."""
    soft: str = ""
    """Column that marks a deleted row, if that is how rows are deleted."""


def gate_name(table: str) -> str:
    name = f"_ematix_flow_gate_{table}"
    if len(name.encode()) <= _LONGEST_NAME:
        return name
    return f"{name[:40]}_{hashlib.sha256(table.encode()).hexdigest()[:12]}"


def gate_tables(gate: Gate, keys: Mapping[str, str], moment: str = "") -> list[str]:
    """`keys` are the types by name, `moment` that of times, for a history."""
    columns = ", ".join(f"{quoted(name)} {kind} NOT NULL" for name, kind in keys.items())
    gone = f"{GONE_AT} {moment} NULL, " if moment else ""
    listed = ", ".join(map(quoted, keys))
    return [
        f"CREATE TABLE IF NOT EXISTS {gate.table} "
        f"({columns}, {AT} VARCHAR({AT_LENGTH}) NOT NULL, {gone}PRIMARY KEY ({listed}))",
        f"CREATE TABLE IF NOT EXISTS {gate.truncates} "
        f"(target VARCHAR(255) NOT NULL PRIMARY KEY, {AT} VARCHAR({AT_LENGTH}) NOT NULL)",
    ]


Run = Callable[[str], Any]


def apply_changes(
    run: Run, load: Load, gate: Gate, affected: Callable[[Any], int], *, staged: Sequence[str]
) -> tuple[Counter[str], Counter[str]]:
    """What became of how many rows, and of how many changes. `staged` are all columns, with those that are hidden."""
    load = replace(load, firm=frozenset(load.keys))
    rows: Counter[str] = Counter()
    changes: Counter[str] = Counter()
    total = " + ".join(TALLY)
    emptied, times = run(
        f"SELECT MAX({AT}), SUM({total}) FROM {load.source} AS s WHERE {CHANGE} = '{EMPTY}'"
    ).fetchone()
    found = run(f"SELECT {AT} FROM {gate.truncates} WHERE target = {literal(gate.target)}").fetchone()
    mark = found[0] if found else ""
    if emptied is not None:
        newest = literal(max(mark, emptied))
        rows["deleted"] += affected(run(_emptied(load, gate, emptied)))
        run(f"DELETE FROM {gate.truncates} WHERE target = {literal(gate.target)}")
        run(f"INSERT INTO {gate.truncates} (target, {AT}) VALUES ({literal(gate.target)}, {newest})")
        changes["truncates"] = int(times)
    # What this batch brings from before its own truncate has had its turn, and is a removal by now.
    run(f"{load.dialect.drop_temporary} IF EXISTS {NEWER}")
    known = f"COALESCE(g.{AT}, '')"
    run(
        f"CREATE TEMPORARY TABLE {NEWER} AS SELECT s.*, {known} AS {_GATE} FROM {load.source} AS s "
        f"LEFT JOIN {gate.table} AS g ON {load.same_key('g', 's')} "
        f"WHERE s.{CHANGE} <> '{EMPTY}' AND s.{AT} >= {known} AND s.{AT} >= {literal(mark)}"
    )
    changes += _counted(run, load.source, NEWER)
    if PLACES in staged:
        known = run(f"SELECT {_GATE}, {PLACES} FROM {NEWER} WHERE {_GATE} <> '' AND {PLACES} IS NOT NULL").fetchall()
        changes += too_late(known)
    load = replace(load, source=NEWER)
    same_key = load.same_key("t", "s")
    rows["deleted"] += affected(run(load.delete(f"{same_key} AND s.{CHANGE} = '{REMOVE}'")))
    if values := {**_values(load, partial=PRESENT in staged), **load.filled}:
        update = load.update_from(NEWER, "s", values, f"{same_key} AND s.{CHANGE} IN ('{UPSERT}', '{MARK}')")
        rows["updated"] += affected(run(update))
    missing = f"NOT EXISTS (SELECT 1 FROM {load.table} AS t WHERE {same_key})"
    rows["inserted"] += affected(run(f"{load.insert()} WHERE s.{CHANGE} = '{UPSERT}' AND {missing}"))
    doors = replace(load, table=gate.table, columns=(*load.keys, AT), filled={})
    unknown = f"NOT EXISTS (SELECT 1 FROM {gate.table} AS t WHERE {same_key})"
    run(doors.update_from(NEWER, "s", {AT: f"s.{AT}"}, same_key))
    run(f"{doors.insert()} WHERE {unknown}")
    run(f"{load.dialect.drop_temporary} {NEWER}")
    return rows, changes


def apply_history(
    run: Run, load: Load, gate: Gate, affected: Callable[[Any], int], *, staged: Sequence[str]
) -> tuple[Counter[str], Counter[str]]:
    """The same for a table of versions. A change that comes late has its place in the history, but for one moment the
    last change counts."""
    load = replace(load, firm=frozenset(load.keys))
    found = run(f"SELECT {AT} FROM {gate.truncates} WHERE target = {literal(gate.target)}").fetchone()
    mark = found[0] if found else ""
    rows: Counter[str] = Counter()
    changes: Counter[str] = Counter()
    placed = replace(load, source=_to_be_placed(load, gate, mark, partial=PRESENT in staged))
    changes += _counted(run, load.source, placed.source)
    for statement in scd2(placed):
        result = run(statement)
        if isinstance(statement, Counted):
            rows[statement.what] += affected(result)
    total = " + ".join(TALLY)
    emptied, times, moments = run(
        f"SELECT MAX({AT}), SUM({total}), COUNT(*) FROM {load.source} AS s WHERE {CHANGE} = '{EMPTY}'"
    ).fetchone()
    for number in range(moments):
        rows["closed"] += affected(run(_closed(load, number)))
    if emptied is not None:
        run(f"DELETE FROM {gate.truncates} WHERE target = {literal(gate.target)}")
        newest = literal(max(mark, emptied))
        run(f"INSERT INTO {gate.truncates} (target, {AT}) VALUES ({literal(gate.target)}, {newest})")
        changes["truncates"] = int(times)
    latest, same_key = _latest(load), load.same_key("t", "s")
    doors = replace(load, table=gate.table, source=latest, columns=(*load.keys, AT, GONE_AT), filled={})
    known = {name: f"s.{name}" for name in (AT, GONE_AT)}
    run(doors.update_from(latest, "s", known, f"{same_key} AND t.{AT} <= s.{AT}"))
    run(f"{doors.insert()} WHERE NOT EXISTS (SELECT 1 FROM {gate.table} AS t WHERE {same_key})")
    return rows, changes


def _latest(load: Load) -> str:
    """The place of the last change of each key, and when the row was deleted, if that is what it is."""
    keys = ", ".join(f"s.{quoted(key)}" for key in load.keys)
    ranked = (
        f"SELECT {keys}, s.{AT}, CASE WHEN s.{GONE} THEN s.{VALID_FROM} END AS {GONE_AT}, "
        f"ROW_NUMBER() OVER (PARTITION BY {keys} ORDER BY s.{AT} DESC, s.{VALID_FROM} DESC) AS _flow_rank "
        f"FROM {load.source} AS s WHERE s.{CHANGE} <> '{EMPTY}'"
    )
    return f"(SELECT * FROM ({ranked}) AS r WHERE _flow_rank = 1)"


def _to_be_placed(load: Load, gate: Gate, mark: str, *, partial: bool) -> str:
    """The staged changes that have a place, whole: what one does not say, the version in force before it does. With
    them, the deletes of their keys that nothing has followed, which may have come before what they end."""
    fixed = {VALID_FROM, ROW_HASH}
    names = content([name for name in load.columns if name not in fixed], load.keys)
    values = {name: f"s.{quoted(name)}" for name in load.columns}
    in_force = ""
    if partial:
        for number, name in enumerate(names, start=1):
            has = f"s.{GONE} OR SUBSTR(s.{PRESENT}, {number}, 1) = '1'"
            values[name] = f"CASE WHEN {has} THEN s.{quoted(name)} ELSE v.{quoted(name)} END"
        in_force = (
            f" LEFT JOIN {load.table} AS v ON {load.same_key('v', 's')} AND v.{VALID_FROM} < s.{VALID_FROM} "
            f"AND (v.valid_to IS NULL OR v.valid_to >= s.{VALID_FROM})"
        )
    listed = ", ".join(f"{value} AS {quoted(name)}" for name, value in values.items())
    hidden = ", ".join(f"s.{name}" for name in (CHANGE, GONE, AT, *TALLY))
    taken = (
        f"EXISTS (SELECT 1 FROM {load.table} AS w WHERE {load.same_key('w', 's')} AND w.{VALID_FROM} = s.{VALID_FROM})"
    )
    over = f"g.{GONE_AT} <= s.{VALID_FROM}"
    # Some databases would otherwise look into the table while they write it.
    whole = " LIMIT 9223372036854775807" if load.dialect.joins_first else ""
    return (
        f"(SELECT {listed}, {hidden} FROM {load.source} AS s "
        f"LEFT JOIN {gate.table} AS g ON {load.same_key('g', 's')}{in_force} "
        f"WHERE s.{CHANGE} <> '{EMPTY}' AND s.{AT} >= {literal(mark)} "
        f"AND (s.{AT} >= COALESCE(g.{AT}, '') OR NOT ({taken} OR COALESCE({over}, FALSE))) "
        f"UNION ALL {_remembered(load, gate)}{whole})"
    )


def _remembered(load: Load, gate: Gate) -> str:
    """In the columns of staged changes; they have been counted."""
    held = {key: f"g.{quoted(key)}" for key in load.keys} | {VALID_FROM: f"g.{GONE_AT}", ROW_HASH: "'gone'"}
    listed = ", ".join(f"{held.get(name, 'NULL')} AS {quoted(name)}" for name in load.columns)
    hidden = {CHANGE: f"'{REMOVE}'", GONE: "TRUE", AT: f"g.{AT}", **dict.fromkeys(TALLY, "0")}
    keys = ", ".join(map(quoted, load.keys))
    return (
        f"SELECT {listed}, {', '.join(f'{value} AS {name}' for name, value in hidden.items())} "
        f"FROM (SELECT DISTINCT {keys} FROM {load.source} AS s WHERE {CHANGE} <> '{EMPTY}') AS k "
        f"JOIN {gate.table} AS g ON {load.same_key('g', 'k')} "
        f"LEFT JOIN {load.source} AS s ON {load.same_key('s', 'g')} AND s.{VALID_FROM} = g.{GONE_AT} "
        f"AND s.{AT} >= g.{AT} WHERE g.{GONE_AT} IS NOT NULL AND s.{CHANGE} IS NULL"
    )


def _closed(load: Load, number: int) -> str:
    """What was in force when the table was emptied."""
    moment = (
        f"(SELECT s.{VALID_FROM} FROM {load.source} AS s WHERE s.{CHANGE} = '{EMPTY}' "
        f"ORDER BY s.{VALID_FROM} DESC LIMIT 1 OFFSET {number})"
    )
    prefix = "t." if load.dialect.joins_first else ""
    return (
        f"UPDATE {load.table} AS t SET {prefix}valid_to = {moment}, {prefix}is_current = FALSE "
        f"WHERE t.{VALID_FROM} < {moment} AND (t.valid_to IS NULL OR t.valid_to > {moment})"
    )


def _emptied(load: Load, gate: Gate, at: str) -> str:
    """Rows that were changed after the table was emptied stay, although they came before the news of it."""
    newer = f"EXISTS (SELECT 1 FROM {gate.table} AS g WHERE {load.same_key('t', 'g')} AND g.{AT} > {literal(at)})"
    if gate.soft:
        prefix = "t." if load.dialect.joins_first else ""
        return f"UPDATE {load.table} AS t SET {prefix}{quoted(gate.soft)} = TRUE WHERE NOT {newer}"
    target = f"DELETE t FROM {load.table} AS t" if load.dialect.joins_first else f"DELETE FROM {load.table} AS t"
    return f"{target} WHERE NOT {newer}"


def _counted(run: Run, source: str, newer: str) -> Counter[str]:
    """Of a key whose last change comes too late, so do all."""
    sums = ", ".join(f"SUM({name})" for name in TALLY)
    everything = run(f"SELECT {sums} FROM {source} AS s WHERE {CHANGE} <> '{EMPTY}'").fetchone()
    passed = run(f"SELECT {sums} FROM {newer} AS s").fetchone()
    total = sum(int(number or 0) for number in everything)
    creates, updates, deletes, stale = (int(number or 0) for number in passed)
    late = total - creates - updates - deletes
    assert late >= stale
    return Counter(creates=creates, updates=updates, deletes=deletes, idempotent_skipped=late)


def too_late(gates: Iterable[tuple[str, str]]) -> Counter[str]:
    """What to add to the counts where some of the changes of a key that is let in are older than what was there."""
    counts: Counter[str] = Counter()
    for gate, places in gates:
        for start in range(0, len(places), AT_LENGTH + 1):
            if places[start + 1 : start + 1 + AT_LENGTH] < gate:
                counts[_COUNTED[places[start]]] -= 1
                counts["idempotent_skipped"] += 1
    return counts


def _values(load: Load, *, partial: bool) -> dict[str, str]:
    """What an update writes: a column that a change does not have keeps its value."""
    values = {}
    for number, name in enumerate(content(load.columns, load.keys), start=1):
        value = f"s.{quoted(name)}"
        if partial:
            place = f"SUBSTR(s.{SINCE}, {(number - 1) * AT_LENGTH + 1}, {AT_LENGTH})"
            has = f"SUBSTR(s.{PRESENT}, {number}, 1) = '1' AND (s.{SINCE} IS NULL OR {place} >= s.{_GATE})"
            value = f"CASE WHEN {has} THEN {value} ELSE t.{quoted(name)} END"
        values[name] = value
    return values


def _named(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
