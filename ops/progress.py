"""What a person sees while a pipeline runs: a line per batch, or one live line on a terminal, on stderr."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ematix_flow.ops.output import counted
from ematix_flow.ops.settings import Settings
from ematix_flow.specs import PipelineSpec

if TYPE_CHECKING:
    from ematix_flow.streams.runner import BatchReport

# Steps that took less say nothing about where the time went.
_WORTH_TELLING_SECONDS = 0.01
_REDRAW_SECONDS = 0.5
# Long enough to even out the batches, short enough to show that nothing comes any more.
_RATE_OVER_SECONDS = 10.0


class Progress:
    """With JSON logs it is silent: there each batch is an event of the log."""

    def __init__(self, spec: PipelineSpec, settings: Settings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = spec.name
        self._stderr = settings.stderr
        self._silent = settings.log_format == "json"
        self._live = self._stderr.is_terminal and not settings.verbose and not self._silent
        self._clock = clock
        self._began = clock()
        self._batches = self._rows = 0
        self._not_written: Counter[str] = Counter()
        self._recent: deque[tuple[float, int]] = deque()
        self._note = self._latest = ""
        # The batches come from Spark's thread, the clock from ours.
        self._lock = threading.Lock()
        self._over = threading.Event()

    def __enter__(self) -> Self:
        self.note("starting Spark ...")
        if self._live:
            threading.Thread(target=self._redraw, name="progress", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._over.set()
            if self._live:
                self._stderr.clear()

    def tell(self, text: str) -> None:
        """A line that stays."""
        if not self._silent:
            self._stderr.line(f"{self._name}: {text}")

    def started(self) -> None:
        """Spark is up; on a terminal the line no longer says that it is starting."""
        if self._live:
            self.note("waiting for input ...")

    def note(self, text: str) -> None:
        """What is going on; on a terminal, until the next batch."""
        if self._live:
            self._note = text
            self._draw()
        else:
            self.tell(text)

    def batch(self, report: BatchReport) -> None:
        if self._silent:
            return
        if not self._live:
            self._stderr.line(batch_line(report))
            return
        with self._lock:
            self._batches += 1
            self._rows += report.consumed
            self._not_written.update(_not_written(report))
            self._recent.append((self._clock(), report.consumed))
            self._note, self._latest = "", _time(report)
        self._draw()

    def _redraw(self) -> None:
        while not self._over.wait(_REDRAW_SECONDS):
            self._draw()

    def _draw(self) -> None:
        with self._lock:
            if not self._over.is_set():
                self._stderr.live(f"{self._name}: {self._note or self._counts()}")

    def _counts(self) -> str:
        now = self._clock()
        while self._recent and self._recent[0][0] < now - _RATE_OVER_SECONDS:
            self._recent.popleft()
        seconds = max(min(_RATE_OVER_SECONDS, now - self._began), 0.001)
        speed = sum(rows for _, rows in self._recent) / seconds
        parts = [counted(self._batches, "batch"), counted(self._rows, "row"), f"{speed:,.0f} rows/s"]
        return f"{', '.join([*parts, *_told(self._not_written)])}; last {self._latest}"


def batch_line(report: BatchReport) -> str:
    """`orders batch 3: 1,000 rows, 998 written, 2 set aside, 0.41 s (stage 0.30, apply 0.05)`."""
    parts = [counted(report.consumed, "row"), f"{sum(report.written.values()):,} written"]
    parts += [*_told(_not_written(report)), _time(report)]
    return f"{report.pipeline} batch {report.number}: {', '.join(parts)}"


def _not_written(report: BatchReport) -> dict[str, int]:
    """A late row that is kept counts as late and as set aside."""
    late = sum(report.windows.late.values()) if report.windows else 0
    return {"late": late, "set aside": sum(report.dead.values()), "dropped": sum(report.dropped.values())}


def _told(rows: Mapping[str, int]) -> list[str]:
    return [f"{count:,} {fate}" for fate, count in rows.items() if count]


def _time(report: BatchReport) -> str:
    """`0.41 s (stage 0.30, apply 0.05)`."""
    slow = ", ".join(f"{step} {took:.2f}" for step, took in report.seconds.items() if took >= _WORTH_TELLING_SECONDS)
    return f"{sum(report.seconds.values()):.2f} s{f' ({slow})' if slow else ''}"
