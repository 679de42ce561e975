"""Waiting for what another thread or process does."""

import time
from collections.abc import Callable
from typing import Any


def wait_for(condition: Callable[[], Any]) -> Any:
    """What it gives, as soon as that is true; a minute at the most."""
    deadline = time.monotonic() + 60
    while not (answer := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return answer
