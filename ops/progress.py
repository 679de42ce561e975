"""What a person sees while a pipeline runs: a line per batch, or one live line on a terminal, on stderr."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ematix_flow.ops.output import counted
from ematix_flow.ops.settings import Settings
from ematix_flow.specs import PipelineSpec

if TYPE_CHECKING:
    from ematix_flow.streams.runner import BatchReport

# Steps that took less say nothing about where the time went.
_WORTH_TELLING_SECONDS = 0.01
_SET_ASIDE = {"drop": "dropped", "dlq": "set aside", "fail": "bad"}


class Progress:
    """With JSON logs it is silent: there each batch is an event of the log."""

    def __init__(self, spec: PipelineSpec, settings: Settings) -> None:
        self._name, self._on_error = spec.name, spec.transform.on_error
        self._stderr = settings.stderr
        self._silent = settings.log_format == "json"
        self._live = self._stderr.is_terminal and not settings.verbose
        self._began = time.monotonic()
        self._batches = self._rows = 0

    def __enter__(self) -> Self:
        self.note("starting Spark ...")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._stderr.clear()

    def note(self, text: str) -> None:
        if not self._silent:
            say = self._stderr.live if self._live else self._stderr.line
            say(f"{self._name}: {text}")

    def batch(self, report: BatchReport) -> None:
        if self._silent:
            return
        if not self._live:
            self._stderr.line(batch_line(report, self._on_error))
            return
        self._batches += 1
        self._rows += report.consumed
        speed = self._rows / max(time.monotonic() - self._began, 0.001)
        self._stderr.live(
            f"{self._name}: {counted(self._batches, 'batch')}, {counted(self._rows, 'row')}, {speed:,.0f} rows/s; "
            f"{batch_line(report, self._on_error)}"
        )


def batch_line(report: BatchReport, on_error: str) -> str:
    """`orders batch 3: 1,000 rows, 998 written, 2 set aside, 0.41 s (stage 0.30, apply 0.05)`."""
    parts = [counted(report.consumed, "row"), f"{sum(report.written.values()):,} written"]
    if bad := sum(report.bad.values()):
        parts.append(f"{bad:,} {_SET_ASIDE[on_error]}")
    slow = ", ".join(f"{step} {took:.2f}" for step, took in report.seconds.items() if took >= _WORTH_TELLING_SECONDS)
    parts.append(f"{sum(report.seconds.values()):.2f} s{f' ({slow})' if slow else ''}")
    return f"{report.pipeline} batch {report.number}: {', '.join(parts)}"
