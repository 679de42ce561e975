"""How far an incremental source has come, as it is kept in a checkpoint."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from ematix_flow.streams.sources.database.base import SourceRefused, SourceUnavailable
from ematix_flow.streams.sources.database.position import Position, between, hashed, lowered
from ematix_flow.streams.sources.database.source import is_query

MOMENT = datetime(2026, 1, 1, 0, 0, 1, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    "value", [None, 7, -(2**63), 0.1, Decimal("1.50"), "a'b", MOMENT, MOMENT.replace(tzinfo=None), date(2026, 1, 1)]
)
def test_a_position_comes_back_as_it_was(value: Any) -> None:
    position = Position(value, frozenset(hashed(["a", "b", ""])), 5)
    assert Position.from_json(position.to_json()) == position


@pytest.mark.parametrize(
    ("value", "low"),
    [
        (100, -1400), (1.5, -1498.5), (Decimal(1), Decimal(-1499)),
        (MOMENT, datetime(2025, 12, 31, 23, 59, 59, 500005, UTC)),
        (date(2026, 1, 2), date(2026, 1, 1)), ("2026-01-01T00:00:02Z", "2026-01-01T00:00:00Z"),
        ("2026-01-01 00:00:02.000000", "2026-01-01 00:00:00.500000"), ("2026-01-02", "2026-01-01"),
    ],
)  # fmt: skip
def test_how_far_is_looked_back(value: Any, low: Any) -> None:
    assert lowered(value, 1500) == low
    assert lowered(value, 0) == value


def test_a_text_that_is_no_time_has_nothing_to_look_back_to() -> None:
    with pytest.raises(TypeError, match="numbers or times"):
        lowered("abc", 1)


def test_a_range_is_cut_where_it_has_a_middle() -> None:
    assert between(0, 10, 4) == [2, 5, 7]
    assert between(3, 3, 4) == []
    assert between("a", "z", 4) == []
    assert between(MOMENT, MOMENT.replace(second=3), 2) == [MOMENT.replace(second=2)]


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("orders", False),
        ("sales.orders", False),
        ("select_list", False),
        ("SELECT 1", True),
        (" with a as (x) y", True),
    ],
)
def test_a_query_is_told_from_the_name_of_a_table(text: str, is_one: bool) -> None:
    assert is_query(text) == is_one


@pytest.mark.parametrize("kind", [SourceRefused, SourceUnavailable])
def test_an_error_of_a_worker_is_found_in_what_spark_makes_of_it(kind: type[SourceRefused]) -> None:
    marked = kind("no\n|table", next_step="make it").marked()
    told = RuntimeError(f"Traceback ...\n RuntimeError: {marked}\n SQLSTATE: 38000")
    found = SourceRefused.found_in(told)
    assert type(found) is kind
    assert (found.found, found.next_step, found.transient) == ("no /table", "make it", kind is SourceUnavailable)
    assert SourceRefused.found_in(RuntimeError("something else")) is None
