"""The transform: one SQL SELECT over the table `source`, in the user's dialect, run by Spark.

A SELECT that looks at one row at a time becomes part of the streaming plan. Any other (GROUP BY, DISTINCT, ORDER BY,
window functions, ...) is applied to each batch by itself.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ematix_flow.errors import FlowError
from ematix_flow.streams.envelope import ERROR, EVENT_TS, IS_BAD, IS_GOOD

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SOURCE = "source"

# Spark resolves the name `source` while the plan is built; two pipelines of one process must not do that at once.
_naming = threading.Lock()


class BadSql(FlowError):
    """The transform is not SQL that can be run."""

    code = "bad-sql"
    exit_code = 2


@dataclass(frozen=True)
class SqlTransform:
    sql: str
    dialect: str = "spark"
    visible: tuple[str, ...] = ()
    """The payload's columns, which `*` means; the payload may have an `_event_ts` of its own."""

    @cached_property
    def tree(self) -> Any:
        """The syntax tree, or None for Spark SQL that only Spark's own parser understands."""
        try:
            return parsed(self.sql, self.dialect)
        except BadSql:
            if self.dialect == "spark":
                return None
            raise

    @cached_property
    def row_wise(self) -> bool:
        return self.tree is not None and is_row_wise(self.tree)

    @property
    def filters(self) -> bool:
        """Whether a row-wise SELECT leaves rows out."""
        return self.tree.args.get("where") is not None

    def __call__(self, rows: DataFrame, *, keep_bad: bool = False) -> DataFrame:
        """The SELECT over `rows`. With `keep_bad`, only for a row-wise one, tagged rows pass beside the results."""
        hidden = [name for name in (EVENT_TS, ERROR) if name in rows.columns and name not in self.visible]
        with _naming:
            rows.createOrReplaceTempView(SOURCE)
            try:
                return rows.sparkSession.sql(self._statement(hidden, keep_bad))
            finally:
                rows.sparkSession.catalog.dropTempView(SOURCE)

    def _statement(self, hidden: list[str], keep_bad: bool) -> str:
        """The user's own text wherever that is enough, so that Spark's messages quote what the user wrote."""
        if self.dialect == "spark" and not keep_bad and not (hidden and "*" in self.sql):
            return self.sql.rstrip().rstrip(";")
        tree = _stars_without(self.tree.copy(), hidden)
        return str((_carrying(tree) if keep_bad else tree).sql(dialect="spark"))


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
        found = "nothing" if not trees else f"{len(trees)} statements" if len(trees) > 1 else trees[0].key.upper()
        raise BadSql(f"the transform must be one SELECT, found {found}", next_step="correct the transform")
    return trees[0]


def is_row_wise(tree: Any) -> bool:
    """Whether each result row depends on one row of `source` alone."""
    from sqlglot import exp

    if not isinstance(tree, exp.Select) or not _reads_source(tree):
        return False
    whole_batch = (
        "with_", "joins", "group", "having", "distinct", "order", "sort", "limit", "offset", "qualify", "laterals"
    )  # fmt: skip
    if any(tree.args.get(part) for part in whole_batch):
        return False
    # A function that sqlglot does not know may be an aggregate; applied per batch it is right in either case.
    across_rows = (exp.AggFunc, exp.Window, exp.Query, exp.UDTF, exp.Explode, exp.Posexplode, exp.Inline, exp.Anonymous)
    return not any(node is not tree and isinstance(node, across_rows) for node in tree.walk())


def _reads_source(select: Any) -> bool:
    from sqlglot import exp

    origin = select.args.get("from_")
    tables = [origin.this] if origin else []
    tables += [join.this for join in select.args.get("joins") or []]
    return any(isinstance(table, exp.Table) and table.name.lower() == SOURCE for table in tables)


def _stars_without(tree: Any, hidden: list[str]) -> Any:
    """`*` means the payload's columns, wherever it stands for the columns of `source`."""
    from sqlglot import exp

    for select in tree.find_all(exp.Select):
        if not _reads_source(select):
            continue
        for projection in select.expressions:
            star = projection.this if isinstance(projection, exp.Column) else projection
            if isinstance(star, exp.Star):
                star.set("except_", [*(star.args.get("except_") or []), *map(exp.to_identifier, hidden)])
    return tree


def _carrying(select: Any) -> Any:
    """Tagged rows skip every expression and every filter, and keep their error."""
    from sqlglot import exp, parse_one

    carried = []
    for projection in select.expressions:
        if projection.find(exp.Star):
            carried.append(projection)
            continue
        name = projection.alias_or_name or projection.sql(dialect="spark")
        guarded = exp.Case().when(parse_one(IS_GOOD, read="spark"), projection.unalias())
        carried.append(exp.alias_(guarded, name, quoted=True))
    select.set("expressions", [*carried, exp.column(ERROR)])
    where = select.args.get("where")
    if where is not None:
        select.set("where", exp.Where(this=exp.or_(parse_one(IS_BAD, read="spark"), where.this)))
    return select
