"""Changes of a table on their way into a Delta table, and the gate beside it that lets no older one pass.

A commit is of one table. The gate is written after the rows, behind a fence of its own, and read before them: whatever
a crash leaves between the two, the same batch meets the same gate again.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from operator import add, and_
from typing import TYPE_CHECKING

from ematix_flow.sinks.base import AT, CHANGE, HIDDEN, PLACES, PRESENT, SINCE, TALLY
from ematix_flow.sinks.changes import AT_LENGTH, EMPTY, MARK, REMOVE, UPSERT, content, too_late
from ematix_flow.sinks.delta_modes import Load, insert_clause, merge_rows, same_keys
from ematix_flow.sinks.delta_table import DeltaTable
from ematix_flow.sinks.delta_types import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

PASSES = "_flow_passes"
"""Column of changes: the gate lets them in."""
_GATE = "_flow_gate"


@dataclass(frozen=True)
class Door:
    """The gate of one table, and the changes that stand before it."""

    load: Load
    gate: DeltaTable
    soft: str = ""

    def apply(self) -> Counter[str]:
        """Bring the rows in. Counts the changes."""
        judged = self._judged().persist()
        try:
            counts = self._counted(judged)
            if PLACES in judged.columns:
                late = judged.where(f"{PASSES} AND {_GATE} <> '' AND {PLACES} IS NOT NULL")
                counts += too_late(late.select(_GATE, PLACES).toLocalIterator())
            passing = judged.where(PASSES).drop(PASSES)
            emptied = self._truncates[0]
            if emptied is not None:
                passing = self._with_the_emptied(passing, emptied)
            self._merge(passing)
        finally:
            judged.unpersist()
        return counts

    def settle(self, application: str) -> None:
        """Let the gate know them."""
        from pyspark.sql import functions as F

        keys = [F.col(quoted(key)) for key in self.load.keys]
        passed = self._with_mark(self._judged().where(PASSES).select(*keys, AT))
        load = replace(self.load, table=self.gate, rows=passed, application=application, filled={})
        update = f"WHEN MATCHED THEN UPDATE SET {AT} = s.{AT}"
        merge_rows(load, passed, same_keys(load.keys), update, insert_clause([*load.keys, AT]))

    def _with_mark(self, places: DataFrame) -> DataFrame:
        """And where the table was emptied, if it was: the place that no key has."""
        from pyspark.sql import functions as F

        emptied = self._truncates[0]
        if emptied is None:
            return places
        nobody = [F.lit(None).cast(places.schema[key].dataType).alias(key) for key in self.load.keys]
        mark = places.sparkSession.range(1).select(*nobody, F.lit(max(emptied, self._mark)).alias(AT))
        return places.unionByName(mark, allowMissingColumns=True)

    def _judged(self) -> DataFrame:
        """Changes of rows, with the place of the last one that was let in, and whether they are."""
        from pyspark.sql import functions as F

        rows = self.load.rows.where(F.col(CHANGE) != EMPTY).alias("s")
        gate = self.gate.rows().alias("g")
        same = reduce(and_, [F.col(f"s.{quoted(key)}") == F.col(f"g.{quoted(key)}") for key in self.load.keys])
        known = F.coalesce(F.col(f"g.{AT}"), F.lit(""))
        # What the batch brings from before its own truncate has had its turn, and is a removal by now.
        passes = (F.col(f"s.{AT}") >= known) & (F.col(f"s.{AT}") >= F.lit(self._mark))
        return rows.join(gate, same, "left").select("s.*", known.alias(_GATE), passes.alias(PASSES))

    @cached_property
    def _truncates(self) -> tuple[str | None, int]:
        """Where the batch empties the table, and how often."""
        from pyspark.sql import functions as F

        times = F.sum(reduce(add, [F.col(name) for name in TALLY]))
        found = self.load.rows.where(F.col(CHANGE) == EMPTY).agg(F.max(AT), times).collect()[0]
        return found[0], int(found[1] or 0)

    @cached_property
    def _mark(self) -> str:
        """Where the table was last emptied."""
        from pyspark.sql import functions as F

        nobody = reduce(and_, [F.col(quoted(key)).isNull() for key in self.load.keys])
        found = self.gate.rows().where(nobody).agg(F.max(AT)).collect()
        return found[0][0] or ""

    def _with_the_emptied(self, passing: DataFrame, at: str) -> DataFrame:
        """With the removal of all rows that were there when the table was emptied; those that are there again have
        nothing of what they were."""
        from pyspark.sql import functions as F

        keys = list(self.load.keys)
        newer = self.gate.rows().where(F.col(AT) > F.lit(at)).select(*map(quoted, keys))
        gone = self.load.table.rows().select(*map(quoted, keys)).join(newer, keys, "left_anti")
        gone = gone.join(passing.select(*map(quoted, keys)), keys, "left_anti")
        names = content(passing.columns, keys)
        if self.soft:
            flags = "".join("1" if name == self.soft else "0" for name in names)
            gone = gone.withColumns({CHANGE: F.lit(MARK), self.soft: F.lit(True), PRESENT: F.lit(flags)})
        else:
            gone = gone.withColumn(CHANGE, F.lit(REMOVE))
            for name in (PRESENT, SINCE) if PRESENT in passing.columns else ():
                kept = F.when(F.col(_GATE) > F.lit(at), F.col(name))
                passing = passing.withColumn(name, kept)
        return passing.unionByName(gone, allowMissingColumns=True)

    def _merge(self, passing: DataFrame) -> None:
        load = self.load
        filled = passing.withColumns(dict(load.filled))
        names = [name for name in filled.columns if name not in HIDDEN and name != _GATE]
        values = dict(zip(names, (f"s.{quoted(name)}" for name in names), strict=True))
        if PRESENT in passing.columns:
            for number, name in enumerate(content(passing.columns, [*load.keys, _GATE]), start=1):
                values[name] = f"CASE WHEN {_has(number)} THEN s.{quoted(name)} ELSE t.{quoted(name)} END"
        low = {key.lower() for key in load.keys}
        assigned = ", ".join(f"{quoted(n)} = {value}" for n, value in values.items() if n.lower() not in low)
        clauses = [f"WHEN MATCHED AND s.{CHANGE} = '{REMOVE}' THEN DELETE"]
        clauses += [f"WHEN MATCHED THEN UPDATE SET {assigned}"] if assigned else []
        clauses.append(insert_clause(names, f"NOT MATCHED AND s.{CHANGE} = '{UPSERT}'"))
        merge_rows(load, filled, same_keys(load.keys), *clauses)

    def _counted(self, judged: DataFrame) -> Counter[str]:
        from pyspark.sql import functions as F

        def total(name: str, which: Column) -> Column:
            return F.coalesce(F.sum(F.when(which, F.col(name))), F.lit(0))

        passed = [total(name, F.col(PASSES)) for name in TALLY[:3]]
        everything = reduce(add, [total(name, F.lit(True)) for name in TALLY])
        *applied, seen = (int(number) for number in judged.agg(*passed, everything).collect()[0])
        creates, updates, deletes = applied
        return Counter(
            creates=creates,
            updates=updates,
            deletes=deletes,
            idempotent_skipped=seen - sum(applied),
            truncates=self._truncates[1],
        )


def _has(number: int) -> str:
    """Whether a change brings a column that is not older than what the table has."""
    place = f"substr(s.{SINCE}, {(number - 1) * AT_LENGTH + 1}, {AT_LENGTH})"
    flag = f"(s.{PRESENT} IS NULL OR substr(s.{PRESENT}, {number}, 1) = '1')"
    return f"{flag} AND (s.{SINCE} IS NULL OR {place} >= s.{_GATE})"
