"""Windowed aggregation: how event time is cut into windows and what is computed in each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, ClassVar, Literal

from pydantic import Field

from ematix_flow.model import Complaint, Declared, check
from ematix_flow.specs.fields import Name, Names, NotNegativeMs, Positive, PositiveMs, Several

LateData = Literal["drop", "reopen", "dlq"]
AGGREGATES = (
    "count", "count_col", "sum", "min", "max", "avg", "first", "last", "count_distinct", "stddev", "variance",
    "percentile", "bool_and", "bool_or", "collect_list", "collect_set", "arg_min", "arg_max",
)  # fmt: skip
"""The built-in aggregates; a registered udaf is one more."""

_WITH_A_CAP = frozenset({"count_distinct", "collect_list", "collect_set"})
_DISTINCT_MODES = ("approximate", "exact")
BY_ANOTHER = ("arg_min", "arg_max")
"""Their `mode` is the column that decides."""


def rank_of(mode: str | None) -> float | None:
    """From 0 to 1: of `p95`, `0.95`, `median`, or nothing, which is the median; None if it is no such thing."""
    if mode in (None, "median"):
        return 0.5
    try:
        rank = Decimal(mode[1:]) / 100 if mode.startswith("p") else Decimal(mode)
        return float(rank) if 0 <= rank <= 1 else None
    except InvalidOperation:
        return None


class Aggregation(Declared):
    """One aggregate of a window."""

    agg: Name
    """Name of the aggregate: count, sum, avg, count_distinct, ... or of a registered udaf."""
    as_: Name = Field(alias="as")
    """Name of the output column."""
    column: Name | None = None
    """Column to aggregate; every aggregate but count needs one."""
    mode: Name | None = None
    """How to compute it, for aggregates that know more than one way: count_distinct is approximate or exact, percentile
    is p95, 0.95 or median, arg_min and arg_max have the column that decides."""
    max_distinct_values_per_group: Positive | None = None
    """Most values kept per group by an exact count_distinct, collect_list or collect_set."""

    @classmethod
    def completed(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        is_short = given.get("agg") == "count_distinct" and given.get("mode") == "approx"
        return {**given, "mode": "approximate"} if is_short else given

    @check
    def _column_fits(self) -> Iterator[Complaint]:
        if self.agg == "count" and self.column is not None:
            yield Complaint(("column",), "count counts rows and takes no column", suggestion="count_col")
        elif self.agg in AGGREGATES and self.agg != "count" and self.column is None:
            yield Complaint(("column",), f"missing; {self.agg} needs a column")

    @check
    def _mode_fits(self) -> Iterator[Complaint]:
        if self.mode is None or self.agg not in AGGREGATES or self.agg in BY_ANOTHER:
            return
        if self.agg == "count_distinct":
            if self.mode not in _DISTINCT_MODES:
                yield Complaint(("mode",), f'found "{self.mode}"', ", ".join(_DISTINCT_MODES))
        elif self.agg != "percentile":
            yield Complaint(("mode",), f'found "{self.mode}", which has no meaning for {self.agg}')
        elif rank_of(self.mode) is None:
            allowed = "median, a percentile such as p95 or p99.9, or a share from 0 to 1 such as 0.95"
            guess = f"p{self.mode}" if rank_of(f"p{self.mode}") is not None else ""
            yield Complaint(("mode",), f'found "{self.mode}"', allowed, guess)

    @check
    def _cap_fits(self) -> Iterator[Complaint]:
        if self.max_distinct_values_per_group is None or self.agg not in AGGREGATES:
            return
        key = ("max_distinct_values_per_group",)
        if self.agg not in _WITH_A_CAP:
            yield Complaint(key, f"has no meaning for {self.agg}, only for {', '.join(sorted(_WITH_A_CAP))}")
        elif self.agg == "count_distinct" and self.mode != "exact":
            yield Complaint(key, 'has no meaning for an approximate count_distinct, only with mode = "exact"')


class Window(Declared):
    """Windows over event time, emitted once the watermark has passed their end."""

    __meant__: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("size_ms", "length_ms", "window_ms", "duration"), "duration_ms"),
        **dict.fromkeys(("slide_ms", "step_ms", "advance_ms"), "hop_ms"),
        **dict.fromkeys(("timeout_ms", "inactivity_ms"), "gap_ms"),
    }

    kind: Literal["tumbling", "hopping", "session"]
    """Fixed windows side by side, overlapping windows, or sessions that a gap ends."""
    aggregations: Several[Aggregation] = Field(min_length=1)
    """What is computed per window and group."""
    duration_ms: PositiveMs | None = None
    """Length of a tumbling or hopping window."""
    hop_ms: PositiveMs | None = None
    """Distance between the starts of two hopping windows."""
    gap_ms: PositiveMs | None = None
    """Longest silence inside a session."""
    max_session_duration_ms: PositiveMs | None = None
    """Longest session; a row that would exceed it starts a new one."""
    event_time_column: Name = "_event_ts"
    """Column with the event time."""
    group_by: Names = ()
    """Columns that each window is grouped by."""
    late_data: LateData = "drop"
    """What happens to rows that come after their window was emitted."""
    allowed_lateness_ms: NotNegativeMs | None = None
    """How long a window stays open to late rows, with `late_data = "reopen"`."""
    max_groups_per_window: Positive = 1_000_000
    """Most groups in one window; more stop the pipeline."""
    window_start_column: Name = "window_start"
    """Name of the output column with the window's start."""
    window_end_column: Name = "window_end"
    """Name of the output column with the window's end."""
    session_id_column: Name = "session_id"
    """Name of the output column with the session's id."""

    @check
    def _lengths_fit_the_kind(self) -> Iterator[Complaint]:
        needed = {"tumbling": ("duration_ms",), "hopping": ("duration_ms", "hop_ms"), "session": ("gap_ms",)}[self.kind]
        optional = ("max_session_duration_ms",) if self.kind == "session" else ()
        for key in ("duration_ms", "hop_ms", "gap_ms", "max_session_duration_ms"):
            value = getattr(self, key)
            if key in needed and value is None:
                yield Complaint((key,), f"missing; a {self.kind} window needs {key}")
            elif (
                value is not None and key not in (*needed, *optional) and not self._is_tumbling_written_as_hopping(key)
            ):
                yield Complaint((key,), f"has no meaning for a {self.kind} window", ", ".join((*needed, *optional)))

    def _is_tumbling_written_as_hopping(self, key: str) -> bool:
        return self.kind == "tumbling" and key == "hop_ms" and self.hop_ms == self.duration_ms

    @check
    def _hops_leave_no_hole(self) -> Iterator[Complaint]:
        if self.kind == "hopping" and self.hop_ms and self.duration_ms and self.hop_ms > self.duration_ms:
            found = f"found {self.hop_ms}; rows between two windows would be in none"
            yield Complaint(("hop_ms",), found, f"at most duration_ms, {self.duration_ms}")

    @check
    def _lateness_fits(self) -> Iterator[Complaint]:
        yield from reopen_complaints(self.late_data, self.allowed_lateness_ms)
        if self.late_data != "reopen" and self.allowed_lateness_ms is not None:
            found = f'has no meaning with late_data = "{self.late_data}", only with "reopen"'
            yield Complaint(("allowed_lateness_ms",), found)

    @check
    def _output_columns_differ(self) -> Iterator[Complaint]:
        taken = {self.window_start_column: "window_start_column"}
        fixed = [("window_end_column", self.window_end_column)]
        fixed += [("session_id_column", self.session_id_column)] if self.kind == "session" else []
        for key, column in fixed:
            if column in taken:
                yield Complaint((key,), f'found "{column}", which is also {taken[column]}', "a name of its own")
            taken.setdefault(column, key)
        for i, column in enumerate(self.group_by):
            if column in taken:
                yield Complaint(("group_by", i), f'found "{column}", which is also {taken[column]}', "each column once")
            taken.setdefault(column, f"group_by[{i}]")
        for i, aggregation in enumerate(self.aggregations):
            if aggregation.as_ in taken:
                found = f'found "{aggregation.as_}", which is also {taken[aggregation.as_]}'
                yield Complaint(("aggregations", i, "as"), found, "a name of its own")
            taken.setdefault(aggregation.as_, f"aggregations[{i}].as")


def reopen_complaints(late_data: str, allowed_lateness_ms: int | None) -> Iterator[Complaint]:
    """To reopen forever would be to keep everything forever."""
    if late_data == "reopen" and allowed_lateness_ms is None:
        yield Complaint(("allowed_lateness_ms",), 'missing; late_data = "reopen" needs it')
