"""SQL over several sources by their names.

A UNION ALL with one SELECT per source is taken apart: each SELECT goes to its source, row by row. Anything else, such
as a join of the rows of a batch, gets a table per source and is applied to each batch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ematix_flow.streams.branches import Branch, of_one_type
from ematix_flow.streams.columns import quoted
from ematix_flow.streams.dialects import in_spark_sql
from ematix_flow.streams.envelope import SOURCE
from ematix_flow.streams.transform import STREAM, BadSql, parsed, selected

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


# What UNION ALL may have, so that its SELECTs can be taken apart: anything else, such as LIMIT, is meant for all rows.
_UNION_ALL = frozenset({"this", "expression"})


def is_over_names(sql: str, dialect: str, names: Sequence[str]) -> bool:
    """Whether the SELECT reads a table with one of these names."""
    tree = _understood(sql, dialect)
    if tree is None:
        return any(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", sql, re.IGNORECASE) for name in names)
    return not _tables_of(tree).isdisjoint(name.lower() for name in names)


def one_select_each(sql: str, dialect: str, names: Sequence[str]) -> dict[str, str] | None:
    """The SELECT of each source, over the table `source`, in their order; None if there is not exactly one for each."""
    from sqlglot import exp

    tree = _understood(sql, dialect)
    if tree is None:
        return None
    found: dict[str, str] = {}
    for part in _parts(tree):
        tables = list(part.find_all(exp.Table))
        if len(tables) != 1 or part.find(exp.With):
            return None
        name = next((name for name in names if name.lower() == tables[0].name.lower()), None)
        if name is None or name in found:
            return None
        if not tables[0].alias:
            tables[0].set("alias", exp.TableAlias(this=exp.to_identifier(name, quoted=True)))
        tables[0].set("this", exp.to_identifier(STREAM))
        found[name] = part.sql(dialect="spark")
    return found if len(found) == len(names) else None


def _understood(sql: str, dialect: str) -> Any:
    """None if only Spark may understand it."""
    try:
        return parsed(sql, dialect)
    except BadSql:
        if dialect == "spark":
            return None
        raise


def _tables_of(tree: Any) -> Set[str]:
    """The names of those that it reads, in lower case."""
    from sqlglot.optimizer.scope import traverse_scope

    return {table.name.lower() for scope in traverse_scope(tree) for table in _read_in(scope)}


def _read_in(scope: Any) -> list[Any]:
    """Its tables; what WITH has defined is none."""
    defined = {name.lower() for name in scope.cte_sources}
    return [table for table in scope.tables if not table.db and table.name.lower() not in defined]


def _parts(tree: Any) -> Iterator[Any]:
    from sqlglot import exp

    given = {name for name, clause in tree.args.items() if clause}
    if type(tree) is exp.Union and given <= _UNION_ALL:
        yield from _parts(tree.left)
        yield from _parts(tree.right)
    else:
        yield tree


def under_each_other(branches: Sequence[Branch], first: str) -> list[Branch]:
    """Columns of UNION ALL belong together by their places; their names are those of its first SELECT, which is over
    the source `first`."""
    named = next(branch for branch in branches if branch.origin.source == first)
    names = named.visible
    for branch in branches:
        if len(branch.visible) != len(names):
            counts = " and ".join(f"{len(each.visible)} from {each.origin.source}" for each in (named, branch))
            raise BadSql(f"the SELECTs of UNION ALL give {counts} columns", next_step="give each the same columns")
    renamed = [_renamed(branch, dict(zip(branch.visible, names, strict=True))) for branch in branches]
    return of_one_type(renamed)


def side_by_side(branches: Sequence[Branch]) -> list[Branch]:
    """Each with names of its own for its columns, so that two sources may have one of the same name."""
    return [
        _renamed(branch, {name: f"s{place}_{name}" for name in branch.rows.columns if name not in branch.ours})
        for place, branch in enumerate(branches)
    ]


def over_tables(
    sql: str, dialect: str, branches: Sequence[Branch], rows: DataFrame, lookups: Mapping[str, DataFrame]
) -> DataFrame:
    """The SELECT over the rows of each source, from those that `side_by_side` made and that were then put together."""
    from sqlglot import exp

    tree, beside = _understood(sql, dialect), _beside(sql, branches)
    named = {**_tables(branches, rows, beside), **lookups}
    if dialect != "spark" or (tree is not None and any(beside.values()) and tree.find(exp.Star)):
        return selected(in_spark_sql(_without(tree, beside), dialect, named), named)
    return selected(sql.rstrip().rstrip(";"), named)


def _beside(sql: str, branches: Sequence[Branch]) -> dict[str, list[str]]:
    """The columns of each source that are no part of `*`, but that the SELECT calls by name."""
    words = set(re.findall(r"\w+", sql.lower()))
    return {
        branch.origin.source: [
            name for name in branch.rows.columns if name in words and name not in {*branch.visible, *branch.ours}
        ]
        for branch in branches
    }


def _tables(branches: Sequence[Branch], rows: DataFrame, beside: Mapping[str, Sequence[str]]) -> dict[str, DataFrame]:
    from pyspark.sql import functions as F

    found = {}
    for place, branch in enumerate(branches):
        name = branch.origin.source
        columns = [F.col(f"`s{place}_{column}`").alias(column) for column in (*branch.visible, *beside[name])]
        found[name] = rows.where(F.col(SOURCE) == name).select(*columns)
    return found


def _without(tree: Any, beside: Mapping[str, Sequence[str]]) -> Any:
    """The SELECT, where each `*` leaves out what lies beside the columns of a source."""
    from sqlglot import exp
    from sqlglot.optimizer.scope import traverse_scope

    hidden = {name.lower(): columns for name, columns in beside.items()}
    for scope in traverse_scope(tree):
        for one in scope.expression.expressions:
            star = one.this if isinstance(one, exp.Column) else one
            if not isinstance(star, exp.Star):
                continue
            left_out = [
                exp.column(column, table=table.alias_or_name, quoted=True)
                for table in _read_in(scope)
                if one.text("table").lower() in {"", table.alias_or_name.lower()} and not _only_decides(table)
                for column in hidden.get(table.name.lower(), ())
            ]
            star.set("except_", [*(star.args.get("except_") or ()), *left_out])
    return tree


def _only_decides(table: Any) -> bool:
    """Which rows of another table there are, while its own columns are no part of `*`."""
    from sqlglot import exp

    return isinstance(table.parent, exp.Join) and table.parent.kind in {"SEMI", "ANTI"}


def _renamed(branch: Branch, names: Mapping[str, str]) -> Branch:
    from pyspark.sql import functions as F

    columns = [F.col(quoted(name)).alias(names.get(name, name)) for name in branch.rows.columns]
    return replace(
        branch, rows=branch.rows.select(*columns), visible=tuple(names.get(name, name) for name in branch.visible)
    )
