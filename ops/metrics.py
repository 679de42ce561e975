"""What a running pipeline counts, for Prometheus: one registry per run, names that begin with `ematix_streaming_`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ematix_flow.specs import PipelineSpec
from ematix_flow.state.kernel import NO_WATERMARK
from ematix_flow.streams.lagging import lag_of
from ematix_flow.streams.steps import STEPS

if TYPE_CHECKING:
    from prometheus_client import Counter, Gauge
    from prometheus_client.core import GaugeMetricFamily

    from ematix_flow.streams.open_windows import Told
    from ematix_flow.streams.runner import BatchReport

_PREFIX = "ematix_streaming"
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
        from prometheus_client import CollectorRegistry, Histogram

        self.registry = CollectorRegistry()
        self._labels = {"pipeline": spec.name}
        self._sources = spec.source_names
        counter, gauge = self._counter, self._gauge
        self._consumed = counter("rows_consumed", "Rows taken from the sources, bad ones included.")
        self._written = counter("rows_written", "Rows that became visible in a target.", "target")
        self._batches = counter("batches", "Batches committed.")
        self._errors = counter("errors", "Errors that ended a run of the pipeline.")
        self._dead = counter("dlq_writes", "Bad rows kept as dead letters, by the stage that found them.", "stage")
        self._dropped = counter("rows_dropped", "Bad rows dropped, by the stage that found them.", "stage")
        self._restarts = counter("restarts", "Times the supervisor started the pipeline again.")
        self._seconds = Histogram(
            f"{_PREFIX}_batch_duration_seconds",
            "Time of a batch by step of the commit protocol.",
            ["pipeline", "step"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._last_commit = gauge(
            "last_commit_timestamp", "When the latest batch was committed, in seconds since 1970; 0 before the first."
        )
        if spec.transform.window is not None:
            self._declare_windows(spec)
        self.registry.register(_LagOf(spec.name))
        # A series that is there from the start shows its first increase; one that appears with it does not.
        for metric in (self._consumed, self._batches, self._last_commit):
            metric.labels(**self._labels)
        for target in spec.target_names:
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
        if report.windows is not None:
            self._windows_told(report.windows, report.watermark)
        for step, seconds in report.seconds.items():
            self._seconds.labels(**self._labels, step=step).observe(seconds)

    def _declare_windows(self, spec: PipelineSpec) -> None:
        counter, gauge = self._counter, self._gauge
        self._emitted = counter("windows_emitted", "Results of windows emitted, one per window and group.")
        self._late = counter("late_rows_dropped", "Rows that came after their window, by what was done.", "policy")
        self._active = gauge("windows_active", "Windows, or sessions, that are held.")
        self._groups = gauge("state_groups_total", "Groups in all windows that are held.")
        self._bytes = gauge("state_bytes", "Size of the state of the operator.")
        self._watermark = gauge("watermark_seconds", "How far event time has come, in seconds since 1970.", "source")
        for metric in (self._emitted, self._active, self._groups, self._bytes):
            metric.labels(**self._labels)
        assert spec.transform.window is not None
        self._late.labels(**self._labels, policy=spec.transform.window.late_data)

    def _windows_told(self, told: Told, watermark: int | None) -> None:
        self._emitted.labels(**self._labels).inc(told.emitted)
        self._active.labels(**self._labels).set(told.held.windows)
        self._groups.labels(**self._labels).set(told.held.groups)
        self._bytes.labels(**self._labels).set(told.held.state_bytes)
        for policy, rows in told.late.items():
            self._late.labels(**self._labels, policy=policy).inc(rows)
        if watermark is not None and watermark != NO_WATERMARK:
            for source in self._sources:
                self._watermark.labels(**self._labels, source=source).set(watermark / 1_000_000)

    def _counter(self, name: str, words: str, *labels: str) -> Counter:
        from prometheus_client import Counter

        return Counter(f"{_PREFIX}_{name}", words, ["pipeline", *labels], registry=self.registry)

    def _gauge(self, name: str, words: str, *labels: str) -> Gauge:
        from prometheus_client import Gauge

        return Gauge(f"{_PREFIX}_{name}", words, ["pipeline", *labels], registry=self.registry)

    def failed(self) -> None:
        self._errors.labels(**self._labels).inc()

    def value(self, name: str, **labels: str) -> float | None:
        """One sample, such as `value("rows_written_total", target="orders")`; None if there is no such series."""
        return self.registry.get_sample_value(f"{_PREFIX}_{name}", {**self._labels, **labels})

    def text(self) -> bytes:
        """All of them in the text format of Prometheus."""
        from prometheus_client import generate_latest

        return generate_latest(self.registry)
