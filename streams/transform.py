"""The transform: one SQL SELECT over the table `source`, in the user's dialect, run by Spark.

Spark's own parser and analyzer tell what the SELECT does. Its outer projections and filters are then rebuilt so that
a row on which one of them fails is tagged. A SELECT that looks at one row at a time becomes part of the streaming plan;
any other (GROUP BY, DISTINCT, ORDER BY, window functions, joins with lookups) is applied to each batch by itself.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ematix_flow.errors import FlowError
from ematix_flow.specs import PipelineSpec
from ematix_flow.streams import catalyst
from ematix_flow.streams.catalyst import Expression, Plan
from ematix_flow.streams.columns import quoted
from ematix_flow.streams.dialects import in_spark_sql
from ematix_flow.streams.envelope import ERROR, OURS, Origin
from ematix_flow.streams.tagging import KEEP, attempt, may_go_on, tagged

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

STREAM = "source"

# Spark resolves the name `source` while the plan is built; two pipelines of one process must not do that at once.
_naming = threading.Lock()


class BadSql(FlowError):
    """The transform is not SQL that can be run."""

    code = "bad-sql"
    exit_code = 2


@dataclass(frozen=True)
class Transformed:
    rows: DataFrame
    tagged: bool
    """Rows on which the SELECT fails carry an error, and those it leaves out a mark. Otherwise the rows are only its
    results, and one row on which it fails is a failure of the whole batch."""
    row_wise: bool
    """Each result depends on one row of `source` alone."""


@dataclass(frozen=True)
class SqlTransform:
    sql: str
    dialect: str
    visible: tuple[str, ...]
    """The payload's columns, which `*` means; the payload may have an `_event_ts` of its own."""
    origin: Origin
    names: tuple[str, ...] = (STREAM,)
    """Of the table, as the SELECT may call it."""

    def __call__(self, rows: DataFrame, lookups: Mapping[str, DataFrame]) -> Transformed:
        """The SELECT over `rows`, which carry `_flow_error`."""
        text = self.sql.rstrip().rstrip(";")
        named = {**dict.fromkeys(self.names, rows), **lookups}
        if self.dialect != "spark":
            text = in_spark_sql(parsed(self.sql, self.dialect), self.dialect, named)
        plan = catalyst.inlined(catalyst.analyzed(selected(text, named)))
        steps, bottom = _outer_steps(plan)
        carries_errors = sum(attribute.name() == ERROR for attribute in catalyst.items(bottom.output())) == 1
        if not steps or not carries_errors:
            result = selected(text, {**dict.fromkeys(self.names, self._shown(rows, text)), **lookups})
            return Transformed(result, tagged=False, row_wise=False)
        result = catalyst.frame(bottom, rows.sparkSession)
        for step in reversed(steps):
            result = self._rebuilt(result, step, hidden=self._starred(plan, text, rows) if step is steps[0] else set())
        return Transformed(result, tagged=True, row_wise=_is_at(bottom, catalyst.analyzed(rows)))

    def _rebuilt(self, rows: DataFrame, step: Plan, hidden: set[int]) -> DataFrame:
        """One projection or filter of the SELECT, over rows that have all that is ours."""
        if catalyst.kind(step) == "Filter":
            return self._filtered(rows, catalyst.spelled_out(step.condition()))
        attempts, outputs = [], []
        for number, one in enumerate(catalyst.items(step.projectList())):
            if number in hidden or one.name().startswith(OURS):
                continue
            if catalyst.kind(one) != "Alias" or catalyst.cannot_fail(one.child()):
                outputs.append(catalyst.column(one))
            else:
                attempts.append(attempt(catalyst.spelled_out(one.child()), one, rows))
                outputs.append(catalyst.column(one.toAttribute()))
        return tagged(rows, attempts, outputs, self.origin, "transform")

    def _filtered(self, rows: DataFrame, condition: Expression) -> DataFrame:
        """Rows are only marked: they are left out after they were counted."""
        from pyspark.sql import functions as F

        others = [catalyst.column(a) for a in catalyst.items(catalyst.analyzed(rows).output()) if not _is_ours(a)]
        if catalyst.cannot_fail(condition):
            keep = F.when(may_go_on(rows), catalyst.column(condition)).alias(KEEP)
            return tagged(rows, [], [*others, keep], self.origin, "transform", without=KEEP)
        named = catalyst.named(catalyst.column(condition).alias(KEEP), rows)
        outputs = [*others, catalyst.column(named.toAttribute())]
        return tagged(rows, [attempt(condition, named, rows)], outputs, self.origin, "transform", without=KEEP)

    def _starred(self, plan: Plan, text: str, rows: DataFrame) -> set[int]:
        """Which of the columns of the outermost SELECT are there only because `*` took what lies beside the payload,
        such as our `_event_ts`, for a part of it."""
        beside = self._beside(rows)
        if not beside:
            return set()
        written = catalyst.parsed(rows.sparkSession, text)
        columns = catalyst.items(plan.projectList())
        stars = [True]
        if catalyst.kind(written) == "Project":
            stars = ["Star" in catalyst.kind(one) for one in catalyst.items(written.projectList())]
        if True not in stars:
            return set()
        first, after_last = stars.index(True), len(columns) - stars[::-1].index(True)
        return {number for number in range(first, after_last) if columns[number].name() in beside}

    def _shown(self, rows: DataFrame, text: str) -> DataFrame:
        """Rows for a SELECT that looks at more than one of them, and would take what is ours for content."""
        hidden = [name for name in rows.columns if name.startswith(OURS)]
        hidden += [name for name in self._beside(rows) if not re.search(rf"\b{name}\b", text, re.IGNORECASE)]
        return rows.drop(*hidden)

    def _beside(self, rows: DataFrame) -> set[str]:
        return {name for name in rows.columns if name not in self.visible and not name.startswith(OURS)}


def stream_names(spec: PipelineSpec) -> tuple[str, ...]:
    """What SQL may call the table of all rows: a single source is also known by the name that it was given."""
    name = spec.sources[0].name if len(spec.sources) == 1 else None
    return (STREAM, name) if name else (STREAM,)


def parsed(sql: str, dialect: str) -> Any:
    import sqlglot
    from sqlglot import exp
    from sqlglot.errors import ParseError, SqlglotError

    # DataFusion's SQL is Postgres' for everything a SELECT needs.
    read = {"datafusion": "postgres"}.get(dialect, dialect)
    try:
        trees = [tree for tree in sqlglot.parse(sql, read=read) if tree is not None]
    except SqlglotError as error:
        facts = error.errors[0] if isinstance(error, ParseError) and error.errors else None
        where = f" near {facts['highlight']!r} (line {facts['line']}, column {facts['col']})" if facts else ""
        raise BadSql(f"the transform is not valid {dialect} SQL{where}", next_step="correct the transform") from error
    if len(trees) != 1 or not isinstance(trees[0], exp.Query):
        found = f"{len(trees)} statements" if trees else "nothing"
        if len(trees) == 1:
            found = trees[0].sql(dialect=read).split(maxsplit=1)[0].upper()
        raise BadSql(f"the transform must be one SELECT, found {found}", next_step="correct the transform")
    return trees[0]


def refuse_commands(sql: str) -> None:
    """Spark would carry out a command such as SET at once, and take its answer for the rows. What only Spark can read
    is left to it."""
    try:
        parsed(sql, "spark")
    except BadSql as error:
        if error.__cause__ is None:
            raise


def selected(text: str, tables: Mapping[str, DataFrame]) -> DataFrame:
    session = next(iter(tables.values())).sparkSession
    with _naming:
        for name, table in tables.items():
            table.createOrReplaceTempView(quoted(name))
        try:
            return session.sql(text)
        finally:
            for name in tables:
                session.catalog.dropTempView(name)


def _outer_steps(plan: Plan) -> tuple[list[Plan], Plan]:
    """The projections and filters at the top of a plan, outermost first, and what they are applied to."""
    steps: list[Plan] = []
    while True:
        kind = catalyst.kind(plan)
        if kind in {"Project", "Filter"} and plan.subqueries().isEmpty():
            steps.append(plan)
        elif kind != "SubqueryAlias":
            return (steps if steps and catalyst.kind(steps[0]) == "Project" else []), plan
        plan = plan.child()


def _is_at(plan: Plan, place: Plan) -> bool:
    """Whether a plan is nothing but another name for `place`."""
    while catalyst.kind(plan) in {"SubqueryAlias", "View"}:
        plan = plan.child()
    return bool(plan.equals(place))


def _is_ours(attribute: Expression) -> bool:
    return str(attribute.name()).startswith(OURS)
