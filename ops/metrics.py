"""What a running pipeline counts, for Prometheus: one registry per run, names that begin with `ematix_streaming_`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ematix_flow.specs import PipelineSpec
from ematix_flow.streams.change_tables import with_tables
from ematix_flow.streams.lagging import lag_of
from ematix_flow.streams.steps import STEPS

if TYPE_CHECKING:
    from prometheus_client import Counter, Gauge, Histogram
    from prometheus_client.core import GaugeMetricFamily

    from ematix_flow.streams.open_windows import Told
    from ematix_flow.streams.runner import BatchReport

_PREFIX = "ematix_streaming"
_SIDES = ("left", "right")
# From a step that only writes a file to a batch that takes minutes.
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class _LagOf:
    """Asked of the sources when somebody asks for the metrics."""

    def __init__(self, pipeline: str) -> None:
        self._pipeline = pipeline

    def describe(self) -> list[GaugeMetricFamily]:
        """Nothing, so that nobody is asked when it is registered."""
        return []

    def collect(self) -> Iterator[GaugeMetricFamily]:
        from prometheus_client.core import GaugeMetricFamily

        lag = lag_of(self._pipeline)
        if lag is None:
            return
        words = "Records that are there and in no committed batch."
        records = GaugeMetricFamily(f"{_PREFIX}_consumer_lag", words, labels=["pipeline", "topic", "partition"])
        for (topic, partition), count in lag.records.items():
            records.add_metric([self._pipeline, topic, str(partition)], count)
        words = "How long the oldest of the records that are in no committed batch has been waiting."
        seconds = GaugeMetricFamily(f"{_PREFIX}_lag_seconds", words, labels=["pipeline"])
        seconds.add_metric([self._pipeline], lag.seconds)
        yield records
        yield seconds


class Metrics:
    """Counts from the start of this process, as Prometheus expects; only restarts and errors are carried over."""

    def __init__(self, spec: PipelineSpec, *, restarts: int = 0) -> None:
        from prometheus_client import CollectorRegistry

        self.registry = CollectorRegistry()
        self._labels = {"pipeline": spec.name}
        self._sources = spec.source_names
        self._lateness = spec.watermark.lateness_ms / 1000
        self._state_bytes: dict[str, int] = {}
        self._has_window, self._has_join = spec.transform.window is not None, spec.transform.join is not None
        counter, gauge, histogram = self._counter, self._gauge, self._histogram
        self._consumed = counter("rows_consumed", "Rows taken from the sources, bad ones included.")
        self._written = counter("rows_written", "Rows that became visible in a target.", "target")
        self._batches = counter("batches", "Batches committed.")
        self._errors = counter("errors", "Errors that ended a run of the pipeline.")
        self._dead = counter("dlq_writes", "Bad rows kept as dead letters, by the stage that found them.", "stage")
        self._dropped = counter("rows_dropped", "Bad rows dropped, by the stage that found them.", "stage")
        self._restarts = counter("restarts", "Times the supervisor started the pipeline again.")
        self._idle = counter("idle_iterations", "Times that the pipeline looked for input and found none.")
        self._seconds = histogram("batch_duration_seconds", "Time of a batch by step of the commit protocol.", "step")
        self._latency = histogram(
            "end_to_end_latency_seconds",
            "Time from the latest event of a batch until the batch was committed, of batches that wrote rows.",
        )
        self._last_commit = gauge(
            "last_commit_timestamp", "When the latest batch was committed, in seconds since 1970; 0 before the first."
        )
        self._changes: dict[str, Counter] = {}
        if spec.transform.cdc is not None:
            self._declare_changes()
        if self._has_window:
            self._declare_windows()
        if self._has_join:
            self._declare_join()
        if operator := spec.transform.join or spec.transform.window:
            self._declare_state(operator.late_data)
        self.registry.register(_LagOf(spec.name))
        # A series that is there from the start shows its first increase; one that appears with it does not.
        for metric in (self._consumed, self._batches, self._idle, self._latency, self._last_commit):
            metric.labels(**self._labels)
        for target in with_tables(spec).target_names:
            self._written.labels(**self._labels, target=target)
        for step in STEPS:
            self._seconds.labels(**self._labels, step=step)
        self._errors.labels(**self._labels).inc(restarts)
        self._restarts.labels(**self._labels).inc(restarts)

    def batch(self, report: BatchReport) -> None:
        self._consumed.labels(**self._labels).inc(report.consumed)
        self._batches.labels(**self._labels).inc()
        self._last_commit.labels(**self._labels).set_to_current_time()
        for target, rows in report.written.items():
            self._written.labels(**self._labels, target=target).inc(rows)
        for stage, rows in report.dead.items():
            self._dead.labels(**self._labels, stage=stage).inc(rows)
        for stage, rows in report.dropped.items():
            self._dropped.labels(**self._labels, stage=stage).inc(rows)
        for name, metric in self._changes.items():
            metric.labels(**self._labels).inc(report.changes.get(name, 0))
        if self._changes:
            self._held_changes.labels(**self._labels).set(report.held.changes)
            self._held_transactions.labels(**self._labels).set(report.held.transactions)
        if report.windows is not None:
            self._told(report.windows, report.operator or "")
        for step, seconds in report.seconds.items():
            self._seconds.labels(**self._labels, step=step).observe(seconds)
        if report.latest is not None and any(report.written.values()):
            self._latency.labels(**self._labels).observe(max(0, time.time() - report.latest / 1_000_000))

    def idle(self) -> None:
        self._idle.labels(**self._labels).inc()

    def _declare_changes(self) -> None:
        words = {
            "creates": "Changes that create rows, snapshots included.",
            "updates": "Changes that update rows.",
            "deletes": "Changes that delete rows.",
            "skipped": "Records that change nothing, such as tombstones.",
            "idempotent_skipped": "Changes older than what the target has.",
        }
        self._changes = {name: self._counter(f"cdc_{name}", text) for name, text in words.items()}
        self._held_changes = self._gauge(
            "cdc_held_changes", "Changes that wait for the rest of their transactions, with transactional = true."
        )
        self._held_transactions = self._gauge("cdc_held_transactions", "Transactions that are not complete.")
        for metric in (*self._changes.values(), self._held_changes, self._held_transactions):
            metric.labels(**self._labels)

    def _declare_windows(self) -> None:
        self._emitted = self._counter("windows_emitted", "Results of windows emitted, one per window and group.")
        self._active = self._gauge("windows_active", "Windows, or sessions, that are held.")
        self._groups = self._gauge("state_groups_total", "Groups in all windows that are held.")
        for metric in (self._emitted, self._active, self._groups):
            metric.labels(**self._labels)

    def _declare_join(self) -> None:
        self._buffers = self._gauge("join_buffer_rows", "Rows that wait for partners, by side.", "side")
        self._late_by_side = self._counter("join_late_rows", "Rows that came too late to be joined, by side.", "side")
        for side in _SIDES:
            self._buffers.labels(**self._labels, side=side)
            self._late_by_side.labels(**self._labels, side=side)

    def _declare_state(self, late_data: str) -> None:
        self._late = self._counter("late_rows_dropped", "Rows that came too late, by what was done.", "policy")
        self._bytes = self._gauge("state_bytes", "Size of the state of the operator.")
        self._watermark = self._gauge(
            "watermark_seconds", "How far event time has come in a source, in seconds since 1970.", "source"
        )
        self._bytes.labels(**self._labels)
        self._late.labels(**self._labels, policy=late_data)

    def _told(self, told: Told, operator: str) -> None:
        if operator == "window":
            self._emitted.labels(**self._labels).inc(told.emitted)
            self._active.labels(**self._labels).set(told.held.windows)
            self._groups.labels(**self._labels).set(told.held.groups)
        if operator == "join":
            for side in _SIDES:
                self._buffers.labels(**self._labels, side=side).set(told.held.buffers.get(side, 0))
                self._late_by_side.labels(**self._labels, side=side).inc(told.late_by_side[side])
        self._state_bytes[operator] = told.held.state_bytes
        self._bytes.labels(**self._labels).set(sum(self._state_bytes.values()))
        for policy, rows in told.late.items():
            self._late.labels(**self._labels, policy=policy).inc(rows)
        if operator == "window" and self._has_join:
            return  # its source is the join
        for source, latest in zip(self._sources, told.held.latest, strict=True):
            if latest is not None:
                self._watermark.labels(**self._labels, source=source).set(latest / 1_000_000 - self._lateness)

    def _counter(self, name: str, words: str, *labels: str) -> Counter:
        from prometheus_client import Counter

        return Counter(f"{_PREFIX}_{name}", words, ["pipeline", *labels], registry=self.registry)

    def _gauge(self, name: str, words: str, *labels: str) -> Gauge:
        from prometheus_client import Gauge

        return Gauge(f"{_PREFIX}_{name}", words, ["pipeline", *labels], registry=self.registry)

    def _histogram(self, name: str, words: str, *labels: str) -> Histogram:
        from prometheus_client import Histogram

        return Histogram(f"{_PREFIX}_{name}", words, ["pipeline", *labels], buckets=_SECONDS, registry=self.registry)

    def failed(self) -> None:
        self._errors.labels(**self._labels).inc()

    def value(self, name: str, **labels: str) -> float | None:
        """One sample, such as `value("rows_written_total", target="orders")`; None if there is no such series."""
        return self.registry.get_sample_value(f"{_PREFIX}_{name}", {**self._labels, **labels})

    def text(self) -> bytes:
        """All of them in the text format of Prometheus."""
        from prometheus_client import generate_latest

        return generate_latest(self.registry)
