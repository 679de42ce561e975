"""The eight steps of the commit protocol: their names, how long each took, and where a test may end the process."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

STEPS = ("plan", "compute", "stage", "save", "apply", "divert", "release", "commit")

# "apply" or "apply@3" (batch 3): the process is killed, or paused, when it reaches that point. Crash tests set them.
CRASH_AT = "EMATIX_FLOW_CRASH_AT"
PAUSE_AT = "EMATIX_FLOW_PAUSE_AT"
_SIGNALS = {CRASH_AT: signal.SIGKILL, PAUSE_AT: signal.SIGSTOP}


def reached(point: str, batch: int) -> None:
    """Every step calls this as it begins; sinks call it at points inside `apply`."""
    for variable, number in _SIGNALS.items():
        if os.environ.get(variable) in {point, f"{point}@{batch}"}:
            os.kill(os.getpid(), number)


class Stopwatch:
    """Seconds spent in each step of the latest batch."""

    def __init__(self) -> None:
        self.latest: dict[str, float] = {}

    @contextmanager
    def step(self, name: str, batch: int) -> Iterator[None]:
        reached(name, batch)
        started = time.perf_counter()
        try:
            yield
        finally:
            self.latest[name] = time.perf_counter() - started
