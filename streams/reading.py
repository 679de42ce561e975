"""How often, and how far, Spark reads a batch for a SELECT over the whole of it.

The rows of a batch are counted, and the bad ones among them found, while Spark reads them. So each has to be read, and
only once: what is read otherwise has to be kept, and read before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ematix_flow.streams import catalyst
from ematix_flow.streams.catalyst import Plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# These read all that they are given. What is not listed, such as a limit, may stop before.
_READ_ALL = frozenset({
    "Project", "Filter", "Sort", "Aggregate", "Window", "WindowGroupLimit", "Generate", "Expand", "Union", "Join",
    "ArrowEvalPython", "BatchEvalPython",
})  # fmt: skip


def readings(batch: DataFrame, made: DataFrame) -> list[bool]:
    """For each time that Spark reads `batch` in order to know what was `made` of it, whether it reads all of it. It may
    be none, as under a condition that is never true."""
    return list(_readings(catalyst.optimized(made), catalyst.optimized(batch)))


def _readings(plan: Plan, batch: Plan) -> Iterator[bool]:
    if plan.sameResult(batch):
        yield True
    if (first := _sorted_for_the_first(plan)) is not None:
        yield from _readings(first, batch)
        return
    for below in (*catalyst.children(plan), *catalyst.items(plan.subqueries())):
        for reads_all in _readings(below, batch):
            yield reads_all and catalyst.kind(plan) in _READ_ALL
            if _is_sorted(plan):
                # To know where to cut what it sorts, Spark takes a sample first.
                yield reads_all


def _sorted_for_the_first(plan: Plan) -> Plan | None:
    """What ORDER BY with LIMIT is applied to. Spark looks for the first rows in each part of it: it reads all, once."""
    if catalyst.kind(plan) != "GlobalLimit" or catalyst.kind(plan.child()) != "LocalLimit":
        return None
    below = plan.child().child()
    if catalyst.kind(below) == "Project":
        below = below.child()
    return below.child() if _is_sorted(below) else None


def _is_sorted(plan: Plan) -> bool:
    """As a whole, by ORDER BY."""
    return catalyst.kind(plan) == "Sort" and bool(getattr(plan, "global")())
