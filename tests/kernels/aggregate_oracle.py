"""What each aggregate comes to, in plain Python over the rows of one group, in the order of their arrival."""

import math
import statistics
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Context, Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa

from ematix_flow.specs.window import Aggregation, rank_of

Row = dict[str, Any]
EXACT = Context(prec=100, rounding=ROUND_HALF_UP)


class DoesNotFit(Exception):
    """The right answer is an error."""


def expected(wanted: Aggregation, rows: list[Row], type: pa.DataType) -> Any:
    """Rows have their time, in microseconds, as `time`."""
    if wanted.agg == "count":
        return len(rows)
    known = [row for row in rows if row[wanted.column] is not None]
    values = [row[wanted.column] for row in known]
    if wanted.agg in WHOLE:
        return WHOLE[wanted.agg](values)
    if wanted.agg in ("collect_list", "collect_set"):
        return _collected(known, wanted)
    if wanted.agg in ("arg_min", "arg_max"):
        return _arg(known, wanted)
    if not values:
        return None
    if wanted.agg in ("sum", "avg"):
        return (_sum if wanted.agg == "sum" else _avg)(values, type)
    if wanted.agg in ("first", "last"):
        in_time = sorted(known, key=lambda row: row["time"])
        return in_time[0 if wanted.agg == "first" else -1][wanted.column]
    if wanted.agg in ("stddev", "variance"):
        return _spread(values, wanted.agg)
    if wanted.agg == "percentile":
        return _percentile(values, wanted.mode)
    least = wanted.agg in ("min", "bool_and")
    return (min if least else max)(values, key=order)


def order(value: Any) -> Any:
    """NaN is greater than every number."""
    return (value != value, 0 if value != value else value)  # noqa: PLR0124 - only NaN is not itself


WHOLE: dict[str, Callable[[list[Any]], Any]] = {
    "count_col": len,
    "count_distinct": lambda values: len(set(map(order, values))),
}


def _sum(values: list[Any], type: pa.DataType) -> Any:
    if pa.types.is_floating(type):
        return sum(values)
    if pa.types.is_integer(type):
        if not -(2**63) <= sum(values) < 2**63:
            raise DoesNotFit
        return sum(values)
    return _fitting(_total(values), min(38, type.precision + 10), type.scale)


def _avg(values: list[Any], type: pa.DataType) -> Any:
    if not pa.types.is_decimal(type):
        return sum(values) / len(values)
    precision, scale = min(38, type.precision + 4), min(38, type.scale + 4)
    return _fitting(EXACT.divide(_total(values), len(values)), precision, scale)


def _total(values: list[Decimal]) -> Decimal:
    total = Decimal(0)
    for value in values:
        total = EXACT.add(total, value)
    return total


def _fitting(value: Decimal, precision: int, scale: int) -> Decimal:
    rounded = value.quantize(Decimal((0, (1,), -scale)), context=EXACT)
    if rounded.copy_abs() >= Decimal((0, (1,), precision - scale)):
        raise DoesNotFit
    return rounded


def _spread(values: list[Any], agg: str) -> float | None:
    numbers = [float(value) for value in values]
    if len(numbers) == 1:
        return None
    if not all(map(math.isfinite, numbers)):
        return math.nan
    return statistics.variance(numbers) if agg == "variance" else statistics.stdev(numbers)


def _percentile(values: list[Any], mode: str | None) -> float | None:
    numbers = sorted(float(value) for value in values if not math.isnan(value))
    rank = Fraction(str(rank_of(mode)))
    return numbers[max(math.ceil(rank * len(numbers)) - 1, 0)] if numbers else None


def _collected(rows: list[Row], wanted: Aggregation) -> list[Any]:
    values: list[Any] = []
    for row in sorted(rows, key=lambda row: row["time"]):
        value = row[wanted.column]
        if wanted.agg == "collect_list" or order(value) not in map(order, values):
            values.append(value)
    return values[: wanted.max_distinct_values_per_group or 1_000]


def _arg(rows: list[Row], wanted: Aggregation) -> Any:
    """Python's sort keeps the order of arrival among equal ones."""
    decider = wanted.mode or wanted.column
    known = sorted((row for row in rows if row[decider] is not None), key=lambda row: row["time"])
    if not known:
        return None
    best = (min if wanted.agg == "arg_min" else max)(order(row[decider]) for row in known)
    row = next(row for row in known if order(row[decider]) == best)
    return row[wanted.column] if wanted.mode else row["time"]
