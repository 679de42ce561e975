"""How a pipeline is told to stop: an event, set by the caller or by SIGTERM and SIGINT."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def asked_to_stop(given: threading.Event | None = None) -> Iterator[threading.Event]:
    """The caller's event, or one that the signals set while the main thread is in here."""
    if given is not None or threading.current_thread() is not threading.main_thread():
        yield given or threading.Event()
        return
    asked = threading.Event()
    before = {number: signal.signal(number, lambda *_: asked.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
