"""The smallest operator with all that operators have: counts and sums per key and minute."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import cloudpickle

from ematix_flow.specs.window import LateData
from ematix_flow.state.kernel import TIME, Operator, Step

MINUTE = 60_000_000

# Workers may run in a folder from which they cannot import the tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

OUTPUT = pa.schema(
    {
        "window_start": pa.timestamp("us", "UTC"),
        "window_end": pa.timestamp("us", "UTC"),
        "shop": pa.string(),
        "orders": pa.int64(),
        "amount": pa.float64(),
    }
)
STATE = pa.schema({"window_start": pa.int64(), "shop": pa.string(), "orders": pa.int64(), "amount": pa.float64()})


@dataclass(frozen=True)
class Counting:
    """Emits [start, start + 1 minute) once the watermark has reached its end."""

    name: ClassVar[str] = "counting"
    state_version: ClassVar[int] = 1

    def step(self, state: pa.Table | None, rows: pa.Table, watermark: int) -> Step:
        start = pc.multiply(pc.cast(pc.floor(pc.divide(_micros(rows), float(MINUTE))), pa.int64()), MINUTE)
        is_late = pc.less_equal(pc.add(start, MINUTE), watermark)
        taken = pa.table([start, rows["shop"], pa.repeat(1, len(rows)), rows["amount"]], names=STATE.names).filter(
            pc.invert(is_late)
        )
        late = rows.filter(is_late)
        if state is not None and not taken.num_rows and pc.min(state["window_start"]).as_py() + MINUTE > watermark:
            return Step(state, OUTPUT.empty_table(), late, _deadline(state))
        open_ = _summed(pa.concat_tables([taken, *([] if state is None else [state])]))
        is_due = pc.less_equal(pc.add(open_["window_start"], MINUTE), watermark)
        left = open_.filter(pc.invert(is_due))
        return Step(left if left.num_rows else None, _emitted(open_.filter(is_due)), late, _deadline(left))

    def describe(self) -> Mapping[str, str]:
        return {"window": "1 minute"}


def counting(
    *, lateness_ms: int = 0, late: LateData = "drop", block_ms: int | None = None, time: str = "at"
) -> Operator:
    """Over rows that have columns `shop`, `amount` and an event time."""
    return Operator(
        Counting(),
        OUTPUT,
        event_time=time,
        keys=("shop",),
        inputs=("amount",),
        buckets=4,
        block_ms=block_ms,
        lateness_ms=lateness_ms,
        late=late,
    )


def _micros(rows: pa.Table) -> pa.ChunkedArray:
    return rows[TIME].cast(pa.int64())


def _summed(rows: pa.Table) -> pa.Table:
    groups = rows.group_by(["window_start", "shop"], use_threads=False).aggregate(
        [("orders", "sum"), ("amount", "sum")]
    )
    return groups.rename_columns(STATE.names).cast(STATE)


def _deadline(state: pa.Table) -> int | None:
    return pc.min(state["window_start"]).as_py() + MINUTE if state.num_rows else None


def _emitted(due: pa.Table) -> pa.Table:
    end = pc.add(due["window_start"], MINUTE)
    return pa.table([due["window_start"], end, *due.columns[1:]], names=OUTPUT.names).cast(OUTPUT)
