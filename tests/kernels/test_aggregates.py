"""Every aggregate over every type against an oracle in plain Python: rows in any pieces, merged in any order."""

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ematix_flow.specs.window import AGGREGATES, Aggregation
from ematix_flow.state.kernel import ROWS, TIME
from ematix_flow.windows.aggregates import Aggregates, WindowFailed, aggregates_for
from tests.kernels.aggregate_oracle import DoesNotFit, Row, expected

MOMENT = pa.timestamp("us", "UTC")
UTC = dt.UTC
ENDS = [-(2**63), 2**63 - 1]
DAYS = [dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(1970, 1, 1), dt.date(2024, 2, 29)]
MOMENTS = [
    dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC),
    dt.datetime(1970, 1, 1, tzinfo=UTC),
    dt.datetime(2024, 2, 29, 1, 2, 3, 4, UTC),
]
# Quarters add up without rounding, so a sum is the same in every order.
QUARTERS = st.integers(-4_000_000, 4_000_000).map(lambda number: number / 4)
FLOATS = QUARTERS | st.sampled_from([0.0, -0.0, math.nan, math.inf, -math.inf])
NINES = Decimal("9" * 36 + ".99")
MINUS_NINES = NINES.copy_negate()  # `-` would round it to 28 digits

TYPES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "tinyint": (pa.int8(), st.integers(-128, 127)),
    "smallint": (pa.int16(), st.sampled_from([-(2**15), -1, 0, 7])),
    "int": (pa.int32(), st.sampled_from([-(2**31), 2**31 - 1, 5])),
    "bigint": (pa.int64(), st.integers(-9, 9) | st.sampled_from(ENDS)),
    "float": (pa.float32(), FLOATS),
    "double": (pa.float64(), FLOATS),
    "decimal(9,2)": (pa.decimal128(9, 2), st.decimals(-9_999_999, 9_999_999, places=2)),
    "decimal(38,2)": (pa.decimal128(38, 2), st.sampled_from([NINES, MINUS_NINES, Decimal("0.01"), Decimal("-1.50")])),
    "boolean": (pa.bool_(), st.booleans()),
    "string": (pa.string(), st.sampled_from(["", "a", "é", "z", "\U0001f600"])),
    "binary": (pa.binary(), st.sampled_from([b"", b"\0", b"a", b"\xff"])),
    "date": (pa.date32(), st.sampled_from(DAYS)),
    "timestamp": (MOMENT, st.sampled_from(MOMENTS)),
    "timestamp_ntz": (pa.timestamp("us"), st.sampled_from([moment.replace(tzinfo=None) for moment in MOMENTS])),
    "array<bigint>": (pa.list_(pa.int64()), st.lists(st.integers(0, 2), max_size=2)),
}
KEYS: list[tuple[list[pa.DataType], list[tuple[Any, ...]]]] = [
    ([], [()]),
    ([pa.int64()], [(None,), (2**62,), (-1,)]),
    ([pa.string()], [(None,), ("",), ("a",)]),
    ([pa.float64(), pa.bool_()], [(None, None), (math.nan, True), (0.0, None)]),
    ([pa.decimal128(38, 2), pa.binary()], [(None, b""), (NINES, None), (MINUS_NINES, b"a")]),
    ([pa.date32(), MOMENT], [(None, None), (DAYS[0], None), (DAYS[0], MOMENTS[0])]),
]


def wanted_of(type: pa.DataType) -> list[Aggregation]:
    numbers = {"sum", "avg", "stddev", "variance"}
    ordered = {"min", "max", "count_distinct", "collect_set", "arg_min", "arg_max"}
    plain = {"count_col", "first", "last", "collect_list"}
    if not pa.types.is_nested(type):
        plain |= ordered
    if pa.types.is_boolean(type):
        plain |= {"bool_and", "bool_or"}
    number = pa.types.is_integer(type) or pa.types.is_floating(type) or pa.types.is_decimal(type)
    found = [Aggregation("count", "count")]
    found += [Aggregation(agg, agg, "v") for agg in AGGREGATES if agg in plain | (numbers if number else set())]
    found += [
        Aggregation("collect_list", "two", "v", max_distinct_values_per_group=2),
        Aggregation("arg_min", "v_at_least_n", "v", "n"),
        Aggregation("arg_max", "v_at_most_n", "v", "n"),
    ]
    if not pa.types.is_nested(type):
        found += [
            Aggregation("count_distinct", "exact", "v", "exact"),
            Aggregation("collect_set", "set_of_two", "v", max_distinct_values_per_group=2),
            Aggregation("arg_min", "n_at_least_v", "n", "v"),
            Aggregation("arg_max", "n_at_most_v", "n", "v"),
        ]
    if number:
        found += [Aggregation("percentile", f"at_{mode}", "v", mode) for mode in (None, "p95", "0.25")]
    return found


@st.composite
def histories(draw: st.DrawFn, values: st.SearchStrategy[Any]) -> tuple[list[Row], list[int], list[int]]:
    """Rows, where they are cut, and which neighbours are merged next."""
    row = st.fixed_dictionaries(
        {
            "key": st.integers(0, 2),
            "v": st.none() | values,
            "n": st.none() | st.integers(0, 2),
            "time": st.integers(-3, 3),
        }
    )
    rows = draw(st.lists(row, max_size=20))
    cuts = sorted(draw(st.lists(st.integers(0, len(rows)), max_size=4)))
    return rows, cuts, draw(st.lists(st.integers(0, 3), min_size=4, max_size=4))


@pytest.mark.parametrize("name", TYPES)
@settings(deadline=None, max_examples=20)
@given(st.data())
def test_it_agrees_with_the_oracle(name: str, data: st.DataObject) -> None:
    _check(name, data)


@pytest.mark.slow
@pytest.mark.parametrize("name", TYPES)
@settings(deadline=None, max_examples=1_000)
@given(st.data())
def test_it_agrees_with_the_oracle_many_times(name: str, data: st.DataObject) -> None:
    _check(name, data)


def _check(name: str, data: st.DataObject) -> None:
    type, values = TYPES[name]
    key_types, keys = data.draw(st.sampled_from(KEYS))
    rows, cuts, merges = data.draw(histories(values))
    rows = [{**row, "key": row["key"] % len(keys), "v": _rounded(row["v"], type)} for row in rows]
    schema = pa.schema([("v", type), ("n", pa.int64())])
    by = [f"k{place}" for place in range(len(key_types))]

    groups: dict[int, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["key"], []).append(row)

    fitting, answers = [], []
    for wanted in wanted_of(type):
        try:
            answers.append([expected(wanted, group, type) for group in groups.values()])
            fitting.append(wanted)
        except DoesNotFit:
            failing = aggregates_for([wanted], schema, [], "at")
            with pytest.raises(WindowFailed, match=rf"{wanted.column} \({wanted.as_}\) does not fit"):
                failing.finish(_computed(failing, _table(rows, keys, key_types, schema), by, cuts, merges))

    aggregates = aggregates_for(fitting, schema, [], "at")
    parts = _computed(aggregates, _table(rows, keys, key_types, schema), by, cuts, merges)
    assert parts[ROWS].to_pylist() == [len(group) for group in groups.values()]
    for place, column in enumerate(by):
        assert _same(parts[column].to_pylist(), [keys[key][place] for key in groups])
    for wanted, field, found, answer in zip(fitting, aggregates.output, aggregates.finish(parts), answers, strict=True):
        assert found.type == field.type
        is_time = wanted.agg in ("arg_min", "arg_max") and not wanted.mode
        assert _same((found.cast(pa.int64()) if is_time else found).to_pylist(), answer), wanted


@pytest.mark.parametrize("agg", ["stddev", "variance"])
def test_equal_values_are_at_no_distance(agg: str) -> None:
    """Three times nine hundredths, divided by three, are not nine hundredths."""
    schema = pa.schema([("v", pa.decimal128(9, 2))])
    aggregates = aggregates_for([Aggregation(agg=agg, as_="a", column="v")], schema, [], "at")
    rows = [{"key": 0, "v": Decimal("0.09"), "time": 0}] * 3
    parts = _computed(aggregates, _table(rows, [()], [], schema), [], [], [])
    assert [column.to_pylist() for column in aggregates.finish(parts)] == [[0.0]]


def _computed(aggregates: Aggregates, table: pa.Table, by: list[str], cuts: list[int], merges: list[int]) -> pa.Table:
    ends = [*cuts, table.num_rows]
    parts = [aggregates.start(table.slice(begin, end - begin), by) for begin, end in zip([0, *cuts], ends, strict=True)]
    for merge in merges:
        place = merge % len(parts)
        parts[place : place + 2] = [aggregates.merge(pa.concat_tables(parts[place : place + 2]), by)]
    return aggregates.merge(pa.concat_tables(parts), by)


def _table(rows: list[Row], keys: list[tuple[Any, ...]], key_types: list[pa.DataType], schema: pa.Schema) -> pa.Table:
    columns = {
        f"k{place}": pa.array([keys[row["key"]][place] for row in rows], type) for place, type in enumerate(key_types)
    }
    columns |= {field.name: pa.array([row[field.name] for row in rows], field.type) for field in schema}
    return pa.table({**columns, TIME: pa.array([row["time"] for row in rows], MOMENT)})


def _rounded(value: Any, type: pa.DataType) -> Any:
    return pa.scalar(value, type).as_py() if pa.types.is_floating(type) else value


def _same(found: Any, answer: Any) -> bool:
    if isinstance(answer, list):
        return isinstance(found, list) and len(found) == len(answer) and all(map(_same, found, answer))
    if isinstance(answer, float):
        return isinstance(found, float) and (
            found == answer or (math.isnan(found) and math.isnan(answer)) or math.isclose(found, answer, rel_tol=1e-9)
        )
    return bool(found == answer) and (found is None) == (answer is None)
