"""What every target is: capabilities as data, and a few calls in the order of the commit protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

from ematix_flow.errors import FlowError
from ematix_flow.sinks.ahead import AHEAD
from ematix_flow.state.fence import Fence
from ematix_flow.state.kernel import GONE

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType


_FEW_ROWS = 10_000

ROW = "_flow_row"
"""Hidden column of staged rows: a number that a repeated batch gives to the same row."""
EVENT_TIME = "_flow_event_ts"
"""Hidden column of rows for merge and scd2: when the row happened."""
ORDER = "_flow_order"
"""Hidden column beside it: which of two rows of the same time came later. Any type that Spark can compare."""
PART = "_flow_part"
"""Hidden column for targets that apply a batch in parts: which of them a row belongs to, the same whenever the batch is
repeated, and for all rows of a task. Not there if the source does not know, or a row is not of one row of it."""
CHANGE = "_flow_change"
"""Hidden column of rows that are changes: what to do with the row of the key, see `sinks.changes`."""
AT = "_flow_at"
"""Hidden column of changes: the place in the log of their source, a text that grows with it."""
PRESENT = "_flow_present"
"""Hidden column of changes, if some do not bring all columns: for each column but the keys, 1 or 0."""
SINCE = "_flow_since"
"""Hidden column beside it, if columns come from different changes: the places of all of them, one after the other."""
OP = "_flow_op"
"""Hidden column of changes: the operation that is counted."""
TALLY = ("_flow_creates", "_flow_updates", "_flow_deletes", "_flow_stale")
"""Hidden columns of changes that were brought together: how many of each."""
PLACES = "_flow_places"
"""Hidden column of changes, if the gate may have seen later ones than some of them: the operation and the place of each
change that was brought together here, one after the other; NULL if there is but one, or there are very many."""
HIDDEN = (ROW, EVENT_TIME, ORDER, PART, GONE, CHANGE, AT, PRESENT, SINCE, OP, *TALLY, PLACES, AHEAD)
"""`GONE` is there only if rows may be withdrawn, and only in mode merge: where it is true, the row of the key goes."""


@dataclass(frozen=True)
class Capabilities:
    """What a target can do. Callers decide by these values and never by a target's name."""

    fenced: bool
    """A batch that is applied again changes nothing."""
    transactional: bool
    """Rows and fence become visible together or not at all."""
    modes: frozenset[str]
    """The strategies it applies: append, truncate, merge, scd2."""
    visibility: str
    """In words, what a reader may see while a batch is being applied."""
    parted: bool = False
    """A batch is applied in parts, so that rows come with `PART` where it is known."""
    typed: bool = True
    """Its columns hold values of their types, and not what Spark has written for them."""
    limits: bool = True
    """It refuses a text that is longer than its column."""
    refines: bool = False
    """It knows `update_columns`, `compare_columns` and `handle_deletes`, and counts what became of rows."""
    takes_changes: frozenset[str] = frozenset()
    """The modes in which it applies changes of tables, by the place that each has in the log of its source."""
    refuses: bool = False
    """Constraints of the target may refuse single rows, which `refusals` finds."""
    refuses_rarely: bool = False
    """The same, but rows come without `ROW` until it happens: then `stage` raises `NeedsRows`."""

    def may_refuse(self, *, one_by_one: bool) -> bool:
        """Whether rows have to come with `ROW`."""
        return self.refuses or (self.refuses_rarely and one_by_one)


@dataclass(frozen=True)
class Batch:
    """One micro-batch on its way through the eight steps."""

    pipeline: str
    generation: str
    number: int
    scratch: Callable[[str], Path]
    """Gives an empty folder that nobody reads."""
    rows: int | None = field(default=None, compare=False)
    """How many the sources have for it, if they know, and if about as many will come to the targets."""
    reached: Callable[[str], None] = field(default=lambda _: None, compare=False)
    """Called at points inside a step where a crash is worth a test."""

    @property
    def is_small(self) -> bool:
        """It can be brought to the driver as it is; Spark would take longer to keep it."""
        return self.rows is not None and self.rows <= _FEW_ROWS

    def fence(self, target: str) -> Fence:
        return Fence(self.pipeline, target, self.generation, self.number)


@dataclass(frozen=True)
class Staged:
    """Rows written where nobody reads, ready to be applied."""

    folder: Path
    columns: tuple[str, ...] = ()
    uncounted: int = 0
    """Rows that Spark has not counted, because the workers that read them have staged them as well."""


@dataclass(frozen=True)
class Applied:
    """`done` is False when the fence showed that the batch was there already."""

    done: bool
    counts: Mapping[str, int] = field(default_factory=dict)
    """Rows inserted, updated, unchanged, deleted and closed, where the target can tell."""
    changes: Mapping[str, int] = field(default_factory=dict)
    """Changes by what they were: creates, updates, deletes, truncates, and those that came too late to count."""


class Sink(Protocol):
    capabilities: ClassVar[Capabilities]

    def prepare(self, schema: StructType) -> StructType:
        """Before the first batch and whenever the schema changes: create the table, or check that it fits. Gives the
        columns that rows must have when they are staged, as the target holds them; the runner casts rows to these, and
        a row that cannot be cast or is NULL where it must not be never reaches the target."""

    def stage(self, rows: DataFrame, batch: Batch) -> Staged:
        """Step 3, one Spark job: the columns of `prepare`, and those of `HIDDEN` that the target needs. May be called
        again for the same batch and must then forget the first call."""

    def refusals(self, staged: Staged, batch: Batch) -> dict[int, str]:
        """The staged rows (by `ROW`) that the target does not accept, with the reason. Changes nothing."""

    def apply(self, staged: Staged, batch: Batch, fence: Fence) -> Applied:
        """Step 5, all or nothing. If the fence is there it does nothing and says so. Rows that the target does not
        accept raise `TargetRefused`. A failure leaves the batch to be planned again with the same rows."""

    def forget(self) -> None:
        """The batch is over, however it ended; what the sink holds of it in memory can go."""


@runtime_checkable
class Shaping(Sink, Protocol):
    """A sink that can say once per start how rows become what it stages."""

    @property
    def shapes(self) -> bool:
        """Whether it can as it is declared; otherwise it has to see rows as they are."""

    def shape(self, schema: StructType) -> Mapping[str, Column]:
        """After `prepare`: columns over rows that have those of the schema, which do not depend on other rows."""

    def stage_shaped(self, shaped: DataFrame | pa.Table, batch: Batch) -> Staged:
        """As `stage`, with rows that have the columns of `shape`. Few of them come as a table, in the order in which
        they were computed."""


Made = Callable[["pa.Table"], "pa.Table"]
"""What workers do with rows before they hand them on as one."""


@runtime_checkable
class TakesTables(Sink, Protocol):
    """A sink that can stage rows of which many come as one, with `AHEAD`."""

    def tables(self, schema: StructType) -> Made | None:
        """What the workers that read rows of this schema make of them; None if rows have to come one by one."""


class Taker(Protocol):
    """Stages what one task has read, in the worker that read it."""

    def take(self, part: str, made: pa.Table) -> None:
        """All rows of a batch of Arrow's, which are of one part, see `PART`."""

    def leave(self) -> None:
        """Not all of the rows can be read here. The sink has the batch read once more, and handed on."""

    def is_left(self) -> bool:
        """Whether that will happen anyway."""


Taking = Callable[[], Taker | None]
"""Called in a worker as a task begins; None if its rows are to be handed on."""


@runtime_checkable
class TakesThere(TakesTables, Protocol):
    """A sink that can also stage rows where they are read."""

    @property
    def taking(self) -> Taking:
        """For the workers."""


class NeedsRows(Exception):
    """What is to be done with the rows of the batch takes them one by one, each with its number, and they did not come
    so: many of them came as one, or a target that refuses rows rarely refuses one. The batch is planned again."""

    @classmethod
    def is_in(cls, error: BaseException | None) -> bool:
        """Whether it ended a batch, here or in a worker."""
        return isinstance(error, cls) or f"{cls.__module__}.{cls.__name__}" in str(error)


_DRIFT_STEP = (
    'on_drift = "evolve" adds columns and widens types, on_drift = "ignore" leaves columns out and casts to the '
    "table's types; or change the transform, or the table"
)


class SchemaDrift(FlowError):
    """The rows of the pipeline no longer fit the table they go to."""

    code = "schema-drift"

    def __init__(self, table: str, differences: list[str], next_step: str = _DRIFT_STEP) -> None:
        self.table = table
        self.differences = tuple(differences)
        super().__init__(f"the rows do not fit table {table}: " + "; ".join(differences), next_step=next_step)


class TargetRefused(FlowError):
    """The target does not accept a row: a constraint, a type, a missing right."""

    code = "target-refused"


class TargetUnavailable(FlowError):
    """The target cannot be reached now; the batch is tried again."""

    code = "target-unavailable"
    transient = True
