"""What a window asks of the columns that come to it: all that is wrong is said at once."""

import pyarrow as pa
import pytest

from ematix_flow.errors import DeclarationError
from ematix_flow.specs import Aggregation, Window
from ematix_flow.windows.operator import window_operator

COLUMNS = pa.schema({"user": pa.string(), "tags": pa.list_(pa.string()), "ms": pa.int64(), "at": pa.timestamp("us")})
OURS = pa.field("_flow_position", pa.string())


def test_every_column_and_type_that_does_not_fit_is_named() -> None:
    window = Window(
        kind="tumbling",
        duration_ms=1000,
        group_by=("usr", "tags"),
        aggregations=(
            Aggregation(agg="sum", column="user", as_="total"),
            Aggregation(agg="max", column="mss", as_="most"),
            Aggregation(agg="medain", column="ms", as_="half"),
        ),
    )
    with pytest.raises(DeclarationError) as caught:
        window_operator(window, COLUMNS.append(OURS), event_time="at")
    said = str(caught.value)
    assert "[transform.window]: 5 problems" in said
    for words in (
        'group_by[0]: found "usr"; allowed: user, tags, ms, at; did you mean "user"?',
        'group_by[1]: column "tags" is list',
        "aggregations[0].column: ",
        'aggregations[1].column: there is no column "mss"; allowed: user, tags, ms, at; did you mean "ms"?',
        'aggregations[2].agg: unknown aggregate "medain"',
    ):
        assert words in said
