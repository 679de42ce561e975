"""The fields of a batch pipeline: all that `@ematix.pipeline` and `ematix.target` take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from ematix_flow.durations import Duration
from ematix_flow.model import Declared
from ematix_flow.normalize import FrameTransform
from ematix_flow.problems import complain, shown
from ematix_flow.specs.fields import ConnectionRef, Flag, Name, Names, NotNegative, Positive
from ematix_flow.table import ManagedTable
from ematix_flow.transforms import Transform, TransformRef


def _declared_table(value: Any) -> Any:
    if not (isinstance(value, type) and issubclass(value, ManagedTable)):
        raise complain(f"found {shown(value)}", "a class under @ematix.table")
    return value


def _transforms(value: Any) -> Any:
    for one in value if isinstance(value, list | tuple) else [value]:
        if not isinstance(one, FrameTransform):
            raise complain(
                f"found {shown(one)}", "deduplicate_by, filter_where, limit or sample_pct of ematix_flow.normalize"
            )
    return tuple(value)


def _steps(value: Any) -> Any:
    for one in value if isinstance(value, list | tuple) else [value]:
        if not isinstance(one, str | Transform | TransformRef) and not callable(one):
            raise complain(f"found {shown(one)}", "a SQL statement, a function, or ematix.transform_ref(name)")
    return (value,) if isinstance(value, str) else tuple(value)


def _expected(value: Any) -> Any:
    if callable(value) or isinstance(value, Mapping | list | tuple):
        return value
    raise complain(f"found {shown(value)}", "a function of the checks, or a list of conditions in SQL")


TableClass = Annotated[Any, BeforeValidator(_declared_table)]
Mode = Literal["append", "truncate", "merge", "scd1", "scd2"]


class Retry(Declared):
    """How often a failed run is tried again, and when."""

    max_attempts: Positive = 1
    """How often it is tried, the first time included."""
    backoff: Literal["fixed", "linear", "exponential"] = "exponential"
    """How the time between two attempts grows."""
    base_secs: NotNegative = 30
    """Time before the second attempt."""
    max_backoff_secs: NotNegative = 3600
    """Longest time between two attempts."""

    def wait_after(self, attempt: int) -> int:
        """Seconds between an attempt that failed, the first is 1, and the next."""
        grown = {"fixed": 1, "linear": attempt, "exponential": 1 << min(attempt - 1, 30)}
        return min(self.max_backoff_secs, self.base_secs * grown[self.backoff])


class JobTarget(Declared):
    """One target of a batch pipeline: `ematix.target(Cls, mode=..., keys=...)`."""

    target: TableClass
    """Class of the table."""
    mode: Mode = "append"
    """How rows are applied."""
    target_connection: ConnectionRef | None = None
    """Connection of this target; without it, the pipeline's."""
    column_map: dict[str, str] = Field(default_factory=dict)
    """Column of the target -> column of the source, beside the pipeline's."""
    keys: Names = ()
    """Columns that rows are matched by."""
    update_columns: Names = ()
    """The only columns that merge changes."""
    compare_columns: Names = ()
    """The only columns by which merge sees a change."""
    event_timestamp_column: Name | None = None
    """Column of the source that tells when a row happened; one for all targets of a pipeline."""
    handle_deletes: Literal["hard", "soft"] | None = None
    """What becomes of rows that a snapshot no longer has."""
    ttl: Duration | None = None
    """How long scd2 keeps a version open whose key the source does not show."""
    on_drift: Literal["error", "evolve", "ignore"] | None = None
    """What to do when the rows no longer fit the table."""


class Job(Declared):
    """All that `@ematix.pipeline` takes."""

    name: Name
    """Name of the pipeline."""
    target: TableClass | None = None
    """Class of the table."""
    targets: tuple[JobTarget, ...] = ()
    """Several targets, instead of one."""
    mode: Mode = "append"
    """How rows are applied."""
    source_connection: ConnectionRef | None = None
    """Where rows come from; without it, the target's connection."""
    target_connection: ConnectionRef = "default"
    """Where rows go to."""
    source_table: Name | None = None
    """Table to read, for a function that returns nothing."""
    column_map: dict[str, str] = Field(default_factory=dict)
    """Column of the target -> column of the source, where their names differ."""
    keys: Names = ()
    """Columns that rows are matched by."""
    update_columns: Names = ()
    """The only columns that merge changes."""
    compare_columns: Names = ()
    """The only columns by which merge sees a change."""
    event_timestamp_column: Name | None = None
    """Column of the source that tells when a row happened; it need not be one of the target."""
    handle_deletes: Literal["hard", "soft"] | None = None
    """What becomes of rows that a snapshot no longer has."""
    ttl: Duration | None = None
    """How long scd2 keeps a version open whose key the source does not show."""
    incremental_column: Name | None = None
    """Column that only grows; only what is new is read."""
    lookback: int | None = Field(default=None, ge=0)
    """How far below the highest incremental value rows may still come."""
    on_drift: Literal["error", "evolve", "ignore"] | None = None
    """What to do when the rows no longer fit the table."""
    force_path: Literal["same_db", "cross_db"] | None = None
    """How it has to run; without it, in the database where that is possible."""
    transforms_pre: Annotated[tuple[Any, ...], BeforeValidator(_transforms)] = ()
    """What is done to the rows of a batch before anything else."""
    transforms_post: Annotated[tuple[Any, ...], BeforeValidator(_steps)] = ()
    """SQL for the target's database, functions, or named transforms, run after a successful load."""
    continue_on_failure: Flag = False
    """Whether the other targets are loaded although one fails; each is then loaded on its own."""
    continue_on_failure_post: Flag = False
    """Whether a failing step of transforms_post leaves the others to run, and the run a success."""
    expectations: Annotated[Any, BeforeValidator(_expected)] = None
    """What the target has to be like after a load: a function of the checks, or conditions in SQL."""
    on_quality_failure: Literal["warn", "fail"] = "warn"
    """What a target that does not meet the expectations means."""
    freshness_sla: Duration | None = None
    """How old the data of the target may be."""
    freshness_column: Name | None = None
    """Column of the target that tells how old its data is; without it, the last successful run does."""
    schedule: Name | None = None
    """When it runs, as five fields of cron."""
    timezone: Name = "UTC"
    """Time zone of the schedule."""
    depends_on: Names = ()
    """Pipelines that have to run before it."""
    upstream_freshness_secs: NotNegative | None = None
    """How old the last success of these may be."""
    catchup: Literal["none", "last", "all"] = "last"
    """What becomes of fires of the schedule that were missed."""
    retry: Retry | None = None
    """How often a failed run is tried again."""

    @property
    def time_column(self) -> str | None:
        """The column of the event time, wherever it is named."""
        return next(iter(self.time_columns), None)

    @property
    def time_columns(self) -> list[str]:
        named = (self.event_timestamp_column, *(one.event_timestamp_column for one in self.targets))
        return list(dict.fromkeys(filter(None, named)))

    @property
    def renamed(self) -> dict[str, str]:
        """Column of a target -> column of the source, for all targets."""
        maps = (self.column_map, *(one.column_map for one in self.targets))
        return {name: given for one in maps for name, given in one.items()}

    @property
    def home(self) -> ConnectionRef:
        """Where rows come from and are looked at, unless something else is said: the connection of the first target
        that has one of its own, if none is given for all of them."""
        own = next((one.target_connection for one in self.targets if one.target_connection), None)
        return self.target_connection if own is None or "target_connection" in self.model_fields_set else own

    def all_targets(self) -> tuple[JobTarget, ...]:
        if self.targets:
            return self.targets
        shared = ("target", "mode", "keys", "update_columns", "compare_columns", "handle_deletes", "ttl", "on_drift")
        return (JobTarget(**{name: getattr(self, name) for name in shared if getattr(self, name)}),)
