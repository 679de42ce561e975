"""What a stateful operator is: a pure step over Arrow tables, what Spark must know of it, and its state as bytes.

Times are microseconds since 1970, as in Spark's timestamps; the watermark, which Spark counts in milliseconds, is
turned into them before a kernel sees it.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Protocol

from ematix_flow.errors import FlowError
from ematix_flow.specs.window import LateData

if TYPE_CHECKING:
    import pyarrow as pa

TIME = "_flow_time"
"""The event time of each row that a kernel is given; a UTC timestamp, never NULL."""
GONE = "_flow_gone"
"""Whether an emitted row takes back one of the same key: a target that merges deletes it, any other never sees it."""
ROWS = "_flow_rows"
"""How many rows a row stands for, where rows are aggregated before they come to a kernel."""
REVISION = "_revision"
"""Column of the output under `reopen`: how often a result was emitted before."""
NO_WATERMARK = -(2**62)
"""The watermark before any row was seen: nothing is late and nothing is due."""
YEAR_1_MS = 62_135_596_800_000
"""From the year 1, from which Spark is made to count its watermark, to 1970."""

_FORMAT = 1
_MAGIC = b"EMATIX\0S"
_HEADER = struct.Struct(">8sHHH")


@dataclass(frozen=True)
class Slot:
    """A window of which a group holds a part, or all sessions of the group: how it was changed by a step."""

    start: int | None
    """Of the window; None for sessions."""
    groups: int
    """How many more keys it has, or fewer."""
    deadline: int | None
    """When it is emitted, if it is not yet: the last one of its keys."""


@dataclass(frozen=True)
class Buffer:
    """One side of a join in a group: how a step changed it."""

    side: str
    rows: int
    """How many more rows it holds, or fewer."""
    late: int
    """Rows of it that came too late."""


@dataclass(frozen=True)
class Step:
    """What became of a group in one batch."""

    state: pa.Table | None
    """None: forget the group. The table that was given: nothing changed, so nothing is written."""
    emitted: pa.Table
    """Rows of the operator's output; with a column `GONE`, if any of them withdraws what was emitted before."""
    late: pa.Table
    """Those of the given rows that came too late, with all their columns, where late rows are kept."""
    deadline: int | None
    """Wake the group when the watermark reaches this, if no row does; always after the watermark of this step."""
    late_rows: Mapping[str, int] = field(default_factory=dict)
    """How many rows came too late, by what was done with them: drop, reopen, dlq."""
    slots: tuple[Slot, ...] = ()
    """All that this step opened, changed or closed."""
    buffers: tuple[Buffer, ...] = ()
    """Of a join: the sides that this step changed, or to which rows came too late."""


class Kernel(Protocol):
    """Works on one group of rows at a time. It is sent to Spark's workers, so it must pickle."""

    name: ClassVar[str]
    state_version: ClassVar[int]
    """Goes up when states that were written before can no longer be read."""

    def step(self, state: pa.Table | None, rows: pa.Table, watermark: int) -> Step:
        """Take in rows, often none. A group that is overdue and gets rows is not called twice, so whatever the
        watermark has passed is closed on every call, before the rows are taken in."""

    def describe(self) -> Mapping[str, str]:
        """Whatever its states depend on, in a user's words."""


@dataclass(frozen=True)
class Operator:
    """A kernel, and how Spark brings rows to it."""

    kernel: Kernel
    output: pa.Schema
    """The columns that it emits."""
    event_time: str
    """The column that holds the event time."""
    keys: tuple[str, ...] = ()
    """Columns whose equal values must meet in one group."""
    inputs: tuple[str, ...] = ()
    """Other columns that the kernel reads; it gets no more than these, the keys and `TIME`."""
    buckets: int = 16
    """Groups that the keys are spread over. Each holds one state, which is written whole whenever it changes; a call
    of the kernel costs about a millisecond, however large the state is, so they are few."""
    block_ms: int | None = None
    """Also group by time, in blocks of this length: what waits for late rows is then not written with what is new."""
    prepared: Callable[[pa.Table], pa.Table] | None = None
    """Makes fewer rows of many before they are brought together. The kernel gets what it makes; each of its rows has
    the keys, and a `TIME` in the block, of the rows that it stands for."""
    lateness_ms: int = 0
    late: LateData = "drop"
    """With `dlq`, rows carry what the dead letters of late ones need."""
    time_column: str | None = None
    """The column of the output that tells when a result happened, for targets that keep the latest."""
    withdraws: bool = False
    """The kernel may take back what it emitted, with `GONE`."""
    max_groups: int | None = None
    """Most keys of one window."""

    @property
    def shown_event_time(self) -> str:
        """`_event_ts` belongs to every row and travels under a name of ours, which is nobody's business."""
        return self.event_time.removeprefix("_flow")

    def describe(self) -> Mapping[str, str]:
        """What must stay as it is while there is state; the rest may change between two starts."""
        return {
            "operator": f"{self.kernel.name}, state version {_FORMAT}.{self.kernel.state_version}",
            "event time": self.shown_event_time,
            "keys": ", ".join(self.keys),
            "buckets": str(self.buckets),
            "block_ms": str(self.block_ms or ""),
            **self.kernel.describe(),
        }


def watermark_after(time: int) -> int:
    """The first watermark that is past a time: all of them are whole milliseconds."""
    return (time // 1000 + 1) * 1000


class StateVersion(FlowError):
    """State that this release cannot read."""

    code = "state-version"

    def __init__(self, written: str, expected: str) -> None:
        self.written, self.expected = written, expected
        super().__init__(
            f"the state of this pipeline was written as {written}, and this release reads {expected}",
            next_step="run the release that wrote it, or read the input again: `flow rewind NAME --from-start`",
        )

    @classmethod
    def found_in(cls, error: BaseException) -> StateVersion | None:
        """From what ended a query, because a worker's errors arrive as text; None if it was something else."""
        found = re.search(
            r"the state of this pipeline was written as (.+), and this release reads ([^\n]+)", str(error)
        )
        return cls(*found.groups()) if found else None


def to_bytes(state: pa.Table, kernel: Kernel) -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    sink.write(_header(kernel))
    # Spark copies a state several times on its way to the disk, and would compress it more slowly.
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_stream(sink, state.schema, options=options) as stream:
        stream.write_table(state)
    return bytes(sink.getvalue())


def from_bytes(blob: bytes, kernel: Kernel) -> pa.Table:
    import pyarrow as pa

    expected = _header(kernel)
    if not blob.startswith(expected):
        raise StateVersion(_written(blob), f"{kernel.name} version {_FORMAT}.{kernel.state_version}")
    return pa.ipc.open_stream(pa.py_buffer(blob).slice(len(expected))).read_all()


def _header(kernel: Kernel) -> bytes:
    name = kernel.name.encode()
    header = _HEADER.pack(_MAGIC, _FORMAT, kernel.state_version, len(name)) + name
    return header + b"\0" * (-len(header) % 64)  # Arrow wants its buffers aligned


def _written(blob: bytes) -> str:
    if not blob.startswith(_MAGIC) or len(blob) < _HEADER.size:
        return "something else"
    _, layout, version, length = _HEADER.unpack_from(blob)
    return f"{blob[_HEADER.size : _HEADER.size + length].decode(errors='replace')} version {layout}.{version}"
