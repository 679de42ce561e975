"""The rows of each source on their own way through the transform, and how several of them become one table.

They stay apart as long as they can, because each source has its own watermark, and a row that fails its own place.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING

from ematix_flow.errors import DeclarationError, Problem
from ematix_flow.sinks.base import ORDER, Sink
from ematix_flow.specs import PipelineSpec
from ematix_flow.streams.columns import quoted
from ematix_flow.streams.envelope import EVENT_TS, OURS, PAYLOAD, SOURCE, Carried, Origin, as_bytes
from ematix_flow.streams.one_pass import needed, needed_by
from ematix_flow.streams.sources.several import Sources
from ematix_flow.streams.tagging import KEEP
from ematix_flow.streams.types_in_common import common_type

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType

SOURCE_NAME = "source_name"
"""The column that tells the rows of several sources apart."""


@dataclass(frozen=True)
class Branch:
    rows: DataFrame
    """Bad ones are tagged."""
    visible: tuple[str, ...]
    """The columns that `*` means."""
    origin: Origin

    @property
    def columns(self) -> dict[str, DataType]:
        return {name: self.rows.schema[name].dataType for name in self.visible}

    @property
    def ours(self) -> list[str]:
        return [name for name in self.rows.columns if name.startswith(OURS)]


def branches_of(
    spec: PipelineSpec, sources: Sources, session: SparkSession, sink: Sink | None, *, refusing: bool
) -> list[Branch]:
    """As each source has its rows; those of several carry its name. Many rows may come as one to the sink; `refusing`
    says that some target may refuse single ones."""
    sql = "" if spec.transform.join else spec.transform.sql or ""
    asks_for_time = re.search(rf"\b{EVENT_TS}\b", sql, re.IGNORECASE) is not None
    carried, branches = Carried.by(spec, refusing=refusing), []
    for source in sources:
        ahead = needed(spec, source.payload_schema)
        if ahead is None and sink is not None:
            ahead = needed_by(sink, spec, source.payload_schema)
        carried = replace(carried, ahead=ahead)
        rows, visible = source.read(session, carried), tuple(source.payload_schema.fieldNames())
        if EVENT_TS not in visible and not asks_for_time:
            # Counting keeps Spark from leaving out what nobody asks for.
            rows = rows.drop(EVENT_TS)
        branches.append(Branch(rows, visible, source.origin))
    return branches if len(sources) == 1 else _told_apart(branches, sources)


def origin_of(branches: Sequence[Branch]) -> Origin:
    """Of rows that may be of any of them."""
    first = branches[0].origin
    return first if len(branches) == 1 else Origin("", first.rendered)


def in_one_shape(branches: Sequence[Branch]) -> list[Branch]:
    """With the columns of all of them, NULL where a source has none of that name, and `source_name`."""
    from pyspark.sql import functions as F

    if len(branches) == 1:
        return list(branches)
    if taken := [branch for branch in branches if SOURCE_NAME in branch.visible]:
        raise DeclarationError("[[sources]]", [_taken(branch) for branch in taken])
    named = [
        replace(
            branch,
            rows=branch.rows.withColumn(SOURCE_NAME, F.lit(branch.origin.source)),
            visible=(*branch.visible, SOURCE_NAME),
        )
        for branch in branches
    ]
    return of_one_type(named)


def of_one_type(branches: Sequence[Branch]) -> list[Branch]:
    """With the columns of all of them, each in a type that holds the values of all, and NULL where there are none."""
    types = _types_of_all(branches)
    orders = _in_one_order(branches)
    return [_shaped(branch, types, order) for branch, order in zip(branches, orders, strict=True)]


def _shaped(branch: Branch, types: Mapping[str, DataType], order: Sequence[Column]) -> Branch:
    from pyspark.sql import functions as F

    given = set(branch.rows.columns)
    columns = [
        (F.col(quoted(name)) if name in given else F.lit(None)).cast(kind).alias(name) for name, kind in types.items()
    ]
    hidden = [name for name in branch.rows.columns if name not in types and not name.startswith(OURS)]
    ours = [name for name in branch.ours if name != ORDER]
    return replace(branch, rows=branch.rows.select(*columns, *hidden, *ours, *order), visible=tuple(types))


def together(branches: Sequence[Branch]) -> DataFrame:
    """One table of all rows; what is ours may be missing in some."""
    from pyspark.sql import functions as F

    tables = [branch.rows for branch in branches]
    if any(KEEP in rows.columns for rows in tables):
        tables = [rows if KEEP in rows.columns else rows.withColumn(KEEP, F.lit(True)) for rows in tables]
    return reduce(lambda some, more: some.unionByName(more, allowMissingColumns=True), tables)


def _told_apart(branches: Sequence[Branch], sources: Sources) -> list[Branch]:
    """With the name of the source in every row, and payloads of one type."""
    from pyspark.sql import functions as F

    kinds = {
        (source.payload_format, branch.rows.schema[PAYLOAD].dataType.json())
        for source, branch in zip(sources, branches, strict=True)
        if PAYLOAD in branch.rows.columns
    }
    # What a line of CSV is depends on the options of its source.
    rendered = len(kinds) > 1 or any(format == "csv" for format, _ in kinds)
    apart = []
    for branch in branches:
        rows, origin = branch.rows.withColumn(SOURCE, F.lit(branch.origin.source)), branch.origin
        if rendered:
            rows, origin = rows.withColumn(PAYLOAD, origin.rendered(F.col(PAYLOAD))), replace(origin, rendered=as_bytes)
        apart.append(replace(branch, rows=rows, origin=origin))
    return apart


def _types_of_all(branches: Sequence[Branch]) -> dict[str, DataType]:
    """`source_name` comes last."""
    found: dict[str, tuple[str, DataType]] = {}
    problems: list[Problem] = []
    for branch in branches:
        for name, kind in branch.columns.items():
            before, known = found.get(name, (branch.origin.source, kind))
            common = common_type(known, kind)
            if common is None:
                problems.append(_differing(name, (before, known), (branch.origin.source, kind)))
            found[name] = (before, common or known)
    if problems:
        raise DeclarationError("[[sources]]", problems)
    return {name: found[name][1] for name in sorted(found, key=lambda name: name == SOURCE_NAME)}


def _taken(branch: Branch) -> Problem:
    found = f'source "{branch.origin.source}" has a column of this name, which tells several sources apart'
    return Problem(SOURCE_NAME, found, "SQL over the named sources, which may rename it")


def _differing(name: str, one: tuple[str, DataType], other: tuple[str, DataType]) -> Problem:
    kinds = " and ".join(f'{kind.simpleString()} in source "{source}"' for source, kind in (one, other))
    return Problem(name, f"is {kinds}", "one type, declared in `schema`, or SQL over the named sources that casts it")


def _in_one_order(branches: Sequence[Branch]) -> list[list[Column]]:
    """What tells which of two rows came later: sources that tell it differently come one after the other."""
    from pyspark.sql import functions as F

    kinds = [branch.rows.schema[ORDER].dataType for branch in branches if ORDER in branch.rows.columns]
    if len({kind.json() for kind in kinds}) < 2:
        return [[F.col(ORDER)] if ORDER in branch.rows.columns else [] for branch in branches]
    orders = []
    for place in range(len(kinds)):
        own = [(F.col(ORDER) if n == place else F.lit(None)).cast(kind).alias(f"of{n}") for n, kind in enumerate(kinds)]
        orders.append([F.struct(F.lit(place).alias("source"), *own).alias(ORDER)])
    return orders
