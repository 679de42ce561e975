"""Batch pipelines: what `@ematix.pipeline` declares, and the bounded stream that it becomes."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from zoneinfo import ZoneInfo

from pydantic import ValidationError

from ematix_flow import pipelines
from ematix_flow.config import resolve_connection
from ematix_flow.connections import Connection
from ematix_flow.cron_fields import schedule_problem
from ematix_flow.errors import DeclarationError, FlowError, Problem
from ematix_flow.expectations import Expectation, expectations_of
from ematix_flow.job_fields import Job, JobTarget
from ematix_flow.model import problems_of
from ematix_flow.normalize import compose, identifier
from ematix_flow.origins import place
from ematix_flow.problems import Spelling, near, shown
from ematix_flow.specs import PipelineSpec, Source, StateStore, Target
from ematix_flow.specs.fields import DELTA_KINDS, FILE_KINDS
from ematix_flow.table import AUDIT_COLUMNS, SCD2_COLUMNS, Column, TableDefinition

_RUNTIME = "ematix_flow.batch.pipeline"
# What has no tables has a folder, a topic, a queue or a stream of the table's name.
_BY_NAME = {
    **dict.fromkeys(FILE_KINDS, "prefix"),
    "kafka": "topic", "pubsub": "topic", "rabbitmq": "queue", "redis": "stream", "kinesis": "",
}  # fmt: skip


@dataclass(frozen=True)
class JobResult:
    """What one run of a batch pipeline did. Every count is of this run alone, over all of its targets."""

    pipeline: str
    run_id: str
    status: str
    """success, failed or dry_run."""
    path: str
    """same_db: one statement of the database; cross_db: through Spark."""
    rows_inserted: int = 0
    rows_updated: int = 0
    rows_unchanged: int = 0
    rows_deleted: int = 0
    rows_closed: int = 0
    duration_seconds: float = 0.0
    targets: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """The same counts by target."""
    errors: Mapping[str, str] = field(default_factory=dict)
    """Of targets that failed, and of steps after the load, where these do not stop the run."""
    failed_expectations: tuple[str, ...] = ()
    """Those that the target does not meet."""


class FunctionFailed(FlowError):
    """The function under `@ematix.pipeline` or `@ematix.transform` raised an error."""

    code = "function-failed"


class BatchPipeline:
    """A declared batch pipeline: `.sync()` runs it, `.preview()` and `.dry_run()` look at it first."""

    def __init__(self, function: Callable[..., Any], job: Job) -> None:
        functools.update_wrapper(self, function)  # type: ignore[arg-type]  # it is run by a method and not by a call
        self.function, self.job, self.origin = function, job, _origin(function)

    def sync(self, **options: Any) -> JobResult:
        """Run it now, in this process."""
        result: JobResult = importlib.import_module(_RUNTIME).sync(self, **options)
        return result

    def preview(self, rows: int = 10, **options: Any) -> list[dict[str, Any]]:
        """The first rows as they would be written, without writing them."""
        found: list[dict[str, Any]] = importlib.import_module(_RUNTIME).preview(self, rows, **options)
        return found

    def dry_run(self, **options: Any) -> JobResult:
        """Check that it could run, and tell how; nothing is written."""
        result: JobResult = importlib.import_module(_RUNTIME).dry_run(self, **options)
        return result

    @property
    def name(self) -> str:
        return self.job.name

    @property
    def source_names(self) -> tuple[str, ...]:
        """For listings; what the function returns is not known before it runs."""
        return (self.job.source_table or "a query",)

    @property
    def target_names(self) -> tuple[str, ...]:
        return tuple(one.target.__table__.full_name for one in self.job.all_targets())

    @property
    def state_store(self) -> StateStore:
        """Where its position and its runs are kept."""
        return StateStore()

    @property
    def expected(self) -> tuple[Expectation, ...]:
        """What is checked in each target after a load."""
        return expectations_of(self.job.expectations) if self.job.expectations is not None else ()

    def spec(self) -> PipelineSpec:
        """The bounded stream that it is now. The function is called for it."""
        return self._spec(self._source(), self.job.all_targets(), self.job.name)

    def specs(self) -> tuple[PipelineSpec, ...]:
        """One for each target, if one that fails must not keep the others from theirs."""
        targets = self.job.all_targets()
        if not self.job.continue_on_failure or len(targets) == 1:
            return (self.spec(),)
        source = self._source()
        return tuple(
            self._spec(source, (one,), f"{self.job.name}.{name}")
            for one, name in zip(targets, self.target_names, strict=True)
        )

    def _spec(self, source: Source, targets: Sequence[JobTarget], name: str) -> PipelineSpec:
        several = len(self.job.all_targets()) > 1
        fields: dict[str, Any] = {
            "name": name,
            "sources": [source],
            "targets": [self._target(one, several=several) for one in targets],
            "origin": self.origin,
        }
        if sql := self.sql(of_table=bool(self.job.source_table)):
            fields["transform"] = {"sql": sql}
        return PipelineSpec(**fields)

    def sql(self, *, of_table: bool) -> str | None:
        """What Spark makes of the rows; None if it leaves them as they are."""
        query = "SELECT * FROM source"
        for transform in self.job.transforms_pre:
            query = transform.to_sql(query)
        inner = f"({query})" if self.job.transforms_pre else "source"
        if of_table or self.job.renamed or self._is_made_here:
            return f"SELECT {', '.join(self._chosen())} FROM {inner}"
        if left := self._left_behind:
            return f"SELECT * EXCEPT ({', '.join(map(identifier, left))}) FROM {inner}"
        return query if self.job.transforms_pre else None

    @property
    def _left_behind(self) -> list[str]:
        """The columns that order or choose rows, and that no target has; unless it is to get what rows have."""
        evolving = "evolve" in (self.job.on_drift, *(one.on_drift for one in self.job.targets))
        transforms = () if evolving else self.job.transforms_pre
        looked_at = {name.lower(): name for one in transforms for name in one.named}
        if self.only_orders:
            looked_at.setdefault(self.only_orders.lower(), self.only_orders)
        return [name for low, name in looked_at.items() if low not in self._held]

    @property
    def only_orders(self) -> str:
        """The column of the event time, if no target has it: rows are ordered by it and go on without it."""
        column = self.job.time_column or ""
        return "" if column.lower() in self._held else column

    @property
    def _held(self) -> set[str]:
        """In lower case, what the targets have, and what they compute it from."""
        tables = [one.target.__table__ for one in self.job.all_targets()]
        return {name.lower() for table in tables for name in (*table.column_names, *table.only_read)}

    def columns_read(self, one: JobTarget) -> dict[str, str]:
        """Column of a target -> column of the source, where these are named: of a table, or with a map. What is
        computed or filled in on the way to the target is not read."""
        if not (self.job.source_table or self.job.renamed):
            return {}
        return {column.name: self._given(column) for column in self._wanted(one) if not _is_derived(column)}

    def _chosen(self) -> list[str]:
        """The columns of the targets, by the names that they have in the source."""
        chosen = {}
        for one in self.job.all_targets():
            for column in self._wanted(one):
                given = self._given(column)
                if self._is_made_here:
                    made = f"CAST({compose(column.normalizers, given)} AS {column.type.spark_type})"
                    chosen[column.name] = f"{made} AS {identifier(column.name)}"
                elif not _is_derived(column):
                    chosen[column.name] = f"{identifier(given)} AS {identifier(column.name)}"
        if not self._is_made_here:
            there = {name.lower() for name in chosen}
            columns = [column for one in self.job.all_targets() for column in self._wanted(one)]
            named = {name.lower(): name for column in columns for name in column.named}
            chosen |= {name: identifier(name) for low, name in named.items() if low not in there}
        return list(chosen.values())

    def _wanted(self, one: JobTarget) -> list[Column]:
        """Without those that every load fills, unless the map says where they come from."""
        filled = {column.name for column in (*AUDIT_COLUMNS, *(SCD2_COLUMNS if one.mode == "scd2" else ()))}
        columns = one.target.__table__.columns
        return [c for c in columns if c.name.lower() not in filled or c.name in self.job.renamed]

    def _given(self, column: Column) -> str:
        return self.job.renamed.get(column.name, column.name)

    @property
    def _is_made_here(self) -> bool:
        """Whether there is no table that gives values their types and runs its normalizers."""
        targets = self.job.all_targets()
        return len(targets) == 1 and self._kind(targets[0]) in _BY_NAME

    def _kind(self, one: JobTarget) -> str | None:
        return _kind_of(one.target_connection or self.job.target_connection)

    def _source(self) -> Source:
        job = self.job
        connection = job.source_connection or job.home
        given = self._called(connection)
        if isinstance(given, Source):
            anew = self.is_read_anew(given.connection) and not given.change_feed
            return given.model_copy(update={"snapshot": True}) if anew else given
        query = given if isinstance(given, str) else job.source_table
        if query is None:
            found = f"the function returns {shown(given)}" if given is not None else "the function returns nothing"
            problem = Problem("source_table", f"missing, and {found}", "a table, or a SELECT that the function returns")
            raise DeclarationError(f'pipeline "{job.name}"', [problem])
        options: dict[str, Any] = {
            "event_time_column": job.time_column,
            "incremental_column": job.incremental_column,
            "lookback": job.lookback,
            "snapshot": self.is_read_anew(connection) or None,
        }
        return Source(
            connection=connection, query=query, name="source", **{k: v for k, v in options.items() if v is not None}
        )

    def is_read_anew(self, connection: str | Connection) -> bool:
        """A Delta table whose rows are matched or replaced is read as it is now, as a table of a database is. What is
        appended is read once."""
        appended = any(one.mode == "append" for one in self.job.all_targets())
        return not appended and _kind_of(connection) in DELTA_KINDS

    def _called(self, connection: str | Connection) -> Any:
        wanted = len(inspect.signature(self.function).parameters)
        ends = [resolve_connection(end) for end in (connection, self.job.home)[:wanted]]
        try:
            return self.function(*ends)
        except FlowError:
            raise
        except Exception as error:
            raise FunctionFailed(
                f'pipeline "{self.name}": its function failed: {type(error).__name__}: {error}',
                next_step=f"correct it at {self.origin}",
            ) from error

    def _target(self, one: JobTarget, *, several: bool) -> Target:
        # Targets of one pipeline may want different columns of the same rows.
        drift = one.on_drift or self.job.on_drift or ("ignore" if several else "error")
        return Target(**self.target_fields(one), on_drift=drift)

    def target_fields(self, one: JobTarget) -> dict[str, Any]:
        """As the spec of a target has them."""
        names = ("mode", "keys", "update_columns", "compare_columns", "handle_deletes", "ttl")
        options = {name: getattr(one, name) for name in names if getattr(one, name)}
        given, table = _BY_NAME.get(self._kind(one) or "", "table"), one.target.__table__
        named = {"table": one.target, "prefix": "/".join(filter(None, (table.schema, table.name)))}
        place = {given: named.get(given, table.name)} if given else {}
        return {"connection": one.target_connection or self.job.target_connection, **place, **options}

    def __repr__(self) -> str:
        return f"<batch pipeline {self.job.name!r}>"


def _is_derived(column: Column) -> bool:
    return bool(column.normalizers) and column.normalizers[0].derived


def _kind_of(connection: str | Connection) -> str | None:
    """None as long as nobody knows what a name stands for."""
    try:
        return resolve_connection(connection).kind
    except FlowError:
        return None


def _origin(function: Callable[..., Any]) -> str:
    code = getattr(function, "__code__", None)
    return place(code.co_filename, code.co_firstlineno) if code else ""


def declare(function: Callable[..., Any], keywords: Mapping[str, Any]) -> BatchPipeline:
    """Check what the decorator was given, all of it at once; nothing is opened or run."""
    if not inspect.isfunction(function):
        raise DeclarationError("@ematix.pipeline", [Problem("", f"found {shown(function)}", "a function")])
    given = {key: value for key, value in keywords.items() if value is not None}
    problems, job = _misfits(function, given), None
    try:
        known = {key: value for key, value in given.items() if key in Job.model_fields}
        job = Job.model_validate({"name": function.__name__, **known})
    except ValidationError as error:
        problems += problems_of(error, Job)
    else:
        if not any(problem.key == "target" for problem in problems):
            problems += _unknown_columns(job) or _impossible(function, job)
    if problems or job is None:
        subject = f'pipeline "{given.get("name") or function.__name__}"'
        raise DeclarationError(subject, problems, origin=_origin(function))
    return pipelines.register_batch(BatchPipeline(function, job))


def _misfits(function: Callable[..., Any], keywords: Mapping[str, Any]) -> list[Problem]:
    known = list(Job.model_fields)
    problems = [
        Problem(key, "unknown keyword", suggestion=near(key, known)) for key in keywords if key not in Job.model_fields
    ]
    parameters = list(inspect.signature(function).parameters)
    if len(parameters) > 2:
        problems.append(
            Problem("", f"the function takes {', '.join(parameters)}", "none, the source, or source, target")
        )
    if bool(keywords.get("target")) == bool(keywords.get("targets")):
        both = "given together with targets" if keywords.get("target") else "missing"
        problems.append(Problem("target", both, "target=Cls, or targets=[ematix.target(Cls, ...)]"))
    schedule, zone = keywords.get("schedule"), keywords.get("timezone")
    if isinstance(schedule, str) and (wrong := schedule_problem(schedule)):
        problems.append(Problem("schedule", f'found "{schedule}": {wrong}', 'five fields of cron, such as "0 6 * * *"'))
    if isinstance(zone, str) and not _is_zone(zone):
        problems.append(Problem("timezone", f'found "{zone}"', 'a name such as "UTC" or "Europe/Berlin"'))
    return problems


def _is_zone(name: str) -> bool:
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return False
    return True


def _impossible(function: Callable[..., Any], job: Job) -> list[Problem]:
    """What the stream that it will be would refuse, whatever the function returns."""
    if job.expectations is not None:
        try:
            expectations_of(job.expectations)
        except DeclarationError as error:
            return list(error.problems)
    pipeline = BatchPipeline(function, job)
    # A function may return another source; then nobody knows yet what it is.
    known = job.source_table and (job.source_connection or job.home)
    source: dict[str, Any] = {"connection": known or "source", "query": "t"}
    source |= {"incremental_column": job.incremental_column, "snapshot": bool(known and pipeline.is_read_anew(known))}
    places = {("sources", 0, "incremental_column"): ("incremental_column",)}
    try:
        targets = [pipeline.target_fields(one) for one in job.all_targets()]
        if not job.targets:
            places |= {("targets", 0, key): (key,) for key in (*JobTarget.model_fields, *targets[0])}
        PipelineSpec.model_validate({"name": job.name, "sources": [source], "targets": targets})
    except ValidationError as error:
        return problems_of(error, PipelineSpec, Spelling(places))  # type: ignore[arg-type]  # of a Loc
    return []


def _unknown_columns(job: Job) -> list[Problem]:
    problems = []
    for one in job.all_targets():
        definition: TableDefinition = one.target.__table__
        for option in ("keys", "update_columns", "compare_columns"):
            for name in getattr(one, option):
                if name not in definition.column_names:
                    allowed = ", ".join(definition.column_names)
                    guess = near(name, definition.column_names)
                    problems.append(Problem(option, f'found "{name}", which is no column', allowed, guess))
    known = [name for one in job.all_targets() for name in one.target.__table__.column_names]
    problems += [
        Problem("column_map", f'found "{name}", which is no column of the target', ", ".join(known), near(name, known))
        for name in job.renamed
        if name not in known
    ]
    problems += _senseless(job, known)
    if len(job.time_columns) > 1:
        found = f"found {', '.join(job.time_columns)}: a row has one time, whatever its target"
        problems.append(Problem("event_timestamp_column", found, "one of them"))
    return problems


def _senseless(job: Job, columns: Sequence[str]) -> list[Problem]:
    """What every field by itself allows, and all of them together do not."""
    problems = []
    added = [column.name for column in (*AUDIT_COLUMNS, *SCD2_COLUMNS)]
    if job.freshness_column and job.freshness_column.lower() not in {name.lower() for name in (*columns, *added)}:
        found, guess = f'found "{job.freshness_column}", which is no column', near(job.freshness_column, columns)
        problems.append(Problem("freshness_column", found, ", ".join(columns), guess))
    if job.incremental_column and any(one.mode == "truncate" for one in job.all_targets()):
        found = 'given with mode = "truncate", which would keep only what came last'
        problems.append(Problem("incremental_column", found, "append, merge or scd2 with it"))
    if job.name in job.depends_on:
        problems.append(Problem("depends_on", f'found "{job.name}", which is the pipeline itself', "other pipelines"))
    return problems
