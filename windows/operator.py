"""From a declared window to the operator that computes it over the rows of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ematix_flow.errors import DeclarationError, Problem
from ematix_flow.problems import near
from ematix_flow.specs.window import Window
from ematix_flow.state.kernel import Operator
from ematix_flow.udf import AggregateUdf
from ematix_flow.windows.aggregates import Aggregates, aggregates_for
from ematix_flow.windows.fixed import FixedWindows
from ematix_flow.windows.sessions import Sessions

if TYPE_CHECKING:
    import pyarrow as pa

# Few, because each costs milliseconds in every batch; enough for two cores to have about the same of them.
BUCKETS = 8
_HOUR_MS = 3_600_000


def window_operator(
    window: Window,
    columns: pa.Schema,
    *,
    event_time: str,
    lateness_ms: int = 0,
    buckets: int = BUCKETS,
    udafs: Sequence[AggregateUdf] = (),
) -> Operator:
    """`columns` are those of the rows, `event_time` is the one of them that holds the event time."""
    keys, aggregates = _keys_and_aggregates(window, columns, udafs, event_time)
    allowed_us = (window.allowed_lateness_ms or 0) * 1000 if window.late_data == "reopen" else 0
    kernel: FixedWindows | Sessions
    if window.kind == "session":
        assert window.gap_ms is not None
        kernel = Sessions(
            keys=keys,
            aggregates=aggregates,
            gap_us=window.gap_ms * 1000,
            max_us=window.max_session_duration_ms and window.max_session_duration_ms * 1000,
            late=window.late_data,
            allowed_us=allowed_us,
            names=(window.window_start_column, window.window_end_column, window.session_id_column),
        )
    else:
        assert window.duration_ms is not None
        kernel = FixedWindows(
            keys=keys,
            aggregates=aggregates,
            duration_us=window.duration_ms * 1000,
            hop_us=(window.hop_ms or window.duration_ms) * 1000,
            late=window.late_data,
            allowed_us=allowed_us,
            # Dead letters are of rows, not of panes.
            aggregated=window.late_data != "dlq",
            names=(window.window_start_column, window.window_end_column),
        )
    return Operator(
        kernel=kernel,
        output=kernel.output,
        event_time=event_time,
        keys=window.group_by,
        inputs=aggregates.inputs,
        buckets=buckets,
        block_ms=_block_ms(window),
        prepared=kernel.prepared if isinstance(kernel, FixedWindows) and kernel.aggregated else None,
        lateness_ms=lateness_ms,
        late=window.late_data,
        time_column=window.window_end_column,
        withdraws=window.kind == "session" and window.late_data == "reopen",
        max_groups=window.max_groups_per_window,
    )


def _block_ms(window: Window) -> int | None:
    """Whole windows that do not overlap, an hour of them or one."""
    if window.kind != "tumbling" or window.duration_ms is None:
        return None
    return -(-_HOUR_MS // window.duration_ms) * window.duration_ms


def _keys_and_aggregates(
    window: Window, columns: pa.Schema, udafs: Sequence[AggregateUdf], event_time: str
) -> tuple[tuple[pa.Field, ...], Aggregates]:
    """What the declaration says of the columns, or all that is wrong with it."""
    import pyarrow as pa

    problems: list[Problem] = []
    columns = pa.schema([column for column in columns if not column.name.startswith("_flow_")])
    keys, aggregates = _keys(window, columns, problems), None
    try:
        aggregates = aggregates_for(window.aggregations, columns, udafs, event_time)
    except DeclarationError as error:
        problems += error.problems
    if problems or aggregates is None:
        raise DeclarationError("[transform.window]", problems)
    return keys, aggregates


def _keys(window: Window, columns: pa.Schema, problems: list[Problem]) -> tuple[pa.Field, ...]:
    import pyarrow as pa

    keys = []
    for place, name in enumerate(window.group_by):
        where = f"group_by[{place}]"
        if name not in columns.names:
            problems.append(Problem(where, f'found "{name}"', ", ".join(columns.names), near(name, columns.names)))
        elif pa.types.is_nested(columns.field(name).type):
            found = f'column "{name}" is {columns.field(name).type}'
            problems.append(Problem(where, found, "a column of a plain type, not a list, map or struct"))
        else:
            keys.append(pa.field(name, columns.field(name).type))
    return tuple(keys)
