"""The bucket of a key: pinned, because the states of running pipelines lie there."""

from datetime import UTC, date, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from ematix_flow.streams.buckets import buckets_of

MOMENT = datetime(2026, 3, 2, tzinfo=UTC)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (pa.array([0, 1, -1, None], pa.int64()), [0, 896, 69, 129]),
        (pa.array([0, 1, -1, None], pa.int16()), [0, 896, 911, 129]),
        (pa.array(["", "de", "ü", None]), [0, 695, 911, 129]),
        (pa.array([b"", b"\0", None]), [0, 724, 129]),
        (pa.array([True, False, None]), [896, 0, 129]),
        (pa.array([0.0, 1.5, float("nan"), None]), [0, 946, 683, 129]),
        (pa.array([Decimal("1.10"), Decimal("-1.10"), None], pa.decimal128(38, 2)), [536, 551, 129]),
        (pa.array([date(1960, 1, 1), date(2026, 3, 2), None]), [859, 287, 129]),
        (pa.array([MOMENT, None], pa.timestamp("us", "UTC")), [572, 129]),
        (pa.nulls(2), [129, 129]),
    ],
    ids=lambda given: str(given.type) if isinstance(given, pa.Array) else "",
)
def test_a_key_stays_where_it_is(values: pa.Array, expected: list[int]) -> None:
    assert buckets_of([values], len(values), 1000).tolist() == expected
    # However the column is cut, and whatever lies where it is NULL.
    pieces = pa.chunked_array([values.slice(1), values.slice(0, 1)])
    assert buckets_of([pieces], len(values), 1000).tolist() == [*expected[1:], expected[0]]


def test_keys_of_several_columns_are_spread_evenly_and_in_order_of_their_columns() -> None:
    numbers, texts = pa.array(np.arange(64_000)), pa.array([f"c{n % 7}" for n in range(64_000)])
    for keys in ([numbers], [numbers, texts], [texts, numbers], [pa.array([f"c{n}" for n in range(64_000)])]):
        sizes = np.bincount(buckets_of(keys, 64_000, 16))
        assert 3_700 < sizes.min() <= sizes.max() < 4_300
    assert buckets_of([numbers, texts], 64_000, 16).tolist() != buckets_of([texts, numbers], 64_000, 16).tolist()
    assert buckets_of([], 3, 16).tolist() == [0, 0, 0]
