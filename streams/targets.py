"""All targets of a pipeline together: what a batch stages in each, and which of its rows none of them gets."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from ematix_flow.sinks.ahead import AHEAD
from ematix_flow.sinks.base import (
    AT,
    CHANGE,
    EVENT_TIME,
    OP,
    ORDER,
    PART,
    PLACES,
    PRESENT,
    ROW,
    Batch,
    NeedsRows,
    Shaping,
    Sink,
    Staged,
    TargetRefused,
)
from ematix_flow.specs import PipelineSpec
from ematix_flow.state.home import file_name
from ematix_flow.state.kernel import GONE
from ematix_flow.state.store import Store
from ematix_flow.streams.envelope import (
    ERROR,
    EVENT_TS,
    IS_BAD,
    IS_GOOD,
    NUMBER,
    OURS,
    POSITION,
    Origin,
    as_json_bytes,
    with_itself_as_payload,
)
from ematix_flow.streams.fitting import fitted
from ematix_flow.streams.observed import Passing, Seen
from ematix_flow.streams.shaping import Shaped, completed, seen_again, shaped
from ematix_flow.streams.tagging import KEEP
from ematix_flow.streams.transform import BadSql

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

_NOTE = "refused.json"

Refused = Mapping[int, str]
"""Rows that no target gets, by their number, each with the reason; an empty one if that is told elsewhere."""


@dataclass(frozen=True)
class Staging:
    """A batch as every target has staged it."""

    produced: DataFrame
    """The rows as the transform gave them."""
    counted: bool
    """Spark counted them as they are."""
    fitted: DataFrame
    """As they are for the tables, with tags."""
    seen: Seen | None
    """What of these passed, unless nothing could fail or be left out since they were counted."""
    numbered: DataFrame
    """The good ones, each with its number and where it came from."""
    going: DataFrame
    """Those of them that are staged."""
    staged: Mapping[str, Staged]
    refused: Refused

    @property
    def looked_at(self) -> Iterator[tuple[Seen, DataFrame]]:
        """What passed, with the rows that did."""
        if self.seen is not None:
            yield self.seen, self.fitted

    def rows(self, taken: int) -> dict[str, int]:
        """How many go to each target, of so many good rows that were taken."""
        kept = self.seen.kept if self.seen is not None else taken
        return dict.fromkeys(self.staged, kept - self.left_out)

    @cached_property
    def left_out(self) -> int:
        """How many of the good rows are not staged, because they, or others of the same row of the source, are refused.
        Asked late, because it may read the rows once more, and then what Spark has counted is no longer right."""
        if not self.refused:
            return 0
        if ROW not in self.produced.columns:
            return len(self.refused)
        return self.numbered.count() - self.going.count()


class Targets:
    """`on_refused` is told the errors of rows that a target does not accept; it raises to have the batch fail."""

    def __init__(
        self,
        spec: PipelineSpec,
        sinks: Mapping[str, Sink],
        origin: Origin,
        store: Store,
        on_refused: Callable[[list[str]], None],
        table: str = "",
        *,
        one_by_one: bool = False,
    ) -> None:
        """`table` tells the notes of several of them apart; `one_by_one` says that `NeedsRows` was raised before."""
        refuse = {name: sink.capabilities.may_refuse(one_by_one=one_by_one) for name, sink in sinks.items()}
        # A target that may refuse rows comes before those that take everything: then nothing is visible yet.
        self._sinks = dict(sorted(sinks.items(), key=lambda item: not refuse[item[0]]))
        self._refusing = [name for name in self._sinks if refuse[name]]
        self._declared = dict(zip(spec.target_names, spec.targets, strict=True))
        self._ordered = {name for name, target in self._declared.items() if target.mode in {"merge", "scd2"}}
        self._origin, self._store, self._on_refused = origin, store, on_refused
        self._note = f"refused.{file_name(table)}.json" if table else _NOTE
        self._prepared: StructType | None = None
        self._tables: dict[str, StructType] = {}
        self._cached: DataFrame | None = None
        self._shaped: Shaped | None = None
        self.counts: dict[str, Counter[str]] = {}
        """By target, what became of the rows of this run, where a target can tell."""
        self.changes: dict[str, int] = {}
        """Of the latest batch, by what they were; several targets take the same ones."""

    def shaped(self, rows: DataFrame) -> DataFrame:
        """The rows of a streaming plan, as `stage` is to get those of each batch. One target may have its part of
        staging in the plan; what several of them need is kept as it is."""
        if AHEAD in rows.columns:
            self._check_tables(rows)
        name, sink = next(iter(self._sinks.items()))
        if len(self._sinks) > 1 or self._ordered or self._refusing:
            return rows
        if not isinstance(sink, Shaping) or not sink.shapes:
            return rows
        self._prepare(rows)
        fit = fitted(rows, self._tables, self._declared, self._origin)
        if fit.tagged:
            return rows
        found = shaped(name, sink, rows, [*fit.columns[name], *self._hidden(name, rows)])
        if found is None:
            return rows
        self._shaped, rows = found
        return rows

    def stage(self, batch: Batch, rows: DataFrame, taken: Callable[[], Seen], *, counted: bool) -> tuple[Staging, Seen]:
        """Step 3 for every target. `counted` says that nothing happened to the rows since Spark counted them; `taken`
        tells these counts, which are right until the rows are read a second time."""
        if self._shaped is not None:
            staged, seen = self._staged_as_shaped(self._shaped, batch, rows, taken)
            return Staging(rows, counted, rows, None, rows, rows, {self._shaped.name: staged}, {}), seen
        known = self._recalled(batch)
        if known and (AHEAD in rows.columns or not self._refusing):
            raise NeedsRows
        staging = self._staged(batch, rows, known or {}, counted=counted)
        seen = taken()
        if told := {row: reason for row, reason in (known or {}).items() if reason}:
            self._on_refused(self._errors(staging, told))
        if staging.seen and staging.seen.bad and ROW in rows.columns:
            staging = self._without_siblings(batch, staging)
        return staging, seen

    def _check_tables(self, rows: DataFrame) -> None:
        """Workers have made of the rows what the only target takes as it is: nothing may be cast or left out."""
        self._prepare(rows)
        fit = fitted(rows, self._tables, self._declared, self._origin)
        given = {name for name in rows.columns if not name.startswith(OURS)}
        if fit.tagged or any({*table.fieldNames()} - given for table in self._tables.values()):
            raise NeedsRows

    def _staged_as_shaped(
        self, shaped: Shaped, batch: Batch, rows: DataFrame, taken: Callable[[], Seen]
    ) -> tuple[Staged, Seen]:
        if not batch.is_small:
            staged, seen = shaped.staged(rows, batch), taken()
            return staged, replace(seen, rows=seen.rows + staged.uncounted, kept=seen.kept + staged.uncounted)
        if found := shaped.staged_here(rows, batch):
            return found[0], completed(taken(), found[1])
        if AHEAD in rows.columns:
            raise NeedsRows
        self.forget()
        rows = self._cached = rows.persist()
        return shaped.staged(rows, batch), seen_again(rows, taken())

    def _without_siblings(self, batch: Batch, staging: Staging) -> Staging:
        """A row of the source may have become several rows, of which some are good: none of them goes, and the row of
        the source is one bad row."""
        from pyspark.sql import functions as F

        bad = staging.fitted.where(IS_BAD).groupBy(ROW).agg(F.min(ERROR)).collect()
        refused = {**staging.refused, **{row: "" for row, _ in bad}}
        fewer = self._staged(batch, staging.produced, refused, counted=staging.counted)
        assert fewer.seen is not None
        return replace(fewer, seen=replace(fewer.seen, bad=len(bad), errors=tuple(error for _, error in bad)))

    def settled(self, batch: Batch, staging: Staging, *, alone: bool = True) -> Staging:
        """With several targets that may refuse rows, none may have taken the batch when another one refuses a row of
        it; so they are asked first. Without `alone`, there are more of them elsewhere."""
        if len(self._refusing) < 1 + alone or self._recalled(batch) is not None:
            return staging
        return self._without_refused(batch, staging)

    def apply(self, batch: Batch, staging: Staging) -> tuple[Staging, set[str]]:
        """Step 5 for every target. Gives those that took the batch now; the others had it already."""
        while True:
            try:
                return staging, self._applied(batch, staging)
            except TargetRefused:
                # Without the refused rows, an earlier one of the same key may come to the fore and be refused as well.
                fewer = self._without_refused(batch, staging)
                if fewer is staging:
                    raise
                staging = fewer

    def _staged(self, batch: Batch, rows: DataFrame, refused: Refused, *, counted: bool) -> Staging:
        from pyspark.sql import functions as F

        self.forget()
        self._prepare(rows)
        fit = fitted(rows, self._tables, self._declared, self._origin)
        passing = None if counted and not fit.tagged else Passing(fit.rows)
        numbered = self._numbered(wanted(passing.rows if passing else fit.rows))
        going = numbered.where(~F.col(ROW).isin(list(refused))) if refused else numbered
        if len(self._sinks) > 1:
            going = self._cached = going.persist()
        staged = {
            name: sink.stage(self._for(name, going).select(*fit.columns[name], *self._hidden(name, going)), batch)
            for name, sink in self._sinks.items()
        }
        seen = passing.seen() if passing else None
        return Staging(rows, counted, fit.rows, seen, numbered, going, staged, refused)

    def _applied(self, batch: Batch, staging: Staging) -> set[str]:
        done, self.changes = set(), {}
        for name, sink in self._sinks.items():
            batch.reached(f"apply/{name}")
            self._store.check()
            applied = sink.apply(staging.staged[name], batch, batch.fence(name))
            if applied.done:
                done.add(name)
                self.counts.setdefault(name, Counter()).update(applied.counts)
                self.changes = self.changes or dict(applied.changes)
        return done

    def _without_refused(self, batch: Batch, staging: Staging) -> Staging:
        """Find what any target refuses, and stage the rest again. It is noted first: after a crash, a target that has
        taken the batch would refuse all of it."""
        if AHEAD in staging.produced.columns:
            raise NeedsRows
        found: dict[int, str] = {}
        for name in self._refusing:
            found |= self._sinks[name].refusals(staging.staged[name], batch)
        if found:
            self._on_refused(self._errors(staging, found))
        refused = {**staging.refused, **found}
        self._remember(batch, refused)
        return self._staged(batch, staging.produced, refused, counted=staging.counted) if found else staging

    def _errors(self, staging: Staging, refused: Refused) -> list[str]:
        """Of refused rows, which are looked up in the batch by their numbers."""
        from pyspark.sql import functions as F

        reasons = staging.numbered.sparkSession.createDataFrame(list(refused.items()), f"{ROW} long, reason string")
        rows, origin = staging.numbered.dropDuplicates([ROW]).join(F.broadcast(reasons), ROW), self._origin
        if POSITION not in rows.columns:
            # Such a row is not of one row of the source, so that it itself is what can be kept.
            own = [name for name in rows.columns if name != "reason" and not name.startswith(OURS)]
            rows, origin = with_itself_as_payload(rows, own), Origin(origin.source, as_json_bytes)
        error = origin.error(rows, "write", F.lit("target-refused"), F.col("reason"))
        return [row[0] for row in rows.select(error).collect()]

    def _remember(self, batch: Batch, refused: Refused) -> None:
        note = {"generation": batch.generation, "batch": batch.number, "rows": refused}
        self._store.remember(self._note, json.dumps(note))
        self._store.save(batch.number)

    def _recalled(self, batch: Batch) -> Refused | None:
        known = json.loads(self._store.recall(self._note) or "{}")
        if (known.get("generation"), known.get("batch")) != (batch.generation, batch.number):
            return None
        return {int(row): reason for row, reason in known["rows"].items()}

    def forget(self) -> None:
        """The rows of the batch are no longer needed."""
        for sink in self._sinks.values():
            sink.forget()
        if self._cached is not None:
            self._cached.unpersist()
            self._cached = None

    def _prepare(self, rows: DataFrame) -> None:
        from pyspark.sql.types import StructType

        schema = StructType([field for field in rows.schema.fields if not field.name.startswith(OURS)])
        if schema != self._prepared:
            self._tables = {name: sink.prepare(schema) for name, sink in self._sinks.items()}
            if CHANGE in rows.columns:
                # A change need not have all columns; the target itself refuses a new row without one that it needs.
                self._tables = {name: _with_nulls(table) for name, table in self._tables.items()}
            self._prepared = schema

    def _numbered(self, rows: DataFrame) -> DataFrame:
        """A transform over a whole batch has given all rows that come from one row of the source its number."""
        from pyspark.sql import functions as F

        if not self._ordered and not self._refusing:
            return rows
        if ROW not in rows.columns:
            rows = with_numbers(rows)
        if not self._ordered:
            return rows
        if EVENT_TIME not in rows.columns:
            rows = rows.withColumn(EVENT_TIME, self._time_of_results(rows))
        known = [F.col(ORDER)] if ORDER in rows.columns else []
        return rows.withColumn(ORDER, F.struct(*known, F.monotonically_increasing_id()))

    def _time_of_results(self, rows: DataFrame) -> Column:
        """For rows that do not come from one row of the source each."""
        from pyspark.sql import functions as F

        if EVENT_TS in rows.columns:
            return F.col(EVENT_TS).cast("timestamp")
        if any(self._declared[name].mode == "scd2" for name in self._ordered):
            raise BadSql(
                f"scd2 needs the time of each row, and the SELECT gives none named {EVENT_TS}",
                next_step=f"add it to the SELECT, for example max({EVENT_TS}) AS {EVENT_TS}",
            )
        return F.timestamp_seconds(F.lit(0))

    def _for(self, name: str, rows: DataFrame) -> DataFrame:
        """A target that does not know its rows by their keys cannot take one back."""
        if GONE not in rows.columns or self._declared[name].mode == "merge":
            return rows
        return rows.where(f"NOT coalesce({GONE}, false)")

    def _hidden(self, name: str, rows: DataFrame) -> list[str]:
        order = [EVENT_TIME, ORDER] if name in self._ordered else []
        gone = [GONE] if GONE in rows.columns and self._declared[name].mode == "merge" else []
        gone += [name for name in (CHANGE, AT, PRESENT, OP, PLACES) if name in rows.columns]
        beside = [PART] if PART in rows.columns and self._sinks[name].capabilities.parted else []
        beside += [AHEAD] if AHEAD in rows.columns else []
        return [*beside, *order, ROW, *gone] if name in self._refusing or order else beside


def _with_nulls(table: StructType) -> StructType:
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(f.name, f.dataType, True, f.metadata) for f in table.fields])


def with_numbers(rows: DataFrame) -> DataFrame:
    """Spark reads a repeated batch in the same pieces, so that its rows get the same numbers; where it does not, rows
    bring theirs along."""
    from pyspark.sql import functions as F

    known = [F.col(NUMBER)] if NUMBER in rows.columns else []
    return rows.withColumn(ROW, F.coalesce(*known, F.monotonically_increasing_id()))


def wanted(rows: DataFrame) -> DataFrame:
    """The good rows that no filter leaves out, still with room for an error."""
    keep = f" AND {KEEP}" if KEEP in rows.columns else ""
    return rows.where(IS_GOOD + keep).drop(KEEP)
