"""Whether a pipeline is alive and whether it is ready, from what its run tells."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ematix_flow.errors import UsageError

if TYPE_CHECKING:
    from ematix_flow.streams.runner import BatchReport

STUCK_AFTER = "EMATIX_FLOW_STUCK_AFTER_SECS"
_STUCK_AFTER_SECONDS = 600.0


@dataclass(frozen=True)
class Answer:
    ok: bool
    reason: str


class Health:
    """Alive: the run has not ended. Ready: it commits batches, or found nothing to read, and no batch is stuck."""

    def __init__(self, stuck_after: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._stuck_after = _stuck_after() if stuck_after is None else stuck_after
        self._idle: Callable[[], bool] | None = None
        self._working: tuple[int, str, float] | None = None
        self._committed: int | None = None
        self._ended = ""

    def started(self, idle: Callable[[], bool]) -> None:
        """The query runs; `idle` tells whether it found nothing to read."""
        self._idle = idle

    def step(self, step: str, batch: int) -> None:
        """A step of a batch begins."""
        began = self._working[2] if self._working and self._working[0] == batch else self._clock()
        self._working = (batch, step, began)

    def batch(self, report: BatchReport) -> None:
        self._working, self._committed = None, report.number

    def ended(self, reason: str) -> None:
        self._ended = reason

    def idle(self) -> bool:
        """Whether the pipeline looked for input and found none."""
        try:
            return self._working is None and self._idle is not None and self._idle()
        except Exception:  # noqa: BLE001 - whatever the bridge to Java raises when there is nobody at the other end
            return False

    def alive(self) -> Answer:
        return Answer(False, self._ended) if self._ended else Answer(True, "the process is alive")

    def ready(self) -> Answer:
        if self._ended:
            return Answer(False, self._ended)
        # Read once: the runner's thread goes on while this one answers.
        working = self._working
        if working is not None:
            batch, step, began = working
            took = self._clock() - began
            if took > self._stuck_after:
                return Answer(False, f"batch {batch} is stuck: in step {step}, after {took:.0f} s")
        if self._committed is not None:
            return Answer(True, f"batch {self._committed} was committed")
        if working is not None:
            return Answer(False, "the first batch is in progress")
        return self._before_the_first_batch()

    def _before_the_first_batch(self) -> Answer:
        if self._idle is None:
            return Answer(False, "starting")
        try:
            idle = self._idle()
        except Exception:  # noqa: BLE001 - whatever the bridge to Java raises when there is nobody at the other end
            return Answer(False, "Spark does not answer")
        return Answer(True, "there is nothing to read") if idle else Answer(False, "looking for input")


def _stuck_after() -> float:
    text = os.environ.get(STUCK_AFTER)
    if not text:
        return _STUCK_AFTER_SECONDS
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{STUCK_AFTER} is {text!r}", next_step="give a number of seconds, such as 600") from None
