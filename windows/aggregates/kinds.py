"""The built-in aggregates: what each takes, and which pieces it is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ematix_flow.specs.window import Aggregation, rank_of
from ematix_flow.windows.aggregates import collected, sketches, spread, totals
from ematix_flow.windows.aggregates.chosen import Chosen
from ematix_flow.windows.aggregates.pieces import Count, Extreme, Piece, Rows

if TYPE_CHECKING:
    import pyarrow as pa

NUMBERS = "numbers"
BOOLEANS = "booleans"
ORDERED = "numbers, text, binary, booleans, dates or times"
ANYTHING = "any column"


@dataclass(frozen=True)
class Given:
    """One aggregation and the columns that it names, as they are called in the rows."""

    wanted: Aggregation
    column: str = ""
    type: pa.DataType | None = None
    other: str = ""
    """The column that decides, for arg_min and arg_max with a mode."""
    other_type: pa.DataType | None = None


Made = tuple["pa.DataType", tuple[Piece, ...], Callable[..., "pa.Array"]]
"""Type of the result, the pieces of which it is made, and how it is made of their columns."""


@dataclass(frozen=True)
class Kind:
    """A built-in aggregate."""

    takes: str
    make: Callable[[Given], Made]


def fits(type: pa.DataType, takes: str) -> bool:
    import pyarrow as pa

    number = pa.types.is_integer(type) or pa.types.is_floating(type) or pa.types.is_decimal128(type)
    if takes in (NUMBERS, BOOLEANS):
        return bool(number if takes == NUMBERS else pa.types.is_boolean(type))
    ordered = (
        pa.types.is_boolean, pa.types.is_string, pa.types.is_large_string, pa.types.is_binary,
        pa.types.is_large_binary, pa.types.is_date, pa.types.is_timestamp, pa.types.is_time,
    )  # fmt: skip
    return takes == ANYTHING or number or any(is_such(type) for is_such in ordered)


def only(column: pa.Array) -> pa.Array:
    """What is kept is the result."""
    return column


def first_column(column: pa.Array, *others: pa.Array) -> pa.Array:
    return column


def last_column(*columns: pa.Array) -> pa.Array:
    return columns[-1]


def _count(given: Given) -> Made:
    import pyarrow as pa

    return pa.int64(), (Rows(),), only


def _count_col(given: Given) -> Made:
    import pyarrow as pa

    return pa.int64(), (Count(given.column),), only


def _sum(given: Given) -> Made:
    kind = totals.sum_type(given.type)
    finish = partial(totals.total, kind, given.wanted.column or "", given.wanted.as_)
    return kind, (totals.Total(given.column, given.type),), finish


def _avg(given: Given) -> Made:
    kind = totals.average_type(given.type)
    finish = partial(totals.average, given.type, kind, given.wanted.column or "", given.wanted.as_)
    return kind, (totals.Total(given.column, given.type), Count(given.column)), finish


def _extreme(function: str, given: Given) -> Made:
    return given.type, (Extreme(given.column, given.type, function),), only


def _spread(finish: Callable[..., pa.Array], given: Given) -> Made:
    import pyarrow as pa

    return pa.float64(), (spread.Spread(given.column),), finish


def _first(given: Given) -> Made:
    return given.type, (Chosen((given.column,), (given.type,)),), first_column


def _last(given: Given) -> Made:
    return given.type, (Chosen((given.column,), (given.type,), backwards=True),), first_column


def _arg(greatest: bool, given: Given) -> Made:
    import pyarrow as pa

    if given.other:
        names, types = (given.column, given.other), (given.type, given.other_type)
        return given.type, (Chosen(names, types, by_value=True, backwards=greatest),), first_column
    piece = Chosen((given.column,), (given.type,), by_value=True, backwards=greatest)
    return pa.timestamp("us", "UTC"), (piece,), last_column


def _count_distinct(given: Given) -> Made:
    import pyarrow as pa

    if given.wanted.mode == "exact":
        most = given.wanted.max_distinct_values_per_group or collected.MOST_DISTINCT
        return pa.int64(), (collected.Distinct(given.column, given.type, most),), collected.number_of
    return pa.int64(), (sketches.DistinctSketch(given.column),), sketches.distinct_count


def _percentile(given: Given) -> Made:
    import pyarrow as pa

    rank = rank_of(given.wanted.mode)
    assert rank is not None, "looked at when it was declared"
    return pa.float64(), (sketches.QuantileSketch(given.column),), partial(sketches.percentile, rank)


def _collect(once: bool, given: Given) -> Made:
    import pyarrow as pa

    most = given.wanted.max_distinct_values_per_group or collected.MOST_COLLECTED
    piece = collected.Collected(given.column, given.type, most, once)
    return pa.list_(given.type), (piece,), first_column


KINDS: Mapping[str, Kind] = {
    "count": Kind(ANYTHING, _count),
    "count_col": Kind(ANYTHING, _count_col),
    "sum": Kind(NUMBERS, _sum),
    "min": Kind(ORDERED, partial(_extreme, "min")),
    "max": Kind(ORDERED, partial(_extreme, "max")),
    "avg": Kind(NUMBERS, _avg),
    "first": Kind(ANYTHING, _first),
    "last": Kind(ANYTHING, _last),
    "count_distinct": Kind(ORDERED, _count_distinct),
    "stddev": Kind(NUMBERS, partial(_spread, spread.deviation)),
    "variance": Kind(NUMBERS, partial(_spread, spread.variance)),
    "percentile": Kind(NUMBERS, _percentile),
    "bool_and": Kind(BOOLEANS, partial(_extreme, "min")),
    "bool_or": Kind(BOOLEANS, partial(_extreme, "max")),
    "collect_list": Kind(ANYTHING, partial(_collect, False)),
    "collect_set": Kind(ORDERED, partial(_collect, True)),
    "arg_min": Kind(ORDERED, partial(_arg, False)),
    "arg_max": Kind(ORDERED, partial(_arg, True)),
}
