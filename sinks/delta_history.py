"""Changes of a table on their way into a Delta table of versions, in one commit, behind the gate beside it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

from ematix_flow.sinks.base import AT, CHANGE, HIDDEN, PRESENT
from ematix_flow.sinks.changes import EMPTY, GONE_AT, content
from ematix_flow.sinks.delta_changes import PASSES, Door
from ematix_flow.sinks.delta_modes import insert_clause, merge_rows, same_keys, scd2
from ematix_flow.sinks.delta_types import quoted
from ematix_flow.sinks.ordering import ROW_HASH
from ematix_flow.state.kernel import GONE
from ematix_flow.table import VALID_FROM

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


@dataclass(frozen=True)
class HistoryDoor(Door):
    """A change that comes late has its place in the history, but for one moment the last change counts."""

    def apply(self) -> Counter[str]:
        judged = self._judged().persist()
        try:
            counts = self._counted(judged)
            placed = self._whole(judged.where(PASSES))
            placed = placed.unionByName(self._remembered(placed), allowMissingColumns=True)
            if self._truncates[0] is not None:
                placed = placed.unionByName(self._ended(placed), allowMissingColumns=True)
            hidden = [name for name in HIDDEN if name in placed.columns and name != GONE]
            scd2(replace(self.load, rows=placed.drop(PASSES, *hidden)))
        finally:
            judged.unpersist()
        return counts

    def settle(self, application: str) -> None:
        """The last place of each key, which may be that of a change which came late."""
        from pyspark.sql import functions as F

        changes = self.load.rows.where(F.col(CHANGE) != EMPTY)
        gone_at = F.when(F.col(GONE), F.col(VALID_FROM))
        latest = changes.groupBy(*map(quoted, self.load.keys)).agg(
            F.max(AT).alias(AT), F.max_by(gone_at, F.struct(AT, VALID_FROM)).alias(GONE_AT)
        )
        latest = self._with_mark(latest)
        load = replace(self.load, table=self.gate, rows=latest, application=application, filled={})
        newer = f"WHEN MATCHED AND t.{AT} <= s.{AT} THEN UPDATE SET {AT} = s.{AT}, {GONE_AT} = s.{GONE_AT}"
        merge_rows(load, latest, same_keys(load.keys), newer, insert_clause([*load.keys, AT, GONE_AT]))

    def _judged(self) -> DataFrame:
        from pyspark.sql import functions as F

        rows = self.load.rows.where(F.col(CHANGE) != EMPTY).alias("s")
        same_moment = self._same("s", "w") & (F.col(f"s.{VALID_FROM}") == F.col(f"w.{VALID_FROM}"))
        held = self.load.table.rows().select(*map(quoted, self.load.keys), VALID_FROM).alias("w")
        joined = rows.join(self.gate.rows().alias("g"), self._same("s", "g"), "left").join(held, same_moment, "left")
        in_turn = F.col(f"s.{AT}") >= F.coalesce(F.col(f"g.{AT}"), F.lit(""))
        over = F.coalesce(F.col(f"g.{GONE_AT}") <= F.col(f"s.{VALID_FROM}"), F.lit(False))
        has_place = F.col(f"w.{VALID_FROM}").isNull() & ~over
        passes = (F.col(f"s.{AT}") >= F.lit(self._mark)) & (in_turn | has_place)
        return joined.select("s.*", passes.alias(PASSES))

    def _whole(self, rows: DataFrame) -> DataFrame:
        """What a change does not say, the version in force before it does."""
        from pyspark.sql import functions as F

        if PRESENT not in rows.columns:
            return rows
        begun = F.col(f"v.{VALID_FROM}") < F.col(f"s.{VALID_FROM}")
        unended = F.col("v.valid_to").isNull() | (F.col("v.valid_to") >= F.col(f"s.{VALID_FROM}"))
        joined = rows.alias("s").join(self.load.table.rows().alias("v"), self._same("s", "v") & begun & unended, "left")
        names = content([n for n in rows.columns if n not in {VALID_FROM, ROW_HASH, PASSES}], self.load.keys)
        whole = {
            name: F.when(
                F.col(f"s.{GONE}") | (F.substring(f"s.{PRESENT}", number, 1) == "1"), F.col(f"s.{quoted(name)}")
            ).otherwise(F.col(f"v.{quoted(name)}"))
            for number, name in enumerate(names, start=1)
        }
        return joined.select(*[whole.get(name, F.col(f"s.{quoted(name)}")).alias(name) for name in rows.columns])

    def _remembered(self, placed: DataFrame) -> DataFrame:
        """The deletes of these keys that nothing has followed, which may have come before what they end."""
        from pyspark.sql import functions as F

        keys = list(self.load.keys)
        gone = self.gate.rows().where(F.col(GONE_AT).isNotNull()).withColumnRenamed(GONE_AT, VALID_FROM).drop(AT)
        ending = gone.join(placed.select(*map(quoted, keys)), keys, "left_semi")
        ending = ending.join(placed.select(*map(quoted, keys), VALID_FROM), [*keys, VALID_FROM], "left_anti")
        return ending.withColumns({GONE: F.lit(True), ROW_HASH: F.lit("gone")})

    def _ended(self, placed: DataFrame) -> DataFrame:
        """An end for every key at each moment when the table was emptied, but for versions that begin right then."""
        from pyspark.sql import functions as F

        keys = list(self.load.keys)
        moments = self.load.rows.where(F.col(CHANGE) == EMPTY).select(VALID_FROM).distinct()
        listed = [quoted(key) for key in keys]
        beginning = self.load.table.rows().select(*listed, VALID_FROM).union(placed.select(*listed, VALID_FROM))
        everyone = beginning.select(*listed).distinct().crossJoin(F.broadcast(moments))
        ended = everyone.join(beginning, [*keys, VALID_FROM], "left_anti")
        return ended.withColumns({GONE: F.lit(True), ROW_HASH: F.lit("gone")})

    def _same(self, one: str, other: str) -> Column:
        from pyspark.sql import functions as F

        pairs = [(F.col(f"{one}.{quoted(key)}"), F.col(f"{other}.{quoted(key)}")) for key in self.load.keys]
        return reduce(and_, [a == b for a, b in pairs])
